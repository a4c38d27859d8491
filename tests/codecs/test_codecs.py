"""The law of every codec, decode(encode(x)) == compress(x) bit for bit, and what is refused."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from idiolect import codecs
from idiolect.codecs import by_name
from idiolect.core import rng
from idiolect.errors import UserError

CODECS = [
    by_name("float32"),
    by_name("float16"),
    by_name("bfloat16"),
    by_name("ternary", keep=0.01),
    by_name("ternary", keep=0.3),
    by_name("ternary", keep=0.9),
    by_name("topk", keep=0.1),
    by_name("topk", keep=1.0),
    by_name("sign"),
    by_name("linear"),
    by_name("stochastic", bits=2),
    by_name("stochastic", bits=8),
    by_name("stochastic", bits=16),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
KEY = rng.key(7, "test of codecs")


def bit_pattern(tensor: Tensor) -> Tensor:
    """Tells 0.0 from -0.0, unlike ==."""
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


def assert_bitwise_equal(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert torch.equal(bit_pattern(actual), bit_pattern(expected))


any_number = st.floats(allow_nan=False, allow_infinity=False)
# few distinct values: ties, zeros of both signs, and numbers at the edges of float32 and float64
tied_number = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 5e-324, 1.4e-45, -1e-40, 3.4e38, -1e300])
vectors = st.one_of(
    st.lists(any_number, min_size=1, max_size=80), st.lists(tied_number, min_size=1, max_size=300)
)


def as_tensor(values: list[float], dtype: torch.dtype) -> Tensor:
    """The values in a dtype; those too large for it become its largest."""
    largest = torch.finfo(dtype).max
    return torch.tensor(values, dtype=torch.float64).clamp(-largest, largest).to(dtype)


@every_codec
@every_dtype
@settings(max_examples=100, deadline=None)
@given(values=vectors)
@example(values=[0.0])
@example(values=[-0.0] * 9)
@example(values=[-3.25])
@example(values=[1.0] * 130)
@example(values=[0.0] * 99 + [1.0])
@example(values=[1.0] * 99 + [0.0])
def test_a_decoded_message_is_the_compression_bit_for_bit(codec, dtype, values):
    tensor = as_tensor(values, dtype)
    message = codec.encode(tensor, KEY)
    assert_bitwise_equal(codec.decode(message.payload, tensor.shape, dtype), codec.compress(tensor, KEY))
    assert len(message.payload) == math.ceil(message.bits / 8)
    assert codec.bits_rows(tensor[None], KEY[None]).tolist() == [message.bits]


@every_codec
@every_dtype
def test_rows_are_compressed_and_counted_as_they_are_one_by_one(codec, dtype):
    rows = torch.randn(7, 1003, dtype=dtype, generator=torch.Generator().manual_seed(1))
    rows[1] = 0.0
    rows[2, 5:] = 0.0
    rows[3, 1:] = 0.0
    rows[4] = rows[4].round()
    rows[5, 17] = 0.0
    keys = rng.key(3, "rows", torch.arange(7))
    compressed = codec.compress_rows(rows, keys)
    assert_bitwise_equal(
        compressed, torch.stack([codec.compress(row, key) for row, key in zip(rows, keys, strict=True)])
    )
    bits = [codec.encode(row, key).bits for row, key in zip(rows, keys, strict=True)]
    assert codec.bits_rows(rows, keys).tolist() == bits
    assert codec.compressed_bits(compressed).tolist() == bits


@every_codec
def test_more_rows_than_fit_in_one_piece_change_nothing(codec, monkeypatch):
    rows = torch.randn(11, 50, generator=torch.Generator().manual_seed(2))
    keys = rng.key(3, "rows", torch.arange(11))
    whole = codec.compress_rows(rows, keys), codec.bits_rows(rows, keys)
    monkeypatch.setattr("idiolect.codecs.codec._CHUNK_ENTRIES", 200)  # 4 rows at a time, 3 at the end
    assert_bitwise_equal(codec.compress_rows(rows, keys), whole[0])
    assert torch.equal(codec.bits_rows(rows, keys), whole[1])


@every_codec
def test_the_operator_can_be_vmapped(codec):
    stacked = torch.randn(3, 4, 29, generator=torch.Generator().manual_seed(5))
    keys = rng.key(5, "vmap", torch.arange(12)).reshape(3, 4)
    expected = torch.stack([codec.operator(rows, k) for rows, k in zip(stacked, keys, strict=True)])
    assert_bitwise_equal(torch.vmap(codec.operator)(stacked, keys), expected)
    over_second_axis = torch.vmap(codec.operator, in_dims=(1, 0), out_dims=1)
    assert_bitwise_equal(over_second_axis(stacked.movedim(0, 1), keys), expected.movedim(0, 1))


@every_codec
def test_the_shape_is_kept_and_the_argument_unchanged(codec):
    tensor = torch.arange(-5.0, 7.0).reshape(3, 1, 4)
    before = tensor.clone()
    message = codec.encode(tensor.movedim(0, 2), KEY)
    compressed = codec.compress(tensor.movedim(0, 2), KEY)
    assert compressed.shape == (1, 4, 3)
    assert_bitwise_equal(codec.decode(message.payload, (1, 4, 3), torch.float32), compressed)
    assert torch.equal(tensor, before)


@every_codec
def test_any_number_times_two_to_a_power_is_compressed_to_the_same_times_that_power(codec):
    tensor = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert_bitwise_equal(codec.compress(8 * tensor, KEY), 8 * codec.compress(tensor, KEY))


@every_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(codec, bad):
    rows = torch.ones(3, 4)
    rows[1, 2] = bad
    for use in (codec.compress_rows, codec.bits_rows):
        with pytest.raises(UserError, match=r"row 1, entry 2.*finite"):
            use(rows, rng.key(0, "k", torch.arange(3)))
    for use in (codec.compress, codec.encode):
        with pytest.raises(UserError, match="finite"):
            use(rows[1], KEY)


def test_finite_numbers_whose_sum_overflows_are_accepted():
    tensor = torch.full((4,), 3e38)
    assert torch.equal(by_name("float32").compress(tensor), tensor)


def test_what_is_not_a_vector_of_floats_is_refused():
    codec = by_name("ternary")
    with pytest.raises(UserError, match=r"torch\.int64.*float32"):
        codec.compress(torch.arange(3))
    with pytest.raises(UserError, match="at least one entry"):
        codec.encode(torch.zeros(0))
    with pytest.raises(UserError, match="no key"):
        by_name("stochastic").compress(torch.ones(3))


@every_codec
def test_payloads_of_another_length_are_refused(codec):
    tensor = torch.randn(500, generator=torch.Generator().manual_seed(6))
    payload = codec.encode(tensor, KEY).payload
    for wrong in (payload[:-1], payload + b"\x00", b""):
        with pytest.raises(UserError, match="payload does not fit"):
            codec.decode(wrong, tensor.shape, tensor.dtype)


@given(payload=st.binary(max_size=60), size=st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_a_sparse_decoder_refuses_noise_or_reads_some_vector(payload, size):
    for codec in (by_name("ternary", keep=0.2), by_name("topk", keep=0.02), by_name("sign")):
        try:
            assert codec.decode(payload, (size,), torch.float32).shape == (size,)
        except UserError as error:
            assert "payload does not fit" in str(error)  # noqa: PT017


def test_names_and_options_are_checked():
    assert by_name("ternary", keep=0.25) == codecs.SparseTernary(keep=0.25)
    assert by_name("sign") == codecs.SparseTernary(keep=1.0)
    assert [type(by_name(name)).__name__ for name in codecs.NAMES]
    with pytest.raises(UserError, match=r"codec='ternery' is not known \(did you mean ternary"):
        by_name("ternery")
    with pytest.raises(UserError, match=r"codec 'topk' has no option 'kep' \(did you mean keep"):
        by_name("topk", kep=0.1)
    with pytest.raises(UserError, match=r"'sign' has no option 'keep'.*no options"):
        by_name("sign", keep=0.1)
    for keep in (0.0, 1.5, -1, "much", math.nan):
        with pytest.raises(UserError, match=r"keep=.*should"):
            by_name("ternary", keep=keep)
    with pytest.raises(UserError, match="bits=17"):
        by_name("stochastic", bits=17)
