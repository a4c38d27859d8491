"""Deterministic training, validation and test rows for each client.

A client's split is a pure function of (seed, client name, its number of rows), so that it stays the same
when other clients join, leave or are reordered.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.data.federation import Rows
from idiolect.errors import UserError

Fractions = tuple[float, float, float]
DEFAULT_FRACTIONS: Fractions = (0.6, 0.2, 0.2)
TooFew = Literal["refuse", "drop", "train"]


class Split(NamedTuple):
    """The rows of the clients that were kept, and which clients those are."""

    train: Rows
    validation: Rows
    test: Rows
    kept: tuple[int, ...]  # positions in the sequence of clients that was given


def check_fractions(fractions: Sequence[float]) -> None:
    """Refuse what is not three shares of a whole with something to train on."""
    usable = len(fractions) == 3 and all(math.isfinite(f) and f >= 0 for f in fractions)
    if not usable or abs(sum(fractions) - 1) > 1e-6 or fractions[0] <= 0:
        raise UserError(
            f"fractions={tuple(fractions)} must be three shares (training, validation, test) that are not "
            "negative and sum to 1, the first above 0, such as data.fractions=[0.6,0.2,0.2]"
        )


def part_sizes(rows: int, fractions: Fractions) -> tuple[int, int, int]:
    """How many of a client's rows go to training, validation and test.

    Validation and test get their share rounded down, but at least one row if their share is above zero;
    training gets the rest. The client needs as many rows as there are shares above zero.

    >>> part_sizes(66, (0.6, 0.2, 0.2)), part_sizes(3, (0.6, 0.2, 0.2)), part_sizes(5, (0.8, 0.0, 0.2))
    ((40, 13, 13), (1, 1, 1), (4, 0, 1))
    """
    validation, test = (max(1, math.floor(f * rows + 1e-9)) if f > 0 else 0 for f in fractions[1:])
    if validation + test == rows:  # rounding up to one row took the last training row
        validation, test = (validation - 1, test) if validation > test else (validation, test - 1)
    return rows - validation - test, validation, test


def split_clients(
    rows: Sequence[Tensor],
    names: Sequence[str],
    *,
    seed: int,
    fractions: Fractions = DEFAULT_FRACTIONS,
    minimum_rows: int | None = None,
    too_few: TooFew = "refuse",
    shuffle: bool = True,
) -> Split:
    """Split every client's rows into training, validation and test.

    rows: one tensor of row numbers for each client, as the partitioners give them.
    minimum_rows: a client with fewer rows is refused by name, dropped, or trains on all its rows and has no
        others, as `too_few` says; never less than the number of shares above zero, which is the default, so
        that no part is empty.
    shuffle: draw the parts at random; otherwise the first rows train and the last ones test, which is
        right for rows in the order of time.
    """
    check_fractions(fractions)
    floor = max(minimum_rows or 0, sum(f > 0 for f in fractions))
    kept = tuple(i for i, r in enumerate(rows) if len(r) >= floor or (too_few == "train" and len(r)))
    if len(kept) < len(rows) and too_few == "refuse":
        small = next(i for i, r in enumerate(rows) if len(r) < floor)
        raise UserError(
            f"client {names[small]!r} has {len(rows[small])} rows but at least {floor} are needed "
            f"(one of {len(rows) - len(kept)} such clients); {_remedy(minimum_rows, floor)}"
        )
    if not kept:
        raise UserError(f"no client has the {floor} rows that are needed for fractions={tuple(fractions)}")
    ordered = [rows[i] for i in kept]
    if shuffle:
        ordered = _shuffled(ordered, [names[i] for i in kept], seed)
    sizes = [part_sizes(len(own), fractions) if len(own) >= floor else (len(own), 0, 0) for own in ordered]
    parts = [torch.split(own, list(size)) for own, size in zip(ordered, sizes, strict=True)]
    train, validation, test = (Rows.of_clients(part) for part in zip(*parts, strict=True))
    return Split(train, validation, test, kept)


def _remedy(minimum_rows: int | None, floor: int) -> str:
    """What to do about clients with too few rows: the least that parts need cannot be lowered."""
    lower = "" if minimum_rows is None or minimum_rows < floor else ", or lower data.minimum_rows"
    return f"leave such clients out with data.too_few=drop{lower}"


def _shuffled(rows: Sequence[Tensor], names: Sequence[str], seed: int) -> list[Tensor]:
    """Each client's rows in a random order of its own: sorted by a hash of (seed, name, position).

    One call for all clients, since they may be thousands and their rows millions.
    """
    own = Rows.of_clients(rows)
    sizes = own.sizes
    clients = torch.arange(len(names)).repeat_interleave(sizes)
    positions = torch.arange(len(own.index)) - own.offsets[:-1].repeat_interleave(sizes)
    keys = rng.key(seed, "split", torch.tensor([zlib.crc32(name.encode()) for name in names]))
    hashes = rng.fold(keys.repeat_interleave(sizes), positions)
    order = torch.as_tensor(np.lexsort((hashes.numpy(), clients.numpy())))
    return list(torch.split(own.index[order], sizes.tolist()))
