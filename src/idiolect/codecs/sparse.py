"""The entries of largest magnitude: sparse ternary (with the scaled sign as a special case) and top-k.

How zeros are sent: not at all. A chosen entry whose value is zero is the same to the receiver as one that
was not chosen, so a message names only the entries that are not zero. Nearly always there are k of them,
which the receiver knows from n and the options. One bit says whether there are fewer; if so, their number
follows in as many bits as k - 1 has.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.codecs.bits import (
    BitReader,
    Bits,
    Integers,
    Mask,
    count_true,
    mismatch,
    position_bits,
    read_positions,
    read_words,
    write_positions,
    write_words,
)
from idiolect.codecs.codec import (
    Codec,
    read_floats,
    read_magnitude,
    saturate,
    write_floats,
    write_magnitude,
)
from idiolect.codecs.parallel import map_rows
from idiolect.core.device import precise


@dataclass(frozen=True)
class SparseTernary(Codec):
    """ST(T; q): the k = max(floor(n q), 1) entries of largest |T|, each as μ sign(T), the rest zero.

    μ is the mean magnitude of the k entries. Among equal magnitudes the lowest index is chosen first.
    n = 1 is the identity. q = 1 is μ sign(T), the scaled sign, not the identity.

    The message: which entries, one bit of sign for each, and μ in the precision of the tensor. μ has no
    sign, so that with the bit for "fewer than k" the two make 32 bits (64 for float64).
    """

    keep: float = Field(default=0.3, gt=0, le=1, description="q, the share of entries that is sent")

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """ST of every row."""
        mean, chosen = _largest(rows, kept_count(rows.shape[1], self.keep))
        return rows.sign().mul_(chosen).mul_(mean).add_(0.0)  # + 0.0 turns -0.0 into 0.0

    def count_bits(self, compressed: Tensor) -> Tensor:
        """The support, the signs and the magnitude."""
        sent = _is_sent(compressed)
        magnitude = compressed.itemsize * 8 - 1
        return torch.from_numpy(_support_bits(sent, self.keep) + count_true(sent) + magnitude)

    def write(self, compressed: Tensor) -> Bits:
        """The message of one vector with values in {-μ, 0, μ}."""
        sent = _is_sent(compressed)
        negative = (compressed < 0).cpu().numpy()[sent].astype(np.uint8)
        magnitude = write_magnitude(compressed.abs().amax())
        return np.concatenate([_write_support(sent, self.keep), negative, magnitude])

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`."""
        sent = _read_support(reader, size, self.keep)
        signs = torch.from_numpy(1.0 - 2.0 * reader.take(sent.sum())).to(dtype)
        return _fill(sent, read_magnitude(reader, dtype) * signs)


@dataclass(frozen=True)
class TopK(Codec):
    """The k = max(floor(n q), 1) entries of largest magnitude as float32, the rest zero.

    Among equal magnitudes the lowest index is chosen first. Numbers too large for float32 become its largest.
    The message: which entries, and 32 bits for each.
    """

    keep: float = Field(default=0.1, gt=0, le=1, description="q, the share of entries that is sent")

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """The k largest entries of every row."""
        _, chosen = _largest(rows, kept_count(rows.shape[1], self.keep))
        return saturate(rows, torch.float32).to(rows.dtype) * chosen + 0.0  # + 0.0 turns -0.0 into 0.0

    def count_bits(self, compressed: Tensor) -> Tensor:
        """The support and the values."""
        sent = _is_sent(compressed)
        return torch.from_numpy(_support_bits(sent, self.keep) + 32 * count_true(sent))

    def write(self, compressed: Tensor) -> Bits:
        """The message of one vector with at most k entries that are not zero."""
        sent = _is_sent(compressed)
        values = compressed.cpu()[torch.from_numpy(sent)].to(torch.float32)
        return np.concatenate([_write_support(sent, self.keep), write_floats(values)])

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        """The inverse of `write`."""
        sent = _read_support(reader, size, self.keep)
        return _fill(sent, read_floats(reader, int(sent.sum()), torch.float32).to(dtype))


def kept_count(size: int, keep: float) -> int:
    """The number k = max(floor(n q), 1), with q as it is written: 0.7 · 90 is 63, in binary 62."""
    return max(int(size * Decimal(repr(keep))), 1)


def sorted_out(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of the `count` largest entries of every row, and ones where they are: by sorting."""
    ordered, order = rows.sort(dim=-1, descending=True, stable=True)
    chosen = torch.zeros_like(rows).scatter(-1, order[..., :count], 1.0)
    largest = precise(ordered[..., :1])
    ratios = precise(ordered[..., :count]) / torch.where(largest > 0, largest, 1.0)
    return (largest * ratios.mean(-1, keepdim=True)).to(rows.dtype), chosen


class _LargestEntries(torch.autograd.Function):
    """The same on the CPU: torch made of numpy.

    `np.partition` is about nine times faster than `torch.topk`, and selection is most of what a sparse codec
    does. As an `autograd.Function` it has a rule for `torch.vmap`.
    """

    @staticmethod
    def forward(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        entries = rows.numpy().reshape(-1, rows.shape[-1])
        ones = np.empty_like(entries)  # torch multiplies numbers much faster than bools

        def select(place: int) -> float:
            row = entries[place]
            largest = np.partition(row, len(row) - count)[-count:]
            chosen = row >= largest[0]  # the smallest of them
            surplus = np.count_nonzero(chosen) - count
            if surplus > 0:  # ties: of the entries equal to the smallest, the last are too many
                chosen[np.flatnonzero(row == largest[0])[-surplus:]] = False
            ones[place] = chosen
            return _mean(largest)

        means = np.array(map_rows(select, range(len(entries)), entries.size), dtype=entries.dtype)
        return (
            torch.from_numpy(means).reshape(*rows.shape[:-1], 1),
            torch.from_numpy(ones).reshape(rows.shape),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], rows: Tensor, count: int) -> tuple[Any, tuple[int, int]]:
        return _LargestEntries.apply(rows.movedim(in_dims[0], 0), count), (0, 0)  # type: ignore[no-untyped-call]


def _largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The mean of each row's k largest magnitudes, and ones where they are, on ties at the lowest indices."""
    if rows.device.type != "cpu":
        return sorted_out(rows.abs(), k)
    mean, chosen = _LargestEntries.apply(rows.abs(), k)  # type: ignore[no-untyped-call]
    return mean, chosen


def _mean(magnitudes: NDArray[np.floating[Any]]) -> float:
    """It cannot overflow, and the mean of equal numbers is that number."""
    largest = np.float64(magnitudes.max())
    if largest == 0:
        return 0.0
    with np.errstate(invalid="ignore"):  # training that diverged is noticed where bits are counted
        return float(largest * np.mean(np.divide(magnitudes, largest, dtype=np.float64)))


def _is_sent(compressed: Tensor) -> Mask:
    sent: Mask = compressed.cpu().numpy() != 0
    return sent


def _write_support(sent: Mask, keep: float) -> Bits:
    """Which entries are sent: whether fewer than k, if so how many, and where."""
    k = kept_count(len(sent), keep)
    count = sent.sum()
    fewer = count < k
    header = write_words(np.array([count]), _count_width(k)) if fewer else np.zeros(0, dtype=np.uint8)
    return np.concatenate([np.array([fewer], dtype=np.uint8), header, write_positions(sent)])


def _read_support(reader: BitReader, size: int, keep: float) -> Mask:
    """The inverse of `_write_support`."""
    k = kept_count(size, keep)
    fewer = bool(reader.take(1)[0])
    count = int(read_words(reader, 1, _count_width(k))[0]) if fewer else k
    if fewer and count >= k:
        raise mismatch(f"it announces {count} entries, which is not fewer than {k}")
    return read_positions(reader, count, size)


def _support_bits(sent: Mask, keep: float) -> Integers:
    """The length of `_write_support` for every row of a mask."""
    k = kept_count(sent.shape[1], keep)
    header: Integers = 1 + (count_true(sent) < k) * _count_width(k)
    return header + position_bits(sent)


def _count_width(k: int) -> int:
    """The bits of a number below k."""
    return (k - 1).bit_length()


def _fill(sent: Mask, values: Tensor) -> Tensor:
    """A vector of zeros with `values` where they were sent."""
    return torch.zeros(len(sent), dtype=values.dtype).masked_scatter(torch.from_numpy(sent), values)
