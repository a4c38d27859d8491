"""The engine that a configuration asks for."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.core.hyper import STRICT
from idiolect.engines.base import LocalEngine, Setting
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.sequential import Sequential
from idiolect.engines.vectorised import Vectorised

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


def build_engine(choice: EngineName | HereEngine | RayEngineChoice, setting: Setting) -> LocalEngine:
    """The chosen engine."""
    if isinstance(choice, str):
        choice = RayEngineChoice() if choice == "ray" else HereEngine(choice)
    if isinstance(choice, RayEngineChoice):
        from idiolect.engines.ray import RayEngine  # needs an extra

        return RayEngine(
            setting, workers=choice.workers, address=choice.address, passes=_passes(choice.optimise)
        )
    if choice.name == "sequential":
        return Sequential(setting)
    return Vectorised(setting, passes=_passes(choice.optimise))


def _passes(optimise: bool | None) -> tuple[str, ...] | None:
    return None if optimise is False else tuple(PASSES)
