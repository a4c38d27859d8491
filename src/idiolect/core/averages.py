"""What theorems look at: averages over the steps of a run, and the spread of clients in each. Spec 7.2."""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.schedule import Number
from idiolect.core.tree import Params


class Average(NamedTuple):
    """A running sum of weight times model, and the sum of the weights."""

    total: Params
    weight: Tensor

    @classmethod
    def empty(cls, params: Params) -> "Average":
        """Nothing averaged yet."""
        return cls(tree.zeros_like(params), torch.zeros_like(tree.scalar_of(params)))

    def plus(self, model: Params, weight: Tensor | float) -> "Average":
        """With one more model."""
        return Average(tree.map_tree(lambda s, m: s + weight * m, self.total, model), self.weight + weight)

    def caught_up(self, model: Params, weight: Tensor) -> "Average":
        """With a model that stood still until the sum of weights had become `weight`."""
        return self.plus(model, weight - self.weight)

    def mean(self, otherwise: Params) -> Params:
        """The average; `otherwise` while nothing has been averaged."""
        started = self.weight > 0
        divisor = torch.where(started, self.weight, 1)
        return tree.where(started, tree.scale(self.total, 1 / divisor), otherwise)


class Path(NamedTuple):
    """A client's moves D_k from the common start, before each step k, and their squared norms.

    The mean over clients of a path has all that the spread needs: mean|D_k|² - |mean D_k|².
    """

    moves: Params  # [steps, ...]
    squares: Tensor  # [steps]

    @classmethod
    def empty(cls, start: Params, steps: int) -> "Path":
        """No move yet, in a round of so many steps."""
        moves = tree.map_tree(lambda leaf: torch.zeros_like(leaf).expand(steps, *leaf.shape), start)
        return cls(moves, torch.zeros_like(tree.scalar_of(start)).expand(steps))

    def at(self, step: Number, move: Params) -> "Path":
        """With the move before one step."""
        return self._with(self._numbers == step, move)

    def stopped(self, steps: Tensor, move: Params) -> "Path":
        """With the move of a client that stood still after so many steps."""
        return self._with(self._numbers >= steps, move)

    def spread(self) -> Tensor:
        """ξ_k = mean|w_k - w̄_k|² of a mean path, [steps]."""
        of_mean = tree.flatten_rows(self.moves).square().sum(-1)
        return (self.squares - of_mean).clamp_min(0)

    @property
    def _numbers(self) -> Tensor:
        return torch.arange(len(self.squares), device=self.squares.device)

    def _with(self, chosen: Tensor, move: Params) -> "Path":
        repeated = tree.repeat(move, len(self.squares))
        squares = torch.where(chosen, tree.squared_norm(move), self.squares)
        return Path(tree.where(chosen, repeated, self.moves), squares)
