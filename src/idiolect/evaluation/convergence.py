"""Which clients' models have failed or diverged, and whether training was still improving at its end.

A client has **failed** at a round if its loss there is not finite. It has **diverged** if it failed at the
reported or at the last evaluated round, or if its loss ended more than `FAR_ABOVE` times as high as those of
the untrained model: its own and the mean over all clients, because one may happen to be right from the start.
The untrained model is the shared one where there is one: others may be fine-tuned before round 1 already.
A client's loss is the mean of those on its validation and on its test rows. A model kind was **still
improving** if the best of its validation scores is that of the last evaluation.
"""

import numpy as np
import pandas as pd

from idiolect.evaluation.metrics import PARTS, Metric
from idiolect.evaluation.summary import reported_round

FAR_ABOVE = 100.0  # with few rows a model that is only too sure of itself can be ten times above


def failed_clients(metrics: pd.DataFrame, kind: str, round_number: int) -> list[str]:
    """Who has rows, and a loss on them that is not finite."""
    losses = _losses(metrics, kind, round_number)
    return [str(client) for client in losses.index[np.isinf(losses)]]


def diverged_clients(metrics: pd.DataFrame, kind: str, reported: int) -> list[str]:
    """Who failed at the reported or the last round, or ended far above the untrained model."""
    rounds = metrics["round"]
    if not len(rounds):
        return []
    untrained = _losses(metrics, untrained_kind(metrics, kind), int(rounds.min()))
    ended = _losses(metrics, kind, int(rounds.max()))
    untrained = untrained[np.isfinite(untrained)]
    far = ended > FAR_ABOVE * untrained.reindex(ended.index).fillna(0).clip(lower=untrained.mean())
    # Losses that are not positive before training have no multiples; of one evaluation nothing can be said.
    if untrained.empty or untrained.mean() <= 0 or rounds.min() == rounds.max():
        far[:] = False
    failed = {*failed_clients(metrics, kind, reported), *ended.index[np.isinf(ended)]}
    return [str(client) for client in ended.index if far[client] or client in failed]


def untrained_kind(metrics: pd.DataFrame, kind: str) -> str:
    """The kind whose first numbers are those of the untrained model, to compare those of a kind with."""
    return "global" if (metrics.kind == "global").any() else kind


def still_improving(metrics: pd.DataFrame, kind: str, metric: Metric) -> bool:
    """Whether the last evaluation has the best validation score, and more rounds might have a better one."""
    validated = (metrics.part == "validation") & (metrics.metric == metric.name) & (metrics.kind == kind)
    if not metrics["value"][validated].notna().any():
        return False
    first, last = int(metrics["round"].min()), int(metrics["round"].max())
    return last > first and reported_round(metrics, kind, metric) == last


def _losses(metrics: pd.DataFrame, kind: str, round_number: int) -> "pd.Series[float]":
    """Each client's loss at a round; without those that have no rows."""
    there = metrics[metrics["round"] == round_number]
    chosen = (there.kind == kind) & (there.metric == "loss")
    chosen &= there.part.isin(PARTS)  # training rows, where they are evaluated, change nothing
    return there[chosen].groupby("client", sort=False)["value"].mean().dropna()
