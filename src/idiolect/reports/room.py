"""The part of an axis that is drawn: it follows what most values do, not the one that is far away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FAR = 3.0  # quartile ranges beyond the quartiles
_NEAR = 0.25  # of the median, which is not far however equal the other values are
_SMALLEST_SPAN = 0.02  # of the values, so that labels of ticks differ
_PADDING = 0.04
_MANY_TIMES = 20.0  # that the largest has the smallest value: then the axis is logarithmic

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Room:
    """The ends of an axis."""

    low: float
    high: float
    logarithmic: bool = False

    def outside(self, values: ArrayLike) -> "NDArray[np.bool_]":
        """Which values are not in it; what is undefined is nowhere."""
        numbers = np.asarray(values, np.float64)
        return (numbers < self.low) | (numbers > self.high)

    def at_edge(self, values: ArrayLike) -> Values:
        """The values, those outside moved to the nearest end."""
        return np.clip(np.asarray(values, np.float64), self.low, self.high)

    def just_outside(self, values: ArrayLike) -> Values:
        """The values, none so far outside that it could not be drawn: a line to it leaves the axis."""
        if self.logarithmic:
            return np.clip(np.asarray(values, np.float64), self.low / 10, self.high * 10)
        span = self.high - self.low
        return np.clip(np.asarray(values, np.float64), self.low - span, self.high + span)


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Ticks at 1, 2 and 5 times powers of ten, or at powers of ten, every second of them and so on.

    >>> log_ticks(0.3, 30, 9), log_ticks(0.3, 30, 4), log_ticks(1e-3, 1e9, 4)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0], [0.001, 10.0, 100000.0, 1000000000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [number * 10.0**power for power in range(first, last + 1) for number in (1, 2, 5)]
    ticks = [tick for tick in fine if low <= tick <= high]
    decades = [10.0**power for power in range(first, last + 1) if low <= 10.0**power <= high]
    if len(ticks) <= most or len(decades) < 2:
        return ticks
    return decades[:: -(-len(decades) // most)]


def room_for(
    groups: Sequence[ArrayLike],
    needed: ArrayLike = (),
    *,
    central: float = 0.0,
    may_be_logarithmic: bool = False,
) -> Room:
    """The room for all values but those far from the others of their group, and for all that are `needed`.

    The `central` share of a group is not called far. Only values that are positive and very different make
    it logarithmic, where that is possible.

    >>> room_for([[0.4, 0.5, 0.6, 0.7, 1e30]]).high < 1
    True
    """
    drawn = np.concatenate([_finite(needed), *(_usual(_finite(group), central) for group in groups)])
    if not len(drawn):
        return Room(0.0, 1.0)
    low, high = float(drawn.min()), float(drawn.max())
    if may_be_logarithmic and low > 0 and high > _MANY_TIMES * low:
        padding = (high / low) ** _PADDING
        return Room(low / padding, high * padding, logarithmic=True)
    too_narrow = max(_SMALLEST_SPAN * max(abs(low), abs(high)) - (high - low), 0.0)
    if low == high == 0:
        too_narrow = _SMALLEST_SPAN
    padding = _PADDING * (high - low) + too_narrow / 2
    return Room(low - padding, high + padding)


def _finite(values: ArrayLike) -> Values:
    numbers = np.asarray(values, np.float64).ravel()
    return numbers[np.isfinite(numbers)]


def _usual(values: Values, central: float) -> Values:
    """Those that are not far outside of the middle half."""
    if not len(values):
        return values
    with np.errstate(over="ignore"):  # values of diverged models: infinitely far is far
        first, median, third = np.percentile(values, [25, 50, 75])
        reach = max(_FAR * (third - first), _NEAR * abs(median)) or 1.0
        low, high = np.percentile(values, [50 - 50 * central, 50 + 50 * central], method="nearest")
        return values[(values >= min(first - reach, low)) & (values <= max(third + reach, high))]
