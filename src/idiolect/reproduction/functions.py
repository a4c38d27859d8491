"""Theory in a recipe: a function by its import path, over a range as a curve, or once as numbers."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.core.hyper import STRICT
from idiolect.plugins import Catalogue, kind_of

Count = Annotated[int, Field(ge=2)]
CATALOGUE: Catalogue[Callable[..., Any]] = Catalogue(
    word="function",
    several="functions",
    group="idiolect.functions",
    own="given as package.module:function",
    flaw=lambda found: None if callable(found) else f"it must be a function, not {kind_of(found)}",
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Function:
    """y = function(x, **arguments) for x from `start` to `stop`."""

    of: str = Field(description="package.module:function of one number and the arguments")
    start: float
    stop: float
    points: Count = 101
    log: bool = Field(default=False, description="whether the points are as far apart on a logarithmic axis")
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def x(self) -> list[float]:
        """Where it is computed."""
        spaced = np.geomspace if self.log else np.linspace
        return [float(x) for x in spaced(self.start, self.stop, self.points)]

    def __call__(self, x: float) -> float:
        """Its value at one point."""
        return float(CATALOGUE.find(self.of)(x, **self.arguments))

    @property
    def y(self) -> list[float]:
        """Its values."""
        return [self(x) for x in self.x]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Constant:
    """One number or several of them, function(**arguments): what a claim compares with."""

    of: str = Field(description="package.module:function of the arguments")
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def y(self) -> list[float]:
        """Its values."""
        return [float(value) for value in np.atleast_1d(CATALOGUE.find(self.of)(**self.arguments))]
