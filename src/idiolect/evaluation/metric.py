"""What a metric is, and how one is declared."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from idiolect.core.device import precise
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.errors import UserError

# Predictions and rows of one client -> a tensor without axes. Rows of weight zero only pad. Can be vmapped.
RowsToNumber = Callable[[Task, Tensor, Batch], Tensor]


def every_task(task: Task) -> bool:
    """Any task."""
    return True


@dataclass(frozen=True)
class Metric:
    """A number that says how good the predictions of one client's rows are."""

    name: str
    function: RowsToNumber
    higher_is_better: bool
    applies_to: Callable[[Task], bool] = every_task
    is_share: bool = False  # between 0 and 1
    class_number: int | None = None  # the class whose rows it is of; None: of all rows
    by_classes: bool = False  # whether a class counts for as much as others, however few rows it has

    @property
    def failure(self) -> float:
        """The worst value: that of a client whose loss is not finite."""
        if self.higher_is_better:
            return 0.0 if self.is_share else -math.inf
        return 1.0 if self.is_share else math.inf

    def __call__(self, task: Task, predictions: Tensor, batch: Batch) -> Tensor:
        """The number, float64."""
        value = self.function(task, predictions, batch)
        if not isinstance(value, Tensor) or value.ndim:
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"the metric {self.name} must give a tensor without axes, not one of {given}")
        return precise(value)


def metric(
    *,
    higher_is_better: bool,
    name: str = "",
    applies_to: Callable[[Task], bool] = every_task,
    is_share: bool = False,
    by_classes: bool = False,
) -> Callable[[RowsToNumber], Metric]:
    """Declare a function as a metric, under its own name unless another one is given.

    is_share: it is between 0 and 1, so that a client whose model has failed has the worse of these.
    by_classes: few rows of one class can make most of it, so that a silo tells it of many of each only.
    """
    return lambda function: Metric(
        name or function.__name__, function, higher_is_better, applies_to, is_share, by_classes=by_classes
    )


def is_classification(task: Task) -> bool:
    """Tasks whose targets are classes."""
    return task.is_classification


def is_regression(task: Task) -> bool:
    """Tasks whose targets are numbers."""
    return not task.is_classification


class Counted(Batch):
    """Rows that count several times, or not at all: the weights say how often, as a bootstrap draws them."""


def own_rows(batch: Batch) -> Tensor:
    """How often each row counts: 1 the client's own rows, 0 those that only pad; float64[rows]."""
    return precise(batch.weights if isinstance(batch, Counted) else batch.weights > 0)


def mean_over_rows(values: Tensor, batch: Batch) -> Tensor:
    """The mean over the client's own rows, float64; NaN if it has none."""
    counts = own_rows(batch)
    return (precise(values) * counts).sum() / counts.sum()


@metric(higher_is_better=False)
def loss(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The task's mean loss, as it is trained: with its class weights, and of a standardised target."""
    return mean_over_rows(task.row_losses(predictions, batch.targets), batch)
