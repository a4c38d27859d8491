"""The half of the one who gets the sum: it passes on what participants say, and adds up what is masked.

What a participant sends that is not what it should be counts as nothing: it is left out with a sentence in
`troubles`, and has dropped out. A masked summand is added to the total as it comes and not kept; the mask
that is taken off in the end is that of the total.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from idiolect.errors import UserError
from idiolect.secure.fixed_point import Residues
from idiolect.secure.key_agreement import SECRET_BYTES, KeyPair, require_usable
from idiolect.secure.masks import add_pair_mask, mask
from idiolect.secure.messages import (
    KEYS,
    SURVIVORS,
    Advert,
    Revealed,
    pair_purpose,
    places,
    survivors_signed,
    transcript,
)
from idiolect.secure.rule import Rule
from idiolect.secure.secret_sharing import SHARE_BYTES, join
from idiolect.secure.signing import KnownKeys

Content = TypeVar("Content")


class Collector:
    """One sum of so many numbers."""

    def __init__(self, label: str, known: KnownKeys, rule: Rule, length: int) -> None:
        self.label = label
        self.rule = rule
        self.troubles: dict[str, str] = {}  # by participant: why what it sent was left out
        self.adverts: dict[str, Advert] = {}
        self.survivors: list[str] = []
        self._known = known
        self._boxes: dict[str, dict[str, bytes]] = {}  # by sender and receiver
        self._total: Residues = np.zeros(length, dtype=np.uint64)

    @property
    def sharers(self) -> list[str]:
        """Who sent boxes: towards these, and no others, numbers are masked."""
        return sorted(self._boxes)

    def take_adverts(self, adverts: Mapping[str, Advert]) -> None:
        """The keys of those who take part."""

        def check(name: str, advert: Advert) -> None:
            self._known.require(name, KEYS, advert.signed(self.label, name, self.rule), advert.signature)
            # Everybody who is told of such a key would refuse to go on.
            require_usable(advert.sealing_key)
            require_usable(advert.masking_key)

        self.adverts = self._usable(adverts, check)
        self.rule.require(self.adverts, "keys")

    def take_boxes(self, boxes: Mapping[str, Mapping[str, bytes]]) -> None:
        """From each participant its boxes, by receiver."""

        def check(name: str, own: Mapping[str, bytes]) -> None:
            if own.keys() != self.adverts.keys() - {name}:
                raise UserError("sent shares for others than those whose keys it was told")

        self._boxes = {name: dict(own) for name, own in self._usable(boxes, check).items()}
        self.rule.require(self._boxes, "shares")

    def boxes_for(self, receiver: str) -> dict[str, bytes]:
        """What others sealed for one participant."""
        return {name: own[receiver] for name, own in self._boxes.items() if name != receiver}

    def add(self, name: str, masked: Residues) -> None:
        """Add a masked summand to the total; it is counted once and from those who sent boxes only."""
        if name not in self._boxes or name in self.survivors:
            self.troubles[name] = "sent masked numbers that nobody asked for"
        elif masked.dtype != np.uint64 or masked.shape != self._total.shape:
            self.troubles[name] = "sent masked numbers of another kind or length than the sum has"
        else:
            self._total += masked
            self.survivors = sorted([*self.survivors, name])

    def confirmed(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """The signatures under the list of survivors that will convince the others."""
        content = survivors_signed(transcript(self.label, self.adverts, self.rule), self.survivors)

        def check(name: str, signature: bytes) -> None:
            if name not in self.survivors:
                raise UserError("signed a list of survivors that it is not on")
            self._known.require(name, SURVIVORS, content, signature)

        usable = self._usable(signatures, check)
        self.rule.require(usable, "signatures under the list of survivors")
        return usable

    def unmask(self, revealed: Mapping[str, Revealed]) -> Residues:
        """The sum of the survivors' numbers."""
        self.rule.require(self.survivors, "a sum")
        attempt = transcript(self.label, self.adverts, self.rule)
        total = self._total.copy()
        for name in self.survivors:
            total -= mask(self._seed(name, revealed), len(total))
        for name in set(self._boxes) - set(self.survivors):
            key = self._masking_key(name, revealed)
            for other in self.survivors:
                seed = key.agree(self.adverts[other].masking_key, pair_purpose(attempt, name, other))
                add_pair_mask(total, seed, name, other)
        return total

    def _seed(self, name: str, revealed: Mapping[str, Revealed]) -> bytes:
        """The seed of a survivor's own mask."""
        shares = {holder: told.seeds[name] for holder, told in revealed.items() if name in told.seeds}
        commitment = self.adverts[name].commitment

        def fits(secret: bytes) -> bool:
            return hashlib.sha256(secret).digest() == commitment

        return self._secret(shares, fits, f"the seed of {name}'s mask")

    def _masking_key(self, name: str, revealed: Mapping[str, Revealed]) -> KeyPair:
        """The key of one who dropped out, towards whom survivors are masked."""
        shares = {holder: told.keys[name] for holder, told in revealed.items() if name in told.keys}
        public = self.adverts[name].masking_key
        what = f"the masking key of {name}, who dropped out,"
        return KeyPair(self._secret(shares, lambda secret: KeyPair(secret).public == public, what))

    def _secret(self, shares: Mapping[str, bytes], fits: Callable[[bytes], bool], what: str) -> bytes:
        """A secret from enough shares of it; what was said at first tells whether it is the one.

        If it is not, one of the shares is false: each is left out in turn, where there are more than enough.
        """
        place = places(self.adverts)
        holders = sorted(
            name for name, share in shares.items() if name in place and len(share) == SHARE_BYTES
        )
        self.rule.require(holders, f"shares of {what} those")
        for suspect in (None, *holders):
            trusted = [name for name in holders if name != suspect][: self.rule.threshold]
            secret = join({place[name]: shares[name] for name in trusted}, SECRET_BYTES)
            if len(trusted) == self.rule.threshold and secret is not None and fits(secret):
                if suspect is not None:
                    self.troubles[suspect] = f"gave a false share of {what.rstrip(',')}"
                return secret
        raise UserError(f"{what} does not follow from the shares of it: some are false")

    def _usable(
        self, sent: Mapping[str, Content], check: Callable[[str, Content], None]
    ) -> dict[str, Content]:
        usable = {}
        for name, content in sent.items():
            try:
                check(name, content)
            except UserError as error:
                self.troubles[name] = str(error)
            else:
                usable[name] = content
        return usable
