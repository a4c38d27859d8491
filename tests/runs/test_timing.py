"""Seconds of training: what is counted, by a clock that the test moves; nothing else depends on it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import idiolect
from idiolect.runs import rounds
from idiolect.runs.folder import RunFolder
from idiolect.simulation import Simulation
from runs.same_run import assert_same_run

QUICK: dict[str, Any] = {"local_steps": 1, "rounds": 5, "evaluation": {"every": 2}}
# Round r takes r seconds and a quarter.
SECONDS = {0: 0.0, 1: 1.25, 2: 3.5, 3: 6.75, 4: 11.0, 5: 16.25}
BETWEEN = 1000.0  # what an evaluation takes, and a pause


class Killed(BaseException):
    """Nothing catches it."""


class Killer:
    """Ends a run when a round was evaluated and not yet saved."""

    def __init__(self, after: int) -> None:
        self.after = after

    def played(self, round_number: int) -> None:
        pass

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        if round_number == self.after:
            raise Killed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that moves in rounds, evaluations and where the test says."""
    moved = SimpleNamespace(now=17.0)
    advance, evaluate = Simulation.advance, Simulation.evaluate

    def timed_advance(simulation: Simulation) -> Any:
        result = advance(simulation)
        moved.now += simulation.round + 0.25
        return result

    def timed_evaluate(simulation: Simulation, *measures: Any) -> Any:
        moved.now += BETWEEN
        return evaluate(simulation, *measures)

    monkeypatch.setattr(Simulation, "advance", timed_advance)
    monkeypatch.setattr(Simulation, "evaluate", timed_evaluate)
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: moved.now))
    return moved


def seconds(timing: pd.DataFrame) -> dict[int, float]:
    assert list(timing.columns) == ["round", "seconds"]
    return dict(zip(timing["round"], timing["seconds"], strict=True))


def test_they_are_of_rounds_alone(clock: SimpleNamespace, tmp_path: Path) -> None:
    run = idiolect.run(method="fedavg", data="vowels", out=tmp_path / "run", **QUICK)
    assert seconds(run.timing()) == SECONDS
    assert "seconds" not in run.summary()
    assert seconds(idiolect.train("fedavg", "vowels", **QUICK).timing) == SECONDS


def test_a_pause_and_rounds_that_are_played_again_do_not_count(
    clock: SimpleNamespace, tmp_path: Path
) -> None:
    """Saved after round 3, killed after the evaluation of round 4, continued much later."""
    settings = {"method": "fedavg", "data": "vowels", "checkpoint.every": 3, **QUICK}
    with pytest.raises(Killed):
        idiolect.run(out=tmp_path / "killed", watch=lambda config: [Killer(4)], **settings)
    assert seconds(RunFolder(tmp_path / "killed").timing()) == {r: SECONDS[r] for r in range(4)}
    clock.now += BETWEEN
    idiolect.resume(tmp_path / "killed")
    assert seconds(RunFolder(tmp_path / "killed").timing()) == SECONDS
    clock.now += 0.5  # another run takes other seconds, and is the same run
    idiolect.run(out=tmp_path / "undisturbed", **settings)
    assert_same_run(tmp_path / "killed", tmp_path / "undisturbed")


def test_runs_that_took_longer_are_the_same_run(clock: SimpleNamespace, tmp_path: Path) -> None:
    settings = {"method": "fedavg", "data": "vowels", **QUICK}
    quick = idiolect.run(out=tmp_path / "quick", **settings)
    rounds.time.perf_counter = lambda: 2 * clock.now  # type: ignore[attr-defined]
    slow = idiolect.run(out=tmp_path / "slow", **settings)
    assert seconds(slow.timing())[5] == 2 * seconds(quick.timing())[5]
    assert_same_run(slow.path, quick.path)
    assert quick.facts()["data_sha256"] == slow.facts()["data_sha256"]


def test_a_finished_run_of_an_older_version_has_none(tmp_path: Path) -> None:
    run = idiolect.run(method="fedavg", data="vowels", out=tmp_path / "run", **QUICK)
    (run.path / "timing.parquet").unlink()
    assert list(run.timing().columns) == ["round", "seconds"]
    assert not len(run.timing())
