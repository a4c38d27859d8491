"""Recipes are played once, go on where they were stopped, and tell what came of them."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.cli import reproduce as command
from idiolect.errors import UserError
from idiolect.reproduction import play
from idiolect.runs.folder import RunFolder
from matrix.problem import invoke

RECIPE = """
paper: apfl
item: Figure 0
title: Two methods on three speakers
settings: {data: vowels, rounds: 4, evaluation: {every: 2}, local_steps: 2, model: linear, batch_size: 8,
           engine: {optimise: false}}
panels:
  slow: {}
  fast: {method.local_steps: 4}
lines:
  FedAvg: {method: fedavg}
  alone: {method: local}
tune:
  grid: {lr: [0.001, 0.3]}
sizes:
  small: {seeds: 2, changes: four rounds, minutes: 0.1}
numbers:
  - {metric: accuracy, percent: true, values: {slow: {FedAvg global: 55}}}
claims:
  - {says: training alone beats the shared model, higher: alone personal, than: FedAvg global}
  - {says: what cannot be, higher: FedAvg global, than: [1.5, 2]}
  - {says: more steps are better, of: loss, lower: alone personal @ fast, than: alone personal @ slow}
  - {says: what was not looked at, part: train, higher: FedAvg global, than: 0}
  - {says: what is never reached costs little, of: "megabytes_to:global:1.1", lower: FedAvg, than: 1}
figures:
  - {draw: curves, title: accuracy}
  - {draw: panels, title: by panel}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture(scope="module")
def file(folder):
    path = folder / "apfl-fig0.yaml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture(scope="module")
def found(file, folder):
    return idiolect.reproduce(file, out=folder / "out", jobs=1)


def runs(folder: Path) -> dict[str, float]:
    """When each run was finished."""
    return {path.parent.name: path.stat().st_mtime for path in (folder / "runs").glob("*/summary.json")}


def test_verdicts_follow_from_the_runs(found, folder):
    (record,) = found.records
    assert [claim["verdict"] for claim in record["claims"][1:]] == [
        "contradicted",
        "confirmed",
        "inconclusive",
        "inconclusive",
    ]
    assert {one["why"] for one in record["claims"][-1]["compared"]} == {
        "some of the runs have no finite value"
    }
    table = pd.DataFrame(record["table"]).set_index(["panel", "model"])
    own = [RunFolder(path) for path in (folder / "out" / "runs").iterdir()]
    chosen = {(row["panel"], row["line"]): row["lr"] for row in record["chosen"]}
    assert set(chosen) == {("slow", "FedAvg"), ("slow", "alone")}  # of the first panel, for all
    values = [
        run.summary()["kinds"]["global"]["mean"]
        for run in own
        if run.config.method_name == "fedavg"
        and run.config.method["local_steps"] == 2
        and run.config.method["learning_rate"]["initial"] == chosen["slow", "FedAvg"]
    ]
    assert len(values) == 2
    assert table.loc[("slow", "FedAvg global"), "reported"] == pytest.approx(np.mean(values))
    assert table.loc[("slow", "FedAvg global"), "paper_test_accuracy"] == 0.55


def test_settings_are_chosen_by_validation_rows_of_the_first_seed(found, folder):
    (record,) = found.records
    scores = {}
    for path in (folder / "out" / "runs").iterdir():
        run = RunFolder(path)
        config = run.config
        assert config.data["seed"] == 0  # one split: no seed's validation rows are another one's test rows
        if config.seed == 0 and config.method_name == "local" and config.method["local_steps"] == 2:
            rate = config.method["learning_rate"]["initial"]
            scores[rate] = run.summary()["kinds"]["personal"]["validation"]
    assert len(scores) == 2
    (chosen,) = (row["lr"] for row in record["chosen"] if row["line"] == "alone")
    assert scores[chosen] == max(scores.values())


def test_a_second_call_computes_nothing(found, file, folder):
    before = runs(folder / "out")
    again = idiolect.reproduce(file, out=folder / "out", jobs=1)
    assert runs(folder / "out") == before
    assert again.claims.equals(found.claims)


def test_a_changed_recipe_computes_what_changed(found, folder):
    before = runs(folder / "out")
    changed = folder / "apfl-fig00.yaml"
    changed.write_text(RECIPE.replace("fast: {method.local_steps: 4}", "fast: {method.local_steps: 5}"))
    idiolect.reproduce(str(changed), out=folder / "out", jobs=1)
    after = runs(folder / "out")
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 4  # two lines, two seeds


def test_processes_give_the_same_numbers(found, file, tmp_path):
    beside = idiolect.reproduce(file, out=tmp_path, jobs=2)
    for mine, theirs in zip(found.records[0]["table"], beside.records[0]["table"], strict=True):
        assert mine | {"seconds": 0} == pytest.approx(theirs | {"seconds": 0}, nan_ok=True)


def test_a_budget_that_is_spent_says_what_is_missing_and_goes_on(file, tmp_path):
    told = []
    first = idiolect.reproduce(
        file, out=tmp_path, jobs=1, budget="1s", told=lambda recipe, done, total: told.append((done, total))
    )
    assert list(first.missing) == ["apfl-fig0"]
    assert "budget" in first.missing["apfl-fig0"]
    assert not first.records
    assert told
    assert all(
        total == 10 for _, total in told
    )  # 2 lines x (2 tried + 1 more seed), and 2 x 2 of the other panel
    begun = runs(tmp_path)
    second = idiolect.reproduce(file, out=tmp_path, jobs=1)
    assert not second.missing
    assert {name: runs(tmp_path)[name] for name in begun} == begun


def test_a_run_that_fails_does_not_take_the_others_with_it(tmp_path):
    path = tmp_path / "apfl-fig1.yaml"
    path.write_text(
        RECIPE.replace("fast: {method.local_steps: 4}", "fast: {data.fractions: [0.9, 0.1, 0.3]}")
    )
    found = idiolect.reproduce(str(path), out=tmp_path / "out", jobs=1)
    assert len(found.failures) == 4
    assert all("fractions" in reason for reason in found.failures.values())
    assert [claim["verdict"] for claim in found.records[0]["claims"]][2] == "inconclusive"
    for options in ([], ["--json"]):
        words = ["reproduce", str(path), "--out", str(tmp_path / "out"), "--jobs", "1", *options]
        said = CliRunner().invoke(app, words)
        assert said.exit_code == 1
        assert said.stderr.count("failed: ") == 4
        assert "what cannot be" in said.stdout


def test_other_seeds(file, tmp_path):
    found = idiolect.reproduce(file, out=tmp_path, jobs=1, seeds="7,9")
    assert found.records[0]["seeds"] == [7, 9]
    assert found.records[0]["command"].endswith("--seeds 7,9")
    assert {RunFolder(path).config.data["seed"] for path in (tmp_path / "runs").iterdir()} == {7}


def test_pages_are_written(found, folder):
    out = folder / "out"
    index = (out / "README.md").read_text()
    assert "[apfl-fig0](apfl-fig0/README.md)" in index
    html = (out / "apfl-fig0" / "index.html").read_text()
    assert "what cannot be" in html
    assert "<summary>4 comparisons: 4 ✗</summary>" in html  # many are folded away
    assert "https://" not in html.partition("<script>")[0]  # nothing is fetched
    assert {file.suffix for file in (out / "apfl-fig0").glob("*-round.*")} == {".svg", ".png"}
    page = (out / "apfl-fig0" / "README.md").read_text()
    assert "four rounds" in page
    assert "55.0 %" in page
    record = json.loads((out / "apfl-fig0" / "result.json").read_text())
    assert record["size"] == "small"
    assert os.path.getsize(out / "apfl-fig0" / "table.csv") > 0


def test_the_command_line(found, file, folder):
    assert "what cannot be" in invoke("reproduce", file, "--out", folder / "out", "--jobs", 1)
    rows = json.loads(invoke("reproduce", "--list", "--json", "--out", folder / "out"))
    assert {row["recipe"]: row["state"] for row in rows}["additive-fig2"] == "not begun"
    assert "quadratic-line" in invoke("reproduce", "additive-fig2", "--text")


def test_a_recipe_without_anything_to_tune_is_begun_with_its_first_run(tmp_path, monkeypatch):
    def states():
        rows = idiolect.list_recipes(out=tmp_path).set_index("recipe")["state"]
        return [rows[name] for name in ("additive-fig1b", "additive-fig2", "additive-fig4")]

    assert states() == ["not begun"] * 3
    played = []

    def one_alone(settings, folder):
        if played:
            raise KeyboardInterrupt
        played.append(folder)
        return play_one(settings, folder)

    play_one = play._play
    monkeypatch.setattr(play, "_play", one_alone)
    with pytest.raises(KeyboardInterrupt):
        idiolect.reproduce("additive-fig2", out=tmp_path, jobs=1)
    assert states() == ["not begun", "begun", "not begun"]
    monkeypatch.undo()
    idiolect.reproduce("additive-fig2", out=tmp_path, jobs=1)
    assert states() == ["not begun", "done", "not begun"]


def test_a_log_gets_a_line_for_each_recipe(found, file, folder):
    said = CliRunner().invoke(app, ["reproduce", str(file), "--out", str(folder / "out"), "--jobs", "1"])
    assert [line for line in said.stderr.splitlines() if "runs are done" in line] == [
        "apfl-fig0: 1 of 10 runs are done"
    ]


def test_a_log_says_how_long_all_other_runs_will_take(monkeypatch, capsys):
    clock = iter([100.0, 130.0, 190.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    with command._Progress() as progress:
        progress.told("a", 2, 12)  # one may have been there already, and says nothing of the others
        progress.told("a", 3, 12)
        progress.told("b", 5, 12)  # three in 30 s: seven more in 70 s
        progress.told("c", 8, 12)
    assert capsys.readouterr().err.splitlines() == [
        "a: 2 of 12 runs are done",
        "b: 5 of 12 runs are done, about 1 min 10 s left",
        "c: 8 of 12 runs are done, about 1 min 0 s left",
    ]


def test_what_was_not_played_has_no_table(file, tmp_path):
    said = invoke("reproduce", file, "--out", tmp_path, "--jobs", 1, "--budget", "0.001s")
    assert "What the papers claim" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--all"),
        (["additive-fig2", "--all"], "either recipes or --all"),
        (["additive-fig2", "--size", "huge"], "small or paper"),
        (["additive-fig2", "--seeds", "x"], "seeds=x"),
        (["additive-fig2", "--seeds", "3,3"], "played twice"),
        (["additive-fig2", "--budget", "soon"], "budget=soon"),
        (["aditive-fig2"], "did you mean additive-fig2"),
        (["aditive-fig2", "--text"], "did you mean additive-fig2"),
        (["--all", "--text"], "recipes that are named"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, said, tmp_path):
    assert said in invoke("reproduce", *arguments, "--out", tmp_path, mistake=True)


def test_settings_that_there_are_not_are_refused_before_anything_is_played(tmp_path):
    path = tmp_path / "apfl-fig1.yaml"
    path.write_text(RECIPE.replace("fast: {method.local_steps: 4}", "fast: {roundz: 4}"))
    assert "roundz is not a setting" in invoke("reproduce", path, "--out", tmp_path / "out", mistake=True)
    assert not (tmp_path / "out").exists()


def test_what_is_published_is_read_without_runs(found, folder, tmp_path, file):
    idiolect.reproduce(file, out=folder / "out", jobs=1, publish=tmp_path / "docs")
    names = {path.name for path in (tmp_path / "docs" / "apfl-fig0").iterdir()}
    assert {"README.md", "table.csv", "accuracy-slow-round.svg"} <= names
    assert not any(name.endswith(("-seconds.svg", ".json", ".png")) for name in names)
    assert not (tmp_path / "docs" / "runs").exists()


def changed(folder, name, old, new):
    path = folder / f"{name}.yaml"
    assert old in RECIPE
    path.write_text(RECIPE.replace(old, new))
    return path


def test_a_recipe_that_cannot_be_played_does_not_stop_the_others(found, file, folder, tmp_path):
    """Its data are nowhere: with settings to choose, and with none."""
    tuned = changed(tmp_path, "apfl-fig1", "data: vowels", "data: {name: nowhere.csv, client: a, target: b}")
    plain = tmp_path / "apfl-fig2.yaml"
    plain.write_text(tuned.read_text().replace("tune:\n  grid: {lr: [0.001, 0.3]}\n", ""))
    again = idiolect.reproduce(str(tuned), file, str(plain), out=folder / "out", jobs=1)
    assert [record["name"] for record in again.records] == ["apfl-fig0"]
    assert list(again.missing) == ["apfl-fig1", "apfl-fig2"]
    assert all("nowhere.csv" in reason for reason in again.failures.values())
    assert "nowhere.csv" in invoke("reproduce", plain, "--out", tmp_path / "out", mistake=True)


def test_nothing_is_chosen_without_validation_rows(tmp_path):
    path = changed(tmp_path, "apfl-fig1", "data: vowels", "data: {name: vowels, fractions: [0.5, 0, 0.5]}")
    found = idiolect.reproduce(str(path), out=tmp_path / "out", jobs=1)
    assert "validation" in found.missing["apfl-fig1"]


def test_a_file_that_is_no_text_and_a_name_that_is_taken_are_refused(tmp_path):
    path = tmp_path / "apfl-fig1.yaml"
    path.write_bytes(b"item: \xe9\n")
    assert "cannot be read as YAML" in invoke("reproduce", path, "--out", tmp_path, mistake=True)
    path = changed(tmp_path, "runs", "Figure 0", "Figure 0")
    assert "cannot be called 'runs'" in invoke("reproduce", path, "--out", tmp_path, mistake=True)


def test_a_process_that_is_killed_is_told_in_one_sentence(file, tmp_path, monkeypatch):
    monkeypatch.setattr(play, "start_or_continue", lambda config: os._exit(9))  # as a kill would
    fork = multiprocessing.get_context("fork")  # so that the processes have it too
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    with pytest.raises(UserError, match="ended from outside"):
        idiolect.reproduce(file, out=tmp_path, jobs=2)
