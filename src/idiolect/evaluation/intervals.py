"""How far a number that was measured on a few rows, or over a few clients, can be trusted."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from idiolect.core import rng, tree
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metrics import Metric

RESAMPLES = 1000
NORMAL_95 = 1.959963984540054  # the 97.5 % quantile of the standard normal distribution
_ENTRIES_AT_ONCE = 10**7

Interval = tuple[float, float]


def wilson(share: float, rows: int) -> Interval:
    """The 95 % interval of a probability of which `share` was seen in some rows (Wilson 1927).

    >>> [round(end, 4) for end in wilson(0.9, 10)]
    [0.5958, 0.9821]
    """
    z = NORMAL_95**2 / rows
    centre = (share + z / 2) / (1 + z)
    half = math.sqrt(z * share * (1 - share) + z**2 / 4) / (1 + z)
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_of(metric: Metric, task: Task, predictions: Tensor, batch: Batch) -> Interval | None:
    """The 95 % interval of a metric of one client's rows; None where they are too few to say.

    A share of rows has Wilson's, which is not empty where all are right; others are resampled.
    """
    rows = len(batch.weights)
    if rows == 0:
        return None
    if metric.name == "accuracy":
        return wilson(float(metric(task, predictions, batch)), rows)

    def of_resample(pick: Tensor) -> Tensor:
        return metric(task, predictions[pick], tree.map_tree(lambda leaf: leaf[pick], fields))

    fields = batch._replace(key=())
    entries = rows * sum(tensor[0].numel() for tensor in tree.leaves((predictions, fields)))
    return _bootstrap(of_resample, rows, max(1, _ENTRIES_AT_ONCE // entries))


def interval_of_mean(values: np.ndarray) -> Interval | None:
    """The 95 % interval of a mean over clients."""
    present = torch.as_tensor(values[np.isfinite(values)], dtype=torch.float64)
    return _bootstrap(lambda pick: present[pick].mean(), len(present), RESAMPLES)


def _bootstrap(statistic: Callable[[Tensor], Tensor], size: int, at_once: int) -> Interval | None:
    """Percentiles of a statistic of as many things, drawn with replacement from themselves."""
    if size < 2:
        return None
    generator = torch.Generator().manual_seed(rng.generator_seed(rng.key(0, "bootstrap")))
    picks = torch.randint(size, (RESAMPLES, size), generator=generator)
    try:
        values = vmap(statistic, chunk_size=at_once)(picks)
    except (RuntimeError, ValueError, NotImplementedError):  # a metric of a library that knows no vmap
        values = torch.stack([statistic(pick) for pick in picks])
    found = values.detach().numpy()
    if not np.isfinite(found).any():
        return None
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)
