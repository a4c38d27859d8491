"""Sparse ternary and top-k: the definition, the properties it must have, the wire format and its cost."""

import math
import struct

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from idiolect.codecs import SparseTernary, TopK, by_name
from idiolect.codecs.sparse import kept_count

keeps = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.6, 0.77, 1.0])
# multiples of 1/8: sums are exact, and there are many ties and zeros
vectors = st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=1, max_size=60).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def chosen_by_definition(values: list[float], keep: float) -> list[int]:
    """The k = max(floor(n q), 1) entries of largest magnitude, the lowest index first."""
    k = max(math.floor(round(len(values) * keep, 9)), 1)
    return sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k]


def ternary_by_definition(values: list[float], keep: float) -> list[float]:
    chosen = chosen_by_definition(values, keep)
    mean = math.fsum(abs(values[i]) for i in chosen) / len(chosen)
    return [
        mean * ((value > 0) - (value < 0)) if index in chosen else 0.0 for index, value in enumerate(values)
    ]


@given(vector=vectors, keep=keeps)
@settings(max_examples=200, deadline=None)
def test_ternary_is_its_definition(vector, keep):
    expected = torch.tensor(ternary_by_definition(vector.tolist(), keep), dtype=torch.float64)
    torch.testing.assert_close(SparseTernary(keep=keep).compress(vector), expected, rtol=1e-15, atol=0)


@given(vector=vectors, keep=keeps)
@settings(max_examples=200, deadline=None)
def test_top_k_is_its_definition(vector, keep):
    chosen = chosen_by_definition(vector.tolist(), keep)
    expected = torch.zeros_like(vector)
    expected[chosen] = vector[chosen]  # multiples of 1/8 are float32 numbers
    assert torch.equal(TopK(keep=keep).compress(vector), expected)


@pytest.mark.parametrize(
    ("size", "keep", "k"), [(10, 0.3, 3), (9, 0.3, 2), (3, 0.3, 1), (1, 0.01, 1), (90, 0.7, 63), (7, 1.0, 7)]
)
def test_the_number_of_entries_is_the_floor_and_at_least_one(size, keep, k):
    assert kept_count(size, keep) == k
    vector = torch.arange(1.0, size + 1)
    assert SparseTernary(keep=keep).compress(vector).count_nonzero() == k
    assert TopK(keep=keep).compress(vector).count_nonzero() == k


def test_of_equal_magnitudes_the_lowest_index_comes_first():
    vector = torch.tensor([1.0, -2.0, 2.0, 3.0, -2.0, 2.0])
    assert SparseTernary(keep=0.5).compress(vector).sign().tolist() == [0, -1, 1, 1, 0, 0]
    assert TopK(keep=0.5).compress(vector).tolist() == [0, -2, 2, 3, 0, 0]
    assert SparseTernary(keep=0.4).compress(torch.full((1000,), -1.5)).nonzero().flatten().tolist() == list(
        range(400)
    )


@given(vector=vectors, keep=keeps)
@settings(max_examples=100, deadline=None)
def test_ternary_is_odd(vector, keep):
    codec = SparseTernary(keep=keep)
    assert torch.equal(codec.compress(-vector), -codec.compress(vector))


@given(vector=vectors, keep=keeps, factor=st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_ternary_is_positively_homogeneous(vector, keep, factor):
    codec = SparseTernary(keep=keep)
    torch.testing.assert_close(
        codec.compress(factor * vector), factor * codec.compress(vector), rtol=1e-14, atol=0
    )


@given(vector=vectors, keep=keeps, dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=100, deadline=None)
def test_ternary_is_idempotent_if_k_entries_are_not_zero(vector, keep, dtype):
    assume(vector.count_nonzero() >= kept_count(len(vector), keep))
    once = SparseTernary(keep=keep).compress(vector.to(dtype))
    assert torch.equal(SparseTernary(keep=keep).compress(once), once)


def test_ternary_shares_the_mean_with_zeros_among_the_chosen():
    vector = torch.tensor([0.0, 6.0, 0.0, 0.0])
    assert SparseTernary(keep=0.5).compress(vector).tolist() == [0.0, 3.0, 0.0, 0.0]


@given(vector=vectors, keep=keeps)
@settings(max_examples=100, deadline=None)
def test_ternary_keeps_the_sum_of_the_largest_magnitudes_and_shortens_the_error(vector, keep):
    k = kept_count(len(vector), keep)
    largest = vector.abs().sort(descending=True).values[:k]
    mean = largest.mean()
    compressed = SparseTernary(keep=keep).compress(vector)
    error = (vector - compressed).square().sum()
    assert error <= vector.square().sum() + 1e-12
    if largest[-1] > 0:
        torch.testing.assert_close(compressed.abs().sum(), largest.sum(), rtol=1e-14, atol=0)
        torch.testing.assert_close(error, vector.square().sum() - k * mean**2, rtol=1e-12, atol=1e-10)


@given(value=st.floats(allow_nan=False, allow_infinity=False), keep=keeps)
@settings(deadline=None)
def test_ternary_of_a_single_entry_is_the_identity(value, keep):
    vector = torch.tensor([value], dtype=torch.float64)
    assert torch.equal(SparseTernary(keep=keep).compress(vector), vector)


def test_ternary_that_keeps_all_is_the_scaled_sign_and_not_the_identity():
    vector = torch.tensor([4.0, -1.0, 0.0, 3.0])
    assert by_name("sign").compress(vector).tolist() == [2.0, -2.0, 0.0, 2.0]


def bits_of(message) -> str:
    stream = "".join(f"{byte:08b}" for byte in message.payload)
    assert set(stream[message.bits :]) <= {"0"}
    return stream[: message.bits]


def test_a_ternary_message_by_hand():
    # k = 2 of 8: -3 and 1, mean 2. p = 1/4 gives b* = 1; gaps 1 and 3 are (high, low) = (0, 1) and (1, 1).
    vector = torch.tensor([0.0, -3.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    magnitude = f"{struct.unpack('>I', struct.pack('>f', 2.0))[0]:031b}"
    assert bits_of(SparseTernary(keep=0.25).encode(vector)) == "0" + "11" + "1" + "01" + "10" + magnitude


def test_a_ternary_message_with_fewer_entries_than_k_by_hand():
    # k = 3 of 6, one entry is not zero: "fewer", the number 1 in two bits, p = 1/6, b* = 2, gap 4 = (1, 0).
    vector = torch.tensor([0.0, 0.0, 0.0, 0.0, -3.0, 0.0])
    magnitude = f"{struct.unpack('>I', struct.pack('>f', 1.0))[0]:031b}"
    assert bits_of(SparseTernary(keep=0.5).encode(vector)) == "1" + "01" + "00" + "01" + "1" + magnitude


def test_a_top_k_message_by_hand():
    vector = torch.tensor([0.0, -3.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    values = "".join(f"{struct.unpack('>I', struct.pack('>f', value))[0]:032b}" for value in (-3.0, 1.0))
    assert bits_of(TopK(keep=0.25).encode(vector)) == "0" + "11" + "1" + "01" + values


def position_cost(count: int, size: int) -> float:
    """Expected bits for one position, b* + 1/(1 - (1-p)^(2^b*)), with b* at least 0."""
    p = count / size
    golden = (1 + math.sqrt(5)) / 2
    b = max(1 + math.floor(math.log2(math.log(golden - 1) / math.log(1 - p))), 0)
    return b + 1 / (1 - (1 - p) ** (2**b))


def random_rows(size: int) -> Tensor:
    return torch.randn(4, size, generator=torch.Generator().manual_seed(11))


@pytest.mark.parametrize("keep", [0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.6])
def test_the_bits_of_random_positions_are_the_theoretical_ones_within_one_per_cent(keep):
    size = 100_000
    k = kept_count(size, keep)
    measured = SparseTernary(keep=keep).bits_rows(random_rows(size)).double().mean().item()
    assert measured == pytest.approx(k * (position_cost(k, size) + 1) + 32, rel=0.01)
    values = TopK(keep=keep).bits_rows(random_rows(size)).double().mean().item()
    assert values == pytest.approx(k * (position_cost(k, size) + 32) + 1, rel=0.01)


def test_three_tenths_cost_1_19_bits_for_each_parameter_and_not_less_than_the_entropy():
    measured = SparseTernary(keep=0.3).bits_rows(random_rows(100_000)).double().mean().item() / 100_000
    entropy = -0.3 * math.log2(0.3) - 0.7 * math.log2(0.7) + 0.3
    assert entropy < measured == pytest.approx(1.19, abs=0.005)


def test_when_most_entries_are_sent_the_others_are_named():
    size = 100_000
    measured = SparseTernary(keep=0.9).bits_rows(random_rows(size)).double().mean().item()
    assert measured == pytest.approx(90_000 + 10_000 * position_cost(10_000, size) + 32, rel=0.01)


@pytest.mark.parametrize("size", [1, 2, 77])
def test_the_scaled_sign_costs_one_bit_each_and_the_magnitude(size):
    vector = torch.arange(1.0, size + 1)
    assert by_name("sign").encode(vector).bits == size + 32
    assert by_name("sign").encode(vector.double()).bits == size + 64


def test_one_zero_costs_the_scaled_sign_its_place_only():
    vector = torch.ones(1000)
    vector[700] = 0.0
    # the number 999 in 10 bits; p = 1/1000: b* = 9, the gap 700 = (1, 188): 9 low bits and "01"
    assert by_name("sign").encode(vector).bits == 999 + 32 + 10 + 9 + 2


def test_a_vector_of_zeros_costs_the_header():
    assert SparseTernary(keep=0.32).encode(torch.zeros(100)).bits == 32 + 5  # the number 0 below k = 32
    assert TopK(keep=0.33).encode(torch.zeros(100)).bits == 1 + 6  # below k = 33
    assert SparseTernary(keep=0.5).encode(torch.zeros(2)).bits == 32  # below k = 1 there is only 0


def test_the_chosen_entries_of_top_k_are_its_error_bound():
    vector = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    error = (vector - TopK(keep=0.2).compress(vector)).square().sum()
    assert error <= (1 - 100 / 500) * vector.square().sum()


def test_top_k_saturates_what_float32_cannot_hold():
    vector = torch.tensor([1e300, -1e39, 1e-60], dtype=torch.float64)
    largest = torch.finfo(torch.float32).max
    assert TopK(keep=1.0).compress(vector).tolist() == [largest, -largest, 0.0]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("codec", [SparseTernary(keep=0.3), TopK(keep=0.1)])
def test_rows_in_threads_are_the_rows_one_by_one(codec, two_threads):
    rows = torch.randn(5, 150_000, generator=torch.Generator().manual_seed(3))
    alone = torch.cat([codec.operator(row[None], None) for row in rows])
    together = codec.operator(rows, None)
    assert torch.equal(together, alone)
    bits = [codec.compressed_bits(row[None]).item() for row in alone]
    assert codec.compressed_bits(together.repeat(4, 1)).tolist() == bits * 4
