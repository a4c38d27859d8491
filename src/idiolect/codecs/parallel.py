"""Work on one row after the other, in several threads where that pays: numpy lets others run meanwhile."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")

_ENTRIES_WORTH_A_THREAD = 1 << 17  # selecting from that many takes about as long as starting a thread


def map_rows(function: Callable[[S], T], rows: Sequence[S], entries: int) -> list[T]:
    """The results for all rows, which have that many entries together; in as many threads as torch has."""
    threads = min(torch.get_num_threads(), len(rows), entries // _ENTRIES_WORTH_A_THREAD)
    if threads < 2:
        return [function(row) for row in rows]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, rows))
