"""A codec outside of the package: what it does to numbers, that its messages are exact, and around FedRep."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from idiolect_outside.codecs import FixedPoint
from idiolect_outside.fedrep import FedRep
from torch import Tensor, nn

from idiolect.codecs.compressed import Compressed
from idiolect.codecs.feedback import Channel
from idiolect.errors import UserError
from idiolect.simulation import EngineName, Simulation
from idiolect.testing import check_codec, uneven_classification
from outside.test_fedrep import BODY, each_engine, simulate

CODECS = (FixedPoint(), FixedPoint(bits=2, fraction=0), FixedPoint(bits=24, fraction=20), FixedPoint(bits=9))
each_codec = pytest.mark.parametrize("codec", CODECS, ids=str)


def test_numbers_by_hand() -> None:
    codec = FixedPoint(bits=4, fraction=2)  # -1.75, -1.5, .., 1.75
    given_ = torch.tensor([0.3, -0.3, 0.1, -0.1, 1.62, 9.0, -1e30])
    assert codec.compress(given_).tolist() == [0.25, -0.25, 0.0, 0.0, 1.5, 1.75, -1.75]
    assert codec.encode(given_).bits == 7 * 4


@each_codec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_decoded_message_is_the_compression_bit_for_bit(
    codec: FixedPoint, dtype: torch.dtype, values: list[float]
) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    compressed, message = codec.compress(tensor), codec.encode(tensor)
    decoded = codec.decode(message.payload, tensor.shape, dtype)
    assert torch.equal(bits_of(decoded), bits_of(compressed))
    assert torch.equal(codec.compress(compressed), compressed)
    assert message.bits == int(codec.bits_rows(tensor[None]))


def bits_of(values: Tensor) -> Tensor:
    return values.view(torch.int32 if values.dtype == torch.float32 else torch.int64)


@each_codec
def test_the_error_is_half_a_step_of_the_grid_inside_of_its_range(codec: FixedPoint) -> None:
    step = 2.0**-codec.fraction
    draws = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = (2 * draws - 1) * (2 ** (codec.bits - 1) - 1) * step
    assert (codec.compress(values) - values).abs().max() <= step / 2


@each_codec
def test_it_keeps_the_contract_of_codecs(codec: FixedPoint) -> None:
    check_codec(codec)


def test_payloads_that_are_no_message_are_refused() -> None:
    codec = FixedPoint(bits=4)
    with pytest.raises(UserError, match="an integer beyond 7"):
        codec.decode(b"\xf0", (1,), torch.float32)
    with pytest.raises(UserError, match="the payload does not fit"):
        codec.decode(b"\x00\x00", (1,), torch.float32)


@each_engine
def test_fedrep_through_a_fine_grid_is_nearly_fedrep_and_through_a_coarse_one_is_not(
    engine: EngineName,
) -> None:
    plain = FedRep(lr=0.3, local_steps=4)

    def apart(codec: FixedPoint) -> float:
        channel = Channel(codec)
        theirs = simulate(Compressed(plain, channel, channel), engine).play(4).predictors()["personal"]
        ours = simulate(plain, engine).play(4).predictors()["personal"]
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        return max(float((ours[name] - theirs[name]).abs().max()) for name in BODY)

    assert apart(FixedPoint(bits=24, fraction=20)) < 1e-5
    assert apart(FixedPoint(bits=6, fraction=4)) > 1e-3


@pytest.mark.parametrize(("up", "down"), [(FixedPoint(), None), (None, FixedPoint())])
def test_nothing_cannot_be_compressed(up: FixedPoint | None, down: FixedPoint | None) -> None:
    """A linear model is all head."""
    method = Compressed(FedRep(), Channel(up), Channel(down))
    with pytest.raises(UserError, match="codec cannot be used with method=ownrep"):
        Simulation(method, lambda: nn.Linear(4, 3), uneven_classification())
