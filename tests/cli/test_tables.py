"""A table as a German office writes it, from the first look to predictions and newcomers."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app

DRAW = np.random.default_rng(4)


def patients(names: str, rows: int = 40) -> pd.DataFrame:
    weight = DRAW.normal(75, 12, rows).round(1)
    return pd.DataFrame(
        {
            "Klinik": np.array(list(names))[np.arange(rows) % len(names)],
            "Gewicht": weight,
            "Größe": DRAW.normal(1.7, 0.1, rows).round(2),
            "Kosten": (weight * 50 + DRAW.normal(0, 100, rows)).round(2),
        }
    )


def write(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")
    return path


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on such a table, and a client's model of it."""
    place = tmp_path_factory.mktemp("tables")
    table = write(patients("abc", 60), place / "alt.csv")
    words = [f"data={table}", "data.client=Klinik", "data.target=Kosten", "rounds=2", "engine=sequential"]
    ran = invoke("run", "method=fedavg", *words, f"out={place / 'run'}")
    assert ran.exit_code == 0, ran.output
    assert (
        "note: the file was read as Latin-1, with semicolons between columns, with decimal commas"
        in ran.output
    )
    assert invoke("export", place / "run", "--client", "b", "--out", place / "model").exit_code == 0
    return place


def test_new_rows_are_read_alike(place: Path, tmp_path: Path) -> None:
    rows = patients("d", 9).drop(columns=["Klinik", "Kosten"])
    table = write(rows, tmp_path / "neu.csv")
    expected = idiolect.predict(place / "model", rows).tolist()
    assert idiolect.predict(place / "model", table).tolist() == expected
    shown = invoke("predict", place / "model", table)
    assert [float(line) for line in shown.output.splitlines()[1:]] == pytest.approx(expected, rel=1e-6)


def test_what_the_file_does_not_tell_is_asked_and_can_be_said(place: Path, tmp_path: Path) -> None:
    table = tmp_path / "neu.csv"
    table.write_text("Gewicht;Größe\n71,125;1,755\n80,250;1,625\n", encoding="cp1252")
    asked = invoke("predict", place / "model", table)
    assert asked.exit_code == 2
    assert "--decimal point for 71125, or --decimal comma for 71.125" in asked.output
    said = invoke("predict", place / "model", table, "--decimal", "comma")
    frame = pd.DataFrame({"Gewicht": [71.125, 80.25], "Größe": [1.755, 1.625]})
    expected = idiolect.predict(place / "model", frame).tolist()
    assert [float(line) for line in said.output.splitlines()[1:]] == pytest.approx(expected, rel=1e-6)


def test_newcomers_are_read_as_the_run_was(place: Path, tmp_path: Path) -> None:
    frame = patients("x", 30)
    settings = {"data": write(frame, tmp_path / "neu.csv")}
    of_file = idiolect.personalize(place / "run", settings)
    of_frame = idiolect.personalize(place / "run", data=frame)
    pd.testing.assert_frame_equal(of_file.metrics, of_frame.metrics)
    frame.loc[3, "Kosten"] = np.nan
    with pytest.raises(idiolect.UserError, match="target 'Kosten' has 1 missing values, the first in line 5"):
        idiolect.personalize(place / "run", data=write(frame, tmp_path / "lücke.csv"))
    assert idiolect.personalize(place / "run", settings, **{"data.decimal": "comma"}).folder is None
    with pytest.raises(idiolect.UserError, match=r"data\.decimal='dot' is not possible"):
        idiolect.personalize(place / "run", settings, **{"data.decimal": "dot"})


def test_texts_that_mean_missing_go_with_the_model(tmp_path: Path) -> None:
    frame = patients("ab", 40).astype({"Größe": object})
    frame.loc[[3, 4, 8, 9], "Größe"] = "k.A."
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ["data.client=Klinik", "data.target=Kosten", "data.missing=indicate", "data.missing_values=k.A."]
    out = tmp_path / "run"
    ran = invoke("run", "method=local", f"data={tmp_path / 't.csv'}", *words, "rounds=1", f"out={out}")
    assert ran.exit_code == 0, ran.output
    assert "column 'Größe': 4 of 40 values missing" in ran.output
    model = idiolect.load_model(idiolect.export(out, client="a", out=tmp_path / "model"))
    assert "Größe is missing" in model.preprocessing.feature_names
    assert len(idiolect.predict(model, tmp_path / "t.csv")) == 40
