"""`show` and `report` of a run with secure sums: means over all rows, and no client's number."""

import json
from pathlib import Path

import pytest

import idiolect
from idiolect.evaluation.metrics import evaluate
from idiolect.quantities import show_value
from idiolect.runs.folder import RunFolder
from idiolect.silo.coordinator import coordinate
from idiolect.silo.served_run import ServedRun
from silo.problem import FIVE_SILOS, Direct, config, deployed, silos_in, simulate
from silo.secure_problem import played
from silo.test_commands import run

SETTINGS = config({"name": "apfl", "local_steps": 2}, rounds=2)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secure")
    return played(SETTINGS, folder, FIVE_SILOS)[0].path


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], float]:
    """Accuracy by kind and part over all rows: what a simulation's clients have, weighted by their rows."""
    simulation = simulate(SETTINGS, silos=FIVE_SILOS).play(2)
    metrics = evaluate(simulation)
    federation = simulation.federation
    means = {}
    for part in ("test", "validation"):
        rows = dict(zip(federation.names, getattr(federation, part).sizes.tolist(), strict=True))
        for kind in ("global", "localized", "personal"):
            own = metrics[(metrics.part == part) & (metrics.kind == kind) & (metrics.metric == "accuracy")]
            weighted = sum(rows[name] * value for name, value in zip(own.client, own.value, strict=True))
            means[kind, part] = weighted / sum(rows.values())
    return means


def test_show_has_the_means_over_all_rows(secure: Path, expected: dict[tuple[str, str], float]) -> None:
    code, text = run("show", str(secure), "--clients")
    assert code == 0
    for kind in ("global", "localized", "personal"):
        (line,) = [line for line in text.splitlines() if f"│ {kind} " in line]
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        shown = [show_value(expected[kind, part], "accuracy") for part in ("test", "validation")]
        assert cells[1:3] == shown
        assert cells[-2:] == ["5", "2"]  # silos, round
    assert "means over all rows of all silos" in text
    assert not any(name in text for name in (*FIVE_SILOS, "worst", "over 0 clients", "has no value"))
    code, text = run("show", str(secure), "--json")
    told = json.loads(text)
    summed = {
        (r["kind"], r["part"]): r["value"]
        for r in told["summed"]
        if (r["round"], r["metric"]) == (2, "accuracy")
    }
    assert summed == pytest.approx(expected, abs=1e-8)
    assert told["clients"] == []


def test_a_report_has_them_alone_and_beside_runs_whose_clients_are_known(
    secure: Path, expected: dict[tuple[str, str], float], tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    shown = show_value(expected["personal", "test"], "accuracy")
    page = idiolect.report(secure, out=tmp_path / "alone.html").read_text()
    assert f"<td>{shown}</td>" in page
    assert "means over all rows of all silos, from secure sums" in page
    assert not any(name in page for name in (">west-bank<", "Client by client", "worst client"))
    ServedRun.create(tmp_path / "plain", deployed(SETTINGS, tmp_path))
    coordinate(ServedRun(tmp_path / "plain"), Direct(silos_in(tmp_path / "silos")))
    both = idiolect.report(secure, tmp_path / "plain", out=tmp_path / "both.html").read_text()
    assert f"<td>{shown}</td>" in both
    assert "Client by client" in both
    assert "Runs with secure sums" in both
    assert ">west-bank<" not in both


def test_a_plain_run_has_none(tmp_path: Path) -> None:
    run_of_one = idiolect.run("method=fedavg", "data=vowels", "rounds=1", out=tmp_path / "run")
    assert RunFolder(run_of_one.path).summed_metrics().empty
    _, text = run("show", str(run_of_one.path), "--json")
    assert json.loads(text)["summed"] == []
