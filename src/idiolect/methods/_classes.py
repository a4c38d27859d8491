"""What a client knows of its classes, from all of its training rows. Spec 8.6."""

import torch
from torch import Tensor

from idiolect import core


def class_counts(rows: core.Batch, task: core.Task) -> Tensor:
    """n_c: how many rows there are of each class, [classes]; rows that only pad are none."""
    return _membership(rows, task).sum(0)


def _membership(rows: core.Batch, task: core.Task) -> Tensor:
    """1 where a row is of a class, else 0: [rows, classes]."""
    is_of_class = rows.targets[:, None] == torch.arange(task.classes)
    return (is_of_class & (rows.weights > 0)[:, None]).to(rows.weights.dtype)
