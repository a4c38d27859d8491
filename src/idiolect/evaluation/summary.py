"""Summaries over clients, the round that is reported, rounds to a target."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from idiolect.evaluation.metrics import Metric

Choice = Literal["validation", "last"]
WORST_SHARE = 0.1
LOSS_STEP = 0.99  # times the smallest loss before
# Scores that agree to this part of them count as equal. Sums of float64 in another order differ by less than
# a part of 1e-11 for up to 100,000 clients; one row more that is right makes a larger difference.
TIED = 1e-9
TIED_AT_ZERO = 1e-12


class Summary(NamedTuple):
    """One number for each way to look at all clients' values; clients without a value do not count.

    A client that has failed does: its value is the worst there is, which may be infinite.
    """

    mean: float
    weighted: float  # by the clients' rows
    std: float  # over clients, of the population
    worst_tenth: float  # mean of the worst 10 % of the clients, at least one
    min: float
    max: float
    worst: float  # the worst client: the minimum or the maximum, as the metric has it
    clients: int


def summarise(values: "pd.Series[float]", rows: "pd.Series[int]", metric: Metric) -> Summary:
    """Summarise one metric; both series are indexed by client, `rows` are the weights.

    >>> from idiolect.evaluation.metrics import accuracy
    >>> values = pd.Series({"a": 0.5, "b": 1.0, "c": float("nan")})
    >>> summarise(values, pd.Series({"a": 30, "b": 10, "c": 0}), accuracy)[:2]
    (0.75, 0.625)
    """
    present = values.dropna()
    if present.empty:
        nan = float("nan")
        return Summary(nan, nan, nan, nan, nan, nan, nan, clients=0)
    ordered = np.sort(present.to_numpy(np.float64))
    worst_first = ordered if metric.higher_is_better else ordered[::-1]
    weights = rows.reindex(present.index).to_numpy(np.float64)
    return Summary(
        mean=float(ordered.mean()),
        weighted=float(np.average(present.to_numpy(np.float64), weights=weights)),
        std=float(ordered.std()) if np.isfinite(ordered).all() else float("nan"),
        worst_tenth=float(worst_first[: max(1, int(WORST_SHARE * len(ordered)))].mean()),
        min=float(ordered[0]),
        max=float(ordered[-1]),
        worst=float(worst_first[0]),
        clients=len(ordered),
    )


def means(metrics: pd.DataFrame, kind: str, part: str, metric: str) -> "pd.Series[float]":
    """The mean over clients at each evaluated round, indexed by round."""
    chosen = metrics[(metrics.kind == kind) & (metrics.part == part) & (metrics.metric == metric)]
    return chosen.groupby("round")["value"].mean().sort_index()


class Score(NamedTuple):
    """What rounds are chosen by; the larger one is better."""

    value: float  # the mean validation value of the metric, with the sign that makes larger ones better
    minus_loss: float  # the mean validation loss, which decides between equals

    def better_than(self, other: "Score") -> bool:
        """Whether it is larger by more than what the order of a sum can change."""
        for mine, theirs in zip(self, other, strict=True):
            if not math.isclose(mine, theirs, rel_tol=TIED, abs_tol=TIED_AT_ZERO):
                return mine > theirs
        return False


def validation_scores(metrics: pd.DataFrame, kind: str, metric: Metric) -> dict[int, Score]:
    """The score of each evaluated round, in their order; a round without validation values has none."""
    values = means(metrics, kind, "validation", metric.name).dropna()
    losses = means(metrics, kind, "validation", "loss").fillna(np.inf)
    sign = 1 if metric.higher_is_better else -1
    return {int(r): Score(sign * float(values[r]), -float(losses[r])) for r in values.index.tolist()}


class BestRound:
    """The round that would be reported for a model kind if it ended now; told of evaluations in their order.

    "validation": the round with the best validation score, the earlier one of equals. "last": the last
    evaluated round, which is also taken where nobody has validation rows.
    """

    def __init__(self, kind: str, metric: Metric, choice: Choice) -> None:
        self.kind = kind
        self.metric = metric
        self.choice = choice
        self.round: int | None = None
        self.score: Score | None = None

    def told(self, metrics: pd.DataFrame, rounds: Iterable[int]) -> bool:
        """Look at evaluations after some rounds; whether another round would be reported now."""
        before = self.round
        scores = validation_scores(metrics, self.kind, self.metric) if self.choice == "validation" else {}
        for round_number in sorted(set(rounds)):
            score = scores.get(round_number)
            if self.score is None or (score is not None and score.better_than(self.score)):
                self.round, self.score = round_number, score
        return self.round != before


def reported_round(metrics: pd.DataFrame, kind: str, metric: Metric, choice: Choice = "validation") -> int:
    """The round whose test values are reported for a model kind: never chosen by test values."""
    best = BestRound(kind, metric, choice)
    best.told(metrics, metrics["round"].tolist())
    assert best.round is not None, "something was evaluated"
    return best.round


def last_improvement(scores: Mapping[int, Score]) -> int:
    """The last round with a better value than all before, or with a loss that is 1 % smaller.

    A loss can creep down for ever where decisions have long been made; falling faster it counts, because
    values may stand still while little is decided yet.

    >>> scores = {0: (0.5, -1.0), 5: (0.5, -0.8), 10: (0.6, -0.7), 15: (0.6, -0.695)}
    >>> last_improvement({number: Score(*score) for number, score in scores.items()})
    10
    """
    last, best = 0, Score(-math.inf, -math.inf)
    for round_number in sorted(scores):
        score = scores[round_number]
        is_better = score._replace(minus_loss=0.0).better_than(best._replace(minus_loss=0.0))
        if is_better or score.minus_loss > LOSS_STEP * best.minus_loss:
            last, best = round_number, Score(*map(max, score, best))
    return last


def reported_part(metrics: pd.DataFrame) -> str:
    """The part whose values are reported: test, or validation where nobody has test rows."""
    return "test" if (metrics.part == "test").any() else "validation"


def values_at(
    metrics: pd.DataFrame, kind: str, part: str, metric: str, round_number: int
) -> "pd.Series[float]":
    """Every client's value at a round, indexed by client."""
    there = metrics[metrics["round"] == round_number]  # first: numbers are compared faster than texts
    chosen = (there.kind == kind) & (there.metric == metric) & (there.part == part)
    return there[chosen].set_index("client")["value"]


def reported_values(metrics: pd.DataFrame, kind: str, metric: str, round_number: int) -> "pd.Series[float]":
    """Every client's value in the reported part at a round, indexed by client."""
    return values_at(metrics, kind, reported_part(metrics), metric, round_number)


def client_values(metrics: pd.DataFrame, summary: Mapping[str, Any]) -> pd.DataFrame:
    """The values that a summary is over: a row for each client, a column for each model kind."""
    return pd.DataFrame(
        {
            kind: reported_values(metrics, kind, summary["metric"], numbers["round"])
            for kind, numbers in summary["kinds"].items()
        }
    )


def rounds_to_target(means: "pd.Series[float]", target: float, metric: Metric) -> int | None:
    """The first evaluated round whose mean reaches the target, or None.

    >>> from idiolect.evaluation.metrics import accuracy
    >>> rounds_to_target(pd.Series({0: 0.1, 5: 0.7, 10: 0.6}), 0.65, accuracy)
    5
    """
    reached = means >= target if metric.higher_is_better else means <= target
    return int(means.index[reached][0]) if reached.any() else None
