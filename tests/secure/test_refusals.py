"""What a collector that deviates is refused: posing as others, two lists, both secrets of one, too few."""

from typing import Any

import pytest

from idiolect.errors import UserError
from idiolect.secure.collector import Collector
from idiolect.secure.messages import KEYS, Advert
from idiolect.secure.participant import Participant
from idiolect.secure.rule import Rule
from secure.parties import FIVE, LABEL, numbers_of, participants_of, party

PARTY = party()
STRANGERS = party()  # the same names with other long-term keys: what a dishonest collector could make up
NUMBERS = numbers_of(FIVE)
RULE = Rule(3, 5)


def adverts_of(them: dict[str, Participant]) -> dict[str, Advert]:
    return {name: one.advert for name, one in them.items()}


def until_masked(them: dict[str, Participant]) -> Collector:
    collector = Collector(LABEL, PARTY.known, RULE, 40)
    collector.take_adverts(adverts_of(them))
    collector.take_boxes({name: one.share(collector.adverts) for name, one in them.items()})
    for name, one in them.items():
        collector.add(name, one.mask(collector.boxes_for(name)))
    return collector


@pytest.fixture
def them() -> dict[str, Participant]:
    return participants_of(PARTY, RULE, NUMBERS)


def test_nobody_can_pose_as_a_silo(them: dict[str, Participant]) -> None:
    posed = participants_of(STRANGERS, RULE, NUMBERS)
    adverts = {**adverts_of(posed), "ash": them["ash"].advert}
    with pytest.raises(UserError, match="'beech' did not sign what is said to be its keys"):
        them["ash"].share(adverts)


def test_keys_of_another_sum_are_refused(them: dict[str, Participant]) -> None:
    """What was signed for one round cannot be used in the next."""
    other = Participant("a-run/work/4/0", PARTY.identities["elm"], PARTY.known, RULE, NUMBERS["elm"])
    with pytest.raises(UserError, match="'elm' did not sign"):
        them["ash"].share(adverts_of(them) | {"elm": other.advert})


@pytest.mark.parametrize("rule", [Rule(4, 5), Rule(3, 4), Rule(3, 5, terms="less noise")])
def test_whoever_was_told_another_rule_is_refused(rule: Rule, them: dict[str, Participant]) -> None:
    """A coordinator that tells everybody something else gets no sum."""
    other = Participant(LABEL, PARTY.identities["elm"], PARTY.known, rule, NUMBERS["elm"])
    with pytest.raises(UserError, match="'elm' did not sign"):
        them["ash"].share(adverts_of(them) | {"elm": other.advert})


def test_keys_exchanged_for_ones_own_are_refused(them: dict[str, Participant]) -> None:
    swapped = them["elm"].advert._replace(masking_key=them["fir"].advert.masking_key)
    with pytest.raises(UserError, match="'elm' did not sign"):
        them["ash"].share(adverts_of(them) | {"elm": swapped})
    again = participants_of(PARTY, RULE, NUMBERS)["ash"].advert  # one of its own, of another attempt
    with pytest.raises(UserError, match="does not hold this silo's own"):
        them["ash"].share(adverts_of(them) | {"ash": again})


def test_an_unknown_name_is_refused(them: dict[str, Participant]) -> None:
    more = party(["yew"])
    yew = Participant(LABEL, more.identities["yew"], more.known, RULE, NUMBERS["ash"])
    adverts = adverts_of(them)
    del adverts["fir"]
    with pytest.raises(UserError, match="public key of 'yew' is not known here"):
        them["ash"].share(adverts | {"yew": yew.advert})


def test_a_question_in_other_words_is_refused_and_a_repeated_one_answered(
    them: dict[str, Participant],
) -> None:
    adverts = adverts_of(them)
    ash = them["ash"]
    boxes = ash.share(adverts)
    assert ash.share(adverts) == boxes
    fewer = {name: advert for name, advert in adverts.items() if name != "fir"}
    with pytest.raises(UserError, match="asked for 'share' before, in other words"):
        ash.share(fewer)


def test_stages_come_in_their_order(them: dict[str, Participant]) -> None:
    with pytest.raises(UserError, match="'confirm' is not the next stage"):
        them["ash"].confirm(FIVE)
    with pytest.raises(UserError, match="'reveal' is not the next stage"):
        them["ash"].reveal({})


def test_one_list_of_survivors_only(them: dict[str, Participant]) -> None:
    until_masked(them)
    them["ash"].confirm(FIVE)
    with pytest.raises(UserError, match="'confirm' before, in other words"):
        them["ash"].confirm(FIVE[:4])


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        (["ash", "beech"], "a sum of 2 silos cannot be used"),
        (["beech", "cedar", "elm"], "does not hold this silo"),
        (["ash", "beech", "yew"], "not in this sum, or one twice"),
        (["ash", "beech", "beech"], "not in this sum, or one twice"),
    ],
)
def test_impossible_lists_of_survivors(
    them: dict[str, Participant], survivors: list[str], reason: str
) -> None:
    until_masked(them)
    with pytest.raises(UserError, match=reason):
        them["ash"].confirm(survivors)


def test_two_lists_for_two_halves_reveal_nothing(them: dict[str, Participant]) -> None:
    """The collector wants both secrets of fir: the mask's seed from some, the masking key from others."""
    until_masked(them)
    with_fir = {name: them[name].confirm(["ash", "beech", "fir"]) for name in ("ash", "beech")}
    without = {name: them[name].confirm(["cedar", "elm", "ash"]) for name in ("cedar", "elm")}
    for name in ("ash", "cedar"):
        for signatures in (with_fir, without, with_fir | without):
            with pytest.raises(UserError):
                them[name].reveal(signatures)
    honest = them["fir"].confirm(["ash", "beech", "fir"])
    told = them["ash"].reveal(with_fir | {"fir": honest})
    assert "fir" in told.seeds
    assert "fir" not in told.keys


def test_signatures_under_another_list_do_not_count(them: dict[str, Participant]) -> None:
    until_masked(them)
    them["ash"].confirm(FIVE[:4])
    others = {name: them[name].confirm(FIVE[1:]) for name in FIVE[1:4]}
    with pytest.raises(UserError, match="did not sign what is said to be its list of survivors"):
        them["ash"].reveal(others)


def test_signatures_of_others_than_survivors_do_not_count(them: dict[str, Participant]) -> None:
    until_masked(them)
    signatures = {name: them[name].confirm(["ash", "beech", "cedar"]) for name in ("ash", "beech")}
    forged = STRANGERS.identities["cedar"].sign("list of survivors", {"attempt": "", "survivors": []})
    with pytest.raises(UserError, match="'cedar' did not sign what is said to be its list of survivors"):
        them["ash"].reveal(signatures | {"cedar": forged})
    with pytest.raises(UserError, match="'elm' is not among the survivors"):
        them["ash"].reveal(signatures | {"elm": signatures["ash"]})


def test_a_restart_is_a_new_attempt(them: dict[str, Participant]) -> None:
    """What was sealed for a participant before is of no use to what comes after it."""
    until_masked(them)
    again = participants_of(PARTY, RULE, NUMBERS)["ash"]
    with pytest.raises(UserError, match="'mask' is not the next stage"):
        again.mask({})


def test_a_box_for_another_is_of_no_use(them: dict[str, Participant]) -> None:
    collector = Collector(LABEL, PARTY.known, RULE, 40)
    collector.take_adverts(adverts_of(them))
    boxes = {name: one.share(collector.adverts) for name, one in them.items()}
    wrong = {**{name: boxes[name]["ash"] for name in FIVE[1:]}, "elm": boxes["elm"]["fir"]}
    them["ash"].mask(wrong)
    assert them["ash"]._held("elm") is None
    assert them["ash"]._held("fir") is not None


@pytest.mark.parametrize(("threshold", "parties"), [(2, 4), (1, 1), (50, 100), (6, 5), (1, 2)])
def test_thresholds_that_protect_nobody(threshold: int, parties: int) -> None:
    with pytest.raises(UserError, match="more than half"):
        Rule(threshold, parties)


@pytest.mark.parametrize(("parties", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (20, 14), (100, 67)])
def test_the_usual_threshold(parties: int, threshold: int) -> None:
    assert Rule.usual(parties).threshold == threshold


def test_what_a_bad_participant_sends_counts_as_nothing(them: dict[str, Participant]) -> None:
    """Others go on without it, with a sentence: false keys, boxes, masked numbers, signatures."""
    collector = Collector(LABEL, PARTY.known, RULE, 40)
    bad: Any = them["fir"].advert._replace(commitment=b"something else")
    collector.take_adverts(adverts_of(them) | {"fir": bad})
    assert sorted(collector.adverts) == list(FIVE[:4])
    assert "did not sign" in collector.troubles["fir"]
    them.pop("fir")
    boxes = {name: one.share(collector.adverts) for name, one in them.items()}
    del boxes["elm"]["ash"]
    collector.take_boxes(boxes)
    assert "shares for others than" in collector.troubles["elm"]
    for name in ("ash", "beech", "cedar"):
        collector.add(name, them[name].mask(collector.boxes_for(name)))
    collector.add("ash", NUMBERS["ash"])
    collector.add("elm", NUMBERS["elm"])
    assert "nobody asked for" in collector.troubles["elm"]
    assert collector.survivors == ["ash", "beech", "cedar"]
    signatures = {name: them[name].confirm(collector.survivors) for name in collector.survivors}
    assert collector.confirmed(signatures | {"elm": b""}) == signatures


@pytest.mark.parametrize("which", ["sealing_key", "masking_key"])
@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"short"], ids=["zero", "one", "short"])
def test_a_key_that_gives_no_secret_is_left_out_and_the_others_are_summed(
    which: str, key: bytes, them: dict[str, Participant]
) -> None:
    """One participant could otherwise stop all: whoever is told of such a key refuses it."""
    unsigned = them["fir"].advert._replace(**{which: key})
    signature = PARTY.identities["fir"].sign(KEYS, unsigned.signed(LABEL, "fir", RULE))
    collector = Collector(LABEL, PARTY.known, RULE, 40)
    collector.take_adverts(adverts_of(them) | {"fir": unsigned._replace(signature=signature)})
    assert sorted(collector.adverts) == list(FIVE[:4])
    assert "cannot be used" in collector.troubles["fir"]


def test_masked_numbers_of_another_length(them: dict[str, Participant]) -> None:
    collector = until_masked(them)
    collector.survivors.remove("ash")
    collector.add("ash", NUMBERS["ash"][:3])
    assert "another kind or length" in collector.troubles["ash"]


def test_one_signature_is_not_taken_for_one_of_another_kind() -> None:
    content = {"attempt": "a", "survivors": ["ash"]}
    signature = PARTY.identities["ash"].sign(KEYS, content)
    with pytest.raises(UserError, match="did not sign"):
        PARTY.known.require("ash", "list of survivors", content, signature)
