"""How many participants may be in league with the collector: what it gets with one more, and not with these.

It has everybody's masked numbers. Some of the honest are told a list with everybody on it and give shares of
the seeds; the others are told one without the first, and give shares of their masking keys. With both secrets
of a participant its numbers are seen. Accomplices sign both lists and give both shares.
"""

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.secure.collector import Collector
from idiolect.secure.masks import add_pair_mask, mask
from idiolect.secure.messages import SURVIVORS, Revealed, pair_purpose, survivors_signed, transcript
from idiolect.secure.participant import Participant
from idiolect.secure.rule import Rule
from secure.parties import LABEL, numbers_of, participants_of, party

NAMES = [f"silo-{place}" for place in range(7)]
PARTY = party(NAMES)


class League:
    """A collector and its accomplices, who are the last of the names."""

    def __init__(self, rule: Rule, accomplices: int) -> None:
        self.rule = rule
        self.names = NAMES[: rule.parties]
        self.numbers = numbers_of(self.names)
        self.them = participants_of(PARTY, rule, self.numbers)
        self.honest = self.names[: rule.parties - accomplices]
        self.accomplices = self.names[rule.parties - accomplices :]
        self.collector = Collector(LABEL, PARTY.known, rule, 40)
        self.collector.take_adverts({name: one.advert for name, one in self.them.items()})
        self.collector.take_boxes(
            {name: one.share(self.collector.adverts) for name, one in self.them.items()}
        )
        self.masked = {name: one.mask(self.collector.boxes_for(name)) for name, one in self.them.items()}
        self.attempt = transcript(LABEL, self.collector.adverts, rule)

    def told(self, asked: list[str], survivors: list[str]) -> dict[str, Revealed]:
        """What some of the honest, who are told one list, and all accomplices give away."""
        content = survivors_signed(self.attempt, survivors)
        signatures = {name: PARTY.identities[name].sign(SURVIVORS, content) for name in self.accomplices}
        signatures |= {name: self.them[name].confirm(survivors) for name in asked}
        told = {name: self.them[name].reveal(signatures) for name in asked}
        return told | {name: self.all_shares(self.them[name]) for name in self.accomplices}

    def all_shares(self, one: Participant) -> Revealed:
        held = {name: one._held(name) for name in self.names}
        return Revealed(
            {name: shares.seed for name, shares in held.items() if shares is not None},
            {name: shares.key for name, shares in held.items() if shares is not None},
        )

    def opens(self, victim: str) -> bool:
        """Whether the numbers of one of the honest are seen, however the honest are told apart."""
        return any(self._opens(victim, split) for split in range(1, len(self.honest)))

    def _opens(self, victim: str, split: int) -> bool:
        fresh = League(self.rule, len(self.accomplices))
        return fresh.opened(victim, fresh.honest[:split], fresh.honest[split:])

    def opened(self, victim: str, with_all: list[str], without: list[str]) -> bool:
        try:
            seeds = self.told(with_all, self.names)
            keys = self.told(without, sorted({*without, *self.accomplices}))
            seed, key = self.collector._seed(victim, seeds), self.collector._masking_key(victim, keys)
        except UserError:
            return False
        seen = self.masked[victim] - mask(seed, 40)
        for other in self.names:
            if other != victim:
                advert = self.collector.adverts[other]
                secret = key.agree(advert.masking_key, pair_purpose(self.attempt, victim, other))
                add_pair_mask(seen, secret, other, victim)
        return bool(np.array_equal(seen, self.numbers[victim]))


@pytest.mark.parametrize(("threshold", "parties"), [(3, 5), (4, 5), (4, 6), (4, 7), (5, 7)])
def test_two_lists_need_more_accomplices_than_the_rule_says(threshold: int, parties: int) -> None:
    rule = Rule(threshold, parties)
    assert not League(rule, rule.accomplices).opens(NAMES[0])
    too_many = 2 * threshold - parties
    if parties - too_many >= 2:  # there are two honest ones to be told apart
        assert League(rule, too_many).opens(NAMES[0])


@pytest.mark.parametrize(
    ("threshold", "parties", "accomplices"), [(2, 2, 0), (2, 3, 0), (3, 3, 1), (4, 5, 2), (67, 100, 33)]
)
def test_how_many_accomplices(threshold: int, parties: int, accomplices: int) -> None:
    assert Rule(threshold, parties).accomplices == accomplices
