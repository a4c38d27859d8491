"""A verdict is right as often as it says, whichever way the difference goes."""

import numpy as np
import pandas as pd
import pytest

from idiolect.reproduction.claims import Claim, Relation
from idiolect.reproduction.verdicts import (
    Difference,
    apart_difference,
    overall,
    paired_difference,
)


def drawn(random, clients, seeds, mean, client_spread, seed_spread, noise):
    """Values with a mean, in which clients differ and seeds differ."""
    of_clients = random.normal(scale=client_spread, size=(clients, 1))
    of_seeds = random.normal(scale=seed_spread, size=(1, seeds))
    return pd.DataFrame(mean + of_clients + of_seeds + random.normal(scale=noise, size=(clients, seeds)))


def test_paired_differences_are_those_of_the_means_and_hold_the_truth():
    random, covered = np.random.default_rng(0), 0
    for _ in range(200):
        common = drawn(random, 40, 5, 0.0, 3.0, 1.0, 0.0)  # far larger than what is looked for
        gap = drawn(random, 40, 5, 0.3, 0.5, 0.1, 0.2)
        found = paired_difference(common + gap, common)
        assert found.value == pytest.approx(gap.to_numpy().mean())
        covered += found.low <= 0.3 <= found.high
    assert 175 <= covered <= 199  # 95 % of 200, and a little less since five seeds are few


def test_what_has_nothing_in_common_is_drawn_apart():
    random = np.random.default_rng(1)
    first, second = (drawn(random, 300, 3, mean, 1.0, 0.0, 0.0) for mean in (0.5, 0.0))
    found = apart_difference(first, second)
    expected = 1.96 * np.sqrt(2 / 300)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.15)


def test_a_deterministic_value_has_an_interval_of_one_point():
    one = pd.DataFrame([[2.0]])
    assert paired_difference(one, one - 1.5) == Difference(1.5, 1.5, 1.5)


def test_who_has_no_value_does_not_count():
    first = pd.DataFrame({0: [1.0, np.nan, 3.0], 1: [1.0, np.nan, 3.0]})
    assert paired_difference(first, first - 1).value == 1


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (0.1, 0.3, 0.0, "confirmed"),
        (-0.3, -0.1, 0.0, "contradicted"),
        (-0.1, 0.1, 0.0, "inconclusive"),
        (0.1, 0.3, 0.2, "inconclusive"),
        (-0.1, 0.1, -0.2, "confirmed"),
        (np.nan, np.nan, 0.0, "inconclusive"),
    ],
)
def test_above_a_margin(low, high, margin, verdict):
    assert Difference((low + high) / 2, low, high).above(margin) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.1, 0.1, "confirmed"),
        (0.15, 0.3, "inconclusive"),
        (0.25, 0.3, "contradicted"),
        (-0.4, -0.3, "contradicted"),
    ],
)
def test_within_a_bound(low, high, verdict):
    assert Difference(0.0, low, high).inside(0.2) == verdict


def test_the_negative_has_the_negative_interval():
    assert -Difference(1.0, 0.5, 2.0) == Difference(-1.0, -2.0, -0.5)


def test_overall():
    assert overall([]) == "inconclusive"
    assert overall(["confirmed", "confirmed"]) == "confirmed"
    assert overall(["confirmed", "inconclusive", "contradicted"]) == "contradicted"


def test_a_claim_becomes_relations():
    rising = Claim(says="more is better", rising=("a global", "b global", "c global"))
    assert rising.relations == [Relation("c global", "b global"), Relation("b global", "a global")]
    falling = Claim(says="less is better", falling=("a global", "b global"))
    assert falling.relations == [Relation("a global", "b global")]
    lower = Claim(says="smaller", lower="a global", than=("b global", 0.5))
    assert [c.second for c in lower.relations] == ["b global", 0.5]
    assert lower.sign == -1
    equal = Claim(says="alike", equal=("a global", "b global", "c global"), within=0.1)
    assert len(equal.relations) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of higher"),
        ({"higher": "a global"}, "than"),
        ({"higher": "a global", "lower": "b global", "than": 1}, "one of higher"),
        ({"equal": ("a global", "b global")}, "within"),
        ({"model": "a global", "within": 1}, "near"),
    ],
)
def test_a_claim_that_is_not_whole_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Claim(says="something", **options)
