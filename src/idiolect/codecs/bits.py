"""Bit streams: words of any width and Rice-coded positions, vectorised in numpy.

While a message is built, a stream is an array of zeros and ones with one byte for each bit, so that parts
are joined by concatenation; `np.packbits` makes the payload at the very end.
"""

import numpy as np
import numpy.typing as npt

from idiolect.errors import UserError

Bits = npt.NDArray[np.uint8]
Words = npt.NDArray[np.unsignedinteger]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LOG_GOLDEN = np.log((np.sqrt(5) - 1) / 2)  # ln(φ - 1)


class BitReader:
    """Reads a payload from front to back."""

    def __init__(self, payload: bytes) -> None:
        self._bits: Bits = np.unpackbits(np.frombuffer(payload, dtype=np.uint8))
        self._position = 0

    def take(self, count: int) -> Bits:
        """The next `count` bits."""
        end = self._position + count
        if end > len(self._bits):
            raise mismatch(f"it has {len(self._bits)} bits and the message needs at least {end}")
        taken = self._bits[self._position : end]
        self._position = end
        return taken

    def take_ones(self, count: int, longest: int) -> Integers:
        """Read up to the `count`-th one, at most `longest` bits; where each one was, counted from 1."""
        window = self._bits[self._position : self._position + longest]
        ends = np.flatnonzero(window)[:count] + 1
        if len(ends) < count:
            raise mismatch(f"it names {len(ends)} positions and the message needs {count}")
        self._position += int(ends[-1]) if count else 0
        return ends

    def finish(self) -> None:
        """Check that nothing is left but the zeros that fill the last byte."""
        rest = self._bits[self._position :]
        if len(rest) >= 8 or rest.any():
            raise mismatch(f"it has {len(self._bits)} bits and the message ends after {self._position}")


def mismatch(what: str) -> UserError:
    """The error for a payload that cannot be the message expected."""
    return UserError(
        f"the payload does not fit: {what}; both ends must use the same codec, options, shape and dtype"
    )


def pack(bits: Bits) -> bytes:
    """The bytes of a stream, the last one filled with zeros."""
    return np.packbits(bits).tobytes()


def _container(width: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned type that holds words of `width` bits, most significant byte first."""
    size = next(size for size in (1, 2, 4, 8) if size * 8 >= width)
    return np.dtype(f">u{size}")


def write_words(words: npt.NDArray[np.integer], width: int) -> Bits:
    """The lowest `width` bits of every word, most significant first."""
    container = _container(width)
    every_bit = np.unpackbits(words.astype(container).view(np.uint8)).reshape(-1, container.itemsize * 8)
    return every_bit[:, every_bit.shape[1] - width :].reshape(-1)


def read_words(reader: BitReader, count: int, width: int) -> Words:
    """The inverse of `write_words` for `count` words, in the byte order of the machine."""
    container = _container(width)
    every_bit = np.zeros((count, container.itemsize * 8), dtype=np.uint8)
    every_bit[:, every_bit.shape[1] - width :] = reader.take(count * width).reshape(count, width)
    return np.packbits(every_bit).view(container).astype(container.newbyteorder("="))


def rice_parameter(count: npt.ArrayLike, size: int) -> Integers:
    """b* = 1 + floor(log2(ln(φ - 1) / ln(1 - p))) for p = count / size, and 0 where that is negative.

    It is the number of low bits of a gap that are sent as they are; the rest of the gap is sent in unary.
    `count` is at most half of `size`; where it is 0 there are no gaps, and the parameter is 0.
    """
    named = np.asarray(count, dtype=np.int64)
    share = np.maximum(named, 1) / max(size, 2)
    best = 1 + np.floor(np.log2(_LOG_GOLDEN / np.log1p(-share)))
    return np.where(named > 0, np.maximum(best, 0), 0).astype(np.int64)


def write_positions(chosen: Mask) -> Bits:
    """Where a mask is true, for a receiver who knows its length and how often it is true.

    The rarer of the two values is named, by the gaps between its positions: the low bits of all gaps, then
    their high parts in unary, a high part h as h zeros and a one.
    """
    positions = np.flatnonzero(chosen ^ _names_the_rest(chosen.sum(), len(chosen)))
    parameter = int(rice_parameter(len(positions), len(chosen)))
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum((gaps >> parameter) + 1)
    unary = np.zeros(ends[-1] if len(ends) else 0, dtype=np.uint8)
    unary[ends - 1] = 1
    return np.concatenate([write_words(gaps, parameter), unary])


def read_positions(reader: BitReader, count: int, size: int) -> Mask:
    """The inverse of `write_positions` for a mask that is true `count` times."""
    names_the_rest = _names_the_rest(count, size)
    named = size - count if names_the_rest else count
    parameter = int(rice_parameter(named, size))
    low = read_words(reader, named, parameter).astype(np.int64)
    high = np.diff(reader.take_ones(named, longest=named + (size >> parameter)), prepend=0) - 1
    positions = np.cumsum((high << parameter) + low + 1) - 1
    if named and positions[-1] >= size:
        raise mismatch(f"it names position {positions[-1]} and the tensor has {size} entries")
    mask = np.full(size, names_the_rest)
    mask[positions] = not names_the_rest
    return mask


def position_bits(chosen: Mask) -> Integers:
    """The length of `write_positions` for every row of a matrix."""
    size = chosen.shape[1]
    named = chosen ^ _names_the_rest(count_true(chosen), size)[:, None]
    counts = count_true(named)
    parameters = rice_parameter(counts, size)
    positions = np.flatnonzero(named)
    gaps = np.diff(positions, prepend=-1) - 1
    rows = np.flatnonzero(counts)
    first = (np.cumsum(counts) - counts)[rows]
    gaps[first] = positions[first] - rows * size  # a row's first gap starts at the row's own edge
    bits = counts * (parameters + 1)
    bits[rows] += np.add.reduceat(gaps >> np.repeat(parameters, counts), first)
    return bits


def count_true(mask: Mask) -> Integers:
    """How often each row of a matrix is true; row by row, which is much faster than a sum over an axis."""
    return np.array([np.count_nonzero(row) for row in mask], dtype=np.int64)


def _names_the_rest(count: Integers | int, size: int) -> Mask:
    """Whether the positions that are not chosen are fewer."""
    return np.asarray(2 * np.asarray(count) > size)
