"""Sums over rows of the squared gradient of each row's loss: squared row by row, never after adding.

In general every row's gradient is formed. In a linear layer it is an outer product, (slope of the row's loss
in the layer's outputs) x (the layer's inputs), so the sum of its squares is one product of two matrices,
Σ_r weight_r slope_r² ⊗ input_r², and costs no more than the gradient of the mean loss. Models are looked at
as they predict: a row of its own has no statistics for batch normalisation, and no dropout.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from idiolect import core
from idiolect.core import Params, tree
from idiolect.core.device import to_host
from idiolect.core.inputs import Inputs, take_rows

ROWS_WITH_GRADIENTS = 16  # rows whose gradients are in memory at a time, for each client
ROWS_WITH_SLOPES = 512  # rows whose inputs and slopes in all layers are


def sum_of_squared_scores(objective: core.Objective, params: Params, rows: core.Batch) -> Params:
    """Σ_r weight_r (∂ loss_r / ∂w)²."""
    if isinstance(rows.inputs, Tensor) and _is_made_of_linear_layers(objective, rows.inputs.shape[1:]):
        return _in_blocks(_by_layer, ROWS_WITH_SLOPES, objective, params, rows)
    return _in_blocks(_by_row, ROWS_WITH_GRADIENTS, objective, params, rows)


SumOfSquares = Callable[[core.Objective, Params, core.Batch], Params]


def _in_blocks(
    sum_of_squares: SumOfSquares, size: int, objective: core.Objective, params: Params, rows: core.Batch
) -> Params:
    blocks = (
        tree.select(rows._replace(key=()), slice(start, start + size))  # type: ignore[arg-type]
        for start in range(0, len(rows.weights), size)
    )
    return functools.reduce(tree.add, (sum_of_squares(objective, params, block) for block in blocks))


def _by_row(objective: core.Objective, params: Params, rows: core.Batch) -> Params:
    """Any model: the gradient of every row."""

    def loss(params: Params, x: Inputs, y: Tensor) -> Tensor:
        alone = tree.map_tree(lambda leaf: leaf[None], x)
        return objective.task.row_losses(objective.predict(params, alone), y[None])[0]

    try:
        scores = vmap(grad(loss), in_dims=(None, 0, 0))(params, rows.inputs, rows.targets)
    except (RuntimeError, NotImplementedError):  # a model that cannot be vmapped: one row at a time
        unit = torch.ones_like(rows.weights[:1])
        places = [slice(place, place + 1) for place in range(len(rows.weights))]
        singles = [core.Batch(take_rows(rows.inputs, one), rows.targets[one], unit) for one in places]
        scores = tree.stack([_score(objective, params, row) for row in singles])
    return tree.weighted_sum(tree.map_tree(torch.square, scores), rows.weights)


def _score(objective: core.Objective, params: Params, row: core.Batch) -> Params:
    """The gradient of one row's loss."""
    return core.gradient(lambda at: objective.data_loss(at, row), params)


def _by_layer(objective: core.Objective, params: Params, rows: core.Batch) -> Params:
    """Linear layers: a product of squares for each."""
    layers = _linear_layers(objective.module)

    def losses(shifts: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with _shifted_outputs(layers, shifts) as inputs:
            predictions = objective.predict(params, rows.inputs)
        return objective.task.row_losses(predictions, rows.targets).sum(), inputs

    count = len(rows.weights)
    shifts = {name: rows.inputs.new_zeros(count, layer.out_features) for name, layer in layers.items()}
    slopes, inputs = grad(losses, has_aux=True)(shifts)
    squares = {}
    for name, slope in slopes.items():
        weighted = slope.square().mul_(rows.weights[:, None])
        squares[f"{name}weight"] = weighted.T @ inputs[name].square()
        squares[f"{name}bias"] = weighted.sum(0)
    return {name: squares[name] for name in params}


def _linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers, by the prefix of their parameters' names."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    return {f"{name}." if name else "": layer for name, layer in layers.items()}


@contextmanager
def _shifted_outputs(layers: dict[str, nn.Linear], shifts: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Add a shift to each layer's outputs, by which they can be differentiated; yields the layers' inputs."""
    inputs: dict[str, Tensor] = {}

    def shift(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def hook(_: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
            (inputs[name],) = arguments
            return output + shifts[name]

        return hook

    handles = [layer.register_forward_hook(shift(name)) for name, layer in layers.items()]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


@functools.lru_cache(maxsize=16)
def _is_made_of_linear_layers(objective: core.Objective, row_shape: torch.Size) -> bool:
    """Whether all parameters are those of linear layers that see each row once: found by trying."""
    params = objective.initial_params()
    owned = {
        name for prefix in _linear_layers(objective.module) for name in (f"{prefix}weight", f"{prefix}bias")
    }
    if not params.keys() <= owned or not objective.dtype.is_floating_point:
        return False
    numbers = torch.arange(3 * row_shape.numel(), dtype=objective.dtype, device=objective.device)
    targets = numbers.new_zeros(3, dtype=torch.int64)
    if not objective.task.is_classification:
        targets = numbers.new_zeros(3, objective.task.outputs)
    rows = core.Batch(numbers.sin().reshape(3, *row_shape), targets, numbers.new_ones(3))
    try:
        ours = to_host(tree.flatten(_by_layer(objective, params, rows)))
    except (KeyError, RuntimeError):  # a layer that was not used, or not on rows
        return False
    theirs = to_host(tree.flatten(_by_row(objective, params, rows)))
    if ours.shape != theirs.shape:
        return False
    return bool(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5 * float(theirs.max())))
