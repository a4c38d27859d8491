"""How a run went, in one number: what it sent until when, and how steadily it learned.

| quantity                    | is                                                                           |
|-----------------------------|------------------------------------------------------------------------------|
| megabytes_of:PART:...       | of these named parts of the messages, in both directions, in the whole run   |
| megabytes_up_of:PART:...    | of these parts, sent by clients                                              |
| megabytes_to:KIND:VALUE     | sent in both directions until the clients' mean of a kind first reaches a    |
|                             | value; infinite if it never does                                             |
| unsteadiness:KIND           | the standard deviation of the clients' mean over the second half of the      |
|                             | evaluated rounds                                                             |
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from idiolect.errors import UserError
from idiolect.evaluation.summary import means, reported_part
from idiolect.reports.averages import BITS_PER_MEGABYTE
from idiolect.runs.folder import RunFolder


def megabytes_of(run: RunFolder, *parts: str) -> float:
    """Of named parts of the messages, in both directions."""
    return _sent(run, parts, ("down", "up"))


def megabytes_up_of(run: RunFolder, *parts: str) -> float:
    """Of named parts of the messages, sent by clients."""
    return _sent(run, parts, ("up",))


def megabytes_to(run: RunFolder, kind: str, value: str) -> float:
    """Sent until the clients' mean first reaches a value."""
    curve = _curve(run, kind)
    reached = curve.index[curve.to_numpy() >= float(value)]
    if reached.empty:
        return float("inf")
    rounds = run.rounds()
    until = rounds[rounds["round"] <= reached.min()]
    return float(until[["down_bits", "up_bits"]].to_numpy().sum() / BITS_PER_MEGABYTE)


def unsteadiness(run: RunFolder, kind: str) -> float:
    """The standard deviation of the clients' mean over the second half of the evaluated rounds."""
    late = _curve(run, kind).sort_index().to_numpy()
    return float(np.std(late[len(late) // 2 :]))


OF_COURSE: dict[str, Callable[..., float]] = {
    function.__name__: function for function in (megabytes_of, megabytes_up_of, megabytes_to, unsteadiness)
}


def _sent(run: RunFolder, parts: tuple[str, ...], directions: tuple[str, ...]) -> float:
    traffic = run.traffic()
    own = traffic[traffic["part"].isin(parts) & traffic["direction"].isin(directions)]
    return float(own["bits"].sum() / BITS_PER_MEGABYTE)


def _curve(run: RunFolder, kind: str) -> "pd.Series[float]":
    """The clients' mean at each evaluated round, of what the run is reported by."""
    metrics, summary = run.metrics(), run.summary()
    if kind not in summary["kinds"]:
        raise UserError(f"{summary['judged_by']} is there, but no {kind} model")
    return means(metrics, kind, reported_part(metrics), summary["metric"])
