"""From a configuration to what it is played with."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from idiolect.aggregation.outer import Outer
from idiolect.aggregation.robust import Robust
from idiolect.core.device import find_device
from idiolect.core.fixed import fingerprint as weights_fingerprint
from idiolect.core.method import Method
from idiolect.data.catalogue import CATALOGUE as DATA
from idiolect.data.catalogue import is_name, load
from idiolect.data.federation import Federation, fingerprint, upper_class_shares
from idiolect.data.hints import listed
from idiolect.engines.assembly import set_up
from idiolect.engines.engine import Setting
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import build_model
from idiolect.models.preparation import Preparation, without_preparation
from idiolect.participation import Participation
from idiolect.participation.sampling import Plan
from idiolect.privacy.row_private import RowPrivate
from idiolect.privacy.settings import RowPrivacy, SiloPrivacy
from idiolect.privacy.silo_private import SiloPrivate
from idiolect.runs.config import AT_SILOS, RunConfig, build_method
from idiolect.runs.signatures import dump
from idiolect.simulation import Simulation
from idiolect.store.disk import DiskStore
from idiolect.store.roster import Roster
from idiolect.store.store import Store


class Parties(NamedTuple):
    """Those who take part in training, and those who come after it."""

    federation: Federation
    newcomers: Federation | None


def load_federation(config: RunConfig) -> Federation:
    """Those who take part in training."""
    return load_parties(config).federation


def load_parties(config: RunConfig) -> Parties:
    """The data; `data.seed` fixes the split, and who is left out, while the run's seed varies."""
    everybody = _load(config)
    seed = config.data.get("seed", config.seed)
    places = config.newcomers.among(everybody.names, seed)
    if not places:
        return Parties(everybody, None)
    left_out = [everybody.names[place] for place in places]
    if _has_statistics(config, everybody):
        everybody = _load(config, left_out)  # so that these are of the others alone
    others = [place for place, name in enumerate(everybody.names) if name not in left_out]
    federation = everybody.subset(others)
    note = f"newcomers, left out of training: {listed(left_out)}"
    return Parties(replace(federation, notes=(note, *federation.notes)), everybody.subset(places))


def _has_statistics(config: RunConfig, federation: Federation) -> bool:
    """Whether some of the data may follow from rows of several clients: scales, class weights, whatever."""
    name = config.data["name"]
    is_own = isinstance(name, str) and is_name(name) and DATA.is_own(name)
    return is_own or federation.preprocessing is not None or bool(federation.task.class_weights)


def _load(config: RunConfig, left_out: Sequence[str] = ()) -> Federation:
    if config.at_silos:
        raise UserError(f"data={AT_SILOS} stands for tables that are at silos: use `idiolect serve`")
    options = dict(config.data)
    name = options.pop("name")
    if "left_out" in options:
        raise UserError("data.left_out is not a setting: newcomers.clients says who is left out of training")
    if isinstance(name, Federation):
        return name
    return load(name, **{"seed": config.seed, **options}, left_out=left_out)


def build_setting(config: RunConfig, federation: Federation, store: Store | None = None) -> Setting:
    """What a run is played with: in a simulation, at a coordinator and at a silo alike."""
    options = dict(config.model)
    model = options.pop("name")
    preparation = preparation_of(config)
    if isinstance(model, str):
        model = build_model(model, federation, seed=config.seed, **options)
    else:
        model = preparation.prepare_copy(model, config.seed)
    return set_up(
        _method_of(config, noise_origin(config, federation, model)),
        model,
        federation,
        seed=config.seed,
        batch_size=None if config.batch_size == "all" else config.batch_size,
        weight_decay=config.weight_decay,
        dtype=torch.float64 if config.dtype == "float64" else torch.float32,
        clip=config.clip,
        statistics=config.statistics,
        store=store,
        train=config.train or ("adapter" if preparation.adapter else None),
        device=find_device(config.device),
    )


def noise_origin(config: RunConfig, federation: Federation, model: nn.Module) -> str:
    """What a private run's noise follows from besides its seed: all that it computes with, and its rows.

    Silos have secrets instead.
    """
    if config.privacy is None or config.at_silos:
        return ""
    method = build_method(config.method)
    told: list[Any] = [fingerprint(federation), method.name, dump(method)]
    told += [getattr(config, name) for name in ("model", "train", "batch_size", "weight_decay", "clip")]
    told += [dump(part) if part else None for part in (config.privacy, config.outer, config.robust)]
    told += [dump(config.codec), config.statistics, config.dtype]
    told += _rarely_chosen(config, federation, model)
    text = json.dumps(told, sort_keys=True, default=lambda thing: type(thing).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()


def _rarely_chosen(config: RunConfig, federation: Federation, model: nn.Module) -> list[Any]:
    """What noise follows from besides, where it is chosen: runs without it keep the noise that they had."""
    told: list[Any] = []
    if config.participation != Participation():
        told.append(dump(config.participation))
    if federation.task.class_weights:
        told.append(federation.task.class_weights)
    if not isinstance(config.model["name"], str) or preparation_of(config).file_options:
        told.append(weights_fingerprint(dict(model.named_parameters())))  # no setting says which they are
    return told


def _method_of(config: RunConfig, origin: str) -> Method:
    """The method with what the settings put around it."""
    method = build_method(config.method)
    if config.outer is not None:
        method = Outer(method, config.outer)
    if isinstance(config.privacy, RowPrivacy):
        batch_size = None if config.batch_size == "all" else config.batch_size
        method = RowPrivate(method, config.privacy, batch_size, origin)
    if isinstance(config.privacy, SiloPrivacy):
        method = SiloPrivate(method, config.privacy, adds_noise=not config.at_silos, origin=origin)
    if config.robust is not None:
        method = Robust(method, config.robust)
    return config.codec.wrap(method)


def preparation_of(config: RunConfig) -> Preparation:
    """What is done to the model before the run."""
    name = config.model["name"]
    factory = MODELS.find(name) if isinstance(name, str) else None
    return Preparation.of(without_preparation(config.model, factory)[1])


def build_simulation(config: RunConfig, federation: Federation, way: Way | None = None) -> Simulation:
    """Everything that a run moves, before its first round; `way`: how its clients were computed before."""
    return Simulation.of(
        build_setting(config, federation), bound_plan(config, federation), config.engine, way
    )


def bound_plan(config: RunConfig, federation: Federation) -> Plan:
    """Who takes part, among the clients that there are."""
    participation = config.participation
    upper_shares = upper_class_shares(federation) if participation.looks_at_classes else None
    return participation.bind(federation.names, upper_shares)


def place_states(simulation: Simulation, config: RunConfig, folder: Path) -> None:
    """Keep the states of a fresh simulation's clients where the configuration says: in a run's folder."""
    if config.at_silos:
        simulation.engine.setting.store = Roster(len(simulation.federation))
    elif config.store == "disk":
        simulation.engine.setting.store = DiskStore(len(simulation.federation), folder / "states")
