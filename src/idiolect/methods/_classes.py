"""What clients know of their classes, and the prototypes that servers make of it. Spec 8.6, 8.8, 8.9.

z is a row's features, what enters the head: d_f numbers. A client's counts and sums are over all of its
training rows, whose weights tell them from rows that only pad.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect import core
from idiolect.core import Params, Site
from idiolect.errors import UserError


def class_counts(rows: core.Batch, task: core.Task) -> Tensor:
    """n_c: how many rows there are of each class, [classes]."""
    return _membership(rows, task).sum(0)


class ClassSums(NamedTuple):
    """Of a client's rows: the sum of z for each class [classes, d_f], and the counts n_c [classes]."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def of(cls, features: Tensor, site: Site) -> "ClassSums":
        """From the features of all rows."""
        membership = _membership(site.all_rows, site.objective.task)
        return cls(membership.T @ _of_rows(features), membership.sum(0))

    @property
    def means(self) -> Tensor:
        """The mean of z for each class; zero for a class without rows."""
        return self.sums / self.counts.clamp_min(1)[:, None]


class Prototypes(NamedTuple):
    """C̄: where the features of each class are [classes, d_f], and of which classes that is known."""

    means: Tensor
    known: Tensor

    @classmethod
    def none_yet(cls, params: Params) -> "Prototypes":
        """Before anybody replied."""
        weight = params[linear_head(params)[0]]
        classes = max(len(weight), 2)  # one output stands for two classes
        return cls(weight.new_zeros(classes, weight.shape[1]), torch.zeros(classes, dtype=torch.bool))

    def renewed(self, all_sums: ClassSums) -> "Prototypes":
        """The means of these sums; a class that nobody has keeps its prototype."""
        seen = all_sums.counts > 0
        return Prototypes(torch.where(seen[:, None], all_sums.means, self.means), self.known | seen)

    def distance(self, seen: core.Pass, batch: core.Batch) -> Tensor:
        """(1/(B d_f)) Σ over rows of [C̄_y known] |z - C̄_y|²."""
        targets = batch.targets.long()
        squares = (_of_rows(seen.features) - self.means[targets]).square().mean(-1)
        return (squares * self.known[targets] * batch.weights).sum()


def linear_head(params: Params) -> tuple[str, str | None]:
    """The names of the head's weight and bias; refuse a last layer that is not linear."""
    names = core.last_layer(params)
    weights = [name for name in names if params[name].ndim == 2]
    biases = [name for name in names if params[name].ndim == 1]
    is_plain = len(names) == len(weights) + len(biases) and not any("parametrizations" in n for n in names)
    if len(weights) != 1 or len(biases) > 1 or not is_plain:
        raise UserError(
            "prototypes are means of what enters a last layer that is linear, and this model's "
            f"last layer has {', '.join(names)}; let the model end in nn.Linear"
        )
    return weights[0], biases[0] if biases else None


def _of_rows(features: Tensor) -> Tensor:
    """Features, one vector for each row; others are refused."""
    if features.ndim != 2:
        raise UserError(
            f"what enters the last layer has {features.ndim - 1} axes in each row, and prototypes are "
            "means of vectors; let the model pool or flatten before its last layer"
        )
    return features


def _membership(rows: core.Batch, task: core.Task) -> Tensor:
    """1 where a row is of a class, else 0: [rows, classes]."""
    is_of_class = rows.targets[:, None] == torch.arange(task.classes, device=rows.targets.device)
    return (is_of_class & (rows.weights > 0)[:, None]).to(rows.weights.dtype)
