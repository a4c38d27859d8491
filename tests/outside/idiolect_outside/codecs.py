"""Fixed-point numbers: every entry on one grid that all clients share."""

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.codecs.bits import BitReader, Bits, mismatch, read_words, write_words
from idiolect.codecs.codec import Codec, constant_bits


@dataclass(frozen=True)
class FixedPoint(Codec):
    """C(x) = k / 2^fraction, with k the integer of at most `bits` bits that is nearest to 2^fraction x.

    The error of an entry is at most 2^-(fraction + 1), but for those beyond the largest number of the grid,
    which become that number: with error feedback the rest follows in later rounds.
    The message is `bits` bits for each entry.
    """

    # More than 24 bits would be more than a float32 holds exactly.
    bits: int = Field(default=16, ge=2, le=24, description="bits for each entry on the wire")
    fraction: int = Field(default=12, ge=0, le=60, description="how many of them are after the binary point")

    @property
    def _largest(self) -> int:
        """The largest integer on the wire; its negative is the smallest."""
        return (1 << (self.bits - 1)) - 1

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """The nearest number of the grid for every entry."""
        return self._number(self._integer(rows))

    def count_bits(self, compressed: Tensor) -> Tensor:
        """One integer for each entry."""
        return constant_bits(compressed.shape[1] * self.bits, compressed)

    def write(self, compressed: Tensor) -> Bits:
        """The integers, in order, the smallest as 0."""
        words = (self._integer(compressed) + self._largest).to(torch.int32)
        return write_words(words.cpu().numpy(), self.bits)

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`."""
        words = torch.from_numpy(read_words(reader, size, self.bits).astype(np.int32))
        if (words > 2 * self._largest).any():
            raise mismatch(f"it carries an integer beyond {self._largest}")
        return self._number((words - self._largest).to(dtype))

    def _integer(self, values: Tensor) -> Tensor:
        return (values * 2.0**self.fraction).round().clamp(-self._largest, self._largest)

    def _number(self, integers: Tensor) -> Tensor:
        return integers / 2.0**self.fraction + 0.0  # + 0.0 turns -0.0 into 0.0
