"""Real numbers as integers modulo 2^64: x is round(2^f x), f as large as the sum leaves room for.

With numbers of at most `largest` and at most `summands` of them, a sum stays below 2^62 and never wraps, so
the sum of the integers is exact, in whatever order. What is lost is the rounding of each number, at most
2^-(f+1).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idiolect.errors import UserError

Residues = NDArray[np.uint64]  # integers modulo 2^64
_BITS_OF_A_SUM = 62


@dataclass(frozen=True)
class FixedPoint:
    """How numbers are written, known to all: it follows from how large they may be and how many are added."""

    largest: float
    summands: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.largest) and 2.0**-32 <= self.largest <= 2.0**40):
            raise UserError(f"range={self.largest} is not possible: secure sums take 2^-32 to 2^40")

    @property
    def fraction_bits(self) -> int:
        """f: how many binary digits there are after the point."""
        return _BITS_OF_A_SUM - math.ceil(math.log2(self.largest)) - math.ceil(math.log2(self.summands))

    def encode(self, numbers: NDArray[np.float64]) -> Residues:
        """The integers; a number out of range is refused, since it could not be told from another one."""
        if not (np.abs(numbers) <= self.largest).all():  # which one, and by how much, is not to be told
            raise UserError(
                f"a number to be summed is out of range: secure sums hold numbers from {-self.largest:g} to "
                f"{self.largest:g}; raise secure.range, which costs digits, or look for why it is so large"
            )
        # Scaling by a power of two is exact, and so is the conversion of what was rounded.
        return np.rint(np.ldexp(numbers, self.fraction_bits)).astype(np.int64).view(np.uint64)

    def decode(self, total: Residues) -> NDArray[np.float64]:
        """The numbers that a sum of integers stands for."""
        return np.ldexp(total.view(np.int64).astype(np.float64), -self.fraction_bits)
