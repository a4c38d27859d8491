"""What a silo draws in a private run is nobody else's: from a secret, by the message, the same again."""

import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.core import rng
from idiolect.errors import UserError
from idiolect.silo.privacy.own_randomness import OwnRandomness

OWN = OwnRandomness(bytes(range(32)))
KEYS = rng.key(5, "noise", torch.arange(3))


def test_numbers_follow_from_secret_and_key_alone() -> None:
    with rng.drawn_from(OWN.numbers):
        whole = rng.uniform(KEYS, 4, 5)
        one = rng.uniform(KEYS[1], 20)
    assert whole.dtype == torch.float64
    torch.testing.assert_close(whole[1].reshape(-1), one, rtol=0, atol=0)
    with rng.drawn_from(OwnRandomness(bytes(32)).numbers):
        assert not rng.uniform(KEYS[1], 20).equal(one)
    assert not rng.uniform(KEYS[1], 20).equal(one)  # outside of the block they are public again


def test_uniform_and_normal_numbers_are_such() -> None:
    with rng.drawn_from(OWN.numbers):
        uniform, normal = rng.uniform(KEYS[0], 200_000), rng.normal(KEYS[1], 200_001)
    count = 200_000
    for moment in (1, 2, 3):
        deviation = (1 / (2 * moment + 1) - 1 / (moment + 1) ** 2) ** 0.5
        assert abs(float((uniform**moment).mean()) - 1 / (moment + 1)) < 5 * deviation / count**0.5
    assert abs(float(normal.mean())) < 5 / count**0.5
    assert abs(float(normal.square().mean()) - 1) < 5 * (2 / count) ** 0.5
    assert abs(float((normal**4).mean()) - 3) < 5 * (96 / count) ** 0.5


def test_permutations_are_such_and_secret() -> None:
    size = torch.tensor(50)
    public = rng.permute(torch.arange(50), size, KEYS[0])
    with rng.drawn_from(OWN.numbers):
        secret = rng.permute(torch.arange(50), size, KEYS[0])
    assert sorted(secret.tolist()) == list(range(50))
    assert not secret.equal(public)


def test_a_public_number_gives_its_key_and_all_others_and_a_secret_one_does_not() -> None:
    """Why hashes are not enough: splitmix is a bijection, so its output can be turned back."""

    def inverse(x: int) -> int:
        def unshift(x: int, bits: int) -> int:
            result = x
            for _ in range(64 // bits + 1):
                result = x ^ (result >> bits)
            return result

        mask, first, second = 2**64 - 1, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
        x = unshift(x, 31) * pow(second % 2**64, -1, 2**64) & mask
        x = unshift(x, 27) * pow(first % 2**64, -1, 2**64) & mask
        return unshift(x, 30)

    golden = 2**64 - 0x61C8864680B583EB

    def guesses(number: float) -> list[int]:
        """The 2^11 keys of which the first number can be; one more number tells which it is."""
        high = int(number * 2**53) << 11
        return [(inverse(high | low) - golden) % 2**64 for low in range(2**11)]

    def found(known: torch.Tensor) -> bool:
        for guess in guesses(float(known[0])):
            state = torch.tensor(guess - 2**64 if guess >= 2**63 else guess)
            if rng.uniform(state, 2)[1] == known[1]:
                return bool(rng.uniform(state, 40).equal(known))
        return False

    assert found(rng.uniform(KEYS[2], 40))
    with rng.drawn_from(OWN.numbers):
        secret = rng.uniform(KEYS[2], 40)
    assert not found(secret)


def test_the_secret_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    own = OwnRandomness.kept_in(tmp_path / "run")
    assert OwnRandomness.kept_in(tmp_path / "run") == own
    assert OwnRandomness.kept_in(tmp_path / "other") != own
    assert stat.S_IMODE((tmp_path / "run" / "secret").stat().st_mode) == 0o600
    (tmp_path / "run" / "secret").write_bytes(b"short")
    with pytest.raises(UserError, match="is damaged: it must have 32 bytes"):
        OwnRandomness.kept_in(tmp_path / "run")


def test_every_message_has_numbers_of_its_own() -> None:
    seeds = {OWN.of(f"message {number}").seed for number in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    one, other = (OWN.of(name).numbers(KEYS, 1000).double().reshape(-1) for name in ("a", "b"))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / 3000**0.5
