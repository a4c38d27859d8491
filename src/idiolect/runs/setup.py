"""From a configuration to what it is played with."""

from pathlib import Path

import torch

from idiolect.data.catalogue import load
from idiolect.data.federation import Federation
from idiolect.engines.assembly import set_up
from idiolect.engines.engine import Setting
from idiolect.errors import UserError
from idiolect.models import build_model
from idiolect.runs.config import AT_SILOS, RunConfig, build_method
from idiolect.simulation import Simulation
from idiolect.store.disk import DiskStore
from idiolect.store.roster import Roster
from idiolect.store.store import Store


def load_federation(config: RunConfig) -> Federation:
    """The data; `data.seed` fixes the split while the run's seed varies."""
    if config.at_silos:
        raise UserError(f"data={AT_SILOS} stands for tables that are at silos: use `idiolect serve`")
    options = dict(config.data)
    name = options.pop("name")
    return name if isinstance(name, Federation) else load(name, **{"seed": config.seed, **options})


def build_setting(config: RunConfig, federation: Federation, store: Store | None = None) -> Setting:
    """What a run is played with: in a simulation, at a coordinator and at a silo alike."""
    options = dict(config.model)
    model = options.pop("name")
    if isinstance(model, str):
        model = build_model(model, federation, seed=config.seed, **options)
    return set_up(
        config.codec.wrap(build_method(config.method)),
        model,
        federation,
        seed=config.seed,
        batch_size=None if config.batch_size == "all" else config.batch_size,
        weight_decay=config.weight_decay,
        dtype=torch.float64 if config.dtype == "float64" else torch.float32,
        clip=config.clip,
        store=store,
    )


def build_simulation(config: RunConfig, federation: Federation) -> Simulation:
    """Everything that a run moves, before its first round."""
    plan = config.participation.bind(federation.names)
    return Simulation.of(build_setting(config, federation), plan, config.engine)


def place_states(simulation: Simulation, config: RunConfig, folder: Path) -> None:
    """Keep the states of a fresh simulation's clients where the configuration says: in a run's folder."""
    if config.at_silos:
        simulation.engine.setting.store = Roster(len(simulation.federation))
    elif config.store == "disk":
        simulation.engine.setting.store = DiskStore(len(simulation.federation), folder / "states")
