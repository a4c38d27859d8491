"""The engine that a name asks for, on a model that may not be able to do it."""

import logging
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch.func import vmap

from idiolect.core import tree
from idiolect.core.hyper import STRICT
from idiolect.engines.base import Engine, Setting
from idiolect.engines.processes import Processes
from idiolect.engines.sequential import Sequential
from idiolect.engines.vectorised import Vectorised

EngineName = Literal["vectorised", "sequential", "ray"]

logger = logging.getLogger("idiolect")


@dataclass(frozen=True, config=STRICT)
class HereEngine:
    """An engine in this process."""

    name: Literal["vectorised", "sequential"] = "vectorised"


@dataclass(frozen=True, config=STRICT)
class RayEngineChoice:
    """Blocks of clients on Ray actors."""

    workers: int = Field(default=2, ge=1, description="actors, each with a block of the clients")
    address: str | None = Field(default=None, description="of a running cluster; None: on this machine")
    name: Literal["ray"] = "ray"


def build_engine(choice: EngineName | HereEngine | RayEngineChoice, setting: Setting) -> Engine:
    """The chosen engine; parallel processes, with a line in the log, for a model that cannot be stacked."""
    if isinstance(choice, str):
        choice = RayEngineChoice() if choice == "ray" else HereEngine(choice)
    if isinstance(choice, RayEngineChoice):
        from idiolect.engines.ray import RayEngine  # needs an extra

        return RayEngine(setting, workers=choice.workers, address=choice.address)
    if choice.name == "sequential":
        return Sequential(setting)
    obstacle = stacking_obstacle(setting)
    if obstacle is None:
        return Vectorised(setting)
    engine = Processes(setting)
    logger.warning(
        "%s cannot be run for many clients at once, so clients run one at a time in %d processes (%s)",
        type(setting.objective.module).__name__,
        engine.workers,
        obstacle,
    )
    return engine


def stacking_obstacle(setting: Setting) -> str | None:
    """Why the model's gradient cannot be taken for a stack of clients; None if it can. Found by trying."""
    batches, ids = setting.batches, torch.zeros(2, dtype=torch.int64)
    width = int(batches.batch_sizes[0])
    batch = batches.gather(batches.draw(ids, 0, torch.tensor(0), width), batches.weights(ids, width))
    params = tree.map_tree(torch.clone, tree.repeat(setting.objective.initial_params(), len(ids)))
    try:
        vmap(setting.objective.gradient)(params, batch)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
        return str(error).strip().split("\n")[0].split(". ")[0] or type(error).__name__
    return None
