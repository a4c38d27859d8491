"""Where the model of a quadratic is in the plane: metrics that follow it from round to round."""

from torch import Tensor

from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metric import metric


def _coordinate(predictions: Tensor, batch: Batch, place: int) -> Tensor:
    # The model of a quadratic is the elementwise product of a row and its one parameter.
    return predictions[0, place] / batch.inputs[0, place]


@metric(higher_is_better=True)
def first_coordinate(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """v1."""
    return _coordinate(predictions, batch, 0)


@metric(higher_is_better=True)
def second_coordinate(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """v2."""
    return _coordinate(predictions, batch, 1)
