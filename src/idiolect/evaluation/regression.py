"""How far predicted numbers are off, in the target's own units.

All are over all outputs; `r2` of a client whose targets are all equal is not defined.
"""

import torch
from torch import Tensor

from idiolect.core.device import precise
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metric import is_regression, mean_over_rows, metric, own_rows


@metric(higher_is_better=False, applies_to=is_regression)
def rmse(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The root of the mean squared error."""
    return task.unit * _mean_squared_error(predictions, batch).sqrt()


@metric(higher_is_better=False, applies_to=is_regression)
def mae(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean absolute error."""
    errors = precise(predictions) - precise(batch.targets)
    return task.unit * mean_over_rows(errors.abs().mean(-1), batch)


@metric(higher_is_better=True, applies_to=is_regression)
def r2(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The share of the targets' variance that is predicted."""
    targets, counts = precise(batch.targets), own_rows(batch)[:, None]
    centre = (targets * counts).sum(0) / counts.sum()
    spread = mean_over_rows((targets - centre).square().mean(-1), batch)
    # By comparing values: the mean of equal ones may be off by its last bit, and the spread not zero.
    largest = targets.masked_fill(counts == 0, -torch.inf).amax(0)
    smallest = targets.masked_fill(counts == 0, torch.inf).amin(0)
    return torch.where(
        (largest > smallest).any(), 1 - _mean_squared_error(predictions, batch) / spread, torch.nan
    )


def _mean_squared_error(predictions: Tensor, batch: Batch) -> Tensor:
    errors = precise(predictions) - precise(batch.targets)
    return mean_over_rows(errors.square().mean(-1), batch)
