"""Summaries, the reported round and gains on numbers that can be worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from idiolect.evaluation.convergence import diverged_clients, failed_clients
from idiolect.evaluation.gain import Gains, count_gains, gains
from idiolect.evaluation.metrics import accuracy, rmse
from idiolect.evaluation.summary import (
    BestRound,
    reported_round,
    reported_values,
    rounds_to_target,
    summarise,
)


def long(values: dict[tuple[int, str, str], tuple[float, float]], kind: str = "personal") -> pd.DataFrame:
    rows = [
        (r, client, kind, part, metric, value)
        for (r, part, metric), pair in values.items()
        for client, value in zip("ab", pair, strict=True)
    ]
    return pd.DataFrame(rows, columns=["round", "client", "kind", "part", "metric", "value"])


def test_summary_of_an_accuracy() -> None:
    values = pd.Series({f"c{i}": i / 20 for i in range(20)})
    rows = pd.Series({f"c{i}": 1 if i < 10 else 3 for i in range(20)})
    summary = summarise(values, rows, accuracy)
    assert summary.mean == pytest.approx(9.5 / 20)
    assert summary.weighted == pytest.approx((45 + 3 * 145) / 40 / 20)
    assert summary.std == pytest.approx(np.sqrt((20**2 - 1) / 12) / 20)
    assert summary.worst_tenth == pytest.approx(0.5 / 20)
    assert (summary.min, summary.max, summary.worst, summary.clients) == (0, 19 / 20, 0, 20)


def test_the_worst_error_is_the_largest_and_clients_without_values_do_not_count() -> None:
    values = pd.Series({"a": 1.0, "b": 3.0, "c": np.nan})
    summary = summarise(values, pd.Series({"a": 2, "b": 2, "c": 100}), rmse)
    assert (summary.worst, summary.worst_tenth, summary.mean, summary.weighted) == (3.0, 3.0, 2.0, 2.0)


def test_the_round_is_chosen_on_validation_whatever_the_test_values_are() -> None:
    metrics = long(
        {
            (1, "validation", "accuracy"): (0.5, 0.6),
            (2, "validation", "accuracy"): (0.9, 0.4),
            (3, "validation", "accuracy"): (0.6, 0.5),
            (1, "validation", "loss"): (1.0, 1.0),
            (2, "validation", "loss"): (1.0, 1.0),
            (3, "validation", "loss"): (1.0, 1.0),
            (1, "test", "accuracy"): (1.0, 1.0),
            (2, "test", "accuracy"): (0.1, 0.2),
            (3, "test", "accuracy"): (0.7, 0.7),
        }
    )
    assert reported_round(metrics, "personal", accuracy) == 2
    assert reported_values(metrics, "personal", "accuracy", 2).to_dict() == {"a": 0.1, "b": 0.2}
    assert reported_round(metrics, "personal", accuracy, "last") == 3


def test_equals_are_decided_by_the_loss_and_then_by_the_earlier_round() -> None:
    values = {(r, "validation", "accuracy"): (0.5, 0.5) for r in (1, 2, 3)}
    values |= {(r, "validation", "loss"): (loss, loss) for r, loss in ((1, 2.0), (2, 1.0), (3, 1.0))}
    assert reported_round(long(values), "personal", accuracy) == 2


def test_a_smaller_error_is_better() -> None:
    values = {(r, "validation", "rmse"): (error, error) for r, error in ((1, 2.0), (2, 1.0), (3, 1.5))}
    values |= {(r, "validation", "loss"): (1.0, 1.0) for r in (1, 2, 3)}
    assert reported_round(long(values), "personal", rmse) == 2


def test_without_validation_rows_the_last_round_is_reported() -> None:
    values = {(r, "test", "accuracy"): (a, a) for r, a in ((1, 0.9), (2, 0.1))}
    assert reported_round(long(values), "personal", accuracy) == 2


def test_rounds_to_a_target() -> None:
    means = pd.Series({0: 3.0, 5: 2.0, 10: 1.0})
    assert rounds_to_target(means, 2.0, rmse) == 5
    assert rounds_to_target(means, 0.5, rmse) is None


def test_gains_count_each_client_once() -> None:
    own = pd.Series({"a": 0.9, "b": 0.5, "c": 0.4, "d": np.nan})
    baseline = pd.Series({"a": 0.8, "b": 0.5, "c": 0.6, "d": 0.1})
    assert count_gains(gains(own, baseline, higher_is_better=True)) == Gains(better=1, equal=1, worse=1)
    assert count_gains(gains(own, baseline, higher_is_better=False)).better == 1


def test_rounds_that_differ_by_the_order_of_a_sum_are_equals() -> None:
    """0.1 + 0.2 + 0.3 depends on the order; the smaller loss decides, of equal losses the earlier round."""
    one, other = (0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3)
    assert one > other
    values = {(r, "validation", "accuracy"): (v, v) for r, v in ((1, other), (2, one), (3, other), (4, one))}
    losses = {1: 2.0, 2: 2.0, 3: other, 4: one}
    values |= {(r, "validation", "loss"): (loss, loss) for r, loss in losses.items()}
    assert reported_round(long(values), "personal", accuracy) == 3
    early = {key: pair for key, pair in values.items() if key[0] < 3}
    assert reported_round(long(early), "personal", accuracy) == 1


def test_rounds_told_one_by_one_are_chosen_as_all_together() -> None:
    """Small improvements add up: each is compared with the best one, not with the one before."""
    values = {(r, "validation", "accuracy"): (0.5 + r * 3e-10, 0.5 + r * 3e-10) for r in range(6)}
    values |= {(r, "validation", "loss"): (1.0, 1.0) for r in range(6)}
    metrics = long(values)
    best = BestRound("personal", accuracy, "validation")
    changed = [best.told(metrics[metrics["round"] == r], [r]) for r in range(6)]
    assert changed == [True, False, True, False, True, False]
    assert best.round == reported_round(metrics, "personal", accuracy) == 4
    resumed = BestRound("personal", accuracy, "validation")
    resumed.told(metrics[metrics["round"] <= 3], range(4))
    assert resumed.told(metrics[metrics["round"] == 4], [4])
    assert resumed.round == 4


def test_a_failed_client_makes_a_round_the_last_choice() -> None:
    values = {(1, "validation", "rmse"): (5.0, 9.0), (2, "validation", "rmse"): (1.0, np.inf)}
    values |= {(r, "validation", "loss"): (1.0, 1.0) for r in (1, 2)}
    assert reported_round(long(values), "personal", rmse) == 1
    failed = summarise(pd.Series({"a": 1.0, "b": np.inf}), pd.Series({"a": 1, "b": 1}), rmse)
    assert (failed.mean, failed.weighted, failed.worst, failed.min, failed.clients) == (*3 * [np.inf], 1.0, 2)


def test_who_diverged_is_found_by_the_loss() -> None:
    """The untrained mean is 1.1, so that a, right from the start, may lose more, up to 110; b up to 200."""
    ended = {"at the limit": (109, 199), "above": (111, 201), "failed": (np.inf, 1.0)}
    diverged = {"at the limit": [], "above": ["a", "b"], "failed": ["a"]}
    for name, losses in ended.items():
        values = {
            (0, "test", "loss"): (0.2, 2.0),
            (5, "test", "loss"): (0.1, 0.1),
            (9, "test", "loss"): losses,
        }
        assert diverged_clients(long(values), "personal", reported=5) == diverged[name]
    gone = {
        (0, "test", "loss"): (0.2, 2.0),
        (5, "test", "loss"): (0.1, np.inf),
        (9, "test", "loss"): (0.1, 0.1),
    }
    assert diverged_clients(long(gone), "personal", reported=5) == ["b"]
    assert failed_clients(long(gone), "personal", 5) == ["b"]
    assert failed_clients(long(gone), "personal", 9) == []


def test_a_model_that_is_fine_tuned_before_round_1_is_compared_with_the_shared_one() -> None:
    """Fine-tuning that explodes in every round, in round 0 too, is a divergence."""
    shared = long({(r, "test", "loss"): (0.2, 2.0) for r in (0, 9)}).assign(kind="global")
    tuned = long({(r, "test", "loss"): (500.0, 1.0) for r in (0, 9)})
    assert diverged_clients(pd.concat([shared, tuned]), "personal", reported=0) == ["a"]
    assert diverged_clients(tuned, "personal", reported=0) == []
