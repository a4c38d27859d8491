"""Every entry as a small signed integer: a multiple of the largest magnitude over the number of levels."""

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.codecs.bits import BitReader, Bits, mismatch, read_words, write_words
from idiolect.codecs.codec import Codec, constant_bits, over_largest, read_floats, write_floats
from idiolect.core import rng
from idiolect.core.device import precise
from idiolect.errors import UserError

_LINEAR_BITS = 8


@dataclass(frozen=True)
class Linear(Codec):
    """8-bit linear quantisation: C(x) = M · round(127 x / M) / 127, with M = max |x|.

    The error of an entry is at most M / 254. The message is M in the precision of the tensor and 8 bits for
    each entry.
    """

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """The nearest level of every entry."""
        ratios, largest = over_largest(rows)
        return _from_levels((ratios * _levels(_LINEAR_BITS)).round(), largest, _LINEAR_BITS)

    def count_bits(self, compressed: Tensor) -> Tensor:
        """M and n integers."""
        return _quantised_bits(compressed, _LINEAR_BITS)

    def write(self, compressed: Tensor) -> Bits:
        """M, then the integers, in order."""
        return _write_quantised(compressed, _LINEAR_BITS)

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`."""
        return _read_quantised(reader, size, dtype, _LINEAR_BITS)


@dataclass(frozen=True)
class Stochastic(Codec):
    """Stochastic quantisation: C(x) = M · Q(s x / M) / s, with M = max |x|, s = 2^(bits - 1) - 1 levels.

    Q rounds up or down at random so that E[Q(y)] = y: the compression is unbiased. It needs a key, and is a
    pure function of the vector and the key. `bits = 2` gives the values -M, 0 and M.
    The message is M in the precision of the tensor and `bits` bits for each entry.
    """

    bits: int = Field(default=8, ge=2, le=16, description="bits for each entry on the wire")

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """One of the two nearest levels of every entry, by a hash of the row's key and the position."""
        if keys is None:
            raise UserError(
                "stochastic quantisation was given no key: pass a key of idiolect.core.rng for each row"
            )
        ratios, largest = over_largest(rows)
        exact = precise(ratios) * _levels(self.bits)
        lower = exact.floor()
        rounded = lower + (rng.uniform(keys, rows.shape[1]) < exact - lower)
        return _from_levels(rounded.to(rows.dtype), largest, self.bits)

    def count_bits(self, compressed: Tensor) -> Tensor:
        """M and n integers."""
        return _quantised_bits(compressed, self.bits)

    def write(self, compressed: Tensor) -> Bits:
        """M, then the integers, in order."""
        return _write_quantised(compressed, self.bits)

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`."""
        return _read_quantised(reader, size, dtype, self.bits)


def _levels(bits: int) -> int:
    """The largest integer on the wire; its negative is the smallest."""
    return (1 << (bits - 1)) - 1


def _from_levels(integers: Tensor, largest: Tensor, bits: int) -> Tensor:
    """M · integer / s. Divided first, so that the largest entry is M itself and M can be read off C(x)."""
    return largest * (integers / _levels(bits)) + 0.0  # + 0.0 turns -0.0 into 0.0


def _quantised_bits(compressed: Tensor, bits: int) -> Tensor:
    return constant_bits(compressed.itemsize * 8 + compressed.shape[1] * bits, compressed)


def _write_quantised(compressed: Tensor, bits: int) -> Bits:
    ratios, largest = over_largest(compressed)
    integers = (ratios * _levels(bits)).round() + _levels(bits)
    words = integers.to(torch.int32).cpu().numpy()
    return np.concatenate([write_floats(largest), write_words(words, bits)])


def _read_quantised(reader: BitReader, size: int, dtype: torch.dtype, bits: int) -> Tensor:
    largest = read_floats(reader, 1, dtype)
    words = torch.from_numpy(read_words(reader, size, bits).astype(np.int32))
    if (words > 2 * _levels(bits)).any():
        raise mismatch(f"it carries a level beyond {_levels(bits)}")
    return _from_levels((words - _levels(bits)).to(dtype), largest, bits)
