"""Where the model of a quadratic is: metrics that follow it from round to round.

The model is the elementwise product of a row and its one parameter: divided by the row it is the parameter.
"""

import torch
from torch import Tensor

from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metric import metric, own_rows


def _coordinate(predictions: Tensor, batch: Batch, place: int) -> Tensor:
    return predictions[0, place] / batch.inputs[0, place]


@metric(higher_is_better=True)
def first_coordinate(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """v1."""
    return _coordinate(predictions, batch, 0)


@metric(higher_is_better=True)
def second_coordinate(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """v2."""
    return _coordinate(predictions, batch, 1)


@metric(higher_is_better=False)
def squared_distance(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """|v - v*|², v* being the client's own optimum: the mean of what its rows ask for."""
    counts = own_rows(batch)[:, None]
    inputs = torch.where(counts > 0, batch.inputs, 1.0)
    gaps = ((predictions - batch.targets) / inputs).to(torch.float64) * counts
    return (gaps.sum(0) / counts.sum()).square().sum()
