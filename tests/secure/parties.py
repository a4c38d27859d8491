"""Participants and a collector in one process, with drop-outs wherever a test wants them."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from idiolect.secure.collector import Collector
from idiolect.secure.fixed_point import FixedPoint, Residues
from idiolect.secure.participant import Participant
from idiolect.secure.rule import Rule
from idiolect.secure.signing import Identity, KnownKeys

LABEL = "a-run/work/3/0"
FIVE = ("ash", "beech", "cedar", "elm", "fir")


class Party(NamedTuple):
    """Keys of everybody, made once."""

    identities: dict[str, Identity]
    known: KnownKeys


def party(names: Sequence[str] = FIVE) -> Party:
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    known = KnownKeys({name: key.public_key() for name, key in keys.items()})
    return Party({name: Identity(name, key) for name, key in keys.items()}, known)


def numbers_of(names: Sequence[str], length: int = 40) -> dict[str, Residues]:
    """Different numbers of everybody, of both signs and many sizes."""
    random = np.random.default_rng(7)
    fixed = FixedPoint(1000.0, len(names))
    scales = 10.0 ** random.integers(-6, 2, length)
    return {
        name: fixed.encode(random.normal(0.3 * place, 1 + place, length) * scales)
        for place, name in enumerate(names)
    }


def participants_of(them: Party, rule: Rule, numbers: Mapping[str, Residues]) -> dict[str, Participant]:
    return {
        name: Participant(LABEL, them.identities[name], them.known, rule, numbers[name]) for name in numbers
    }


def play(
    collector: Collector, participants: Mapping[str, Participant], lost: Mapping[str, Collection[str]]
) -> Residues:
    """A whole sum; `lost` says whose answers do not arrive from which stage on."""
    here = dict(participants)

    def leave(stage: str) -> None:
        for name in lost.get(stage, ()):
            del here[name]

    leave("keys")
    collector.take_adverts({name: one.advert for name, one in here.items()})
    leave("share")
    collector.take_boxes({name: one.share(collector.adverts) for name, one in here.items()})
    leave("mask")
    for name, one in here.items():
        collector.add(name, one.mask(collector.boxes_for(name)))
    leave("confirm")
    signatures = {name: one.confirm(collector.survivors) for name, one in here.items()}
    usable = collector.confirmed(signatures)
    leave("reveal")
    return collector.unmask({name: one.reveal(usable) for name, one in here.items()})
