"""A run between silos is kept like any other run, so whatever takes a run takes it."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from families import each_family
from idiolect.cli import app
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.errors import UserError
from idiolect.methods.catalogue import METHODS
from idiolect.runs.client_model import load_model
from idiolect.runs.comparison import tabulate
from idiolect.runs.config import resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation, start_or_continue
from idiolect.silo.coordinator import coordinate
from idiolect.silo.served_run import ServedRun
from reports.reading import tables
from silo.problem import Direct, assert_same, config, deployed, own_rows, silos_in, simulate, table

APFL = {"name": "apfl", "local_steps": 2}
ROUNDS = 4


def served(folder: Path, method: dict[str, Any] = APFL, rounds: int = ROUNDS, **options: Any) -> RunFolder:
    """A run between silos without a network."""
    settings = config(method, rounds, **options)
    run = ServedRun.create(folder / "served", deployed(settings, folder))
    return coordinate(run, Direct(silos_in(folder / "silos")))


def simulated(folder: Path, method: dict[str, Any] = APFL) -> RunFolder:
    """The same in one process that has all of the table."""
    table().to_csv(folder / "all.csv", index=False)
    data = {"name": str(folder / "all.csv"), "client": "hospital", "target": "outcome"}
    settings = config(method, ROUNDS, evaluation={"every": 2, "choose": "last", "metric": "accuracy"})
    where = {"data": data, "engine": {"name": "sequential"}, "out": str(folder / "simulated")}
    return start_or_continue(resolve({**settings, **where}))


def say(*arguments: object, mistake: bool = False) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == (2 if mistake else 0), result.output
    return " ".join(result.output.split()) if mistake else result.output


@pytest.mark.parametrize("method", [APFL, {"name": "efl"}, {"name": "perm", "local_steps": 2}], ids=str)
def test_its_tables_are_those_of_the_same_run_in_one_process(method: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = served(tmp_path, method), simulated(tmp_path, method)
    pd.testing.assert_frame_equal(ours.rounds(), theirs.rounds())
    pd.testing.assert_frame_equal(ours.clients(), theirs.clients())
    for name, keys in (
        ("traffic", ["round", "client", "direction", "part"]),
        ("metrics", ["round", "client", "kind", "part", "metric"]),
        ("diagnostics", ["round", "name", "index"]),
    ):
        a, b = (getattr(run, name)().sort_values(keys) for run in (ours, theirs))
        if name == "diagnostics":  # what methods tell of clients' states stays at the silos
            b = b[b["name"] != "mixing"]
        a, b = a.reset_index(drop=True), b.reset_index(drop=True)
        pd.testing.assert_frame_equal(a, b, rtol=1e-9, atol=1e-12)
    ours_told, theirs_told = ours.summary(), theirs.summary()
    assert ours_told.pop("kinds").keys() == theirs_told.pop("kinds").keys()
    assert ours_told == theirs_told
    assert ours_told["brief_bits"] > 0
    assert (ours.path / "log.txt").read_text().count("finished after round 4") == 1


def test_it_is_shown_and_reported_beside_simulated_ones(tmp_path: Path) -> None:
    ours, theirs = served(tmp_path), simulated(tmp_path, {"name": "local"})
    assert json.loads(say("show", ours.path, "--json"))["kinds"] == ours.summary()["kinds"]
    assert "apfl on silos: test accuracy over 3 clients" in say("show", ours.path)
    rows = tabulate([ours, theirs]).set_index(["method", "kind"])
    assert rows.loc[("apfl", "personal"), "mean"] == ours.summary()["kinds"]["personal"]["mean"]
    say("report", ours.path, theirs.path, "--out", tmp_path / "page.html")
    models = [row[0] for row in tables((tmp_path / "page.html").read_text())["models"]]
    assert {"apfl personal", "apfl global", "local personal"} <= set(models)
    page = (tmp_path / "page.html").read_text()
    assert "apfl has no intervals: the rows of a run between silos stay there" in page


def test_a_run_of_which_silos_tell_nothing_is_finished_and_says_so(tmp_path: Path) -> None:
    run = ServedRun.create(tmp_path / "served", deployed(config(APFL, ROUNDS), tmp_path))
    ours = coordinate(run, Direct(silos_in(tmp_path / "silos", shares_metrics=False)))
    assert ours.summary()["kinds"]["personal"]["clients"] == 0
    assert "over 0 clients" in say("show", ours.path)
    said = say("report", ours.path, "--out", tmp_path / "page.html", mistake=True)
    assert "has nothing to report: no silo shares its metrics" in said


@each_family("method", methods=tuple(kind for kind in METHODS if "global" in kind.kinds))
def test_the_global_model_can_be_exported(method: type[Method], tmp_path: Path) -> None:
    """It is the server's own: the brief has it, whatever the client knows."""
    name = method.name
    ours = served(tmp_path, {"name": name}, rounds=1)
    say("export", ours.path, "--client", "south", "--kind", "global", "--out", tmp_path / "model")
    exported = dict(load_model(tmp_path / "model").module.named_parameters())
    assert_same(exported, simulate(config({"name": name})).play(1).predictor(1)["global"])
    predictions = load_model(tmp_path / "model").predict(own_rows("south"))
    assert set(predictions) <= {"better", "same", "worse"}
    say("export", ours.path, "--kind", "global", "--out", tmp_path / "everybody")
    assert_same(dict(load_model(tmp_path / "everybody").module.named_parameters()), exported)


def test_the_card_of_the_global_model_has_what_silos_told(tmp_path: Path) -> None:
    """Their metrics if they share them; their rows are not here, so no interval of one client's."""
    ours = served(tmp_path)
    begun = ServedRun.create(tmp_path / "quiet", deployed(config(APFL, ROUNDS), tmp_path))
    quiet = coordinate(begun, Direct(silos_in(tmp_path / "quiet-silos", shares_metrics=False)))
    one, everybody = ["--client", "south"], list[str]()
    for run, client in ((ours, one), (ours, everybody), (quiet, one), (quiet, everybody)):
        out = tmp_path / f"{run.path.name}{len(client)}"
        say("export", run.path, *client, "--kind", "global", "--out", out)
        card = json.loads((out / "model.json").read_text())["card"]
        rows = run.clients().loc[["south"]] if client else run.clients()
        assert card["rows"] == rows.sum().to_dict()
        assert sum(sent["bits"] for sent in card["shared"] if sent["direction"] == "up") > 0
        metrics = run.metrics()
        told = metrics[(metrics.kind == "global") & (metrics["round"] == ROUNDS)]
        told = told[told.client == "south"] if client else told
        expected = told.groupby(["part", "metric"])["value"].mean().to_dict()
        assert {(m["part"], m["metric"]): m["value"] for m in card["metrics"]} == pytest.approx(expected)
        assert len(expected) == (0 if run is quiet else 6)
        assert all((m["interval"] is None) == bool(client) for m in card["metrics"])


def test_a_clients_own_model_is_at_its_silo(tmp_path: Path) -> None:
    ours = served(tmp_path)
    for kind in ([], ["--kind", "personal"], ["--kind", "localized"]):
        said = say("export", ours.path, "--client", "south", *kind, "--out", tmp_path / "m", mistake=True)
        assert "the models that need them: use `idiolect export --state` there" in said
    assert "there is no client 'nobody'" in say(
        "export", ours.path, "--client", "nobody", "--kind", "global", "--out", tmp_path / "m", mistake=True
    )


def test_newcomers_get_a_model_as_after_a_simulation(tmp_path: Path) -> None:
    own_rows("west-end").assign(hospital="west-end").to_csv(tmp_path / "new.csv", index=False)
    models = []
    for run in (served(tmp_path), simulated(tmp_path)):
        out = tmp_path / f"{run.path.name}-models"
        settings = [f"data={tmp_path / 'new.csv'}", "data.client=hospital", "steps=3", f"out={out}"]
        say("personalize", run.path, *settings)
        models.append(tree.to_named(dict(load_model(out / "west-end").module.named_parameters())))
    assert_same(*models)


def test_it_is_continued_by_its_coordinator(tmp_path: Path) -> None:
    """What a coordinator needs for it, keys and an address, are in no run's folder."""
    run = ServedRun.create(tmp_path / "served", deployed(config(APFL, ROUNDS), tmp_path))
    how = f"continue it with `idiolect serve --resume {tmp_path / 'served'}`"
    assert how in say("resume", tmp_path / "served", mistake=True)
    assert how in say("show", tmp_path / "served", mistake=True)
    coordinate(run, Direct(silos_in(tmp_path / "silos")))
    assert "apfl on silos" in say("resume", tmp_path / "served")  # finished: shown as any other


def test_its_configuration_does_not_depend_on_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = served(tmp_path)
    (tmp_path / ours.config.data["name"]).mkdir()
    monkeypatch.chdir(tmp_path)
    assert ours.config.at_silos
    with pytest.raises(UserError, match="tables that are at silos: use `idiolect serve`"):
        start_or_continue(resolve({"method": {"name": "fedavg"}, "data": {"name": ours.config.data["name"]}}))


def test_the_best_round_can_be_reported_too(tmp_path: Path) -> None:
    """By default it is the last, whose models silos have."""
    assert served(tmp_path).summary()["kinds"]["personal"]["round"] == ROUNDS
    (tmp_path / "best").mkdir()
    best = served(tmp_path / "best", evaluation={"every": 1, "choose": "validation"})
    reported = best.summary()["kinds"]["personal"]["round"]
    simulation = simulate(config(APFL)).play(reported)
    assert_same(reported_simulation(best).server, simulation.server)
    assert reported_simulation(best).round == reported
