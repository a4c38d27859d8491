"""Dense and quantised codecs: values worked out by hand, error bounds, unbiasedness."""

import pytest
import torch

from idiolect.codecs import by_name
from idiolect.core import rng


def test_float32_is_the_identity_on_float32():
    vector = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(by_name("float32").compress(vector), vector)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("float32", 1 + 2**-24, 1.0),  # a tie goes to the even neighbour
        ("float32", 1 + 3 * 2**-24, 1 + 2**-22),
        ("float16", 1 + 2**-11, 1.0),
        ("float16", 1 + 3 * 2**-11, 1 + 2**-9),
        ("float16", -1e6, -65504.0),
        ("float16", 2**-26, 0.0),
        ("bfloat16", 1 + 2**-8, 1.0),
        ("bfloat16", -1 - 3 * 2**-8, -1 - 2**-6),
        ("bfloat16", 1e6, 999424.0),  # 2^19 · 122/64, eight significant bits
        ("float32", 1e300, (2 - 2**-23) * 2.0**127),
    ],
)
def test_dense_rounds_to_the_nearest_and_saturates(name, value, expected):
    assert by_name(name).compress(torch.tensor([value], dtype=torch.float64)).item() == expected


@pytest.mark.parametrize(
    ("name", "options", "bits"),
    [
        ("float32", {}, 32 * 77),
        ("float16", {}, 16 * 77),
        ("bfloat16", {}, 16 * 77),
        ("linear", {}, 8 * 77 + 32),
        ("stochastic", {"bits": 3}, 3 * 77 + 32),
    ],
)
def test_messages_of_fixed_length(name, options, bits):
    codec = by_name(name, **options)
    vector = torch.randn(77, generator=torch.Generator().manual_seed(0))
    assert codec.encode(vector, rng.key(0, "k")).bits == bits


def test_linear_levels_by_hand():
    vector = torch.tensor([254.0, -127.0, 2.9, 3.1, -0.9, 0.0], dtype=torch.float64)  # levels are 2 apart
    assert by_name("linear").compress(vector).tolist() == pytest.approx([254.0, -128.0, 2.0, 4.0, 0.0, 0.0])


def test_linear_error_is_half_a_level_and_the_largest_entry_is_exact():
    vector = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    compressed = by_name("linear").compress(vector)
    largest = vector.abs().argmax()
    assert compressed[largest] == vector[largest]
    assert (compressed - vector).abs().max() <= vector.abs().max() / 254 * (1 + 1e-12)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_stochastic_quantisation_is_unbiased(bits):
    vector = torch.tensor([1.7, -0.3, 0.05, 0.0, -1.1, 1e-4], dtype=torch.float64)
    draws = 40_000
    keys = rng.key(0, "unbiased", torch.arange(draws))
    compressed = by_name("stochastic", bits=bits).compress_rows(vector.expand(draws, -1), keys)
    level = 1.7 / (2 ** (bits - 1) - 1)
    share_above = vector.abs() / level % 1
    deviation = level * (share_above * (1 - share_above) / draws).sqrt()
    assert ((compressed.mean(0) - vector).abs() <= 5 * deviation + 1e-12).all()
    assert ((compressed - vector).abs() < level).all()
    assert compressed[:, 1].unique().numel() == 2  # -0.3 lies between two levels


def test_stochastic_quantisation_is_a_function_of_the_key():
    codec = by_name("stochastic", bits=4)
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    one, other = rng.key(0, "k", 1), rng.key(0, "k", 2)
    assert torch.equal(codec.compress(vector, one), codec.compress(vector, one))
    assert codec.encode(vector, one) == codec.encode(vector, one)
    assert not torch.equal(codec.compress(vector, one), codec.compress(vector, other))


def test_levels_are_fixed_points_of_stochastic_quantisation():
    vector = torch.arange(-7.0, 8.0)
    codec = by_name("stochastic", bits=4)
    torch.testing.assert_close(codec.compress(vector, rng.key(0, "k")), vector)
