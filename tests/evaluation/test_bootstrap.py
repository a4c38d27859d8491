"""The paired bootstrap against scipy, on problems whose truth is known, and its symmetries."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.bootstrap import (
    SLOW_RESAMPLES,
    client_counts,
    interval,
    over_seeds,
    replicates,
    row_counts,
    seed_counts,
    seed_part,
)
from idiolect.evaluation.metric import Counted, Metric, metric
from idiolect.evaluation.metrics import (
    BUILT_IN,
    CATALOGUE,
    measures_of,
)

BINARY, CLASSES, NUMBERS = Task("binary", 1), Task("multiclass", 3), Task("regression", 2, unit=2.5)
accuracy, rmse, mae, auc, log_loss = map(CATALOGUE.find, ("accuracy", "rmse", "mae", "auc", "log_loss"))


def rows_of(task: Task, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs, with ties among them, and targets that they say something of."""
    generator = torch.Generator().manual_seed(seed)
    outputs = (4 * torch.randn(count, task.outputs, generator=generator)).round() / 4
    if task.kind == "regression":
        return outputs, outputs + torch.randn(count, task.outputs, generator=generator)
    noise = torch.randn(count, task.outputs, generator=generator)
    return outputs, task.decide(outputs + 2 * noise)


@pytest.mark.parametrize("task", [BINARY, CLASSES, NUMBERS], ids=lambda task: task.kind)
def test_counts_are_rows_that_occur_so_often(task: Task) -> None:
    """Every metric of ours, with rows that are drawn twice or not at all, is that of the drawn rows."""
    outputs, targets = rows_of(task, 30)
    (counts,) = row_counts("somebody", [torch.arange(30)], 7)
    known = [m for m in BUILT_IN if m.applies_to(task)]
    known += measures_of(task, ("recall:1", "precision:1", "f1:1")).metrics if task.classes else ()
    for each in known:
        for drawn in counts:
            picks = torch.repeat_interleave(torch.arange(30), drawn.long())
            plain = each(task, outputs[picks], Batch(outputs[picks], targets[picks], torch.ones(len(picks))))
            counted = each(task, outputs, Counted(outputs, targets, drawn))
            assert float(counted) == pytest.approx(float(plain), rel=1e-6, nan_ok=True), each.name


def test_draws_are_with_replacement_as_many_as_there_are() -> None:
    (counts,) = row_counts("somebody", [torch.arange(40)], 2000)
    assert (counts.sum(1) == 40).all()
    # A row's count is binomial(40, 1/40).
    assert counts.mean(0).numpy() == pytest.approx(1, abs=0.1)
    assert float(counts.var()) == pytest.approx(39 / 40, rel=0.05)
    assert (seed_counts(3, 50).sum(1) == 3).all()
    assert (client_counts(9, 50).sum(1) == 9).all()


def test_seeds_share_the_rows_that_they_share() -> None:
    """A row that two seeds test on is drawn as often for both; draws depend on nothing but the name."""
    first, second = row_counts("somebody", [torch.tensor([4, 7, 9]), torch.tensor([9, 2, 4])], 500)
    assert first[:, 0].equal(second[:, 2])
    assert first[:, 2].equal(second[:, 0])
    assert not first[:, 1].equal(second[:, 1])
    again = row_counts("somebody", [torch.tensor([4, 7, 9]), torch.tensor([9, 2, 4])], 500)
    assert again[1].equal(second)
    assert not row_counts("another", [torch.tensor([4, 7, 9])], 500)[0].equal(
        row_counts("somebody", [torch.tensor([4, 7, 9])], 500)[0]
    )


def gains(
    judged_by: Metric, task: Task, one: Tensor, other: Tensor, targets: Tensor, resamples: int = 1000
) -> np.ndarray:
    (counts,) = row_counts("somebody", [torch.arange(len(targets))], resamples)
    values = [replicates(judged_by, task, outputs, targets, counts) for outputs in (one, other)]
    return values[0] - values[1] if judged_by.higher_is_better else values[1] - values[0]


def row_accuracy(outputs: Tensor, targets: Tensor) -> np.ndarray:
    return (outputs[:, 0] > 0).eq(targets == 1).double().numpy()


def row_absolute_error(outputs: Tensor, targets: Tensor) -> np.ndarray:
    return 2.5 * (outputs - targets).double().abs().mean(1).numpy()


@pytest.mark.parametrize(
    ("judged_by", "task", "of_rows", "sign"),
    [(accuracy, BINARY, row_accuracy, 1), (mae, NUMBERS, row_absolute_error, -1)],
    ids=["accuracy", "mae"],
)
def test_the_interval_is_scipys(
    judged_by: Metric, task: Task, of_rows: Callable[[Tensor, Tensor], np.ndarray], sign: int
) -> None:
    one, targets = rows_of(task, 80)
    other = one + 1.5 * torch.randn(one.shape, generator=torch.Generator().manual_seed(5)) + 0.3
    low, high = interval(gains(judged_by, task, one, other, targets, 5000))
    theirs = stats.bootstrap(
        (of_rows(one, targets), of_rows(other, targets)),
        lambda x, y, axis: sign * (x.mean(axis) - y.mean(axis)),
        paired=True,
        n_resamples=5000,
        method="percentile",
        rng=np.random.default_rng(3),
    )
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert width > 0.02
    assert low == pytest.approx(theirs.confidence_interval.low, abs=0.06 * width)
    assert high == pytest.approx(theirs.confidence_interval.high, abs=0.06 * width)


@pytest.mark.parametrize(("judged_by", "task"), [(auc, BINARY), (log_loss, CLASSES), (rmse, NUMBERS)])
def test_the_gain_of_one_over_the_other_is_the_negative(judged_by: Metric, task: Task) -> None:
    one, targets = rows_of(task, 40)
    other, _ = rows_of(task, 40, seed=9)
    low, high = interval(gains(judged_by, task, one, other, targets))
    back_low, back_high = interval(gains(judged_by, task, other, one, targets))
    assert (back_low, back_high) == (-high, -low)
    assert low < high


def test_identical_models_have_no_width() -> None:
    one, targets = rows_of(CLASSES, 40)
    assert interval(gains(accuracy, CLASSES, one, one.clone(), targets)) == (0, 0)


@pytest.mark.parametrize("rows", [24, 50, 150])
def test_the_interval_covers_the_true_gain(rows: int) -> None:
    """Clients whose two models are right with known, dependent probabilities: 0.85 and 0.75."""
    clients = 400
    numbers = np.random.default_rng(rows)
    covered = 0
    for client in range(clients):
        # Both are right on 70 % of the rows, only the first on 15 %, only the second on 5 %.
        case = numbers.choice(4, size=rows, p=[0.7, 0.15, 0.05, 0.1])
        right = torch.tensor(np.stack([case <= 1, (case == 0) | (case == 2)]))
        targets = torch.tensor(numbers.integers(2, size=rows))
        one, other = (torch.where(r == (targets == 1), 1.0, -1.0)[:, None] for r in right)
        (counts,) = row_counts(f"client-{client}", [torch.arange(rows)], 400)
        values = [replicates(accuracy, BINARY, outputs, targets, counts) for outputs in (one, other)]
        low, high = interval(values[0] - values[1])
        covered += bool(low <= 0.1 <= high)
    assert (0.90 if rows >= 50 else 0.87) <= covered / clients <= 0.98


@pytest.mark.parametrize(("spread", "least", "most"), [(0.0, 0.92, 0.98), (0.1, 0.90, 0.98)])
def test_over_seeds_rows_count_once_and_trainings_too(spread: float, least: float, most: float) -> None:
    """Three seeds, each with its own 50 rows whose differences vary by 1, and a training that varies."""
    clients, numbers = 600, np.random.default_rng(7)
    draws, covered = seed_counts(3, 400), 0
    for client in range(clients):
        rows = 0.3 + spread * numbers.normal(size=(3, 1)) + numbers.normal(size=(3, 50))
        counts = row_counts(f"client-{client}", list(torch.arange(150).split(50)), 400)
        drawn = np.stack([(c.numpy() @ r) / c.sum(1).numpy() for c, r in zip(counts, rows, strict=True)])
        mean, shift = over_seeds(drawn, rows.mean(1), draws)
        low, high = interval(mean + shift)
        covered += bool(low <= 0.3 <= high)
    assert least <= covered / clients <= most


def test_seeds_that_differ_by_their_rows_only_add_nothing() -> None:
    by_seed, counts = np.array([0.1, 0.2, 0.6]), seed_counts(3, 4000)
    assert not seed_part(by_seed, float(by_seed.var(ddof=1)), counts).any()
    # Without any noise of rows the variance of the mean of three is a third of theirs.
    assert seed_part(by_seed, 0.0, counts).var() == pytest.approx(by_seed.var(ddof=1) / 3, rel=0.1)
    assert (seed_part(-by_seed, 0.01, counts) == -seed_part(by_seed, 0.01, counts)).all()


def test_a_failed_model_has_the_worst_value_in_every_replicate() -> None:
    outputs, targets = rows_of(NUMBERS, 20)
    broken = outputs.clone()
    broken[3] = torch.nan
    low, high = interval(gains(rmse, NUMBERS, broken, outputs, targets))
    assert (low, high) == (-math.inf, -math.inf)
    assert interval(gains(rmse, NUMBERS, outputs, broken, targets)) == (math.inf, math.inf)


def test_what_is_undefined_in_most_replicates_has_no_interval() -> None:
    """One row of the second class of 4: a third of the draws have none of it; of one class all have none."""
    outputs, targets = torch.randn(4, 1), torch.tensor([0, 0, 0, 1])
    (counts,) = row_counts("somebody", [torch.arange(4)])
    values = replicates(auc, BINARY, outputs, targets, counts)
    one_class = (counts[:, 3] == 0) | (counts[:, 3] == 4)
    assert (np.isnan(values) == one_class.numpy()).all()
    low, high = interval(replicates(auc, BINARY, outputs, torch.zeros(4, dtype=torch.int64), counts))
    assert math.isnan(low)
    assert math.isnan(high)


@metric(higher_is_better=True)
def counts_its_rows(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """Looks at weights in its own way, so that counts would mislead it."""
    own = (batch.weights > 0).double()
    return (predictions[:, 0].double() * own).sum() / own.sum()


@metric(higher_is_better=True)
def knows_no_vmap(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    return torch.tensor(float(np.mean(predictions[:, 0].numpy()[batch.weights.numpy() > 0])))


@pytest.mark.parametrize("own", [counts_its_rows, knows_no_vmap], ids=lambda own: own.name)
def test_a_metric_of_ones_own_is_computed_on_the_drawn_rows(own: Metric) -> None:
    outputs, targets = rows_of(NUMBERS, 25)
    (counts,) = row_counts("somebody", [torch.arange(25)])
    values = replicates(own, NUMBERS, outputs, targets, counts)
    expected = (counts @ outputs[:, 0].double() / counts.sum(1)).numpy()
    assert values[:SLOW_RESAMPLES] == pytest.approx(expected[:SLOW_RESAMPLES])
    assert np.isnan(values[SLOW_RESAMPLES:]).all()
    low, high = interval(values)
    assert low == pytest.approx(np.quantile(expected[:SLOW_RESAMPLES], 0.025), abs=0.1)
    assert high > low
