"""Intervals: SciPy's, and those of a known distribution."""

import numpy as np
import pytest
import torch
from scipy import stats

from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.intervals import interval_of, interval_of_mean, wilson
from idiolect.evaluation.metrics import accuracy, mae, metric, rmse

REGRESSION = Task("regression", 1)


@pytest.mark.parametrize(("hits", "rows"), [(0, 1), (1, 1), (3, 24), (24, 24), (0, 7), (612, 1000)])
def test_wilsons_interval_is_scipys(hits: int, rows: int) -> None:
    expected = stats.binomtest(hits, rows).proportion_ci(0.95, method="wilson")
    assert wilson(hits / rows, rows) == pytest.approx((expected.low, expected.high), abs=1e-12)


def errors(rows: int) -> tuple[torch.Tensor, Batch]:
    """Predictions whose errors are skewed."""
    targets = torch.zeros(rows, 1, dtype=torch.float64)
    wrong = torch.tensor(np.random.default_rng(1).exponential(2.0, (rows, 1)))
    return wrong, Batch(torch.zeros(rows, 2), targets, torch.full((rows,), 1 / rows))


def test_a_resampled_interval_is_scipys_up_to_chance() -> None:
    predictions, batch = errors(60)
    expected = stats.bootstrap(
        (predictions[:, 0].numpy(),), np.mean, method="percentile", n_resamples=20_000, rng=0
    ).confidence_interval
    found = interval_of(mae, REGRESSION, predictions, batch)
    assert found is not None
    width = expected.high - expected.low
    assert found == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_a_metric_of_a_library_that_knows_no_vmap_has_the_same_interval() -> None:
    @metric(higher_is_better=False)
    def by_numpy(task: Task, predictions: torch.Tensor, batch: Batch) -> torch.Tensor:
        squares = (predictions.numpy() - batch.targets.numpy()) ** 2
        return torch.tensor(np.sqrt(squares.mean()))

    predictions, batch = errors(9)
    expected = interval_of(rmse, REGRESSION, predictions, batch)
    assert interval_of(by_numpy, REGRESSION, predictions, batch) == pytest.approx(expected, rel=1e-12)


def test_accuracy_has_wilsons_interval_which_is_not_empty_where_all_are_right() -> None:
    batch = Batch(torch.zeros(5, 2), torch.ones(5, dtype=torch.int64), torch.full((5,), 0.2))
    found = interval_of(accuracy, Task("binary", 1), torch.full((5, 1), 2.0), batch)
    assert found == pytest.approx((5 / (5 + 1.959964**2), 1.0), abs=1e-6)


def test_too_few_have_none() -> None:
    predictions, batch = errors(1)
    assert interval_of(mae, REGRESSION, predictions, batch) is None
    assert interval_of_mean(np.array([0.5, np.nan])) is None
    low, high = interval_of_mean(np.array([0.25, 0.75])) or (0.0, 0.0)
    assert (low, high) == (0.25, 0.75)  # a quarter of all resamples is the one, a quarter the other
