"""What every codec is: an operator on tensors, and a message that carries its result exactly."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from idiolect.codecs.bits import BitReader, Bits, Words, mismatch, pack, read_words, write_words
from idiolect.codecs.parallel import map_rows
from idiolect.errors import DivergenceError, UserError

_CHUNK_ENTRIES = 1 << 20  # rows are worked on in pieces that stay in the processor's cache


@dataclass(frozen=True)
class Encoded:
    """A message: its bytes, and how many bits of them are the message (fewer than 8 fill the last byte)."""

    payload: bytes
    bits: int


class Codec(ABC):
    """A compression C and its wire format, with `decode(encode(x)) == C(x)` bit for bit.

    A tensor is compressed as one vector of n entries; n and the dtype (float32 or float64) are agreed
    beforehand and not sent. `rows` are such vectors stacked, one for each client. A random codec takes a key
    of `idiolect.core.rng` for each vector and gives the same result for the same key; the others ignore it.

    A codec is four methods. `operator` is C as torch operations, without checks, hence fit for `torch.vmap`.
    `write`, `read` and `count_bits` see only vectors that `operator` returned: a message says what C(x) is,
    nothing more.
    """

    @abstractmethod
    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """C of every row of [m, n] finite numbers."""

    @abstractmethod
    def count_bits(self, compressed: Tensor) -> Tensor:
        """The number of bits that `write` makes of every row of [m, n], as int64 [m]."""

    @abstractmethod
    def write(self, compressed: Tensor) -> Bits:
        """The message of one compressed vector."""

    @abstractmethod
    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`; it takes exactly the message's bits from the reader."""

    @final
    def compress_rows(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """C of every row of [m, n]; `keys` is [m]."""
        require_compressible(rows)
        chunks = _row_chunks(rows)
        return torch.cat(
            [self.operator(rows[chunk], None if keys is None else keys[chunk]) for chunk in chunks]
        )

    @final
    def compressed_bits(self, compressed: Tensor) -> Tensor:
        """The bits of the messages that carry what `compress_rows` returned, int64 [m]."""
        chunks = _row_chunks(compressed)
        return torch.cat(
            map_rows(lambda chunk: self.count_bits(compressed[chunk]), chunks, compressed.numel())
        )

    @final
    def bits_rows(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """The bits of `encode` for every row of [m, n], int64 [m], without encoding."""
        return self.compressed_bits(self.compress_rows(rows, keys))

    @final
    def compress(self, tensor: Tensor, key: Tensor | None = None) -> Tensor:
        """C of one tensor of any shape; `key` is a scalar."""
        keys = None if key is None else key.reshape(1)
        return self.compress_rows(tensor.reshape(1, -1), keys).reshape(tensor.shape)

    @final
    def encode(self, tensor: Tensor, key: Tensor | None = None) -> Encoded:
        """The message that carries C(tensor)."""
        bits = self.write(self.compress(tensor, key).reshape(-1))
        return Encoded(pack(bits), len(bits))

    @final
    def decode(self, payload: bytes, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """What a message carries."""
        reader = BitReader(payload)
        tensor = self.read(reader, torch.Size(shape).numel(), dtype)
        reader.finish()
        return tensor.reshape(tuple(shape))


def _row_chunks(rows: Tensor) -> list[slice]:
    """Consecutive rows that together have about `_CHUNK_ENTRIES` entries."""
    height = max(1, _CHUNK_ENTRIES // rows.shape[1])
    return [slice(start, start + height) for start in range(0, rows.shape[0], height)]


def require_compressible(rows: Tensor) -> None:
    """Refuse what no codec can carry: other dtypes, empty tensors, NaN and infinite numbers."""
    if rows.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"a codec was given a tensor of {rows.dtype}: it takes torch.float32 or torch.float64"
        )
    if rows.numel() == 0:
        raise UserError(
            f"a codec was given a tensor of shape {tuple(rows.shape)}: it needs at least one entry"
        )
    # A sum is not finite if an entry is not; the reverse does not hold, so only then look entry by entry.
    if not rows.sum().isfinite() and not (finite := rows.isfinite()).all():
        row, column = (~finite).nonzero()[0].tolist()
        raise DivergenceError(
            f"a codec was given {rows[row, column].item()} (row {row}, entry {column}), and takes finite "
            "numbers only"
        )


def write_floats(values: Tensor) -> Bits:
    """The bit patterns of a vector of floating-point numbers."""
    words = values.cpu().contiguous().view(_WORDS[values.dtype]).numpy()
    return write_words(words, values.itemsize * 8)


def read_floats(reader: BitReader, count: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `write_floats`."""
    return _as_floats(read_words(reader, count, dtype.itemsize * 8), dtype)


def write_magnitude(value: Tensor) -> Bits:
    """The bit pattern of one number that is not negative, without its bit of sign."""
    return write_floats(value.reshape(1))[1:]


def read_magnitude(reader: BitReader, dtype: torch.dtype) -> Tensor:
    """The inverse of `write_magnitude`."""
    return _as_floats(read_words(reader, 1, dtype.itemsize * 8 - 1), dtype)


def _as_floats(words: Words, dtype: torch.dtype) -> Tensor:
    values = torch.from_numpy(words.view(f"i{dtype.itemsize}")).view(dtype)
    if not values.isfinite().all():
        raise mismatch("it carries a number that is not finite")
    return values


def saturate(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to `dtype`; what is too large for it becomes its largest finite number."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)


def over_largest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Every row x as x / M in [-1, 1] with its M = max |x|, [m, 1]; a row of zeros stays one."""
    largest = rows.abs().amax(dim=-1, keepdim=True)
    return rows / torch.where(largest > 0, largest, 1.0), largest


def constant_bits(bits: int, rows: Tensor) -> Tensor:
    """One number for all rows."""
    return torch.full((rows.shape[0],), bits, dtype=torch.int64)


_WORDS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
