"""The Brier score: how far the predicted probabilities are from what happened."""

from torch import Tensor
from torch.nn.functional import one_hot

from idiolect.core import Batch, Task
from idiolect.evaluation.metrics import mean_over_rows, metric


@metric(higher_is_better=False, applies_to=lambda task: task.is_classification)
def brier(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean over rows of the squared distance, over all classes."""
    if task.kind == "binary":
        return mean_over_rows(2 * (predictions[..., 0].sigmoid() - batch.targets).square(), batch)
    truth = one_hot(batch.targets, task.outputs)
    return mean_over_rows((predictions.softmax(-1) - truth).square().sum(-1), batch)
