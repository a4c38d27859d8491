"""Whether what a paper claims is so in our runs: confirmed, contradicted or inconclusive.

A difference has a 95 % interval over clients and seeds, both drawn again with replacement: clients and seeds
are paired where two models have the same ones, and drawn apart where they are of different panels. Above by
more than a margin is confirmed if the whole interval is above it, and contradicted if the whole interval is
below; within a bound is confirmed if the whole interval is inside, contradicted if it is outside. What has
one client and one seed, as a deterministic computation, has an interval of one point. A claim is confirmed if
all its comparisons are, and contradicted if one is.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from idiolect.evaluation.bootstrap import client_counts, interval, seed_counts, seed_part

Verdict = Literal["confirmed", "contradicted", "inconclusive"]


class Difference(NamedTuple):
    """Of two means over clients and seeds, with its 95 % interval."""

    value: float
    low: float
    high: float

    def above(self, margin: float) -> Verdict:
        """Whether it is above a margin."""
        if not np.isfinite([self.low, self.high]).all():
            return "inconclusive"
        return "confirmed" if self.low > margin else "contradicted" if self.high < margin else "inconclusive"

    def inside(self, bound: float) -> Verdict:
        """Whether it is no further from zero than a bound."""
        if not np.isfinite([self.low, self.high]).all():
            return "inconclusive"
        if -bound <= self.low and self.high <= bound:
            return "confirmed"
        return "contradicted" if self.low > bound or self.high < -bound else "inconclusive"

    def __neg__(self) -> "Difference":
        return Difference(-self.value, -self.high, -self.low)


def paired_difference(first: pd.DataFrame, second: pd.DataFrame) -> Difference:
    """Of two models on the same clients (rows) and seeds (columns); who has no value does not count."""
    gaps = (first - second).dropna(how="all")
    return Difference(float(np.nanmean(gaps.to_numpy())), *_ends(_replicates(gaps)))


def apart_difference(first: pd.DataFrame, second: pd.DataFrame) -> Difference:
    """Of two models on clients that have nothing to do with each other."""
    # The draws of the second are those of the first in another order, which makes them independent.
    replicates = _replicates(first) - _replicates(second)[::-1]
    value = np.nanmean(first.to_numpy()) - np.nanmean(second.to_numpy())
    return Difference(float(value), *_ends(replicates))


def furthest(gaps: np.ndarray) -> Difference:
    """Of values without chance: the difference that is furthest from zero."""
    gap = float(gaps.flat[np.abs(gaps).argmax()])
    return Difference(gap, gap, gap)


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on all of them together.

    >>> overall(["confirmed", "inconclusive"]), overall(["confirmed", "contradicted"])
    ('inconclusive', 'contradicted')
    """
    if not verdicts:
        return "inconclusive"
    for worst in ("contradicted", "inconclusive"):
        if worst in verdicts:
            return worst
    return "confirmed"


def _replicates(values: pd.DataFrame) -> np.ndarray:
    """The mean for each draw of clients and seeds."""
    of_clients, of_seeds = values.mean(axis=1).to_numpy(), values.mean(axis=0).to_numpy()
    if np.isinf(of_clients).any():  # a target that was never reached
        return np.full(len(seed_counts(1)), np.nan)
    if len(of_clients) > 1:
        drawn = client_counts(len(of_clients)) @ of_clients / len(of_clients)
    else:
        drawn = np.full(len(seed_counts(1)), of_clients[0])
    if len(of_seeds) > 1:
        drawn = drawn + seed_part(of_seeds, 0.0, seed_counts(len(of_seeds)))
    return drawn


def _ends(replicates: np.ndarray) -> tuple[float, float]:
    low, high = interval(replicates)
    return float(low), float(high)
