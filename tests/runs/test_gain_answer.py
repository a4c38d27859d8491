"""The answer in plain words says what the tables of gains say."""

import math
from typing import Any

import pandas as pd
import pytest

from idiolect.runs.gain_answer import gain_answer
from idiolect.runs.gains import GainTables

PAIRS = {"local": "personal", "fedavg": "global", "apfl": "personal", "pfedkm": "personal"}
ALONE = 0.78


def model(method: str, gain: float, low: float, high: float, **numbers: Any) -> dict[str, Any]:
    counts = {"clients": 15, "gain": 4, "lose": 1, "within_noise": 10, "no_interval": 0, "by_chance": 0.75}
    named = {"method": method, "kind": PAIRS[method], "over": "alone", "metric": "accuracy"}
    return {**named, "mean": ALONE + gain, "mean_gain": gain, "low": low, "high": high, **counts, **numbers}


def answer(
    *models: dict[str, Any],
    diverged: str = "",
    validation: dict[str, float] | None = None,
    higher: bool = True,
) -> list[str]:
    """Validation values are the test values unless given."""
    clients = pd.DataFrame(
        {"method": ["local"] * 2, "kind": ["personal"] * 2, "value": [ALONE - 0.1, ALONE + 0.1]}
    )
    table = pd.DataFrame({"method": list(PAIRS), "kind": list(PAIRS.values()), "untrained": False})
    table["diverged"] = table.method == diverged
    values = {row["method"]: row["mean"] for row in models} if validation is None else validation
    table["validation"] = table.method.map(values)
    gains = GainTables(clients, pd.DataFrame(models), pd.DataFrame())
    return gain_answer(gains, table, "test accuracy", higher_is_better=higher)


SHARED = model("fedavg", -0.17, -0.28, -0.06)


def test_joining_helps() -> None:
    told = answer(SHARED, model("apfl", 0.01, -0.01, 0.02), model("pfedkm", 0.063, 0.008, 0.129))
    assert told == [
        "Joining helps: with pfedkm, the best on validation rows, the mean test accuracy is 84.3 % instead "
        "of 78.0 % alone, a gain of 6.3 points (95 %: +0.8 to +12.9, more than noise).",
        "With it 4 of 15 clients gain more than noise, 1 loses, and 10 cannot be told from no change; by "
        "chance alone about 0.75 would seem to gain or lose.",
        "Within noise of training alone: apfl (+1.0 points).",
        "Worse than alone: one shared model (−17.0 points).",
    ]


@pytest.mark.parametrize(
    ("gain", "low", "high", "words"),
    [
        (0.01, -0.02, 0.03, "Joining makes no difference that is more than noise: with apfl"),
        (-0.03, -0.05, -0.01, "Joining does not help: with apfl"),
        (0.02, math.nan, math.nan, "With apfl, the best on validation rows"),
    ],
)
def test_it_may_make_no_difference_or_hurt_or_nobody_can_say(
    gain: float, low: float, high: float, words: str
) -> None:
    unknown = {"no_interval": 15} if math.isnan(low) else {}
    told = answer(SHARED, model("apfl", gain, low, high, **unknown))
    assert told[0].startswith(words)
    assert ("more than noise)" in told[0]) == (high < 0)
    assert f"a {'loss' if gain < 0 else 'gain'} of {100 * abs(gain):.1f} points" in told[0]
    assert any(line.startswith("With it 4 of 15") for line in told) != math.isnan(low)


@pytest.mark.parametrize(("lose", "words"), [(0, ", none loses, "), (1, ", 1 loses, "), (3, ", 3 lose, ")])
def test_how_many_lose(lose: int, words: str) -> None:
    assert words in answer(SHARED, model("apfl", 0.02, 0.01, 0.03, lose=lose))[1]


def test_what_diverged_is_not_the_answer() -> None:
    told = answer(SHARED, model("apfl", 0.02, 0.01, 0.03), model("pfedkm", 0.5, 0.4, 0.6), diverged="pfedkm")
    assert "with apfl, the best on validation rows" in told[0]
    assert not any("pfedkm" in line for line in told)
    assert (
        "with apfl"
        in answer(model("apfl", 0.02, 0.01, 0.03), model("pfedkm", math.inf, math.nan, math.nan))[0]
    )


def test_without_anybody_who_trained_alone_there_is_no_answer() -> None:
    assert answer({**SHARED, "over": "shared"}) == []
    assert gain_answer(None, pd.DataFrame(), "accuracy", higher_is_better=True) == []
    assert (
        gain_answer(GainTables(*[pd.DataFrame()] * 3), pd.DataFrame(), "accuracy", higher_is_better=True)
        == []
    )


def test_the_method_is_chosen_by_rows_that_it_is_not_reported_on() -> None:
    lucky, steady = model("pfedkm", 0.09, 0.02, 0.16), model("apfl", 0.01, -0.01, 0.02)
    values = {"fedavg": 0.7, "apfl": 0.81, "pfedkm": 0.8}
    told = answer(SHARED, lucky, steady, validation=values)
    assert told[0].startswith(
        "Joining makes no difference that is more than noise: with apfl, the best on val"
    )
    assert told[2] == "Also better than alone: pfedkm (+9.0 points)."
    errors = {method: 1 - value for method, value in values.items()}
    assert "with apfl, the best" in answer(SHARED, lucky, steady, validation=errors, higher=False)[0]
    assert (
        "with pfedkm, the best on these very rows, which flatters it"
        in answer(SHARED, lucky, steady, validation={})[0]
    )
