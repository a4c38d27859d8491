"""Keyed randomness: pure, uniform, bijective."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from idiolect.core import rng


def splitmix64(state: int) -> int:
    """The published algorithm in Python's own integers."""
    mask = (1 << 64) - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1))
def test_mix_is_splitmix64(state: int) -> None:
    ours = int(rng.mix(torch.tensor(state)))
    assert ours % 2**64 == splitmix64(state % 2**64)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**62))
def test_permute_is_a_bijection(size: int, state: int) -> None:
    image = rng.permute(torch.arange(size), torch.tensor(size), torch.tensor(state))
    assert sorted(image.tolist()) == list(range(size))


def test_a_key_for_all_positions_is_that_key_for_each_of_them() -> None:
    positions, size, state = torch.arange(50), torch.tensor(50), rng.key(4, "shared")
    assert torch.equal(rng.permute(positions, size, state), rng.permute(positions, size, state.expand(50)))


@pytest.mark.parametrize(
    "permute",
    [
        lambda keys: vmap(lambda key: rng.permute(torch.arange(3), torch.tensor(3), key))(keys),
        lambda keys: rng.ranks(keys, 3),
    ],
    ids=["permute", "ranks"],
)
def test_permutations_of_three_are_equally_likely(permute) -> None:
    images = permute(rng.key(0, "test", torch.arange(12_000)))
    codes = (images * torch.tensor([9, 3, 1])).sum(1)
    counts = torch.unique(codes, return_counts=True)[1]
    assert len(counts) == 6
    deviations = (counts - 2_000).abs() / math.sqrt(2_000 * 5 / 6)
    assert deviations.max() < 4


def test_uniform_has_the_moments_of_the_uniform_law() -> None:
    draws = rng.uniform(rng.key(5, "moments"), 50_000)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / math.sqrt(12 * 50_000)
    assert abs(draws.var() - 1 / 12) < 0.002


def test_every_part_of_a_key_matters() -> None:
    keys = [
        rng.key(0, "a", 1, 2),
        rng.key(1, "a", 1, 2),
        rng.key(0, "b", 1, 2),
        rng.key(0, "a", 2, 1),
        rng.key(0, "a", 1),
    ]
    assert len({int(k) for k in keys}) == len(keys)


def test_stacked_keys_are_the_keys_one_by_one() -> None:
    ids = torch.arange(7)
    stacked = rng.key(3, "clients", ids, 4)
    assert stacked.tolist() == [int(rng.key(3, "clients", i, 4)) for i in range(7)]


@pytest.mark.parametrize("bound", [1, 2, 7])
def test_below_stays_below(bound: int) -> None:
    draws = rng.below(rng.key(0, "below", torch.arange(500)), bound)
    assert set(draws.tolist()) == set(range(bound))
