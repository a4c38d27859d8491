"""What every engine is given, and the engine that a configuration asks for."""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from idiolect.codecs.choice import with_own_codec
from idiolect.core.architectures import with_architectures
from idiolect.core.around import innermost_method
from idiolect.core.device import CPU
from idiolect.core.fixed import training_only
from idiolect.core.hyper import STRICT
from idiolect.core.method import Method
from idiolect.core.modules import names_of_tied_parameters
from idiolect.core.objective import Objective, in_precision, seeded_module
from idiolect.core.observed import observed
from idiolect.core.parts import PartRule, Patterns, last_module, layer_of
from idiolect.core.statistics import Variant, with_statistics
from idiolect.core.task import Task
from idiolect.data.federation import Federation
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.engine import LocalEngine, Setting
from idiolect.engines.sequential import Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.privacy.row_private import row_privacy_of
from idiolect.privacy.silo_private import silo_privacy_of
from idiolect.store.memory import MemoryStore
from idiolect.store.store import Store

EngineName = Literal["vectorised", "sequential", "ray"]

_OPTIMISE = "whether local steps are recorded and rewritten; None: until one of them proves to be wrong"


@dataclass(frozen=True, config=STRICT)
class HereEngine:
    """An engine in this process."""

    name: Literal["vectorised", "sequential"] = "vectorised"
    optimise: bool | None = Field(default=None, description=_OPTIMISE)


@dataclass(frozen=True, config=STRICT)
class RayEngineChoice:
    """Blocks of clients on Ray actors."""

    workers: int = Field(default=2, ge=1, description="actors, each with a block of the clients")
    address: str | None = Field(default=None, description="of a running cluster; None: on this machine")
    name: Literal["ray"] = "ray"
    optimise: bool | None = Field(default=None, description=_OPTIMISE)


ENGINES: dict[str, type[HereEngine | RayEngineChoice]] = {
    "vectorised": HereEngine,
    "sequential": HereEngine,
    "ray": RayEngineChoice,
}


def set_up(
    method: Method,
    model: nn.Module | Callable[[], nn.Module],
    federation: Federation,
    *,
    seed: int,
    batch_size: int | None,
    weight_decay: float,
    dtype: torch.dtype,
    clip: float | None = None,
    store: Store | None = None,
    round_steps: int | None = None,
    statistics: Variant | None = None,
    train: PartRule | Patterns | None = None,
    device: torch.device = CPU,
) -> Setting:
    """The method with its own codec and what it declares to observe, model and data in one precision.

    statistics: what becomes of the statistics of normalisation layers; None: what suits the method.
    train: the part of the model that is trained; None: all that the model does not hold fixed itself.
    device: where clients are computed; first models are drawn on the CPU all the same.
    """
    _refuse_unfit_task(method, federation.task)
    federation = federation.to(dtype)
    module = in_precision(model, dtype) if isinstance(model, nn.Module) else seeded_module(model, seed, dtype)
    module = (module if train is None else training_only(module, train)).to(CPU)
    objective = Objective(module, federation.task, weight_decay, clip)
    _refuse_unfit_head(method, module)
    _refuse_mixed_rows(method, objective, statistics)
    method = observed(with_own_codec(method.for_model(module)))
    return Setting(
        with_statistics(with_architectures(method, objective, statistics), objective, statistics),
        objective,
        federation,
        store or MemoryStore(len(federation), device),
        seed=seed,
        batch_size=batch_size,
        round_steps=round_steps,
        device=device,
    )


def _refuse_unfit_task(method: Method, task: Task) -> None:
    if innermost_method(method).needs_classes and not task.is_classification:
        raise UserError(
            f"method={method.name} looks at the rows of each class, and the target is a number; "
            "take another method, or a target with classes"
        )


def _refuse_unfit_head(method: Method, module: nn.Module) -> None:
    if not innermost_method(method).trains_head:
        return
    head = last_module(module)
    is_whole = all(parameter.requires_grad for parameter in module.get_submodule(head).parameters())
    if not is_whole:
        raise UserError(
            f"method={method.name} trains the last layer of a model, {head!r}, which is fixed here or has an "
            "adapter in its place; let `train` or model.adapter.layers leave it to the method"
        )
    for other, name in names_of_tied_parameters(module).items():
        if head in (layer_of(other), layer_of(name)):
            raise UserError(
                f"method={method.name} takes the last layer of a model, {head!r}, apart from the others, and "
                f"{other!r} is the same parameter as {name!r}; let the last layer have its own"
            )


def _refuse_mixed_rows(method: Method, objective: Objective, statistics: Variant | None) -> None:
    """Refuse layers whose statistics would tell of rows past the noise."""
    if not objective.norms:
        return
    layer = objective.norms[0].mean.rpartition(".")[0]
    if row_privacy_of(method) is not None:
        raise UserError(
            f"privacy.unit=row cannot be used with this model: its layer {layer!r} normalises with "
            "statistics of many rows; use group normalisation (model.norm=group), or none"
        )
    if silo_privacy_of(method) is not None and statistics != "silo":
        raise UserError(
            f"privacy.unit=silo cannot be used with this model as it is set: statistics of its layer "
            f"{layer!r} are sent as they are; set statistics=silo, or use group normalisation "
            "(model.norm=group)"
        )


def build_engine(
    choice: EngineName | HereEngine | RayEngineChoice, setting: Setting, way: Way | None = None
) -> LocalEngine:
    """The chosen engine; `way` is how it computed clients before, None if it is to choose."""
    if isinstance(choice, str):
        choice = RayEngineChoice() if choice == "ray" else HereEngine(choice)
    if isinstance(choice, RayEngineChoice):
        from idiolect.engines.ray import RayEngine  # needs an extra

        return RayEngine(
            setting, workers=choice.workers, address=choice.address, way=way, passes=_passes(choice.optimise)
        )
    if choice.name == "sequential":
        return Sequential(setting)
    return Vectorised(setting, way, _passes(choice.optimise))


def _passes(optimise: bool | None) -> tuple[str, ...] | None:
    return None if optimise is False else tuple(PASSES)
