"""Every command on good input, as people and as programs see it."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from idiolect.cli import app
from idiolect.methods.catalogue import METHODS

QUICK = ["data=vowels", "rounds=2", "method.local_steps=1", "engine=sequential"]


def invoke(*arguments: str):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison") / "out"
    invoke("compare", "methods=local,fedavg", *QUICK, f"out={out}")
    return out


def test_methods_lists_all_with_their_hyper_parameters() -> None:
    cards = json.loads(invoke("methods", "--json"))
    assert [card["name"] for card in cards] == [method.name for method in METHODS]
    (apfl,) = json.loads(invoke("methods", "apfl", "--json"))
    mixing = next(p for p in apfl["hyper_parameters"] if p["name"] == "mixing")
    assert (mixing["symbol"], mixing["default"]) == ("α", "adaptive")
    assert "mixing" in invoke("methods", "apfl")
    assert "fedavg" in invoke("methods")


def test_datasets_and_data(tmp_path: Path) -> None:
    names = [entry["name"] for entry in json.loads(invoke("datasets", "--json"))]
    assert "vowels" in names
    assert "vowels" in invoke("datasets")
    described = json.loads(invoke("data", "vowels", "fractions=[0.5,0.25,0.25]", "--json"))
    assert described["task"] == "multiclass"
    assert [client["train"] for client in described["clients"]] == [34] * 15
    assert "speaker-07" in invoke("data", "vowels", "--picture", str(tmp_path / "vowels.png"))
    assert (tmp_path / "vowels.png").stat().st_size > 0


def test_many_classes_are_counted_for_people_and_listed_for_programs(tmp_path: Path) -> None:
    """Sixty columns would leave none of them any width."""
    rows = [(f"client-{row % 2}", row / 7, f"class-{row % 60:02}") for row in range(240)]
    path = tmp_path / "table.csv"
    pd.DataFrame(rows, columns=["site", "x", "label"]).to_csv(path, index=False)
    arguments = ["data", str(path), "client=site", "target=label"]
    shown = invoke(*arguments)
    assert "class-" not in shown
    (line,) = (line for line in shown.splitlines() if "client-1" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")][-2:] == ["30", "4"]
    first, second = json.loads(invoke(*arguments, "--json"))["clients"]
    assert (first["class-00"], first["class-01"], second["class-01"]) == (4, 0, 4)


def test_a_comparison_is_shown_for_people_and_programs(comparison: Path) -> None:
    rows = json.loads(invoke("show", str(comparison), "--json"))["rows"]
    models = [(row["method"], row["kind"]) for row in rows]
    assert models == [("local", "personal"), ("fedavg", "global"), ("fedavg", "localized")]
    assert rows[0]["gain_over_alone"] is None  # JSON has no NaN
    shown = invoke("show", str(comparison))
    for model in ("local personal", "fedavg global", "fedavg localized"):
        assert model in shown


def test_a_run_is_shown_reported_exported_and_used(comparison: Path, tmp_path: Path) -> None:
    run = str(comparison / "fedavg-seed0")
    summary = json.loads(invoke("show", run, "--json"))
    assert summary["judged_by"] == "localized"
    assert json.loads(invoke("resume", run, "--json"))["kinds"] == summary["kinds"]
    assert f"report: {tmp_path / 'page.html'}" in invoke("report", run, "--out", str(tmp_path / "page.html"))
    invoke("export", run, "--client", "speaker-02", "--out", str(tmp_path / "model"))
    columns = json.loads((tmp_path / "model" / "model.json").read_text())["preprocessing"]["columns"]
    pd.DataFrame({column["name"]: [0.1, -2.0] for column in columns}).to_csv(
        tmp_path / "new.csv", index=False
    )
    predictions = invoke("predict", str(tmp_path / "model"), str(tmp_path / "new.csv")).split()
    assert predictions[0] == "vowel"
    assert len(predictions) == 3
    invoke("predict", str(tmp_path / "model"), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv"))
    assert (tmp_path / "out.csv").read_text().split() == predictions


def test_every_command_has_help_with_an_example() -> None:
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    for command in commands:
        assert f"Example: idiolect {command}" in " ".join(invoke(command, "--help").split())


def test_the_command_line_answers_before_torch_is_loaded() -> None:
    code = "import sys; import idiolect.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_interrupt_leaves_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("idiolect.api.start_or_continue", interrupted)
    result = CliRunner().invoke(app, ["run", "method=fedavg", *QUICK])
    assert result.exit_code == 130
    assert "resume" in result.stderr
