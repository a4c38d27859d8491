"""A rewritten step vouches for itself: it is compared with the plain one, on the arguments of the run.

Two ways of adding the same numbers differ by rounding. How much that explains is first guessed, by the size
of the results, and where this does not do, measured: by how far the plain step moves when its arguments move
by as little as rounding does. So kinks, cancellations and badly conditioned models explain what they cause,
and a step whose results are not finite says nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.engines.compiler.recording import Arguments, Step

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
    if not all(result.isfinite().all() for result in expected):
        return None
    guessed = [_norm(result) * ROUNDINGS * _precision(result) for result in expected]
    distances = _distances(actual, expected)
    if all(distance <= least for distance, least in zip(distances, guessed, strict=True)):
        return None
    moved = [_distances(plain(_rounded(arguments, seed)), expected) for seed in range(MEASUREMENTS)]
    for place, (distance, least, *seen) in enumerate(zip(distances, guessed, *moved, strict=True)):
        explained = least + MARGIN * max(seen)
        if not distance <= explained:
            return Difference(place, distance, explained)
    return None


def _distances(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[float]:
    return [_norm(_wide(one) - _wide(other)) for one, other in zip(some, others, strict=True)]


def _rounded(arguments: Arguments, seed: int) -> Arguments:
    """The arguments, each real number moved by at most as much as a few roundings would."""

    def move(place: int, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        draws = rng.uniform(rng.key(seed, "rounding", place), *leaf.shape)
        return leaf * (1 + (8 * draws - 4).to(leaf.dtype) * _precision(leaf))

    flat = [move(place, leaf) for place, leaf in enumerate(arguments.flat())]
    return Arguments.from_flat(flat, arguments)


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(_wide(values)))


def _wide(values: Tensor) -> Tensor:
    """Integers as real numbers: whoever subtracts them as they are may overflow."""
    return values if values.is_floating_point() or values.is_complex() else values.double()


def _precision(values: Tensor) -> float:
    """The relative distance of neighbouring numbers; whole numbers are exact."""
    is_rounded = values.is_floating_point() or values.is_complex()
    return torch.finfo(values.dtype).eps if is_rounded else 0.0
