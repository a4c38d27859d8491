"""Randomness as a pure function of named keys.

There is no generator with a state: a key is an integer mixed from (seed, purpose, client, round, ...),
and every random number is a hash of a key and a position. So the batches that a client sees cannot
depend on the method, on the engine or on the other clients, and nothing has to be saved to resume.
All functions work on integer tensors elementwise, hence also under vmap.

Whoever knows a key knows its numbers, and two numbers give the key. Where numbers must be nobody else's, as
noise that protects rows is at a silo, they are `drawn_from` a source with a secret, by the same keys.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from idiolect.core.device import CPU

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed integer
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
Source = Callable[[Tensor, int], Tensor]  # of keys, and how many random integers each gives: int64
_source: ContextVar[Source | None] = ContextVar("source", default=None)
_SHUFFLE_ROUNDS = 20  # an element that stays in place in all of them: one in a million


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of 64-bit integers whose output looks random."""
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def key(seed: int, purpose: str, *parts: Tensor | int) -> Tensor:
    """A key for one purpose; the parts (client, round, ...) may be tensors and are broadcast."""
    state = mix(torch.tensor(seed, dtype=torch.int64) ^ zlib.crc32(purpose.encode()))
    return fold(state, *parts)


def fold(state: Tensor, *parts: Tensor | int) -> Tensor:
    """Mix further parts into a key.

    What is the same for all clients may be on the CPU, and the rest on a device, where the key is then.
    """
    for part in parts:
        mixed = mix(torch.as_tensor(part, dtype=torch.int64))
        if state.device == mixed.device:
            state = mix(state ^ mixed)
        else:  # that of the CPU as a number, which every device takes
            state = mix(mixed ^ int(state) if state.device == CPU else state ^ int(mixed))
    return state


@contextmanager
def drawn_from(source: Source) -> Iterator[None]:
    """In the block uniform numbers, what is made of them, and permutations follow from a key by a source."""
    before = _source.set(source)
    try:
        yield
    finally:
        _source.reset(before)


def _source_for(state: Tensor) -> Source | None:
    """The source in force; what is drawn under vmap, as dropout of single rows is, hides nobody."""
    source = _source.get()
    return None if source is None or is_batchedtensor(state) else source


def uniform(state: Tensor, *shape: int) -> Tensor:
    """Numbers in [0, 1) of shape `state.shape + shape`: float64, or the same in a device's float32."""
    count = torch.Size(shape).numel()
    if (source := _source_for(state)) is not None:
        numbers = _shift_right(source(state, count), 11).to(torch.float64) * 2.0**-53
        return numbers.reshape(state.shape + shape)
    positions = torch.arange(count, device=state.device).reshape(shape)
    bits = mix(state.reshape(state.shape + (1,) * len(shape)) + positions * _GOLDEN)
    if state.device.type == "mps":
        return _shift_right(bits, 40).to(torch.float32) * 2.0**-24
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def below(state: Tensor, bound: Tensor | int) -> Tensor:
    """Integers in [0, bound), one for each key."""
    return torch.as_tensor(_shift_right(mix(state), 1) % bound)


def generator_seed(state: Tensor) -> int:
    """A seed for a library's own generator, from a scalar key."""
    return int(_shift_right(mix(state), 1))


def permute(position: Tensor, size: Tensor, state: Tensor, rounds: int = _SHUFFLE_ROUNDS) -> Tensor:
    """Where a random permutation of {0, .., size-1} sends `position`, one permutation for each key.

    The swap-or-not shuffle (Hoang, Morris, Rogaway 2012): in each round an element either stays or
    changes places with its mirror image around a random point. It is a bijection for any size and gives
    single positions without building the permutation, so drawing a batch costs the same for 10 rows and
    for 10 million.
    """
    if (source := _source_for(state)) is not None:
        state = source(state, 1)[..., 0]
    for round_key in _round_keys(state, rounds, at_once=state.numel() < position.numel()):
        # `%` and `where` on all positions would take most of the time: wrap around and choose by arithmetic.
        mirror = _shift_right(round_key, 1) % size - position
        mirror = mirror + (mirror >> 63 & size)
        swap = mix(round_key ^ torch.maximum(position, mirror)) & 1
        position = position + swap * (mirror - position)
    return position


def _round_keys(state: Tensor, rounds: int, *, at_once: bool) -> Iterable[Tensor]:
    """The keys of a shuffle's rounds; at once is faster, and takes memory for all of them."""
    if at_once:
        numbers = torch.arange(rounds, device=state.device)
        return mix(state + numbers.reshape(-1, *[1] * state.ndim)).unbind()
    return (mix(state + number) for number in range(rounds))


def permutation(state: Tensor, size: int) -> Tensor:
    """A random permutation of {0, .., size-1} for a scalar key."""
    device = state.device
    return permute(torch.arange(size, device=device), torch.tensor(size, device=device), state)


def ranks(state: Tensor, size: int) -> Tensor:
    """A random permutation of {0, .., size-1} for each key, whole: far faster than all of its positions."""
    return uniform(state, size).argsort().argsort()


def normal(state: Tensor, *shape: int) -> Tensor:
    """Standard normal numbers of shape `state.shape + shape`, each from the tail that a uniform one names.

    Tails are odd multiples of 2⁻⁵⁴ and exact, so both sides are alike; the longest number is 8.3.
    """
    numbers = uniform(state, *shape)
    half_grain = 2.0**-54 if numbers.dtype == torch.float64 else 2.0**-25
    side = numbers - 0.5 + half_grain
    return -torch.special.ndtri(0.5 - side.abs()) * side.sign()
