"""The Brier score of the package outside, on numbers that can be worked out by hand."""

import pytest
import torch
from idiolect_outside.metrics import brier

from idiolect.core import Batch, Task


def test_two_classes_are_a_case_of_many() -> None:
    """The second row only pads; the first is predicted with 3/4 for what it is."""
    weights, targets = torch.tensor([1.0, 0.0]), torch.tensor([1, 0])
    logit = torch.tensor(3.0).log()
    batch = Batch(torch.zeros(2, 1), targets, weights)
    as_two = torch.stack([torch.zeros(2), logit.expand(2)], dim=1)
    assert float(brier(Task("multiclass", 2), as_two, batch)) == pytest.approx(2 / 16)
    assert float(brier(Task("binary", 1), logit.expand(2, 1), batch)) == pytest.approx(2 / 16)
    assert not brier.applies_to(Task("regression", 1))
