"""Randomness as a pure function of named keys.

There is no generator with a state: a key is an integer mixed from (seed, purpose, client, round, ...),
and every random number is a hash of a key and a position. So the batches that a client sees cannot
depend on the method, on the engine or on the other clients, and nothing has to be saved to resume.
All functions work on integer tensors elementwise, hence also under vmap.
"""

import zlib

import torch
from torch import Tensor

from idiolect.core.device import CPU

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed integer
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
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


def uniform(state: Tensor, *shape: int) -> Tensor:
    """Numbers in [0, 1) of shape `state.shape + shape`: float64, or the same in a device's float32."""
    count = torch.Size(shape).numel()
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


def permute(position: Tensor, size: Tensor, state: Tensor) -> Tensor:
    """Where a random permutation of {0, .., size-1} sends `position`, one permutation for each key.

    The swap-or-not shuffle (Hoang, Morris, Rogaway 2012): in each round an element either stays or
    changes places with its mirror image around a random point. It is a bijection for any size and gives
    single positions without building the permutation, so drawing a batch costs the same for 10 rows and
    for 10 million.
    """
    for shuffle_round in range(_SHUFFLE_ROUNDS):
        round_key = mix(state + shuffle_round)
        # `%` and `where` on all positions would take most of the time: wrap around and choose by arithmetic.
        mirror = _shift_right(round_key, 1) % size - position
        mirror = mirror + (mirror >> 63 & size)
        swap = mix(round_key ^ torch.maximum(position, mirror)) & 1
        position = position + swap * (mirror - position)
    return position


def permutation(state: Tensor, size: int) -> Tensor:
    """A random permutation of {0, .., size-1} for a scalar key."""
    device = state.device
    return permute(torch.arange(size, device=device), torch.tensor(size, device=device), state)


def ranks(state: Tensor, size: int) -> Tensor:
    """A random permutation of {0, .., size-1} for each key, whole: far faster than all of its positions."""
    return uniform(state, size).argsort().argsort()
