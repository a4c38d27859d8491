"""What is predicted: recognising classes and numbers in a column of targets."""

from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core.task import Task
from idiolect.data.preprocessing import as_numbers, as_text, is_number_column
from idiolect.errors import UserError

TaskChoice = Literal["auto", "classification", "regression"]
MOST_WHOLE_CLASSES = 20


class Targets(NamedTuple):
    """Targets as tensors, and what they mean."""

    values: Tensor  # int64[rows] classes, or float32[rows, 1]
    task: Task
    class_names: tuple[str, ...]
    note: str


def encode_targets(column: pd.Series, choice: TaskChoice = "auto") -> Targets:
    """Classes or numbers.

    "auto" takes text, true/false and at most 20 different whole numbers for classes, and other numbers
    for regression. Two classes make a binary task; the second in sorted order is the positive one.
    """
    name = column.name
    if column.isna().any():
        raise UserError(f"the target {name!r} has {int(column.isna().sum())} missing values")
    if choice == "auto":
        choice = "classification" if _looks_like_classes(column) else "regression"
    if choice == "regression":
        if not is_number_column(column):
            raise UserError(f"the target {name!r} holds {column.iloc[0]!r}: regression needs numbers")
        numbers = as_numbers(column).to_numpy(np.float32)
        note = f"regression: the target {name!r} has {column.nunique()} different numbers"
        return Targets(torch.as_tensor(numbers)[:, None], Task("regression", 1), (), note)
    if is_number_column(column) and (as_numbers(column) % 1).any():
        raise UserError(f"the target {name!r} has numbers with fractions; set data.task=regression")
    classes = tuple(_in_order(column))
    if len(classes) < 2:
        raise UserError(f"the target {name!r} has only one class, {classes[0]!r}; two or more are needed")
    codes = pd.Categorical(as_text(column), categories=list(classes)).codes
    task = Task("binary", 1) if len(classes) == 2 else Task("multiclass", len(classes))
    note = f"classification: the target {name!r} has {len(classes)} classes"
    return Targets(torch.as_tensor(codes.astype(np.int64)), task, classes, note)


def _looks_like_classes(column: pd.Series) -> bool:
    if not is_number_column(column):
        return True
    return not (as_numbers(column) % 1).any() and column.nunique() <= MOST_WHOLE_CLASSES


def _in_order(column: pd.Series) -> list[str]:
    """The different values as text: numbers by size, the rest by the alphabet."""
    if is_number_column(column):
        return list(as_text(pd.Series(np.unique(column.to_numpy(np.float64)))))
    return sorted(set(as_text(column)))
