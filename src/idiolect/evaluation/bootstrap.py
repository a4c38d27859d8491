"""What a metric would have been on other rows: the client's own, drawn again with replacement.

A replicate draws as many of the client's rows as it has, the same ones for all models (paired) and for all
seeds: seeds that split the rows differently share some of them. How often a row was drawn is its weight, with
which the metric's own function is computed for all replicates at once.

With several seeds a replicate draws those too, as many as there are, the same ones for all clients: what
varies are rows, and trainings. Seeds differ by their rows as well, whose noise would count twice; so what the
drawn seeds differ from the mean of all is scaled to the variance that is left without it (see `seed_part`).

An interval is between the 2.5 % lowest and the 2.5 % highest replicates, taken without interpolation: so that
of the negative is exactly the negative, and a failed model's infinite value does no harm. Draws are keyed by
the client's name: they are the same tomorrow, and whoever else is there.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from idiolect.core import rng
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.evaluation.metric import Counted, Metric
from idiolect.evaluation.metrics import BUILT_IN, has_failed, is_of_class

RESAMPLES = 1000
SLOW_RESAMPLES = 200  # of metrics that take too long for more of them
TAIL = 0.025
LEAST_ROWS = 10  # with fewer rows replicates hardly vary, however little is known
_ENTRIES_AT_ONCE = 10**7
_RANKED = ("auc", "average_precision")


def row_counts(client: str, rows: Sequence[Tensor], resamples: int = RESAMPLES) -> list[Tensor]:
    """For each seed how often each of its rows is drawn in each replicate, [resamples, rows].

    rows: for each seed which rows it has; the same number is the same row, also under another seed.
    """
    distinct, places = torch.cat(list(rows)).unique(return_inverse=True)
    counts = _counts(len(distinct), resamples, "bootstrap rows", zlib.crc32(client.encode()))
    return [counts[:, own] for own in places.split([len(r) for r in rows])]


def seed_counts(seeds: int, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each seed is drawn in each replicate, [resamples, seeds]."""
    return _counts(seeds, resamples, "bootstrap seeds").numpy()


def client_counts(clients: int, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each client is drawn in each replicate, [resamples, clients]."""
    return _counts(clients, resamples, "bootstrap clients").numpy()


def replicates(metric: Metric, task: Task, outputs: Tensor, targets: Tensor, counts: Tensor) -> np.ndarray:
    """A metric of one model for each draw of rows, float64[resamples]; NaN where it is not defined.

    A model that has failed has the worst value in every one.
    """
    resamples, whole = len(counts), Batch(outputs, targets, torch.ones(len(targets)))
    if has_failed(task, outputs, whole):
        return np.full(resamples, metric.failure)

    def of_counts(drawn: Tensor) -> Tensor:
        return metric(task, outputs, Counted(outputs, targets, drawn))

    if metric.name in _RANKED and task.kind != "binary":  # for each class an order of its own
        counts = counts[:SLOW_RESAMPLES]
    try:
        values = vmap(of_counts, chunk_size=max(1, _ENTRIES_AT_ONCE // max(1, outputs.numel())))(counts)
        if metric in BUILT_IN or is_of_class(metric.name) or _agrees(metric, task, outputs, targets, counts):
            return _filled(values.detach().numpy(), resamples)
    except (RuntimeError, ValueError, NotImplementedError):
        pass  # a metric of a library that knows no vmap
    slow = [_of_drawn(metric, task, outputs, targets, drawn) for drawn in counts[:SLOW_RESAMPLES]]
    return _filled(np.array(slow), resamples)


def over_seeds(drawn: np.ndarray, by_seed: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean over seeds in each replicate, with drawn rows; and what drawing seeds adds to it.

    drawn: with drawn rows, [seeds, resamples]; by_seed: with all rows, [seeds]; counts: `seed_counts`.
    """
    known = ~np.isnan(drawn)
    seen = known.sum(0)
    mean = np.where(seen > 0, np.where(known, drawn, 0).sum(0) / np.maximum(seen, 1), np.nan)
    if len(by_seed) < 2 or not np.isfinite(by_seed).all() or (both := seen == len(drawn)).sum() < 2:
        return mean, np.zeros(len(mean))
    noise = drawn[:, both].var(0, ddof=1).mean() - by_seed.var(ddof=1)
    return mean, seed_part(by_seed, noise, counts)


def seed_part(by_seed: np.ndarray, noise: float, counts: np.ndarray) -> np.ndarray:
    """How far drawn seeds are from the mean of all, [resamples]; in it the variance that rows do not explain.

    by_seed: of each seed, [seeds]; noise: how much of their variance is that of rows.
    """
    seeds, variance = len(by_seed), float(by_seed.var(ddof=1))
    left = max(0.0, variance - noise)
    if left == 0:
        return np.zeros(len(counts))
    # Draws from S things have the variance (S - 1) / S of what they stand for.
    scale = np.sqrt(left / variance * seeds / (seeds - 1))
    return np.asarray(scale * (counts @ (by_seed - by_seed.mean())) / seeds)


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of each row of replicates; NaN where fewer than half of them are defined."""
    ordered = np.sort(values, axis=-1)  # NaN at the end
    known = (~np.isnan(values)).sum(-1)
    tail = np.maximum(np.floor(TAIL * (known + 1)).astype(int) - 1, 0)
    ends = (tail, np.maximum(known - 1 - tail, 0))
    enough = 2 * known > min(values.shape[-1], SLOW_RESAMPLES)
    low, high = (np.take_along_axis(ordered, end[..., None], -1)[..., 0] for end in ends)
    return np.where(enough, low, np.nan), np.where(enough, high, np.nan)


def _counts(size: int, resamples: int, purpose: str, *parts: int) -> Tensor:
    generator = torch.Generator().manual_seed(rng.generator_seed(rng.key(0, purpose, *parts)))
    picks = torch.randint(size, (resamples, size), generator=generator)
    places = picks + size * torch.arange(resamples)[:, None]
    return torch.bincount(places.flatten(), minlength=resamples * size).reshape(resamples, size).double()


def _filled(values: np.ndarray, resamples: int) -> np.ndarray:
    """NaN in place of the replicates that were left out."""
    return np.pad(values, (0, resamples - len(values)), constant_values=np.nan)


def _of_drawn(metric: Metric, task: Task, outputs: Tensor, targets: Tensor, drawn: Tensor) -> float:
    """The metric of the rows themselves, each as often as it was drawn."""
    if not drawn.any():
        return float("nan")
    picks = torch.repeat_interleave(torch.arange(len(drawn)), drawn.long())
    weights = torch.full((len(picks),), 1 / len(picks))
    return float(metric(task, outputs[picks], Batch(outputs[picks], targets[picks], weights)))


def _agrees(metric: Metric, task: Task, outputs: Tensor, targets: Tensor, counts: Tensor) -> bool:
    """Whether a metric that is not ours takes counts for what they are."""
    drawn = counts[0]
    counted = float(metric(task, outputs, Counted(outputs, targets, drawn)))
    plain = _of_drawn(metric, task, outputs, targets, drawn)
    return bool(np.isclose(counted, plain, rtol=1e-9, atol=1e-12, equal_nan=True))
