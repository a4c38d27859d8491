"""Tables as they come: ways to write one table give the same numbers, and what nothing tells is asked."""

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.data.catalogue import load
from idiolect.data.number_texts import as_written, shape_of
from idiolect.data.reading import Reading, read_file, read_frame, read_table
from idiolect.errors import UserError

ROWS = 30
DRAW = np.random.default_rng(7)
PLAIN = pd.DataFrame(
    {
        "Straße": np.array(["Köln", "München"])[np.arange(ROWS) % 2],
        "height": DRAW.normal(1.7, 0.1, ROWS).round(2),
        "sales": (10 ** DRAW.uniform(1, 7, ROWS)).round(2),
        "pieces": DRAW.integers(1, 4000, ROWS),
        "kind": DRAW.choice(["a", "b; c", "d, e"], ROWS),
        "sold": DRAW.choice(["yes", "no"], ROWS),
    }
)
OPTIONS = {"client": "Straße", "target": "sold", "seed": 3}


def german(number: float, places: int) -> str:
    """As Excel writes it in Germany; `format` and `translate` know nothing of the package."""
    return f"{number:,.{places}f}".translate(str.maketrans(",.", ".,"))


def as_in_germany() -> pd.DataFrame:
    return PLAIN.assign(
        height=[german(x, 2) for x in PLAIN.height], sales=[german(x, 2) for x in PLAIN.sales]
    )


def csv(frame: pd.DataFrame = PLAIN, **options: object) -> str:
    return frame.to_csv(index=False, **options)


THOUSANDS = PLAIN.assign(sales=[f"{x:,.2f}" for x in PLAIN.sales], pieces=[f"{x:,}" for x in PLAIN.pieces])
SPACED = PLAIN.assign(sales=[f"{x:,.2f}".replace(",", "\u202f") for x in PLAIN.sales])
WAYS = {
    "plain": (csv().encode(), None),
    "semicolons": (csv(sep=";").encode(), "with semicolons between columns"),
    "tabs": (csv(sep="\t").encode(), "with tabs between columns"),
    "bars": (csv(sep="|").encode(), "with bars between columns"),
    "mark of UTF-8": (csv().encode("utf-8-sig"), None),
    "UTF-16": (csv(sep="\t").encode("utf-16"), "as UTF-16, with tabs between columns"),
    "UTF-16 without a mark": (csv().encode("utf-16-le"), "as UTF-16"),
    "UTF-16 the other way round": (csv().encode("utf-16-be"), "as UTF-16"),
    "Latin-1": (csv().encode("cp1252"), "as Latin-1"),
    "German Excel": (
        csv(as_in_germany(), sep=";", lineterminator="\r\n").encode("cp1252"),
        "as Latin-1, with semicolons between columns, with decimal commas, with points between thousands",
    ),
    "decimal commas and commas": (csv(as_in_germany()).encode(), "with decimal commas"),
    "thousands": (csv(THOUSANDS).encode(), "with commas between thousands"),
    "narrow spaces between thousands": (csv(SPACED).encode(), None),
    "Excel's first line": (("sep=;\n" + csv(sep=";")).encode(), "with semicolons between columns"),
    "empty lines": (csv().replace("\n", "\n\n", 3).encode() + b"\n\n", None),
    "lines of separators": (csv().encode() + b",,,,,\n,,,,,\n", "lines without values left out: 2"),
    "pandas' index": (PLAIN.to_csv().encode(), "counts the rows"),
    "R's row names": (PLAIN.to_csv().replace(",", "", 1).encode(), "counts the rows"),
    "a separator behind": (
        csv().replace("\n", ",\n").encode(),
        "'Unnamed: 6' was left out: it has no values",
    ),
    "spaces around": (csv(quoting=1).replace('","', '" , "').replace('" ,', '",').encode(), None),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_to_write_a_table_give_the_same(way, tmp_path):
    content, said = WAYS[way]
    (tmp_path / "t.csv").write_bytes(content)
    expected = load(PLAIN, **OPTIONS)
    found = load(tmp_path / "t.csv", **OPTIONS)
    assert found.names == expected.names
    assert found.feature_names == expected.feature_names
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    manner = [note for note in found.notes if note not in expected.notes]
    assert len(manner) == (said is not None), manner
    assert said is None or said in manner[0]


def test_what_is_recognised_can_be_set(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(csv(as_in_germany(), sep=";").encode("cp1252")))
    expected = read_frame(PLAIN).frame
    for separator, decimal in (("semicolon", "comma"), (";", ",")):
        found = read_table(path, Reading(separator, decimal, "latin-1"))
        pd.testing.assert_frame_equal(
            found.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False
        )
    with pytest.raises(UserError, match="cannot be read: it is no text in utf-8"):
        read_table(path, Reading(encoding="utf-8"))
    for setting in ("separator", "decimal", "encoding"):
        with pytest.raises(UserError, match=rf"data\.{setting}='dot' is not possible: it is one of auto, "):
            Reading(**{setting: "dot"})


def test_a_decimal_mark_that_nothing_tells_is_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "site;x;y\n" + "".join(f"{s};{i + 1},{i}34;{'uv'[i % 2]}\n" for s in "ab" for i in range(6))
    )
    options = {"client": "site", "target": "y"}
    with pytest.raises(
        UserError, match=r"'x' holds '1,034'.* 1034 or 1\.034: set data\.decimal=point for 1034"
    ):
        load(path, **options)
    x = pd.Series([i + 1 + i / 10 + 0.034 for i in range(6)] * 2)
    for decimal, unit in (("comma", 1), ("point", 1000)):
        column = load(path, decimal=decimal, fractions=(1, 0, 0), **options).preprocessing.columns[0]
        assert column.mean == pytest.approx(unit * x.mean())
        assert column.scale == pytest.approx(unit * x.std(ddof=0))
    assert load(path.rename(tmp_path / "u.csv"), decimal="comma", **options).feature_names == ("x",)
    # A column that is not used is not asked about.
    (tmp_path / "v.csv").write_text((tmp_path / "u.csv").read_text().replace("site;x;y", "site;x;y"))
    with pytest.raises(UserError, match="no feature columns"):
        load(tmp_path / "v.csv", ignore="x", **options)


def test_points_between_semicolons_are_decimal_only_if_something_tells(tmp_path):
    rows = ["1.234", "2.345", "17.456"] * 4
    frame = pd.DataFrame({"site": list("ab") * 6, "x": rows, "y": list("uuv") * 4})
    frame.to_csv(tmp_path / "t.csv", sep=";", index=False)
    with pytest.raises(UserError, match=r"data\.decimal=comma for 1234, or data\.decimal=point for 1\.234"):
        load(tmp_path / "t.csv", client="site", target="y")
    frame.assign(z=["0.5", "1.25", "3"] * 4).to_csv(tmp_path / "told.csv", sep=";", index=False)
    assert read_table(tmp_path / "told.csv")["x"].tolist() == [float(x) for x in rows]
    frame.to_csv(tmp_path / "commas.csv", index=False)
    assert read_table(tmp_path / "commas.csv")["x"].tolist() == [float(x) for x in rows]


def test_both_decimal_marks_in_one_file_are_asked_about(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1,5;2.5\n2,5;3.5\n")
    with pytest.raises(UserError, match=r"'a' holds '1,5', with a decimal comma, and column 'b' '2\.5'"):
        read_table(tmp_path / "t.csv")


def test_two_separators_that_fit_are_asked_about(tmp_path):
    (tmp_path / "t.csv").write_text("id\tlon,lat\n1\t3,4\n2\t5,6\n")
    with pytest.raises(UserError, match=r"say which with data\.separator=comma or data\.separator=tab"):
        read_table(tmp_path / "t.csv")
    assert list(read_table(tmp_path / "t.csv", Reading(separator="tab"))) == ["id", "lon,lat"]
    with pytest.raises(UserError, match="--separator comma or --separator tab"):
        read_table(tmp_path / "t.csv", Reading(asked_as="--"))


@pytest.mark.parametrize(
    ("texts", "decimal", "numbers"),
    [
        (["1", "2"], ".", [1, 2]),
        (["1.234,5", "1"], ",", [1234.5, 1]),
        (["1,234.5", "-1,000"], ".", [1234.5, -1000]),
        (["0,123", "1e3"], ",", [0.123, 1000]),
        (["1'234", "12 345"], ".", [1234, 12345]),
        (["\u22125", "+.5"], ".", [-5, 0.5]),
        (["1,5"], ".", None),
        (["1.5"], ",", None),
        (["12,34"], ".", None),
        (["1.2.3"], ",", None),
        (["1", "x"], ".", None),
    ],
)
def test_numbers_as_they_are_written(texts, decimal, numbers):
    found = as_written(pd.Series(texts), decimal)
    assert (None if found is None else found.tolist()) == numbers


def test_what_numbers_tell_of_how_they_are_written():
    assert shape_of(pd.Series(["1", "x"])) is None
    assert shape_of(pd.Series(["1,234,567"])).point == "1,234,567"
    assert shape_of(pd.Series(["0,123"])).comma == "0,123"
    assert shape_of(pd.Series(["1,234"])).either_comma == "1,234"
    assert shape_of(pd.Series(["1.234", "2.5"])).point == "2.5"


def test_lines_are_named_as_the_file_numbers_them(tmp_path):
    lines = csv(PLAIN.assign(kind=["two\nlines" if i % 2 else "one" for i in range(ROWS)])).splitlines()
    lines.insert(1, "")
    text = "\n".join(lines)
    at = next(i for i, line in enumerate(lines) if line.startswith("Köln") and i > 20)
    lines[at] = lines[at].replace(lines[at].split(",")[1], "inf", 1)
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert text.count("\n") == len(lines) - 1
    with pytest.raises(UserError, match=f"'height' is infinite in line {at + 1};"):
        load(tmp_path / "t.csv", **OPTIONS)
    (tmp_path / "ragged.csv").write_text(csv() + "\n\na,b\n")
    with pytest.raises(UserError, match=f"line {ROWS + 4} has 2 fields and the header has 6"):
        load(tmp_path / "ragged.csv", **OPTIONS)
    (tmp_path / "open.csv").write_text(csv() + 'Köln,1,2,3,"open,yes\n')
    with pytest.raises(UserError, match=f"quotes of the record in line {ROWS + 2} are wrong"):
        load(tmp_path / "open.csv", **OPTIONS)
    folder = tmp_path / "sites"
    folder.mkdir()
    for name, own in PLAIN.groupby("Straße"):
        own.drop(columns="Straße").to_csv(folder / f"{name}.csv", index=False)
    broken = (folder / "Köln.csv").read_text().splitlines()
    broken[4] = "inf" + broken[4][broken[4].index(",") :]
    (folder / "Köln.csv").write_text("\n".join(broken))
    with pytest.raises(UserError, match=r"'height' is infinite in line 5 of Köln\.csv"):
        load(folder, target="sold")


def test_a_question_mark_is_missing_and_said(tmp_path):
    frame = PLAIN.astype({"height": object})
    frame.loc[[3, 4], "height"] = "?"
    frame.loc[6, "kind"] = "?"
    frame.loc[8, "pieces"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match="'height' has 2 missing values, the first in line 5"):
        load(tmp_path / "t.csv", **OPTIONS)
    for source in (tmp_path / "t.csv", frame):
        federation = load(source, missing="impute", ignore="height,pieces", **OPTIONS)
        assert any("'?' counts as a missing value: 2 in 'height', 1 in 'kind'" in n for n in federation.notes)
    kept = load(tmp_path / "t.csv", missing_values=[], ignore=["height", "pieces"], **OPTIONS)
    assert "kind=?" in kept.feature_names


def test_values_that_mean_missing_can_be_numbers(tmp_path):
    frame = PLAIN.copy()
    frame.loc[[2, 5, 7], "pieces"] = -999
    frame.to_csv(tmp_path / "t.csv", index=False)
    for source in (tmp_path / "t.csv", frame):
        with pytest.raises(UserError, match="'pieces' has 3 missing values"):
            load(source, missing_values=-999, **OPTIONS)


def test_parquet_has_no_separator(tmp_path):
    PLAIN.to_parquet(tmp_path / "t.parquet")
    assert read_file(tmp_path / "t.parquet").frame.index.name == "row"
    with pytest.raises(UserError, match=r"Parquet file, and data\.separator is for CSV files"):
        load(tmp_path / "t.parquet", separator="comma", **OPTIONS)
    with pytest.raises(UserError, match="separator is for CSV files, and the data is a data frame"):
        load(PLAIN, separator="comma", **OPTIONS)


def test_numbers_as_texts_in_a_frame_are_asked_about():
    with pytest.raises(UserError, match=r"'height' holds numbers as texts.*data\.decimal=comma"):
        load(as_in_germany().drop(columns="sales"), **OPTIONS)
    found = load(as_in_germany(), decimal="comma", **OPTIONS)
    assert torch.equal(found.inputs, load(PLAIN, **OPTIONS).inputs)
