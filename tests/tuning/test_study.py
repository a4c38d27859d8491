"""Halving, budgets of time, and the space: expected by hand from the rules of docs/tuning.md."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import idiolect
from idiolect.core.method import Method
from idiolect.methods.catalogue import METHODS
from idiolect.runs.config import build_method
from idiolect.runs.settings import merge
from idiolect.tuning import study, trials
from idiolect.tuning.space import COMMON, method_space, shown
from idiolect.tuning.trials import Follow, Outcome, Stop

ROUNDS = (1, 3, 9, 27)  # the rungs of 27 rounds are 1, 3 and 9


def scripted(values: list[float]) -> Any:
    """Trials with a constant value each, which end where they are stopped."""
    left = iter(values)

    def play(config: Any, federation: Any, measures: Any, follow: Follow) -> Outcome:
        value = next(left)
        for round_number in ROUNDS:
            try:
                follow(round_number, value)
            except Stop as stop:
                return Outcome(stop.state, value, 1.0, round_number, round_number)
        return Outcome("complete", value, 1.0, 27, 27)

    return play


WORDS: dict[str, Any] = {"data": "vowels", "rounds": 27, "evaluate_every": 1}


pytestmark = pytest.mark.usefixtures("without_pages")


def test_a_trial_goes_on_if_it_is_among_the_best_third_of_those_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two to five at a rung the best one goes on, of six the best two.
    values = [0.5, 0.4, 0.6, 0.55, 0.3, 0.58, 0.6]
    monkeypatch.setattr(study, "play_trial", scripted(values))
    tuning = idiolect.tune(WORDS, methods="local", trials=7, out=tmp_path / "out")
    rounds = tuning.trials.rounds.tolist()
    # 0.58 is second of six at the first rung and second of three (0.5, 0.6, 0.58) at the second.
    assert rounds == [27, 1, 27, 1, 1, 3, 27]
    assert tuning.trials.state.tolist() == [
        "complete", "stopped", "complete", "stopped", "stopped", "stopped", "complete",
    ]  # fmt: skip
    assert tuning.table.chosen_trial.tolist() == [2], "of equals the earlier one"


def test_where_smaller_is_better_the_smallest_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "play_trial", scripted([0.5, 0.4, 0.6]))
    tuning = idiolect.tune(WORDS, methods="local", metric="loss", trials=3, out=tmp_path / "out")
    assert tuning.trials.rounds.tolist() == [27, 27, 1]
    assert tuning.table.chosen_trial.tolist() == [1]


def test_each_method_has_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is looked at."""
    seconds = itertools.count()
    monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(study, "play_trial", scripted([0.5] * 99))
    tuning = idiolect.tune(WORDS, methods=["local", "fedavg"], budget="30s", out=tmp_path / "out")
    table = tuning.table.set_index("method")
    # A trial looks at the clock at its start, after the 4 evaluations (but for the first trial's, which is
    # always played to its end) and at its end: the first takes 1 s, the others 5 s; so 1 + 5 + 5 = 11 s, and
    # the fourth begins with 4 s left. It is late at the evaluation at which more than 4 s have gone: none.
    assert table.trials.tolist() == [4, 4]
    assert table.seconds.tolist() == [16.0, 16.0]
    again = idiolect.tune(WORDS, methods=["local", "fedavg"], budget="30s", out=tmp_path / "out")
    assert again.table.trials.tolist() == [4, 4], "the budget is spent"


def test_a_trial_ends_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(study, "play_trial", scripted([0.5, 0.9, 0.9]))
    tuning = idiolect.tune(WORDS, methods="local", budget="3s", out=tmp_path / "out")
    # The first takes 1 s; of the second more than the 2 s that are left have gone at its third evaluation.
    assert tuning.trials.state.tolist() == ["complete", "late"]
    assert tuning.trials.rounds.tolist() == [27, 9]
    assert tuning.table.chosen_trial.tolist() == [0], "what was not played to its end is not chosen"


def test_the_untuned_settings_are_played_whatever_they_take(tmp_path: Path) -> None:
    words = {**WORDS, "rounds": 2, "engine": "sequential"}
    tuning = idiolect.tune(words, methods=["local", "fedavg"], budget="0.001s", out=tmp_path / "out")
    assert tuning.trials.state.tolist() == ["complete"] * 2


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_what_a_method_declares_can_be_its_settings(kind: type[Method]) -> None:
    for name, tried in method_space(kind).items():
        for value in tried:
            settings: Any = value
            for part in reversed(name.split(".")):
                settings = {part: settings}
            build_method(merge({"name": kind.name}, settings))


def test_the_page_lists_what_is_tried() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
    rows = {
        tuple(cell.strip(" `") for cell in line.split("|")[1:4])
        for line in re.findall(r"^\|.*\|$", text, re.M)
    }
    expected = {("every method", name, shown(tried)) for name, tried in COMMON.items()}
    expected |= {
        (kind.name, name, shown(tried)) for kind in METHODS for name, tried in method_space(kind).items()
    }
    assert expected <= rows
    methods = {kind.name for kind in METHODS}
    assert {row for row in rows if row[0] in {*methods, "every method"}} == expected
