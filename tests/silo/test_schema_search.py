"""A schema found together is the one that the pooled table would give; differences are told by name."""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from idiolect.data.preprocessing import Moments, Preprocessing
from idiolect.data.tables import from_frame
from idiolect.errors import UserError
from idiolect.silo.coordinator import coordinate
from idiolect.silo.requests import Unreachable
from idiolect.silo.schema import Schema, Search, read_schema
from idiolect.silo.schema_search import find_schema
from idiolect.silo.serve_settings import ServeSettings, serve_settings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.table_summary import TableSummary, summarise
from idiolect.silo.wire import pack, unpack
from silo.problem import SILOS, Direct, assert_same, config, last_saved, own_rows, silos_in, simulate

APFL = {"name": "apfl", "local_steps": 2}
FAST = {"answer_seconds": 1, "patience_seconds": 1}


def settings(folder: Path, schema: Any = None, **options: Any) -> ServeSettings:
    found = {"target": "outcome"} if schema is None else schema
    return serve_settings({**config(APFL), "silos": list(SILOS), "schema": found, **FAST, **options}, folder)


class Counting(Direct):
    """A link that notes what is asked."""

    def __init__(self, silos: Mapping[str, Silo]) -> None:
        super().__init__(silos)
        self.asked: list[str] = []

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        self.asked += [unpack(message).header["ask"] for message in requests.values()]
        return super().ask(requests, seconds)


def found_from(tables: Mapping[str, pd.DataFrame], search: Search) -> Schema:
    """Through plain data, as between machines."""
    summaries = {
        name: TableSummary.from_plain(json.loads(json.dumps(summarise(frame, name, search, 1).plain())))
        for name, frame in tables.items()
    }
    return find_schema(search, summaries)


def pooled(tables: Mapping[str, pd.DataFrame], **options: Any) -> Preprocessing:
    """What a simulation fits on the training rows of all."""
    frame = pd.concat([frame.assign(silo=name) for name, frame in tables.items()], ignore_index=True)
    fitted = from_frame(frame, client="silo", target="outcome", seed=5, **options).preprocessing
    assert fitted is not None
    return fitted


def assert_equal(ours: Preprocessing, theirs: Preprocessing) -> None:
    """Everything the same, numbers up to rounding."""
    numbers = ("mean", "scale")
    for a, b in zip(ours.columns, theirs.columns, strict=True):
        assert [getattr(a, n) for n in numbers] == pytest.approx([getattr(b, n) for n in numbers], rel=1e-12)
        plain = dataclasses.replace(b, mean=a.mean, scale=a.scale)
        assert a == plain
    assert (ours.class_names, ours.target, ours.missing) == (
        theirs.class_names,
        theirs.target,
        theirs.missing,
    )
    assert ours.target_mean == pytest.approx(theirs.target_mean, rel=1e-12)
    assert ours.target_scale == pytest.approx(theirs.target_scale, rel=1e-12)


def tables(change: Callable[[pd.DataFrame, int], pd.DataFrame] | None = None) -> dict[str, pd.DataFrame]:
    frames = {name: own_rows(name) for name in SILOS}
    if change is None:
        return frames
    return {name: change(frame, number) for number, (name, frame) in enumerate(frames.items())}


def with_gaps(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    """Missing numbers, categories and targets, unevenly; one silo has no dose at all."""
    frame = frame.copy()
    frame.loc[frame.index % (5 + number) == 1, "age"] = np.nan
    frame.loc[frame.index % (4 + number) == 2, "ward"] = None
    frame.loc[frame.index % 11 == 3, "outcome"] = None
    if number == 1:
        frame["dose"] = np.nan
    return frame


def with_numbers(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    """A regression, a constant, a constant that differs from silo to silo, and a large offset."""
    return frame.assign(
        outcome=frame.age * 3 + 7 * number + 0.5,
        same=2.5,
        own=np.float64([1, 4, 9])[number],
        far=frame.dose + 1e3,
    )


def test_indicators_are_those_of_all_tables_together() -> None:
    """A column that misses values at one silo has an indicator at all."""
    frames = tables(with_gaps)
    found = found_from(frames, Search("outcome", missing="indicate", split_seed=5)).preprocessing
    assert_equal(found, pooled(frames, missing="indicate"))
    assert {column.name for column in found.columns if column.indicator} == {"age", "dose", "ward"}
    told = summarise(frames["north"], "north", Search("outcome", missing="impute", split_seed=5))
    assert not any(column.has_missing for column in told.columns)


def test_written_columns_have_indicators_where_missing_values_are_indicated() -> None:
    section = {"target": "y", "classes": ["a", "b"], "missing": "indicate"}
    section["columns"] = {"age": {"mean": 50, "scale": 10}, "ward": {"categories": ["u", "v"]}}
    schema = read_schema(section, Path(), 0)
    assert isinstance(schema, Schema)
    assert schema.preprocessing.feature_names == (
        "age",
        "age is missing",
        "ward=u",
        "ward=v",
        "ward is missing",
    )
    assert Schema.from_plain(schema.plain()) == schema


def counted(most: int) -> Callable[[pd.DataFrame, int], pd.DataFrame]:
    """Whole numbers as targets, other ones at every silo."""
    return lambda frame, number: frame.assign(outcome=np.arange(len(frame)) % most + most * number)


CASES: dict[str, tuple[dict[str, pd.DataFrame], dict[str, Any], dict[str, Any]]] = {
    "missing values": (tables(with_gaps), {"missing": "impute"}, {"missing": "impute"}),
    "regression": (tables(with_numbers), {"missing": "impute"}, {"missing": "impute"}),
    "few whole targets are classes": (tables(counted(4)), {"missing": "impute"}, {"missing": "impute"}),
    "many whole targets together are numbers": (
        tables(counted(9)),
        {"missing": "impute"},
        {"missing": "impute"},
    ),
    "task": (
        tables(counted(4)),
        {"missing": "impute", "task": "regression"},
        {"missing": "impute", "task": "regression"},
    ),
    "codes": (
        tables(
            lambda frame, number: frame.assign(code=frame.index % (2 + number) * (-1.0 if number else 1.0))
        ),
        {"missing": "impute", "categories": ("code",)},
        {"missing": "impute", "categories": ["code"]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_found_schema_is_that_of_all_training_rows_together(case: str) -> None:
    frames, searched, options = CASES[case]
    schema = found_from(frames, Search("outcome", split_seed=5, **searched))
    assert_equal(schema.preprocessing, pooled(frames, **options))
    assert schema.split_seed == 5


def test_constants_have_the_scale_that_the_pooled_table_gives_them() -> None:
    columns = {c.name: c for c in found_from(tables(with_numbers), Search("outcome")).preprocessing.columns}
    assert (columns["same"].mean, columns["same"].scale) == (2.5, 1.0)
    # training rows: 12 of 20, 19 of 29 and 24 of 38, with the values 1, 4 and 9
    values = np.repeat([1.0, 4.0, 9.0], [12, 19, 24])
    assert columns["own"].mean == pytest.approx(values.mean(), rel=1e-12)
    assert columns["own"].scale == pytest.approx(values.std(), rel=1e-12)


def test_joined_moments_are_those_of_all_numbers() -> None:
    values = np.random.default_rng(1).gamma(2.0, 3.0, 101) + 1e5
    parts = [Moments.of(part) for part in np.split(values, [3, 4, 60])]
    joined = Moments.joined([*parts, Moments()])
    assert joined.count == 101
    assert joined.standard() == pytest.approx((values.mean(), values.std()), rel=1e-12)


def test_a_deployment_with_a_found_schema_equals_a_simulation_and_resumes_with_it(tmp_path: Path) -> None:
    served = ServedRun.create(tmp_path / "run", settings(tmp_path))
    assert isinstance(served.settings.schema, Search)
    link = Counting(silos_in(tmp_path / "silos"))
    coordinate(served, link)
    simulation = simulate(config(APFL)).play(3)
    assert simulation.federation.preprocessing is not None
    found = served.settings.agreed_schema.preprocessing
    unused = {"ward": "a"}  # how often there is which category was not asked for, as nothing is filled in
    expected = dataclasses.replace(
        simulation.federation.preprocessing,
        columns=tuple(
            dataclasses.replace(column, most_frequent=unused.get(column.name, ""))
            for column in simulation.federation.preprocessing.columns
        ),
    )
    assert_equal(found, expected)
    saved = last_saved(served)
    assert_same(saved.server, simulation.server)
    assert link.asked.count("summary") == 3

    again = Counting(link.silos)
    resumed = ServedRun(tmp_path / "run")
    coordinate(resumed, again)
    assert "summary" not in again.asked
    assert resumed.settings.agreed_schema == served.settings.agreed_schema
    later = read_schema("run/schema.json", tmp_path, 5)
    assert later == served.settings.agreed_schema


def test_a_summary_tells_sums_and_names_only() -> None:
    """Of 20 rows: no value of a number, no count of a category."""
    search = Search("outcome", split_seed=5)
    frame = own_rows("north")
    told = json.loads(json.dumps(summarise(frame, "north", search).plain()))
    assert told["target"]["counts"] == {
        "better": 0,
        "same": 0,
    }  # that somebody is worse fewer than 5 rows say
    told = json.loads(json.dumps(summarise(frame, "north", search, 1).plain()))
    assert [column["name"] for column in told["columns"]] == ["age", "dose", "pressure", "ward"]
    assert told["columns"][3]["counts"] == {"a": 0, "b": 0}
    assert told["target"]["counts"] == {"better": 0, "same": 0, "worse": 0}
    for column in told["columns"][:3]:
        assert set(column) == {"name", "kind", "moments", "counts", "has_missing"}
        assert not column["has_missing"]  # told only where missing values are indicated
        assert set(column["moments"]) == {"count", "mean", "squares"}
        assert column["moments"]["count"] == 12
        assert not np.isin(frame[column["name"]], list(column["moments"].values())).any()


def as_numbers_at_south(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    return frame.assign(ward=frame.ward.map({"a": 1, "b": 2})) if number == 1 else frame


DIFFERENCES: dict[str, tuple[Callable[[pd.DataFrame, int], pd.DataFrame], list[str]]] = {
    "missing column": (lambda f, n: f.drop(columns="dose") if n == 2 else f, ["'dose' is missing at west"]),
    "extra column": (lambda f, n: f.assign(phone=1.0) if n == 0 else f, ["'phone' is only at north"]),
    "numbers and texts": (as_numbers_at_south, ["'ward' holds numbers at south and texts at north, west"]),
    "target": (
        lambda f, n: f.assign(outcome=np.arange(len(f)) % 3) if n == 0 else f,
        ["'outcome' holds numbers at north and texts at south, west"],
    ),
    "several": (
        lambda f, n: [f.drop(columns="age"), f.rename(columns={"dose": "Dose"}), f][n],
        ["'age' is missing at north", "'dose' is missing at south", "'Dose' is only at south"],
    ),
}


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_differences_are_told_by_column_and_silo_before_any_training(kind: str, tmp_path: Path) -> None:
    change, sentences = DIFFERENCES[kind]
    frames = tables(change)
    silos = {name: Silo(name, frames[name], tmp_path / "silos" / name) for name in SILOS}
    served = ServedRun.create(tmp_path / "run", settings(tmp_path))
    with pytest.raises(UserError, match="tables differ and nothing was trained") as caught:
        coordinate(served, Direct(silos))
    for sentence in sentences:
        assert sentence in str(caught.value)
    assert str(caught.value).count(" at ") == sum(sentence.count(" at ") for sentence in sentences)
    assert not list((tmp_path / "silos").glob("*/*/run.json"))
    assert not (tmp_path / "run" / "schema.json").exists()
    assert isinstance(ServedRun(tmp_path / "run").settings.schema, Search)


def test_codes_agreed_as_categories_are_no_difference(tmp_path: Path) -> None:
    """Numbers at one silo, the same codes as texts at the others."""
    frames = tables(
        lambda frame, number: frame.assign(
            ward=frame.ward.map({"a": 1.0, "b": 2.0} if number else {"a": "1", "b": "3"})
        )
    )
    schema = found_from(frames, Search("outcome", categories=("ward",)))
    assert schema.preprocessing.columns[3].categories == ("1", "2", "3")


def named(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(patient=[f"patient {row}" for row in range(len(frame))])


REFUSALS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], dict[str, Any], str]] = {
    "consent": (
        lambda f: f,
        {"shares_summaries": False},
        "this silo shares no summaries of its table (--no-share-summaries); write the schema's columns",
    ),
    "few rows": (
        lambda f: f.head(6),
        {},
        "column 'age' has 4 values in training rows, and a summary of fewer",
    ),
    "names": (
        named,
        {},
        "column 'patient' has 24 different texts in 24 training rows, as names or",
    ),
    "missing values": (lambda f: with_gaps(f, 0), {}, "the target 'outcome' has 4 missing values"),
    "missing numbers": (
        lambda f: f.assign(age=f.age.where(f.index > 2)),
        {},
        "column 'age' has 3 missing values; fill them in, leave it out, or agree on schema.missing=impute or "
        "schema.missing=indicate (what helps: at the silo --ignore age; at the coordinator, for a new run, "
        "schema.missing=impute)",
    ),
    "infinite": (lambda f: f.assign(age=np.inf), {}, "column 'age' is infinite"),
    "dates": (lambda f: f.assign(day=pd.Timestamp("2020-01-01")), {}, "column 'day' holds dates"),
    "no target": (
        lambda f: f.rename(columns={"outcome": "result"}),
        {},
        "there is no target column 'outcome'",
    ),
}


def test_all_problems_of_all_tables_are_told_at_once(tmp_path: Path) -> None:
    """Two silos that refuse for several reasons each, and a difference between the two others."""
    frames = tables(
        lambda f, n: [
            f.assign(phone=1.0),
            f.assign(age=f.age.where(f.index > 2), day=pd.Timestamp("2020-01-01")),
            named(f).assign(dose=np.inf),
        ][n]
    )
    frames["west-bank"] = own_rows("west-bank")
    chosen = settings(tmp_path, silos=list(frames))
    silos = {name: Silo(name, frame, tmp_path / name) for name, frame in frames.items()}
    with pytest.raises(UserError, match="2 of 4 silos") as caught:
        coordinate(ServedRun.create(tmp_path / "run", chosen), Direct(silos))
    for part in (
        "south: refused: column 'age' has 3 missing values",
        "column 'day' holds dates",
        "(what helps: at the silo --ignore age,day; at the coordinator, for a new run, schema.missing=impute",
        "west: refused: column 'dose' is infinite",
        "column 'patient' has",
        "--ignore dose,patient",
        "besides, 'phone' is only at north",
        "north: --ignore phone",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_silo_refuses_to_tell(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change, options, sentence = REFUSALS[kind]
    west = Silo("west", change(own_rows("west")), tmp_path / "w", **options)
    served = ServedRun.create(tmp_path / "run", settings(tmp_path))
    with (
        pytest.raises(UserError, match="2 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Direct(silos_in(tmp_path / "silos") | {"west": west}))
    assert f"west: refused: {sentence}" in caplog.text
    assert {path.name for path in (tmp_path / "w").iterdir()} <= {"audit.jsonl", "misfits.json"}


def test_too_many_categories_are_refused() -> None:
    frame = pd.DataFrame({"code": [f"{row % 101}" for row in range(2000)], "outcome": ["a", "b"] * 1000})
    with pytest.raises(UserError, match="'code' has 101 different values, too many for a category"):
        summarise(frame, "north", Search("outcome"))
    with pytest.raises(UserError, match="'code' has 101 different values, too many for classes"):
        summarise(frame, "north", Search("code"))


def test_classes_can_be_given_and_are_then_not_told() -> None:
    search = Search("outcome", classes=("worse", "same", "better"))
    assert summarise(own_rows("north"), "north", search).target.counts == {}
    assert found_from(tables(), search).preprocessing.class_names == ("worse", "same", "better")


def test_a_single_class_and_an_empty_column_are_refused() -> None:
    frames = tables(lambda frame, number: frame.assign(outcome="same"))
    with pytest.raises(UserError, match="fewer than two classes at all silos together: same"):
        found_from(frames, Search("outcome"))
    frames = tables(lambda frame, number: frame.assign(dose=np.nan))
    with pytest.raises(UserError, match="column 'dose' has no value in any training row"):
        found_from(frames, Search("outcome", missing="impute"))


def summary_with(**changes: Any) -> dict[str, Any]:
    plain = json.loads(json.dumps(summarise(own_rows("west"), "west", Search("outcome")).plain()))
    plain["columns"][0].update(changes)
    return dict(plain)


MALFORMED: dict[str, Any] = {
    "nothing": None,
    "a list": [1, 2],
    "no columns": {"target": {}},
    "unknown kind": summary_with(kind="date"),
    "negative spread": summary_with(moments={"count": 3, "mean": 1.0, "squares": -1.0}),
    "not finite": summary_with(moments={"count": 3, "mean": float("nan"), "squares": 1.0}),
    "enormous": summary_with(moments={"count": 3, "mean": 1e200, "squares": 1.0}),
    "enormous count": summary_with(moments={"count": 10**400, "mean": 1.0, "squares": 1.0}),
    "too many categories": summary_with(kind="category", counts={str(n): 1 for n in range(101)}),
    "twice": summary_with(name="dose"),
    "codes that are no numbers": summary_with(counts={"one": 0}),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_summary_is_one_sentence(kind: str, tmp_path: Path) -> None:
    class Lying(Direct):
        def ask(
            self, requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | Unreachable]]:
            for name, answer in super().ask(requests, seconds):
                assert isinstance(answer, bytes)
                header = unpack(answer).header
                lie = {**header, "summary": MALFORMED[kind]}
                yield name, pack(lie) if name == "west" else answer

    served = ServedRun.create(tmp_path / "run", settings(tmp_path))
    with pytest.raises(UserError, match=r"west: (sent a summary|a message cannot be read)") as caught:
        coordinate(served, Lying(silos_in(tmp_path / "silos")))
    assert "\n" not in str(caught.value)


BAD_SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"classes": ["a", "b"]}, "schema must have columns and target"),
    ({"target": "y", "target_mean": 1}, "schema.target_mean is not a setting; the settings there are target"),
    ({"target": "y", "missing": "drop"}, "schema.missing=drop is not possible: it is one of refuse, impute"),
    ({"target": "y", "task": "ranking"}, "schema.task=ranking is not possible"),
    ({"target": "y", "categories": "ward"}, "schema.categories=ward is not possible: it must be a list"),
    ({"target": "y", "fractions": [0.5, 0.5]}, "must be three shares"),
]


@pytest.mark.parametrize(("schema", "sentence"), BAD_SCHEMAS, ids=lambda value: str(value)[:40])
def test_an_open_schema_is_checked(schema: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        settings(tmp_path, schema)
