"""Client optimizers as pure functions; what they remember is part of the client's state.

The papers use plain SGD. Momentum and Adam are for users who ask for them:

    momentum:  m <- beta m + g,  w <- w - rate m
    adam:      m <- b1 m + (1 - b1) g,  s <- b2 s + (1 - b2) g^2,
               w <- w - rate (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)
"""

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.hyper import STRICT
from idiolect.core.tree import Params


class AdamState(NamedTuple):
    """First and second moment and the number of steps taken."""

    mean: Params
    square: Params
    steps: Tensor


@dataclass(frozen=True, config=STRICT)
class Sgd:
    """w <- w - rate * g."""

    name: Literal["sgd"] = "sgd"

    def init(self, params: Params) -> Any:
        """Nothing to remember."""
        return ()

    def apply(self, params: Params, gradient: Params, state: Any, rate: Tensor | float) -> tuple[Params, Any]:
        """One step."""
        return tree.step(params, rate, gradient), state


@dataclass(frozen=True, config=STRICT)
class Momentum:
    """Heavy-ball momentum."""

    beta: float = Field(default=0.9, ge=0, lt=1)
    name: Literal["momentum"] = "momentum"

    def init(self, params: Params) -> Params:
        """Zero velocity."""
        return tree.zeros_like(params)

    def apply(
        self, params: Params, gradient: Params, state: Params, rate: Tensor | float
    ) -> tuple[Params, Params]:
        """One step."""
        velocity = tree.map_tree(lambda m, g: self.beta * m + g, state, gradient)
        return tree.step(params, rate, velocity), velocity


@dataclass(frozen=True, config=STRICT)
class Adam:
    """Adam with bias correction."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    name: Literal["adam"] = "adam"

    def init(self, params: Params) -> AdamState:
        """Zero moments."""
        return AdamState(
            tree.zeros_like(params), tree.zeros_like(params), torch.zeros_like(tree.scalar_of(params))
        )

    def apply(
        self, params: Params, gradient: Params, state: AdamState, rate: Tensor | float
    ) -> tuple[Params, AdamState]:
        """One step."""
        steps = state.steps + 1
        mean = tree.interpolate(state.mean, gradient, self.beta1)
        square = tree.interpolate(state.square, tree.map_tree(torch.square, gradient), self.beta2)

        def move(w: Tensor, m: Tensor, s: Tensor) -> Tensor:
            scale = torch.sqrt(s / (1 - self.beta2**steps)) + self.epsilon
            return w - rate * (m / (1 - self.beta1**steps)) / scale

        return tree.map_tree(move, params, mean, square), AdamState(mean, square, steps)


def _name_means_defaults(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Optimizer = Annotated[
    Sgd | Momentum | Adam, Field(discriminator="name"), BeforeValidator(_name_means_defaults)
]
