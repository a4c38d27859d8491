"""Columns that are no features are left out and said, at any number of rows; features are not."""

import numpy as np
import pandas as pd
import pytest

from idiolect.data.catalogue import load
from idiolect.data.hints import typed
from idiolect.data.roles import reason_to_leave_out
from idiolect.errors import UserError
from idiolect.runs.settings import read_settings

OPTIONS = {"client": "site", "target": "y"}


def frame(rows: int = 30) -> pd.DataFrame:
    draw = np.random.default_rng(rows)
    return pd.DataFrame(
        {
            "site": np.array(["a", "b"])[np.arange(rows) % 2],
            "x": draw.normal(size=rows),
            "y": np.array(["u", "v", "v"])[np.arange(rows) % 3],
        }
    )


def days(form: str, rows: int) -> pd.Series:
    return pd.Series(pd.date_range("2017-02-25", periods=rows, freq="7h")).dt.strftime(form)


LEFT_OUT = {
    "texts, one a row": lambda n: [f"p{i * i}" for i in range(n)],
    "row numbers": lambda n: range(n),
    "row numbers from 1001": lambda n: range(1001, 1001 + n),
    "dates": lambda n: pd.date_range("2020-01-01", periods=n),
    "ISO dates": lambda n: days("%Y-%m-%d", n),
    "ISO dates and times": lambda n: days("%Y-%m-%dT%H:%M:%S", n),
    "German dates": lambda n: days("%d.%m.%Y", n),
    "American dates and times": lambda n: days("%-m/%-d/%Y %H:%M", n),
    "written dates": lambda n: days("%d %b %Y", n),
    "no values": lambda n: [None] * n,
}


@pytest.mark.parametrize("rows", [8, 30, 400])
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_tells_nothing_of_new_rows_is_left_out_and_said(kind, rows, tmp_path):
    table = frame(rows).assign(odd=list(LEFT_OUT[kind](rows)))
    table.to_csv(tmp_path / "t.csv", index=False)
    for source in (table, tmp_path / "t.csv"):
        federation = load(source, **OPTIONS)
        assert federation.feature_names == ("x",)
        (note,) = (note for note in federation.notes if "'odd'" in note)
        assert "was left out" in note
        assert kind == "no values" or "data.keep=odd takes it back" in note


@pytest.mark.parametrize("name", ["id", "patient_id", "PatientID", "patientId", "Customer Id", "uuid"])
def test_whole_numbers_that_are_named_as_identifiers_are_left_out(name):
    draw = np.random.default_rng(2)
    table = frame().assign(**{name: draw.permutation(9000)[:30]})
    assert load(table, **OPTIONS).feature_names == ("x",)
    assert load(table, keep=name, **OPTIONS).feature_names == ("x", name)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(np.random.default_rng(1).normal(size=50), name="real numbers, all different"),
        pd.Series(np.random.default_rng(1).permutation(90000)[:50], name="salary"),
        pd.Series(np.arange(0, 500, 10), name="seconds"),
        pd.Series([1, 2, 3, 4, 5] * 10, name="id"),
        pd.Series([f"ward {i % 10}" for i in range(50)], name="ward"),
        pd.Series(["a", "b"], name="two rows"),
        pd.Series([True, False] * 25, name="truth"),
        pd.Series(np.arange(50) + 0.5, name="halves"),
        pd.Series([f"1.{i % 9}.2" for i in range(50)], name="version"),
    ],
    ids=lambda values: values.name,
)
def test_features_are_not_left_out(values):
    assert reason_to_leave_out(values) is None


def test_nothing_left_says_how_to_take_back():
    table = frame().drop(columns="x").assign(t=range(30))
    with pytest.raises(
        UserError, match=r"no feature columns: column 't' was left out: it counts the rows.*data\.keep=t"
    ):
        load(table, **OPTIONS)
    assert load(table, keep="t", **OPTIONS).feature_names == ("t",)
    with pytest.raises(UserError, match=r"no column to keep 's'"):
        load(table, keep="s", **OPTIONS)


def test_a_second_question_does_not_forget_the_first_answer(tmp_path):
    table = frame().astype({"x": object}).assign(z=lambda t: t.x)
    table.loc[3, "x"], table.loc[5, "x"], table.loc[7, "z"] = "?", "-", "gone"
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match="'x' holds numbers") as asked:
        load(tmp_path / "t.csv", **OPTIONS)
    assert typed("data.missing_values", ["?", "-"]) in str(asked.value)
    with pytest.raises(UserError, match="'z' holds numbers") as asked:
        load(tmp_path / "t.csv", missing_values=["?", "-"], **OPTIONS)
    assert typed("data.missing_values", ["?", "-", "gone"]) in str(asked.value)
    assert len(load(tmp_path / "t.csv", missing_values="?,-,gone", missing="impute", **OPTIONS)) == 2


@pytest.mark.parametrize("odd", ["unknown", "-", "12 kg", "n.a."])
def test_texts_among_numbers_are_asked_about(odd, tmp_path):
    table = frame().astype({"x": object})
    table.loc[11, "x"] = odd
    table.to_csv(tmp_path / "t.csv", index=False)
    for source, where in ((tmp_path / "t.csv", "line 13"), (table, "row 12")):
        with pytest.raises(UserError) as caught:
            load(source, **OPTIONS)
        sentence = str(caught.value)
        assert f"column 'x' holds numbers and, in {where}, {odd!r}" in sentence
        assert typed("data.missing_values", odd) in sentence
        assert "data.categories=x" in sentence
    imputed = load(tmp_path / "t.csv", missing_values=[odd], missing="impute", **OPTIONS)
    assert imputed.inputs[11, 0].abs() < 1e-6
    few = frame().assign(x=["1", "2", odd] * 10)
    assert len(load(few, categories="x", **OPTIONS).feature_names) == 3


def test_a_text_in_a_target_of_numbers_is_asked_about(tmp_path):
    table = frame().assign(y=[str(i * 1.5) for i in range(30)])
    table.loc[4, "y"] = "unknown"
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(
        UserError, match=r"target 'y' holds numbers and, in line 6, 'unknown'.*data\.task=class"
    ):
        load(tmp_path / "t.csv", **OPTIONS)
    federation = load(tmp_path / "t.csv", missing_values="unknown", missing="impute", **OPTIONS)
    assert federation.task.kind == "regression"
    assert len(federation.inputs) == 29


def test_a_target_of_dates_or_names_is_refused():
    with pytest.raises(UserError, match="target 'y' holds dates"):
        load(frame().assign(y=days("%Y-%m-%d", 30)), **OPTIONS)
    with pytest.raises(UserError, match="target 'y' has 30 different texts in 30 rows, as names do"):
        load(frame().assign(y=[f"n{i}" for i in range(30)]), **OPTIONS)


@pytest.mark.parametrize(
    "name", ["x", "PM2.5", "a=b", "patient name", "Größe", "yes", "a,b", "2017", "it's", "x: y", "?", "[z]"]
)
def test_hints_can_be_typed_as_they_stand(name):
    import shlex

    (word,) = shlex.split(typed("data.ignore", name))
    given = read_settings([word])["data"]["ignore"]
    table = frame().assign(**{name: np.random.default_rng(5).normal(size=30)})
    expected = ("x",) if name != "x" else ("other",)
    if name == "x":
        table["other"] = 1.0 * np.arange(30) % 7
    assert load(table, ignore=given, **OPTIONS).feature_names == expected
