"""Metrics of all silos together: for each part, kind of model and metric the mean over rows.

A silo adds n m and n, n its rows in the part, where the metric m is defined, and zeros where it is not or
where it does not tell. Single metrics are seen by nobody.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.tree import Tree
from idiolect.evaluation.metrics import PARTS

COLUMNS = ("round", "kind", "part", "metric", "value", "rows", "silos")
Entry = tuple[str, str, str]  # part, kind, metric


def entries(kinds: Sequence[str], metrics: Sequence[str]) -> list[Entry]:
    """What is summed, in an order that all parties have."""
    return [(part, kind, metric) for part in PARTS for kind in sorted(kinds) for metric in sorted(metrics)]


def metric_numbers(order: Sequence[Entry], told: Tree, rows: Mapping[str, int]) -> NDArray[np.float64]:
    """What one silo adds: of what it tells by part, kind and metric."""

    def pair(entry: Entry) -> Iterator[float]:
        part, kind, metric = entry
        value, count = float(told.get(part, {}).get(kind, {}).get(metric, math.nan)), rows[part]
        yield from (value * count, float(count)) if math.isfinite(value) else (0.0, 0.0)

    return np.array([number for entry in order for number in pair(entry)])


def mean_metrics(
    order: Sequence[Entry], total: NDArray[np.float64], round_number: int, silos: int
) -> pd.DataFrame:
    """The means; what no silo told is left out."""
    lines = [
        (round_number, kind, part, metric, weighted / count, round(count), silos)
        for (part, kind, metric), (weighted, count) in zip(order, total.reshape(-1, 2).tolist(), strict=True)
        if count
    ]
    return pd.DataFrame(lines, columns=list(COLUMNS))
