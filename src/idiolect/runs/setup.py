"""From a configuration to a simulation."""

from pathlib import Path

import torch

from idiolect.data.catalogue import load
from idiolect.data.federation import Federation
from idiolect.models import build_model
from idiolect.runs.config import RunConfig, build_method
from idiolect.simulation import Simulation
from idiolect.store.disk import DiskStore


def load_federation(config: RunConfig) -> Federation:
    """The data; `data.seed` fixes the split while the run's seed varies."""
    options = dict(config.data)
    name = options.pop("name")
    return name if isinstance(name, Federation) else load(name, **{"seed": config.seed, **options})


def build_simulation(config: RunConfig, federation: Federation) -> Simulation:
    """Everything that a run moves, before its first round."""
    options = dict(config.model)
    model = options.pop("name")
    if isinstance(model, str):
        model = build_model(model, federation, seed=config.seed, **options)
    return Simulation(
        config.codec.wrap(build_method(config.method)),
        model,
        federation,
        plan=config.participation.bind(federation.names),
        seed=config.seed,
        batch_size=None if config.batch_size == "all" else config.batch_size,
        weight_decay=config.weight_decay,
        dtype=torch.float64 if config.dtype == "float64" else torch.float32,
        engine=config.engine,
    )


def place_states(simulation: Simulation, config: RunConfig, folder: Path) -> None:
    """Keep the states of a fresh simulation's clients where the configuration says: in a run's folder."""
    if config.store == "disk":
        simulation.engine.setting.store = DiskStore(len(simulation.federation), folder / "states")
