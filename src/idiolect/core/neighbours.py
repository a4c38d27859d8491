"""A predictor that asks stored rows besides a model: what the nearest of them have, mixed into its answer.

    q(x) = Σ_j s_j y_j / Σ_j s_j   over the k stored rows nearest to x
    s_j = exp(-|z - z_j|^(2 power) / scale)
    (1 - λ) p(x) + λ q(x):    of probabilities; in a regression, of numbers

z are features: what enters a model's last layer. Answers are given as a model's outputs are: logarithms of
probabilities, or their odds.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core.task import Task
from idiolect.core.tree import Params

_ROUNDING = 8  # units in the last place of squared norms that a squared distance of 0 may come out as


class Store(NamedTuple):
    """A client's stored rows, and how they are asked."""

    features: Tensor  # [places, features]
    values: Tensor  # [places, outputs]: what rows vote for
    taken: Tensor  # bool[places]: those that hold a row
    asked: Tensor  # k: how many of the nearest
    scale: Tensor  # of distances
    power: Tensor  # of squared distances: 1, or 1/2 for distances themselves
    share: Tensor  # λ: the neighbours' share in an answer


class Neighbours(NamedTuple):
    """A predictor: a model, and stored rows that are asked beside it."""

    params: Params
    store: Store


def values_of(task: Task, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """What rows vote for, [rows, outputs]: their class, or their number."""
    if task.kind == "regression":
        return targets.to(dtype)
    if task.kind == "binary":
        return targets[:, None].to(dtype)
    return (targets[:, None] == torch.arange(task.outputs, device=targets.device)).to(dtype)


def votes(store: Store, features: Tensor) -> Tensor:
    """q of some rows by their features, [rows, outputs]; of equally near rows the first are asked."""
    found = _squares(features, store).masked_fill(~store.taken, torch.inf).sort(dim=1, stable=True)
    counts = (torch.arange(len(store.taken), device=features.device) < store.asked) & found.values.isfinite()
    exponents = -found.values.pow(store.power) / store.scale
    # The least number in place of an infinite one: where nobody can be asked, nothing becomes NaN.
    weights = torch.where(counts, exponents, torch.finfo(features.dtype).min).softmax(1) * counts
    return torch.zeros_like(weights).scatter(1, found.indices, weights) @ store.values


def mixed_answer(task: Task, outputs: Tensor, votes: Tensor, share: Tensor) -> Tensor:
    """A model's outputs with the neighbours' votes in them; exactly the outputs where these have no share."""
    tiny = torch.finfo(outputs.dtype).tiny
    if task.kind == "regression":
        mixed = (1 - share) * outputs + share * votes
    elif task.kind == "binary":
        yes = (1 - share) * outputs.sigmoid() + share * votes
        no = (1 - share) * (-outputs).sigmoid() + share * (1 - votes)
        mixed = yes.clamp_min(tiny).log() - no.clamp_min(tiny).log()
    else:
        mixed = ((1 - share) * outputs.softmax(-1) + share * votes).clamp_min(tiny).log()
    return torch.where(share == 0, outputs, mixed)


def answer(store: Store, task: Task, features: Tensor, outputs: Tensor) -> Tensor:
    """What a model with stored rows says of rows, from what the model alone finds in them."""
    share = torch.where(store.taken.any(), store.share, 0)
    return mixed_answer(task, outputs, votes(store, features.flatten(1)), share)


def filled(store: Store) -> Store:
    """One client's store without the places that hold no row."""
    return store._replace(
        features=store.features[store.taken], values=store.values[store.taken], taken=store.taken[store.taken]
    )


def _squares(features: Tensor, store: Store) -> Tensor:
    """|z - z_j|² by products, of differences to a stored row, which spares digits; what is rounding is 0."""
    middle = store.features[:1]
    a, b = features - middle, store.features - middle
    norms = a.square().sum(1)[:, None] + b.square().sum(1)
    squares = norms - 2 * a @ b.T
    return torch.where(squares > _ROUNDING * torch.finfo(norms.dtype).eps * norms, squares, 0)
