"""What crosses in a sum, and what signatures stand for.

| stage   | a participant is told         | and answers                                                   |
|---------|-------------------------------|---------------------------------------------------------------|
| keys    |                               | two public keys and a commitment, signed                      |
| share   | everybody's keys              | for each a box with its shares of the secrets                 |
| mask    | the boxes that are for it     | its numbers, masked                                           |
| confirm | whose masked numbers arrived  | the same, signed                                              |
| reveal  | the others' signatures of it  | shares: of seeds of those who arrived, of keys of the others  |
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import NamedTuple

from idiolect.errors import UserError
from idiolect.secure.rule import Rule
from idiolect.secure.secret_sharing import SHARE_BYTES
from idiolect.secure.signing import canonical

KEYS, SURVIVORS = "keys of a sum", "list of survivors"


class Advert(NamedTuple):
    """What a participant tells everybody at first."""

    sealing_key: bytes  # public; for boxes
    masking_key: bytes  # public; for masks of pairs
    commitment: bytes  # the hash of the seed of its own mask
    signature: bytes

    def signed(self, label: str, name: str, rule: Rule) -> dict[str, object]:
        """What the signature is of."""
        content = {
            "sealing": self.sealing_key,
            "masking": self.masking_key,
            "commitment": self.commitment,
        }
        about: dict[str, object] = {"sum": label, "name": name, "rule": asdict(rule)}
        return about | {key: value.hex() for key, value in content.items()}


class Shares(NamedTuple):
    """What one participant holds of another's two secrets."""

    seed: bytes  # of the mask of its own
    key: bytes  # the private half of its masking key

    def to_bytes(self) -> bytes:
        """As they are sealed."""
        return self.seed + self.key

    @classmethod
    def from_bytes(cls, content: bytes) -> "Shares":
        """The inverse."""
        if len(content) != 2 * SHARE_BYTES:
            raise UserError("a sealed message does not hold two shares")
        return cls(content[:SHARE_BYTES], content[SHARE_BYTES:])


class Revealed(NamedTuple):
    """The shares that a participant gives out at the end: of each other one of either kind, never of both."""

    seeds: dict[str, bytes]  # of those whose masked numbers arrived
    keys: dict[str, bytes]  # of those whose did not


def transcript(label: str, adverts: Mapping[str, Advert], rule: Rule) -> str:
    """What names this attempt at a sum: a hash of all keys in it."""
    content = {name: advert.signed(label, name, rule) for name, advert in adverts.items()}
    return hashlib.sha256(canonical("transcript", content)).hexdigest()


def survivors_signed(attempt: str, survivors: Collection[str]) -> dict[str, object]:
    """What a signature under a list of survivors is of."""
    return {"attempt": attempt, "survivors": sorted(survivors)}


def places(names: Collection[str]) -> dict[str, int]:
    """Which share is whose: 1, 2, .. in the order of names."""
    return {name: place for place, name in enumerate(sorted(names), start=1)}


def about_box(attempt: str, sender: str, receiver: str) -> bytes:
    """What a box is bound to."""
    return canonical("box", {"attempt": attempt, "from": sender, "to": receiver})


def pair_purpose(attempt: str, one: str, other: str) -> bytes:
    """What the seed of a pair's mask is bound to: the same for both."""
    return canonical("pair", {"attempt": attempt, "pair": sorted((one, other))})
