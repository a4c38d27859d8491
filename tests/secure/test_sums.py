"""The masked sum is the plain sum of the fixed-point numbers, bit for bit, whoever drops out and when."""

import gc

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.secure.collector import Collector
from idiolect.secure.masks import add_pair_mask, mask
from idiolect.secure.messages import pair_purpose, transcript
from idiolect.secure.rule import Rule
from secure.parties import FIVE, LABEL, numbers_of, participants_of, party, play

PARTY = party()
NUMBERS = numbers_of(FIVE)
RULE = Rule(3, 5)

CASES = {
    "nobody": ({}, FIVE),
    "before keys": ({"keys": ["beech"]}, ("ash", "cedar", "elm", "fir")),
    "after keys": ({"share": ["ash"]}, ("beech", "cedar", "elm", "fir")),
    "after shares": ({"mask": ["cedar"]}, ("ash", "beech", "elm", "fir")),
    "two after shares": ({"mask": ["ash", "fir"]}, ("beech", "cedar", "elm")),
    "after masked numbers": ({"confirm": ["elm"]}, FIVE),
    "after signatures": ({"reveal": ["fir", "ash"]}, FIVE),
    "some everywhere": ({"share": ["fir"], "mask": ["beech"]}, ("ash", "cedar", "elm")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sum_is_exact(case: str) -> None:
    lost, summed = CASES[case]
    total = play(Collector(LABEL, PARTY.known, RULE, 40), participants_of(PARTY, RULE, NUMBERS), lost)
    expected = np.sum([NUMBERS[name] for name in summed], axis=0, dtype=np.uint64)
    assert total.dtype == np.uint64
    assert (total == expected).all()


@pytest.mark.parametrize("stage", ["keys", "share", "mask", "confirm", "reveal"])
def test_too_few_are_left(stage: str) -> None:
    with pytest.raises(UserError, match="of 2 silos cannot be used: agreed are 3 to 5"):
        play(
            Collector(LABEL, PARTY.known, RULE, 40),
            participants_of(PARTY, RULE, NUMBERS),
            {stage: ["ash", "elm", "fir"]},
        )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_other_numbers_of_participants(count: int) -> None:
    names = [f"silo-{place}" for place in range(count)]
    them, numbers, rule = party(names), numbers_of(names, 3), Rule.usual(count)
    total = play(Collector(LABEL, them.known, rule, 3), participants_of(them, rule, numbers), {})
    assert (total == np.sum(list(numbers.values()), axis=0, dtype=np.uint64)).all()


def test_one_false_share_is_found_out() -> None:
    collector, them = Collector(LABEL, PARTY.known, RULE, 40), participants_of(PARTY, RULE, NUMBERS)
    play(collector, them, {"mask": ["cedar"]})
    told = {name: one.reveal(one._answers["reveal"][0]) for name, one in them.items() if name != "cedar"}
    seeds = {name: bytes(66) for name in told["ash"].seeds}
    told["ash"] = told["ash"]._replace(seeds=seeds)
    total = collector.unmask(told)
    assert (total == np.sum([NUMBERS[name] for name in told], axis=0, dtype=np.uint64)).all()
    assert "gave a false share" in collector.troubles["ash"]
    told["beech"] = told["beech"]._replace(seeds=seeds)
    with pytest.raises(UserError, match="does not follow from the shares"):
        collector.unmask(told)


def _bytes_in_reach(root: object) -> bytes:
    """Everything that an object leads to, as far as Python's collector and numpy know."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ in ("module", "function"):
            continue
        seen[id(one)] = one
        waiting += gc.get_referents(one)
    content = [one for one in seen.values() if isinstance(one, bytes | bytearray)]
    arrays = [one.tobytes() for one in seen.values() if isinstance(one, np.ndarray)]
    return b"|".join([*map(bytes, content), *arrays])


@pytest.mark.parametrize("lost", [{}, {"mask": ["cedar"]}, {"confirm": ["cedar"]}], ids=str)
def test_the_collector_never_holds_a_summand(lost: dict[str, list[str]]) -> None:
    """Neither before nor after the end; that the search finds what is there is seen at the participants."""
    collector, them = Collector(LABEL, PARTY.known, RULE, 40), participants_of(PARTY, RULE, NUMBERS)
    plain = {name: numbers.tobytes() for name, numbers in NUMBERS.items()}
    assert plain["ash"] in _bytes_in_reach(them["ash"].__dict__)
    result = play(collector, them, lost)
    held = _bytes_in_reach([collector.__dict__, result])
    assert result.tobytes() in held
    assert not any(numbers in held for numbers in plain.values())


def test_a_summand_that_is_left_out_stays_masked() -> None:
    """It arrived, but too late to be counted: with its masking key revealed its own mask still covers it."""
    collector, them = Collector(LABEL, PARTY.known, RULE, 40), participants_of(PARTY, RULE, NUMBERS)
    collector.take_adverts({name: one.advert for name, one in them.items()})
    collector.take_boxes({name: one.share(collector.adverts) for name, one in them.items()})
    masked = {name: one.mask(collector.boxes_for(name)) for name, one in them.items()}
    late = "beech"
    for name in FIVE:
        if name != late:
            collector.add(name, masked[name])
    usable = collector.confirmed(
        {name: them[name].confirm(collector.survivors) for name in collector.survivors}
    )
    told = {name: them[name].reveal(usable) for name in collector.survivors}
    assert all(set(one.keys) == {late} and late not in one.seeds for one in told.values())
    assert not any(set(one.keys) & set(one.seeds) for one in told.values())
    key = collector._masking_key(late, told)
    attempt = transcript(LABEL, collector.adverts, RULE)
    bare = masked[late].copy()
    for other in collector.survivors:
        seed = key.agree(collector.adverts[other].masking_key, pair_purpose(attempt, late, other))
        add_pair_mask(bare, seed, other, late)
    difference = bare - NUMBERS[late]
    assert len(np.unique(difference)) == 40  # what is left is the mask of its own, not a constant
    assert (difference == mask(them[late]._seed, 40)).all()
