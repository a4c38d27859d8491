"""The half of one who has a summand: five answers, each given once, and what is refused on the way.

Secrets of a sum live in this object alone. Whoever loses it, in a restart, has dropped out of this attempt;
the next one has new secrets. A question that comes twice gets the same answer; one in other words is refused.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from idiolect.errors import UserError
from idiolect.secure.fixed_point import Residues
from idiolect.secure.key_agreement import SECRET_BYTES, KeyPair, seal, unseal
from idiolect.secure.masks import add_pair_mask, mask
from idiolect.secure.messages import (
    KEYS,
    SURVIVORS,
    Advert,
    Revealed,
    Shares,
    about_box,
    pair_purpose,
    places,
    survivors_signed,
    transcript,
)
from idiolect.secure.rule import Rule
from idiolect.secure.secret_sharing import split
from idiolect.secure.signing import Identity, KnownKeys

Answer = TypeVar("Answer")

_STAGES = ("share", "mask", "confirm", "reveal")


class Participant:
    """One participant of one sum, which the label names: nobody's answer fits another one."""

    def __init__(
        self, label: str, identity: Identity, known: KnownKeys, rule: Rule, numbers: Residues
    ) -> None:
        self.label = label
        self.name = identity.name
        self.rule = rule
        self._identity = identity
        self._known = known
        self._numbers = numbers
        self._sealing, self._masking = KeyPair(), KeyPair()
        self._seed = os.urandom(SECRET_BYTES)
        self._adverts: dict[str, Advert] = {}
        self._attempt = ""
        self._own_shares = Shares(b"", b"")
        self._boxes: dict[str, bytes] = {}
        self._survivors: list[str] = []
        self._answers: dict[str, tuple[Any, Any]] = {}
        unsigned = Advert(
            self._sealing.public, self._masking.public, hashlib.sha256(self._seed).digest(), signature=b""
        )
        signed = unsigned.signed(label, self.name, rule)
        self.advert = unsigned._replace(signature=identity.sign(KEYS, signed))

    def share(self, adverts: Mapping[str, Advert]) -> dict[str, bytes]:
        """A box for each other participant, with its shares of the two secrets."""
        return self._once("share", dict(adverts), lambda: self._share(dict(adverts)))

    def mask(self, boxes: Mapping[str, bytes]) -> Residues:
        """The numbers, masked towards all whose boxes arrived."""
        return self._once("mask", dict(boxes), lambda: self._mask(dict(boxes)))

    def confirm(self, survivors: Collection[str]) -> bytes:
        """A signature under the list of those whose masked numbers arrived."""
        return self._once("confirm", sorted(survivors), lambda: self._confirm(sorted(survivors)))

    def reveal(self, signatures: Mapping[str, bytes]) -> Revealed:
        """Shares of the survivors' seeds and of the others' keys, if enough signed the same list."""
        return self._once("reveal", dict(signatures), lambda: self._reveal(signatures))

    def _once(self, stage: str, question: Any, answer: Callable[[], Answer]) -> Answer:
        if stage not in self._answers:
            if list(self._answers) != list(_STAGES[: _STAGES.index(stage)]):
                raise UserError(f"{stage!r} is not the next stage of the sum {self.label!r}")
            self._answers[stage] = (question, answer())
        asked, given = self._answers[stage]
        if asked != question:
            raise UserError(f"the sum {self.label!r} was asked for {stage!r} before, in other words")
        answered: Answer = given
        return answered

    def _share(self, adverts: dict[str, Advert]) -> dict[str, bytes]:
        self.rule.require(adverts, "keys")
        if adverts.get(self.name) != self.advert:
            raise UserError("the list of keys does not hold this silo's own")
        for name, advert in adverts.items():
            self._known.require(name, KEYS, advert.signed(self.label, name, self.rule), advert.signature)
        self._adverts, self._attempt = adverts, transcript(self.label, adverts, self.rule)
        seeds = split(self._seed, self.rule.threshold, len(adverts))
        keys = split(self._masking.private, self.rule.threshold, len(adverts))
        shares = {name: Shares(seeds[place - 1], keys[place - 1]) for name, place in places(adverts).items()}
        self._own_shares = shares.pop(self.name)
        return {name: self._box(name, content) for name, content in shares.items()}

    def _box(self, receiver: str, content: Shares) -> bytes:
        about = about_box(self._attempt, self.name, receiver)
        return seal(
            self._sealing.agree(self._adverts[receiver].sealing_key, about), content.to_bytes(), about
        )

    def _mask(self, boxes: dict[str, bytes]) -> Residues:
        self.rule.require({*boxes, self.name}, "shares")
        if self.name in boxes or not boxes.keys() <= self._adverts.keys():
            raise UserError("boxes came from silos whose keys are not in this sum")
        self._boxes = boxes
        masked = self._numbers + mask(self._seed, len(self._numbers))
        for other in boxes:
            secret = self._masking.agree(
                self._adverts[other].masking_key, pair_purpose(self._attempt, self.name, other)
            )
            add_pair_mask(masked, secret, self.name, other)
        del self._numbers
        return masked

    def _confirm(self, survivors: list[str]) -> bytes:
        self.rule.require(survivors, "a sum")
        if len(set(survivors)) < len(survivors) or not {*survivors} <= {*self._boxes, self.name}:
            raise UserError("the list of survivors has silos that are not in this sum, or one twice")
        if self.name not in survivors:
            raise UserError("the list of survivors does not hold this silo, which is asked to sign it")
        self._survivors = survivors
        return self._identity.sign(SURVIVORS, survivors_signed(self._attempt, survivors))

    def _reveal(self, signatures: Mapping[str, bytes]) -> Revealed:
        self.rule.require(signatures, "signatures under the list of survivors")
        content = survivors_signed(self._attempt, self._survivors)
        for name, signature in signatures.items():
            if name not in self._survivors:
                raise UserError(f"{name!r} is not among the survivors whose list it is said to have signed")
            self._known.require(name, SURVIVORS, content, signature)
        revealed = Revealed({}, {})
        for name in (self.name, *self._boxes):
            shares = self._held(name)
            if shares is not None and name in self._survivors:
                revealed.seeds[name] = shares.seed
            elif shares is not None:
                revealed.keys[name] = shares.key
        return revealed

    def _held(self, sender: str) -> Shares | None:
        """The shares of another one's secrets; None if its box cannot be opened: others' may be enough."""
        if sender == self.name:
            return self._own_shares
        about = about_box(self._attempt, sender, self.name)
        try:
            key = self._sealing.agree(self._adverts[sender].sealing_key, about)
            return Shares.from_bytes(unseal(key, self._boxes[sender], about))
        except UserError:
            return None
