"""A metric outside of the package: the Brier score by hand, with padding and without rows."""

import pytest
import torch
from idiolect_outside.metrics import brier
from torch.func import vmap

from idiolect.core.objective import Batch
from idiolect.core.task import Task


def batch(targets: list[int], weights: list[float]) -> Batch:
    return Batch(torch.zeros(len(targets), 1), torch.tensor(targets), torch.tensor(weights))


def test_classes_by_hand() -> None:
    logits = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
    score = brier(Task("multiclass", 3), logits, batch([0, 2, 0], [0.5, 0.5, 0.0]))
    first, second = 0.3**2 + 0.2**2 + 0.1**2, 0.5**2 + 0.25**2 + 0.75**2
    assert score.dtype == torch.float64
    assert float(score) == pytest.approx((first + second) / 2, rel=1e-6)


def test_two_classes_are_as_two_of_many() -> None:
    logits = torch.tensor([[0.4], [-1.3]])
    two = brier(Task("binary", 1), logits, batch([1, 0], [0.5, 0.5]))
    many = brier(Task("multiclass", 2), torch.cat([0 * logits, logits], dim=1), batch([1, 0], [0.5, 0.5]))
    assert float(two) == pytest.approx(float(many), rel=1e-6)


def test_certainty_is_best_when_right_and_worst_when_wrong() -> None:
    certain = torch.tensor([[50.0, -50.0]])
    assert float(brier(Task("multiclass", 2), certain, batch([0], [1.0]))) == pytest.approx(0)
    assert float(brier(Task("multiclass", 2), certain, batch([1], [1.0]))) == pytest.approx(2)


def test_a_client_without_rows_has_no_score_and_clients_can_be_stacked() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3))
    targets, weights = torch.tensor([[0, 1, 2], [3, 0, 0]]), torch.tensor([[0.3, 0.3, 0.4], [0.0, 0.0, 0.0]])
    inputs = torch.zeros(2, 3, 1)
    scores = vmap(lambda p, x, y, w: brier(Task("multiclass", 4), p, Batch(x, y, w)))(
        logits, inputs, targets, weights
    )
    alone = brier(Task("multiclass", 4), logits[0], Batch(inputs[0], targets[0], weights[0]))
    assert torch.equal(scores[0], alone)
    assert scores[1].isnan()


def test_numbers_have_no_score() -> None:
    assert not brier.applies_to(Task("regression", 1))
    assert not brier.higher_is_better
