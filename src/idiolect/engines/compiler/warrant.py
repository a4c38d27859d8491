"""A rewritten step vouches for itself: it is compared with the plain one, on the arguments of the run.

Two ways of adding the same numbers differ by rounding. How much that explains is first guessed, by the size
of the results, and where this does not do, measured: by how far the plain step moves when its arguments move
by as little as rounding does. So kinks, cancellations and badly conditioned models explain what they cause,
and a result that is not finite says nothing.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.core.device import precise, to_device, to_host
from idiolect.engines.compiler.recorder import Arguments, Step

ROUNDINGS = 16  # of each entry that a step of a well conditioned model may differ by
MEASUREMENTS = 4  # of how far rounding moves the plain step
MARGIN = 16  # over the farthest of these


class Difference(NamedTuple):
    """A result that two ways to compute a step do not agree on; sizes are Euclidean norms."""

    result: int
    size: float
    explained: float  # by rounding

    def __str__(self) -> str:
        return (
            f"result {self.result} of a rewritten local step differs from the plain one by {self.size:.2g}, "
            f"where rounding explains {self.explained:.2g}"
        )


def unexplained_difference(
    plain: Step, arguments: Arguments, expected: Sequence[Tensor], actual: Sequence[Tensor]
) -> Difference | None:
    """The first result that differs from what the plain step gives by more than rounding explains."""
    explained = guessed = [_size(result, result) * ROUNDINGS * _precision(result) for result in expected]
    distances = _distances(actual, expected)
    seeds = iter(range(MEASUREMENTS))
    while doubtful := [place for place, size in enumerate(distances) if size > explained[place]]:
        seed = next(seeds, None)
        if seed is None:
            return Difference(doubtful[0], distances[doubtful[0]], explained[doubtful[0]])
        moved = _distances(plain(_rounded(arguments, seed)), expected)
        explained = [
            max(known, least + MARGIN * seen)
            for known, least, seen in zip(explained, guessed, moved, strict=True)
        ]
    return None


def _distances(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[float]:
    """How far apart results are where the second ones are finite; infinity if the first ones are not."""
    sizes = [_size(_wide(one) - _wide(other), other) for one, other in zip(some, others, strict=True)]
    return [math.inf if math.isnan(size) else size for size in sizes]


def _size(values: Tensor, others: Tensor) -> float:
    """The norm of values where others are finite."""
    norm = float(to_host(torch.linalg.vector_norm(_wide(values))))
    if math.isfinite(norm):  # then so are all of them, mostly
        return norm
    return float(to_host(torch.linalg.vector_norm(_wide(values).where(others.isfinite(), 0))))


def elsewhere(arguments: Arguments) -> Arguments:
    """Arguments of the same kind that are special in no way, where nothing is zero or equal by chance.

    First steps are special: corrections are still zero, two models still the same. A rewritten step must be
    right for all arguments, and what is wrong with it shows here at once.
    """
    generator = torch.Generator().manual_seed(0)

    def move(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf.clone()
        moved = leaf + 0.1
        # A factor for each client and one for each entry: as good as one for both, and much faster.
        for shape in (leaf.shape[:1] + (1,) * len(leaf.shape[1:]), leaf.shape[1:]):
            drawn = torch.rand(shape, dtype=leaf.dtype, generator=generator)
            moved *= 0.9 + 0.2 * to_device(drawn, leaf.device)
        return moved

    return Arguments.from_flat([move(leaf) for leaf in arguments.flat()], arguments)


def _rounded(arguments: Arguments, seed: int) -> Arguments:
    """The arguments, each real number moved by at most as much as a few roundings would."""

    def move(place: int, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        draws = rng.uniform(to_device(rng.key(seed, "rounding", place), leaf.device), *leaf.shape)
        return leaf * (1 + (8 * draws - 4).to(leaf.dtype) * _precision(leaf))

    flat = [move(place, leaf) for place, leaf in enumerate(arguments.flat())]
    return Arguments.from_flat(flat, arguments)


def _wide(values: Tensor) -> Tensor:
    """Integers as real numbers: whoever subtracts them as they are may overflow."""
    return values if values.is_floating_point() or values.is_complex() else precise(values)


def _precision(values: Tensor) -> float:
    """The relative distance of neighbouring numbers; whole numbers are exact."""
    is_rounded = values.is_floating_point() or values.is_complex()
    return torch.finfo(values.dtype).eps if is_rounded else 0.0
