"""Which clients are computed together: chunks of a cohort, and the stages in which a chunk does its steps."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from idiolect.core.device import free_bytes

CHUNK_BYTES = 16 * 2**20  # parameters of one chunk: about what stays in the cache over a round
MOST_CLIENTS = 256  # in a chunk, however small the model
MOST_ON_DEVICE = 1024  # the same on a device beside the CPU
MODELS_AT_WORK = 8  # as large as a model: what a method's client keeps, is sent, changes and sends
SMALL_STACK_BYTES = 2**18  # parameters of a stack whose step takes as long with half of the clients
ROW_BYTES = 64 * 2**20  # of a chunk's rows, all that are looked at or those of one batch


class Stage(NamedTuple):
    """Some steps of a chunk, in which the same clients are at work."""

    steps: range
    stack: int  # clients that are computed: those at work, and some that have finished
    active: int  # clients at work
    staying: int  # of these, clients that go on after the stage


def parameter_bytes(module: nn.Module) -> int:
    """The memory of a client's own parameters of a model: of those that are trained."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def most_at_once(module: nn.Module, gradient_bytes: int, device: torch.device) -> int:
    """How many clients are worked on at once, where a stack is faster than one by one.

    On the CPU as many as stay in the cache. On a device as many as a quarter of its free memory has room for,
    with all that a gradient computes on its way.
    """
    free = free_bytes(device)
    if free is None:
        return max(1, min(MOST_CLIENTS, CHUNK_BYTES // parameter_bytes(module)))
    each = MODELS_AT_WORK * parameter_bytes(module) + gradient_bytes
    return max(1, min(MOST_ON_DEVICE, free // 4 // each))


def similar_work(steps: Tensor, rows: Tensor, most: int, row_bytes: int) -> Iterator[Tensor]:
    """Places of the clients of each chunk, most steps first and, where these are equal, most rows at once."""
    order = rows.argsort(stable=True, descending=True)
    order = order[steps[order].argsort(stable=True, descending=True)]
    return _neighbours(order, rows, most, row_bytes)


def similar_size(sizes: Tensor, most: int, row_bytes: int) -> Iterator[Tensor]:
    """Places of clients that are looked at together, most rows first."""
    return _neighbours(sizes.argsort(stable=True, descending=True), sizes, most, row_bytes)


def _neighbours(order: Tensor, rows: Tensor, most: int, row_bytes: int) -> Iterator[Tensor]:
    """As many neighbours as may be together, padded to the largest number of rows; chunks of similar size."""
    while len(order):
        padded_bytes = max(int(rows[order[:most]].max()), 1) * row_bytes
        count = max(1, min(most, ROW_BYTES // padded_bytes))
        chunks_left = -(-len(order) // count)
        count = -(-len(order) // chunks_left)
        yield order[:count]
        order = order[count:]


def padded(places: Tensor) -> Tensor:
    """The last client once more, and so on until there are as many as in one of few sizes."""
    return places[torch.arange(padded_size(len(places))).clamp_max(len(places) - 1)]


def padded_size(count: int) -> int:
    """A chunk's size rounded up: few different shapes to record, little waste."""
    return _rounded_up(count, bits=3 if count < 32 else 5)


def padded_width(batch_sizes: Tensor, batch_size: int | None) -> int:
    """The rows of a chunk's batches, likewise, which matters where a batch is all that a client has."""
    widest = int(batch_sizes.max())
    return widest if widest == batch_size else _rounded_up(widest, bits=3)


def _rounded_up(count: int, bits: int) -> int:
    """The next number with so many significant bits."""
    grain = 1 << max(count.bit_length() - bits, 0)
    return -(-count // grain) * grain


def stages(steps: Tensor, client_bytes: int) -> list[Stage]:
    """The stages of a chunk of which each client does so many steps, most first.

    The stack is halved when the clients at work fit into half of it: there are few sizes to record. A small
    stack takes little time anyway.

    >>> for stage in stages(torch.tensor([5, 3, 3]), client_bytes=2**20):
    ...     print(stage)
    Stage(steps=range(0, 3), stack=3, active=3, staying=1)
    Stage(steps=range(3, 5), stack=1, active=1, staying=0)
    """
    plan, begin, stack = [], 0, len(steps)
    for end in steps.unique().tolist():
        active, staying = int((steps >= end).sum()), int((steps > end).sum())
        while stack * client_bytes > SMALL_STACK_BYTES and active <= (half := (stack + 1) // 2) < stack:
            stack = half
        plan.append(Stage(range(begin, end), stack, active, staying))
        begin = end
    return plan
