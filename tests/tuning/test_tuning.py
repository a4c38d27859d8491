"""`tune` chooses by validation rows alone, repeats itself, survives a kill, and its choice can be taken."""

import json
import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest

import idiolect
from idiolect import api
from idiolect.errors import UserError
from idiolect.tuning import space
from idiolect.tuning.page import write_page
from idiolect.tuning.trials import Trial
from matrix.problem import invoke
from reports.reading import tables


def table_of_sites(folder: Path) -> dict[str, Any]:
    """A regression for five sites, whose weights differ, as a section of settings."""
    random = np.random.default_rng(5)
    x = random.normal(size=(200, 4)) * [1, 3, 0.2, 10]
    site = np.repeat(list("abcde"), [20, 30, 40, 50, 60])
    slope = pd.Series(site).map(dict(zip("abcde", [1.0, 1.5, -0.5, 2.0, 0.3], strict=True))).to_numpy()
    y = x @ [1.0, -0.4, 2.0, 0.1] * slope + random.normal(size=200)
    path = folder / "sites.csv"
    folder.mkdir(exist_ok=True)
    pd.DataFrame(x, columns=list("pqrs")).assign(site=site, y=y).to_csv(path, index=False)
    return {"name": str(path), "client": "site", "target": "y"}


SITES = table_of_sites(Path(mkdtemp()))
QUICK: dict[str, Any] = {
    "data": SITES, "rounds": 6, "local_steps": 2, "evaluate_every": 2, "engine": "sequential", "threads": 1,
    "seed": 5,
}  # fmt: skip
WORDS = [
    *(f"data.{name}={value}" for name, value in SITES.items()),
    *(f"{name}={value}" for name, value in QUICK.items() if name != "data"),
]
FORK = multiprocessing.get_context("fork")


def outcomes(tuning: idiolect.Tuning) -> list[dict[str, Any]]:
    """All that trials gave, but for the time that they took."""
    return tuning.trials.drop(columns="seconds").to_dict(orient="records")


@pytest.fixture(autouse=True)
def without_pages(tuned: idiolect.Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages take longer than small trials: those of `tuned` are enough."""
    monkeypatch.setattr(api, "can_write_reports", lambda: False)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> idiolect.Tuning:
    out = tmp_path_factory.mktemp("tuned") / "out"
    return idiolect.tune(QUICK, methods=["local", "apfl"], trials=6, out=out)


def test_the_choice_is_the_best_complete_trial(tuned: idiolect.Tuning) -> None:
    assert (tuned.trials.groupby("method").size() == 6).all()
    complete = tuned.trials[tuned.trials.state == "complete"]
    for row in tuned.table.itertuples():
        own = complete[complete.method == row.method].set_index("number")
        assert row.tuned == own["value"].min()
        assert row.default == own.loc[0, "value"]
        assert own.loc[row.chosen_trial, "value"] == row.tuned
        assert own.loc[row.chosen_trial, "settings"] | {"local_steps": 2} == tuned.best[row.method]
    assert (tuned.table.tuned < tuned.table.default).any(), "else the test is about nothing"


def test_a_run_of_the_choice_has_the_validation_value_of_the_tuning(
    tuned: idiolect.Tuning, tmp_path: Path
) -> None:
    for row in tuned.table.itertuples():
        chosen = idiolect.run(tuned.path / f"best-{row.method}.yaml", out=tmp_path / f"best-{row.method}")
        assert chosen.summary()["kinds"]["personal"]["validation"] == row.tuned
        assert chosen.summary()["kinds"]["personal"]["round"] == row.round
        untouched = idiolect.run(QUICK, method=row.method, out=tmp_path / f"default-{row.method}")
        assert untouched.summary()["kinds"]["personal"]["validation"] == row.default


def test_a_comparison_takes_the_choice_and_keeps_the_split(tuned: idiolect.Tuning, tmp_path: Path) -> None:
    invoke("compare", tuned.path / "best.yaml", "seeds=2", f"out={tmp_path / 'file'}")
    comparison = idiolect.Comparison(tmp_path / "file")
    table = comparison.runs[0].summary(), comparison.runs[2].summary()
    assert [summary["kinds"]["personal"]["validation"] for summary in table] == tuned.table.tuned.tolist()
    # Rows that were chosen by are not among the test rows of any seed.
    fingerprints = {run.facts()["data_sha256"] for run in comparison.runs}
    assert len(fingerprints) == 1
    in_python = idiolect.compare(tuned.settings, out=tmp_path / "python")
    pd.testing.assert_frame_equal(in_python.runs[1].metrics(), comparison.runs[2].metrics())


def test_test_rows_do_not_matter(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**QUICK, "trials": 4, "methods": ["fedavg", "ditto"]}
    settings |= {"data": table_of_sites(tmp_path)}
    honest = idiolect.tune(settings, out=tmp_path / "honest")
    table = pd.read_csv(tmp_path / "sites.csv")
    test = idiolect.load(tmp_path / "sites.csv", client="site", target="y", seed=5).test.index.numpy()
    table.loc[test, "y"] = 1e6 * np.arange(1, len(test) + 1)
    table.to_csv(tmp_path / "sites.csv", index=False)
    poisoned = idiolect.tune(settings, out=tmp_path / "poisoned")
    assert len(test) == len(np.unique(test)) > 20
    assert outcomes(honest) == outcomes(poisoned)
    assert (honest.path / "best.yaml").read_bytes() == (poisoned.path / "best.yaml").read_bytes()
    # The poison is one: a run reports test values that are far off.
    run = idiolect.run(poisoned.path / "best-fedavg.yaml", out=tmp_path / "run")
    assert run.summary()["kinds"]["global"]["mean"] > 1e6
    with pytest.raises(UserError, match="changed since the tuning"):
        idiolect.tune(settings, out=tmp_path / "honest")


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def test_a_killed_tuning_ends_as_an_undisturbed_one(
    tuned: idiolect.Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idiolect.tuning import study

    played = 0
    plain = study.play_trial

    def killing(*arguments: Any) -> Any:
        nonlocal played
        played += 1
        if played in (3, 9):  # in the middle of both methods' trials
            raise Killed
        return plain(*arguments)

    monkeypatch.setattr(study, "play_trial", killing)
    words = ["methods=local,apfl", "trials=6", *WORDS]
    with pytest.raises(Killed):
        idiolect.tune(*words, out=tmp_path / "out")
    assert len(idiolect.Tuning(tmp_path / "out").trials) == 2
    with pytest.raises(Killed):
        idiolect.resume(tmp_path / "out")
    invoke("resume", tmp_path / "out")
    assert played == 12 + 2
    assert outcomes(idiolect.Tuning(tmp_path / "out")) == outcomes(tuned)
    assert (tmp_path / "out" / "best.yaml").read_bytes() == (tuned.path / "best.yaml").read_bytes()


def test_a_larger_budget_goes_on(tuned: idiolect.Tuning, tmp_path: Path) -> None:
    few = idiolect.tune(QUICK, methods=["local", "apfl"], trials=2, out=tmp_path / "out")
    assert len(few.trials) == 4
    more = idiolect.tune(QUICK, methods=["local", "apfl"], trials=6, out=tmp_path / "out")
    assert outcomes(more) == outcomes(tuned)
    with pytest.raises(UserError, match="holds another tuning"):
        idiolect.tune(QUICK, methods=["local", "apfl"], trials=6, local_steps=3, out=tmp_path / "out")


def _tune(out: Path, pipe: Connection) -> None:
    def told(trial: Trial, share: float) -> None:
        pipe.send(trial.number)
        pipe.recv()

    idiolect.tune(QUICK, methods="local", trials=3, out=out, told=told)


def test_the_second_process_is_told_and_kill_9_loses_nothing_finished(tmp_path: Path) -> None:
    ours, theirs = FORK.Pipe()
    first = FORK.Process(target=_tune, args=(tmp_path / "out", theirs))
    first.start()
    assert ours.recv() == 0
    said = invoke("resume", tmp_path / "out", mistake=True)
    assert "is in use" in said
    first.kill()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    went_on = idiolect.resume(tmp_path / "out")
    whole = idiolect.tune(QUICK, methods="local", trials=3, out=tmp_path / "whole")
    assert isinstance(went_on, idiolect.Tuning)
    assert outcomes(went_on) == outcomes(whole)


def test_what_is_given_is_not_tuned(tmp_path: Path) -> None:
    given = {"apfl": {"mixing": 0.6, "lr": 0.2}, "weight_decay": 0.01, "ditto": {"lambda": 0.3}}
    tuning = idiolect.tune(QUICK, given, methods=["apfl", "ditto"], trials=3, out=tmp_path / "out")
    trials = tuning.trials
    assert len(trials[trials.method == "apfl"]) == 1, "nothing is left to be tuned"
    assert [set(point) for point in trials[trials.method == "ditto"].point] == [{"rates"}] * 3
    assert tuning.notes[0] == "apfl: nothing was left to be tuned"
    assert tuning.settings["weight_decay"] == 0.01
    assert tuning.best["apfl"]["mixing"] == 0.6
    assert tuning.best["ditto"]["proximal"] == 0.3
    run = idiolect.run(tuning.path / "best-apfl.yaml", out=tmp_path / "run").config
    assert (run.method["mixing"], run.method["learning_rate"]["initial"]) == (0.6, 0.2)
    assert run.weight_decay == 0.01


def test_a_weight_decay_of_its_own_goes_to_one_method(tmp_path: Path) -> None:
    settings = {**QUICK, "weight_decay": 0.5, "local": {"weight_decay": 0.25}, "methods": ["local", "fedavg"]}
    runs = idiolect.compare(settings, out=tmp_path / "out").runs
    assert [run.config.weight_decay for run in runs] == [0.25, 0.5]


def test_trials_that_diverge_are_not_chosen_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(space.COMMON, space.RATES, (1e5, 1e6))
    tuning = idiolect.tune(QUICK, methods="fedavg", trials=3, out=tmp_path / "out")
    assert set(tuning.trials.state[1:]) <= {"diverged", "stopped"}
    assert tuning.table.chosen_trial.tolist() == [0]
    assert "fedavg: none of 3 trials was better than what is not tuned" in tuning.notes


def test_a_method_that_always_diverges_is_left_out_and_said(tmp_path: Path) -> None:
    settings = {**QUICK, "trials": 2, "fedavg.learning_rate": 1e6}
    tuning = idiolect.tune(settings, methods=["fedavg", "local"], out=tmp_path / "out")
    assert list(tuning.best) == ["local"]
    assert tuning.settings["methods"] == ["local"]
    (note,) = [note for note in tuning.notes if note.startswith("fedavg")]
    assert "nothing was chosen: none of 2 trials came to its end" in note
    assert "diverged" in note
    rows = {row[0]: row for row in tables(write_page(tuning).read_text())["choice"]}
    assert rows["fedavg"][1:3] == ["diverged", "–"]
    with pytest.raises(UserError, match=r"no trial of the tuning .* came to its end"):
        idiolect.tune(settings, methods="fedavg", out=tmp_path / "alone")


def test_a_method_that_fails_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from idiolect.methods.ditto import Ditto

    def broken(*_: Any) -> Any:
        raise RuntimeError("no such\nluck")

    monkeypatch.setattr(Ditto, "absorb", broken)
    tuning = idiolect.tune(QUICK, methods=["ditto", "local"], trials=8, out=tmp_path / "out")
    failed = tuning.trials[tuning.trials.method == "ditto"]
    assert failed.state.tolist() == ["failed"] * 5
    assert set(failed.reason) == {"RuntimeError: no such luck"}
    assert "Traceback" in (tuning.path / "log.txt").read_text()
    assert list(tuning.best) == ["local"]


def test_the_command_prints_what_the_function_gives(tuned: idiolect.Tuning) -> None:
    words = ["methods=local,apfl", "trials=6", *WORDS]
    said = json.loads(invoke("tune", *words, f"out={tuned.path}", "--json"))
    assert said["settings"] == tuned.settings
    assert [row["tuned"] for row in said["rows"]] == tuned.table.tuned.tolist()
    assert len(said["trials"]) == 12
    shown = invoke("show", tuned.path)
    assert f"compare with: idiolect compare {tuned.path / 'best.yaml'}" in shown
    for value in tuned.table.tuned:
        assert f"{value:.4g}" in shown


def test_the_page_has_the_choice_the_trials_and_the_budget(tuned: idiolect.Tuning) -> None:
    assert tuned.page is not None
    page = tuned.page.read_text()
    found = tables(page)
    for row, cells in zip(tuned.table.itertuples(), found["choice"][1:], strict=True):
        values = [f"{value:.4g}" for value in (row.default, row.tuned)]
        assert cells[:4] == [row.method, *values, str(row.chosen_trial)]
    for row, cells in zip(tuned.table.itertuples(), found["budget"][1:], strict=True):
        assert cells[:4] == [row.method, "6", str(row.complete), str(row.stopped)]
    assert len(found["trials"]) == 1 + 12
    assert sum("chosen" in cells[2] for cells in found["trials"]) == 2
    assert page.count("<svg") == 4  # for each method a wide and a narrow drawing


def test_report_takes_a_tuning_alone(tuned: idiolect.Tuning, tmp_path: Path) -> None:
    assert tuned.page is not None
    page = idiolect.report(tuned, out=tmp_path / "pages" / "page.html")
    assert page.read_text() == tuned.page.read_text()
    assert (tmp_path / "pages" / "figures" / "trials-of-apfl.png").is_file()
    again = tmp_path / "page.html"
    assert f"report: {again}" in invoke("report", tuned.path, "--out", again)
    with pytest.raises(idiolect.UserError, match="is a tuning, which has a page of its own: give it alone"):
        idiolect.report(tuned, tmp_path, out=again)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"tuning needs optuna: pip install 'idiolect\[tune\]'"):
        idiolect.tune(QUICK, methods="local", trials=1, out=tmp_path / "out")
