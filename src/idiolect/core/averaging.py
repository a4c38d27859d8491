"""Weighted averages over the steps of a run, as the theorems state their results."""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
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
