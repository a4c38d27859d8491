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

import math
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from idiolect.core import rng, tree
from idiolect.core.method import Site
from idiolect.core.objective import Batch, Objective
from idiolect.core.tree import Params

FisherKind = Literal["empirical", "sampled", "exact", "unit"]
BLOCK = 16  # rows whose gradients are in memory at a time, for each client


def diagonal_fisher(kind: FisherKind, params: Params, site: Site, most_rows: int | None = None) -> Params:
    """u of one client on all of its training rows, or on a random choice of them drawn by its key."""
    if kind == "unit":
        return tree.map_tree(torch.ones_like, params)
    key = rng.fold(site.key, rng.key(0, "fisher"))
    rows = site.all_rows
    if most_rows is not None and most_rows < len(rows.weights):
        rows = _choose(rows, most_rows, site.size, key)
    keys = rng.fold(key, torch.arange(len(rows.weights)))
    total = tree.zeros_like(params)
    for start in range(0, len(rows.weights), BLOCK):
        block, block_keys = tree.select((rows, keys), slice(start, start + BLOCK))  # type: ignore[arg-type]
        squares = vmap(lambda x, y, k: _row_information(kind, site.objective, params, x, y, k))(
            block.inputs, block.targets, block_keys
        )
        total = tree.add(total, tree.weighted_sum(squares, block.weights))
    return total


def _choose(rows: Batch, count: int, size: Tensor, key: Tensor) -> Batch:
    """`count` different rows, or all where there are fewer."""
    position = torch.arange(count)
    chosen = rng.permute(position % size, size, key)
    weights = (position < size) / torch.clamp(size, max=count).to(rows.weights.dtype)
    return Batch(rows.inputs[chosen], rows.targets[chosen], weights)


def _row_information(
    kind: FisherKind, objective: Objective, params: Params, x: Tensor, y: Tensor, key: Tensor
) -> Params:
    """E_y (∂ log p(y | x) / ∂w)² of one row."""

    def squared_score(target: Tensor) -> Params:
        return tree.map_tree(torch.square, grad(_row_loss, argnums=1)(objective, params, x, target))

    def squared_derivative(output: Tensor) -> Params:
        gradient = grad(lambda w: objective.predict(w, x[None])[0].index_select(0, output[None])[0])(params)
        return tree.map_tree(torch.square, gradient)

    if kind == "empirical":
        return squared_score(y)
    prediction = objective.predict(params, x[None])[0]
    if kind == "sampled":
        return squared_score(_draw_target(objective, prediction, key))
    if not objective.task.is_classification:
        outputs = torch.arange(objective.task.outputs)
        return tree.map_tree(lambda squares: squares.sum(0), vmap(squared_derivative)(outputs))
    chances = _chances(objective, prediction)
    return tree.weighted_sum(vmap(squared_score)(torch.arange(len(chances))), chances)


def _row_loss(objective: Objective, params: Params, x: Tensor, target: Tensor) -> Tensor:
    return objective.task.row_losses(objective.predict(params, x[None]), target[None])[0]


def _chances(objective: Objective, prediction: Tensor) -> Tensor:
    """The model's probability of each class."""
    if objective.task.kind == "binary":
        positive = torch.sigmoid(prediction[0])
        return torch.stack([1 - positive, positive])
    return torch.softmax(prediction, -1)


def _draw_target(objective: Objective, prediction: Tensor, key: Tensor) -> Tensor:
    """A target from the model's own distribution."""
    if objective.task.is_classification:
        ends = _chances(objective, prediction).cumsum(-1)
        return (rng.uniform(key) * ends[-1] >= ends[:-1]).sum()
    first, second = rng.uniform(key, *prediction.shape), rng.uniform(rng.fold(key, 1), *prediction.shape)
    normal = torch.sqrt(-2 * torch.log1p(-first)) * torch.cos(2 * math.pi * second)  # Box and Muller
    return prediction + normal.to(prediction.dtype)
