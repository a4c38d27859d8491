"""Fixed point, secret sharing, masks, key agreement: each by its own mathematics."""

from itertools import pairwise

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.secure.fixed_point import FixedPoint
from idiolect.secure.key_agreement import KeyPair, seal, unseal
from idiolect.secure.masks import add_pair_mask, mask
from idiolect.secure.secret_sharing import PRIME, join, split

SECRET = bytes(range(100, 132))


@pytest.mark.parametrize(("largest", "summands", "bits"), [(1.0, 1, 62), (1000.0, 5, 49), (2.0**20, 100, 35)])
def test_the_point_leaves_room_for_the_sum(largest: float, summands: int, bits: int) -> None:
    fixed = FixedPoint(largest, summands)
    assert fixed.fraction_bits == bits
    extremes = fixed.encode(np.array([largest, -largest]))
    total = np.sum([extremes] * summands, axis=0, dtype=np.uint64)
    assert fixed.decode(total).tolist() == [summands * largest, -summands * largest]


def test_numbers_come_back_to_half_a_digit() -> None:
    fixed = FixedPoint(100.0, 7)
    numbers = np.random.default_rng(2).normal(0.3, 20, 500).clip(-100, 100)
    assert np.abs(fixed.decode(fixed.encode(numbers)) - numbers).max() <= 2.0 ** -(fixed.fraction_bits + 1)
    whole = np.array([-100.0, -3.25, 0.0, 2.0**-20, 99.0])
    assert fixed.decode(fixed.encode(whole)).tolist() == whole.tolist()


def test_a_sum_of_integers_is_the_integer_of_the_sum() -> None:
    """Numbers that need no rounding: negative ones wrap around and come back."""
    fixed = FixedPoint(8.0, 3)
    rows = np.array([[1.5, -7.0, 0.25], [-4.0, -8.0, 0.5], [2.0, -1.0, -6.0]])
    total = np.sum([fixed.encode(row) for row in rows], axis=0, dtype=np.uint64)
    assert fixed.decode(total).tolist() == rows.sum(0).tolist()


@pytest.mark.parametrize("number", [1000.5, -1001.0, np.inf, -np.inf, np.nan, 1e300])
def test_numbers_out_of_range_are_refused(number: float) -> None:
    with pytest.raises(UserError, match=r"secure sums hold numbers from -1000 to 1000; raise secure.range"):
        FixedPoint(1000.0, 5).encode(np.array([1.0, number]))


@pytest.mark.parametrize("largest", [0.0, -1.0, np.nan, np.inf, 1e30])
def test_impossible_ranges(largest: float) -> None:
    with pytest.raises(UserError, match="is not possible"):
        FixedPoint(largest, 5)


def test_any_shares_give_the_secret_back() -> None:
    shares = dict(enumerate(split(SECRET, 3, 5), start=1))
    for chosen in ((1, 2, 3), (5, 1, 4), (2, 3, 5), (1, 2, 3, 4, 5)):
        assert join({x: shares[x] for x in chosen}, 32) == SECRET
    assert join({x: shares[x] for x in (1, 2)}, 32) != SECRET
    assert join({**{x: shares[x] for x in (1, 2)}, 3: shares[4]}, 32) != SECRET


def test_shares_lie_on_a_polynomial_of_the_right_degree() -> None:
    """The third differences of a polynomial of degree 2 vanish; the second ones do not."""
    values = [int.from_bytes(share) for share in split(SECRET, 3, 6)]
    for _ in range(2):
        values = [(b - a) % PRIME for a, b in pairwise(values)]
    assert len(set(values)) == 1
    assert values[0] != 0


def test_the_field_is_a_field() -> None:
    """Fermat's little theorem; that 2^521 - 1 is prime has been known since 1952."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7))


def test_a_mask_is_chacha20s_key_stream() -> None:
    """The first test vector of RFC 8439 A.1: key, nonce and counter zero."""
    stream = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert mask(bytes(32), 4).astype("<u8").tobytes() == stream
    assert mask(bytes(32), 9)[:4].tobytes() == mask(bytes(32), 4).tobytes()


def test_masks_of_a_pair_cancel() -> None:
    total = np.arange(5, dtype=np.uint64)
    add_pair_mask(total, SECRET, "ash", "beech")
    assert total.tolist() != list(range(5))
    add_pair_mask(total, SECRET, "beech", "ash")
    assert total.tolist() == list(range(5))


def test_two_parties_agree_and_a_third_does_not() -> None:
    one, other, third = KeyPair(), KeyPair(), KeyPair()
    secret = one.agree(other.public, b"purpose")
    assert (
        other.agree(one.public, b"purpose") == secret == KeyPair(one.private).agree(other.public, b"purpose")
    )
    assert secret not in (one.agree(other.public, b"another"), third.agree(other.public, b"purpose"))


@pytest.mark.parametrize("public", [bytes(32), b"short"])
def test_keys_that_give_no_secret(public: bytes) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        KeyPair().agree(public, b"purpose")


def test_boxes() -> None:
    box = seal(SECRET, b"content", b"from ash to elm")
    assert unseal(SECRET, box, b"from ash to elm") == b"content"
    assert seal(SECRET, b"content", b"from ash to elm") != box
    for wrong in (
        (SECRET[::-1], box, b"from ash to elm"),
        (SECRET, box, b"from ash to fir"),
        (SECRET, b"", b""),
    ):
        with pytest.raises(UserError, match="altered"):
            unseal(*wrong)
    with pytest.raises(UserError, match="altered"):
        unseal(SECRET, box[:-1] + bytes([box[-1] ^ 1]), b"from ash to elm")
