"""The diagonal of the Fisher information of a model at a client: which parameters its predictions rest on.

    u = mean over rows x of  E_y (∂ log p(y | x; w) / ∂w)²,        squared row by row, never after averaging

| kind      | the expectation over y                                                               |
|-----------|--------------------------------------------------------------------------------------|
| empirical | the row's own target                                                                 |
| sampled   | one target drawn from the model                                                      |
| exact     | all targets, each with its probability under the model                               |
| unit      | no information at all: ones                                                          |

The loss is -log p, for real targets with unit variance: then exact is the sum of the squared derivatives of
the outputs. For multinomial logistic regression, exact is mean of x_j² p_c (1 - p_c).
"""

import functools
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from idiolect import core
from idiolect.core import Params, Site, rng, tree
from idiolect.core.inputs import take_rows
from idiolect.methods.efl.row_scores import sum_of_squared_scores

FisherKind = Literal["empirical", "sampled", "exact", "unit"]


def diagonal_fisher(kind: FisherKind, params: Params, site: Site, most_rows: int | None = None) -> Params:
    """u of one client on all of its training rows, or on a random choice of them drawn by its key."""
    if kind == "unit":
        return tree.map_tree(torch.ones_like, params)
    key = rng.fold(site.key, rng.key(0, "fisher"))
    rows = site.all_rows
    if most_rows is not None and most_rows < len(rows.weights):
        rows = _choose(rows, most_rows, site.size, key)
    expected = _expectation(kind, site.objective, params, rows, key)
    return functools.reduce(
        tree.add, (sum_of_squared_scores(site.objective, params, targeted) for targeted in expected)
    )


def _expectation(
    kind: FisherKind, objective: core.Objective, params: Params, rows: core.Batch, key: Tensor
) -> list[core.Batch]:
    """The rows with the targets that are expected, and weighted with their probabilities."""
    if kind == "empirical":
        return [rows]
    predictions = objective.predict(params, rows.inputs)
    if kind == "sampled":
        keys = rng.fold(key, torch.arange(len(rows.weights), device=key.device))
        draw = vmap(lambda prediction, key: _draw_target(objective, prediction, key))
        return [rows._replace(targets=draw(predictions, keys))]
    if not objective.task.is_classification:
        # One below a prediction in one output: the slope of the loss is then the derivative of that output.
        units = torch.eye(predictions.shape[-1], device=predictions.device)
        return [rows._replace(targets=predictions - unit) for unit in units]
    chances = _chances(objective, predictions)
    return [
        rows._replace(targets=torch.full_like(rows.targets, c), weights=rows.weights * chances[:, c])
        for c in range(chances.shape[-1])
    ]


def _choose(rows: core.Batch, count: int, size: Tensor, key: Tensor) -> core.Batch:
    """`count` different rows, or all where there are fewer."""
    position = torch.arange(count, device=size.device)
    chosen = rng.permute(position % size, size, key)
    weights = (position < size) / torch.clamp(size, max=count).to(rows.weights.dtype)
    return rows._replace(inputs=take_rows(rows.inputs, chosen), targets=rows.targets[chosen], weights=weights)


def _chances(objective: core.Objective, predictions: Tensor) -> Tensor:
    """The model's probability of each class, along a last axis."""
    if objective.task.kind == "binary":
        positive = torch.sigmoid(predictions[..., 0])
        return torch.stack([1 - positive, positive], -1)
    return torch.softmax(predictions, -1)


def _draw_target(objective: core.Objective, prediction: Tensor, key: Tensor) -> Tensor:
    """A target from the model's own distribution."""
    if objective.task.is_classification:
        ends = _chances(objective, prediction).cumsum(-1)
        return (rng.uniform(key) * ends[-1] >= ends[:-1]).sum()
    return prediction + rng.normal(key, *prediction.shape).to(prediction.dtype)
