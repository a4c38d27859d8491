"""Every entry as a floating-point number of a chosen width."""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.codecs.bits import BitReader, Bits
from idiolect.codecs.codec import Codec, constant_bits, read_floats, saturate, write_floats


@dataclass(frozen=True)
class Dense(Codec):
    """C(x) = x rounded to `precision`, to nearest, ties to even.

    Numbers beyond the largest finite one of `precision` become that number: with error feedback the rest
    follows in later rounds, while an infinity would spoil the average for good.
    The message is n words of 32 or 16 bits.
    """

    precision: Literal["float32", "float16", "bfloat16"] = Field(
        default="float32", description="the format of every entry on the wire"
    )

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """Round to the precision and back."""
        return saturate(rows, self._dtype).to(rows.dtype)

    def count_bits(self, compressed: Tensor) -> Tensor:
        """One word for each entry."""
        return constant_bits(compressed.shape[1] * self._dtype.itemsize * 8, compressed)

    def write(self, compressed: Tensor) -> Bits:
        """The words, in order."""
        return write_floats(compressed.to(self._dtype))

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`."""
        return read_floats(reader, size, self._dtype).to(dtype)
