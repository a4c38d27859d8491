"""The Brier score: whether predicted probabilities are to be believed."""

import torch
from torch import Tensor

from idiolect.core import Batch, Task
from idiolect.evaluation.metrics import mean_over_rows, metric


def _has_classes(task: Task) -> bool:
    return task.is_classification


@metric(higher_is_better=False, applies_to=_has_classes)
def brier(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """Σ_c (p_c - [c is the class])², the mean over rows: 0 at best, 2 at worst."""
    outputs = predictions.to(torch.float64)
    if task.kind == "binary":
        positive = outputs[..., 0].sigmoid()
        probabilities = torch.stack([1 - positive, positive], dim=-1)
    else:
        probabilities = outputs.softmax(-1)
    truth = (batch.targets[..., None] == torch.arange(probabilities.shape[-1])).to(torch.float64)
    return mean_over_rows((probabilities - truth).square().sum(-1), batch)
