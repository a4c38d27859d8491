"""Private runs between silos: what they compute, and what a coordinator that knows the seed cannot."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.privacy.accounting import Release, epsilon_of
from idiolect.silo.coordinator import coordinate
from idiolect.silo.live_page import draw
from idiolect.silo.monitor import Monitor
from idiolect.silo.privacy.ledger import epsilon_in_all
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from silo.private_problem import simulate_with_secrets
from silo.problem import (
    SILOS,
    Direct,
    assert_same,
    config,
    deployed,
    last_saved,
    own_rows,
    silos_in,
    simulate,
)
from silo.secure_problem import played as played_securely

ROW = {"unit": "row", "noise": 0.8, "clip": 0.7}
METHODS = [
    {"name": "fedavg", "local_steps": 3, "weighting": "samples"},
    {"name": "apfl", "local_steps": 2},
    {"name": "scaffold", "local_steps": 2},
]


def played(settings: dict[str, Any], folder: Path, **options: Any) -> tuple[ServedRun, dict[str, Silo]]:
    """A whole run without secure sums."""
    run = ServedRun.create(folder / "run", deployed(settings, folder))
    silos = silos_in(folder / "silos", **options)
    coordinate(run, Direct(silos))
    return run, silos


def assert_equal_to_simulation(settings: dict[str, Any], run: ServedRun, silos: dict[str, Silo]) -> None:
    simulation = simulate_with_secrets(settings, silos, run, settings["rounds"])
    assert_same(last_saved(run).server, simulation.server)
    for number, name in enumerate(SILOS):
        assert_same(silos[name]._vault(run.name).latest(), tree.row(simulation.clients(), number))


def assert_near_simulation(settings: dict[str, Any], run: ServedRun, silos: dict[str, Silo]) -> None:
    """The same up to the digits of fixed point."""
    simulation = simulate_with_secrets(settings, silos, run, settings["rounds"])
    for a, b in zip(tree.leaves(last_saved(run).server), tree.leaves(simulation.server), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method["name"]))
def test_rows_are_hidden_as_in_a_simulation_with_the_same_secrets(
    method: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(method, privacy=ROW)
    run, silos = played(settings, tmp_path)
    assert_equal_to_simulation(settings, run, silos)
    public = simulate(settings).play(3)
    differences = zip(tree.leaves(last_saved(run).server), tree.leaves(public.server), strict=True)
    assert not all(a.allclose(b, atol=1e-3) for a, b in differences)  # the seed is not what decides


def test_what_is_spent_is_on_the_page_and_in_the_summary(tmp_path: Path) -> None:
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=2, privacy={**ROW, "delta": 1e-6})
    run, silos = played(settings, tmp_path)
    status = run.last_known()[0]
    assert {name: status[name].epsilon for name in SILOS} == {
        name: epsilon_in_all(silos[name].ledger.runs, "row", 1e-6) for name in SILOS
    }
    assert len({status[name].epsilon for name in SILOS}) == 3  # who has fewer rows pays more for each
    page = draw(Monitor(run).status(), "")
    assert "ε spent" in page
    assert all(f"<td>{status[name].epsilon:.4g}</td>" in page for name in SILOS)
    summary = run.folder.summary()["privacy"]
    assert summary["unit"] == "row"
    assert summary["epsilon"] == max(status[name].epsilon for name in SILOS)  # type: ignore[type-var]
    shown = CliRunner().invoke(app, ["show", str(run.path)])
    least, most = summary["least_epsilon"], summary["epsilon"]
    assert f"ε = {least:.3g} to {most:.3g} spent at δ = 1e-06" in shown.output


def test_nobody_counts_for_silos_whose_rows_are_not_known(tmp_path: Path) -> None:
    """With secure sums each silo's ledger is the only one: what a row pays tells how many there are."""
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=2, privacy=ROW)
    run, silos = played_securely(settings, tmp_path, SILOS)
    assert "privacy" not in run.folder.summary()
    assert all(run.last_known()[0][name].epsilon is None for name in SILOS)
    assert all(epsilon_in_all(silos[name].ledger.runs, "row", 1e-5) > 0 for name in SILOS)
    assert_near_simulation(settings, run, silos)


def test_noise_of_hidden_silos_follows_from_epsilon(tmp_path: Path) -> None:
    privacy = {"unit": "silo", "epsilon": 20.0, "clip": 0.5}
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=3, privacy=privacy)
    run, silos = played_securely(settings, tmp_path, SILOS)
    found = run.settings.config.privacy
    assert found is not None
    spent = epsilon_of({Release(found.multiplier): 3}, 1e-5)
    assert 19.9 < spent <= 20.0
    assert run.folder.summary()["privacy"]["epsilon"] == spent
    page = idiolect.report(run.path, out=tmp_path / "report.html").read_text()
    assert f"privacy of each silo: ε = {spent:.3g} spent at δ = 1e-05" in page
    assert all(epsilon_in_all(silos[name].ledger.runs, "silo", 1e-5) == spent for name in SILOS)


@pytest.mark.parametrize(
    ("method", "unit", "reason"),
    [
        ("drfa", "row", "it looks at rows in another way than by gradients"),
        ("ifca", "silo", "its server needs each upload"),
        ("fedper", "silo", "needs replies of equal weights"),
    ],
)
def test_what_cannot_be_hidden_is_refused_before_silos_are_asked(
    method: str, unit: str, reason: str, tmp_path: Path
) -> None:
    settings = config({"name": method}, privacy={"unit": unit, "noise": 1.0})
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    with pytest.raises(UserError, match=reason):
        coordinate(run, Direct({}))


def test_epsilon_alone_is_not_enough_for_rows(tmp_path: Path) -> None:
    settings = config({"name": "fedavg"}, privacy={"unit": "row", "epsilon": 3.0})
    with pytest.raises(UserError, match=r"privacy.epsilon=3 cannot be met for all silos at once"):
        deployed(settings, tmp_path)


def test_a_silo_that_demands_privacy_tells_neither_metrics_nor_summaries(tmp_path: Path) -> None:
    own_rows("north").to_csv(tmp_path / "north.csv", index=False)
    joined: list[Silo] = []
    with pytest.MonkeyPatch.context() as patch:
        # In Flower's place, which `make test` does not install, somebody who only notes who has come.
        noting = SimpleNamespace(run_silo=lambda silo, *_: joined.append(silo))
        patch.setitem(sys.modules, "idiolect.silo.supernode", noting)
        patch.setattr("idiolect.silo.deployment._require_flower", lambda: None)
        for options in (
            {},
            {"max_epsilon": 2.0},
            {"require_private": "silo"},
            {"require_private": "row", "share_metrics": True},
        ):
            idiolect.join(
                server="127.0.0.1:9092",
                data=tmp_path / "north.csv",
                name="north",
                state=tmp_path,
                insecure=True,
                **options,  # type: ignore[arg-type]
            )
    told = [(silo.shares_metrics, silo.shares_summaries) for silo in joined]
    assert told == [(True, True), (False, False), (False, False), (True, False)]


def test_the_ledger_by_the_command(tmp_path: Path) -> None:
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=2, privacy=ROW)
    run, silos = played(settings, tmp_path)
    command = ["silo", "ledger", str(silos["west"].folder)]
    shown = CliRunner().invoke(app, [*command, "--delta", "1e-4"])
    assert shown.exit_code == 0, shown.output
    spent = epsilon_in_all(silos["west"].ledger.runs, "row", 1e-4)
    line = next(line for line in shown.output.splitlines() if run.name in line)
    assert line.replace("│", " ").split() == [run.name, "row", "2", f"{spent:.4g}", "∞"]
    plain = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert plain["runs"][0]["answers"] == 2
    assert plain["in_all"]["silo"] is None  # no number says it
