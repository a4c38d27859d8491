"""Outer steps: where a server goes from θ instead of to the average of the replies. Spec 8.13.

With Δ = Σ a_i θ_i - θ, entry by entry:

    avgm       m <- β m + Δ,                θ <- θ + η m
    adagrad    v <- v + Δ²
    adam       v <- β₂ v + (1 - β₂) Δ²
    yogi       v <- v - (1 - β₂) Δ² sign(v - Δ²)
               m <- β₁ m + (1 - β₁) Δ,      θ <- θ + η m / (√v + κ)       for these three

At first m = 0 and v = κ²; there is no bias correction. (Hsu et al. 2019; Reddi et al. 2021.)
"""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.hyper import STRICT
from idiolect.core.tree import Params


class Memory(NamedTuple):
    """What a server remembers of past changes: m, and v where a step is scaled by it."""

    mean: Params
    square: Params | tuple[()]


@dataclass(frozen=True, config=STRICT)
class AvgM:
    """Momentum: FedAvgM."""

    rate: float = Field(default=1.0, gt=0, description="η: step along the momentum")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="β: what is kept of past changes")
    name: Literal["avgm"] = "avgm"

    def init(self, params: Params) -> Memory:
        """m = 0."""
        return Memory(tree.zeros_like(params), ())

    def apply(self, params: Params, change: Params, memory: Memory) -> tuple[Params, Memory]:
        """θ + η m."""
        mean = tree.map_tree(lambda m, d: self.momentum * m + d, memory.mean, change)
        return tree.advance(params, self.rate, mean), Memory(mean, ())


@dataclass(frozen=True, config=STRICT)
class _Adaptive(ABC):
    """A step that is scaled for each entry by the size of its past changes."""

    rate: float = Field(default=0.01, gt=0, description="η: step size")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="β₁: what is kept of past changes")
    floor: float = Field(default=1e-3, gt=0, description="κ: added to √v")
    first: float | None = Field(default=None, ge=0, description="v at first; None: κ²")

    @abstractmethod
    def squares(self, before: Tensor, now: Tensor) -> Tensor:
        """v, from what it was and Δ²."""

    def init(self, params: Params) -> Memory:
        """m = 0, v = κ²."""
        first = self.floor**2 if self.first is None else self.first
        return Memory(
            tree.zeros_like(params), tree.map_tree(lambda leaf: torch.full_like(leaf, first), params)
        )

    def apply(self, params: Params, change: Params, memory: Memory) -> tuple[Params, Memory]:
        """θ + η m / (√v + κ)."""
        kept = self.momentum
        mean = tree.map_tree(lambda m, d: kept * m + (1 - kept) * d, memory.mean, change)
        square = tree.map_tree(lambda v, d: self.squares(v, d.square()), memory.square, change)
        moved = tree.map_tree(
            lambda w, m, v: w + self.rate * m / (v.sqrt() + self.floor), params, mean, square
        )
        return moved, Memory(mean, square)


@dataclass(frozen=True, config=STRICT)
class Adagrad(_Adaptive):
    """The sum of all squares: FedAdagrad."""

    momentum: float = Field(default=0.0, ge=0, lt=1, description="β₁: what is kept of past changes")
    name: Literal["adagrad"] = "adagrad"

    def squares(self, before: Tensor, now: Tensor) -> Tensor:
        """All of them."""
        return before + now


@dataclass(frozen=True, config=STRICT)
class Adam(_Adaptive):
    """A mean of squares: FedAdam."""

    decay: float = Field(default=0.99, ge=0, lt=1, description="β₂: what is kept of past squares")
    name: Literal["adam"] = "adam"

    def squares(self, before: Tensor, now: Tensor) -> Tensor:
        """β₂ v + (1 - β₂) Δ²."""
        return self.decay * before + (1 - self.decay) * now


@dataclass(frozen=True, config=STRICT)
class Yogi(_Adaptive):
    """A mean of squares that falls slowly: FedYogi."""

    decay: float = Field(default=0.99, ge=0, lt=1, description="β₂: 1 - β₂ of Δ² is what v can change by")
    name: Literal["yogi"] = "yogi"

    def squares(self, before: Tensor, now: Tensor) -> Tensor:
        """By (1 - β₂) Δ² nearer to Δ²."""
        return before - (1 - self.decay) * now * torch.sign(before - now)


OuterStep = AvgM | Adagrad | Adam | Yogi
OUTER_STEPS: dict[str, type[OuterStep]] = {"avgm": AvgM, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
