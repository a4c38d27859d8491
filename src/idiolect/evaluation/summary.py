"""Summaries over clients, the round that is reported, rounds to a target."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from idiolect.evaluation.metrics import Metric

Choice = Literal["validation", "last"]
WORST_SHARE = 0.1
LOSS_STEP = 0.9


class Summary(NamedTuple):
    """One number for each way to look at all clients' values; clients without a value do not count."""

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
        std=float(ordered.std()),
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


def validation_scores(metrics: pd.DataFrame, kind: str, metric: Metric) -> dict[int, tuple[float, float]]:
    """For each evaluated round a score by which rounds are chosen; the larger one is better.

    First the mean validation value of the metric counts, then the smaller validation loss. A round without
    validation values has no score.
    """
    values = means(metrics, kind, "validation", metric.name).dropna()
    losses = means(metrics, kind, "validation", "loss").fillna(np.inf)
    sign = 1 if metric.higher_is_better else -1
    return {int(r): (sign * float(values[r]), -float(losses[r])) for r in values.index.tolist()}


def reported_round(metrics: pd.DataFrame, kind: str, metric: Metric, choice: Choice = "validation") -> int:
    """The round whose test values are reported for a model kind: never chosen by test values.

    "validation": the round with the best validation score, the earlier one of equals. "last": the last
    evaluated round, which is also taken where nobody has validation rows.
    """
    scores = validation_scores(metrics, kind, metric)
    if choice == "last" or not scores:
        return int(metrics["round"].max())
    return max(sorted(scores), key=lambda round_number: scores[round_number])


def last_improvement(scores: Mapping[int, tuple[float, float]]) -> int:
    """The last round with a better value than all before, or with a loss a tenth below the last such round's.

    A loss can creep down for ever where decisions have long been made; it counts where values stand still
    because nothing is decided yet.

    >>> last_improvement({0: (0.5, -1.0), 5: (0.5, -0.8), 10: (0.6, -0.7), 15: (0.6, -0.69)})
    10
    """
    last, best, loss = 0, -np.inf, np.inf
    for round_number in sorted(scores):
        value, negative_loss = scores[round_number]
        if value > best or -negative_loss < LOSS_STEP * loss:
            last, best, loss = round_number, max(value, best), -negative_loss
    return last


def reported_part(metrics: pd.DataFrame) -> str:
    """The part whose values are reported: test, or validation where nobody has test rows."""
    return "test" if (metrics.part == "test").any() else "validation"


def reported_values(metrics: pd.DataFrame, kind: str, metric: str, round_number: int) -> "pd.Series[float]":
    """Every client's value in the reported part at a round, indexed by client."""
    chosen = metrics[
        (metrics["round"] == round_number)
        & (metrics.kind == kind)
        & (metrics.metric == metric)
        & (metrics.part == reported_part(metrics))
    ]
    return chosen.set_index("client")["value"]


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
