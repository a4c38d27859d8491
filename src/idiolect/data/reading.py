"""Tables as they come: how a file is written is recognised and said, or set; what it cannot tell is asked.

| what      | recognised                                                                              |
|-----------|-----------------------------------------------------------------------------------------|
| encoding  | UTF-8, UTF-16, else Latin-1                                                             |
| separator | comma, semicolon, tab or bar: the one that divides all lines alike                      |
| decimal   | point or comma, by numbers that can only be read one way (`number_texts.py`)            |
| missing   | nothing, NA, NaN, null and the like; and `missing_values`, "?" by default               |
| rows      | a first column without a name that counts rows, and lines without values, are left out  |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from idiolect.data.delimited import (
    ENCODINGS,
    SEPARATORS,
    AmbiguousError,
    counts_rows,
    read_texts,
    refuse_repeated,
)
from idiolect.data.hints import listed, typed
from idiolect.data.number_texts import DecimalMark, NumberShape, as_written, shape_of
from idiolect.errors import UserError

TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")
DECIMALS: dict[str, DecimalMark] = {"point": ".", "comma": ","}
ALWAYS_MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None")
)
_KNOWN: dict[str, dict[str, str]] = {
    "separator": SEPARATORS,
    "decimal": {**DECIMALS},
    "encoding": ENCODINGS,
}


@dataclass(frozen=True)
class Reading:
    """How a table is to be read: the words of the table above, or "auto" for what is to be recognised."""

    separator: str = "auto"
    decimal: str = "auto"
    encoding: str = "auto"
    missing_values: tuple[str, ...] = ("?",)
    asked_as: str = "data."  # how settings are typed: data.decimal=comma, or --decimal comma

    def __post_init__(self) -> None:
        for setting, known in _KNOWN.items():
            given = getattr(self, setting)
            if given != "auto" and given.lower() not in known and given not in known.values():
                words = ", ".join(["auto", *known])
                raise UserError(f"{self.asked_as}{setting}={given!r} is not possible: it is one of {words}")

    def chosen(self, setting: str) -> str | None:
        """What a setting was set to, as Python calls it; None where it is to be recognised."""
        given: str = getattr(self, setting)
        return None if given == "auto" else _KNOWN[setting].get(given.lower(), given)

    @property
    def decimal_mark(self) -> DecimalMark | None:
        """The decimal mark that was set."""
        chosen = self.chosen("decimal")
        return None if chosen is None else "," if chosen == "," else "."

    def hint(self, setting: str, value: str) -> str:
        """A setting as it is typed where the table was asked for."""
        return typed(f"data.{setting}", value) if self.asked_as == "data." else f"--{setting} {value}"


AS_RECOGNISED = Reading()


@dataclass(frozen=True)
class Table:
    """What was read. The frame's index has the lines of the file, or the rows, and is named so."""

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    doubts: dict[str, str] = field(default_factory=dict)  # by column: what is asked before it is used
    missing_values: tuple[str, ...] = ()  # those of the reading that it has

    def require_clear(self, columns: Sequence[str]) -> None:
        """Ask what a column means before it is used."""
        for name in columns:
            if name in self.doubts:
                raise UserError(self.doubts[name])


def read_table(path: str | Path, reading: Reading = AS_RECOGNISED) -> pd.DataFrame:
    """A CSV (also gzipped) or Parquet file as a frame; what cannot be read is said in one sentence."""
    table = read_file(path, reading)
    table.require_clear(list(table.frame.columns))
    return table.frame


def read_file(path: str | Path, reading: Reading = AS_RECOGNISED) -> Table:
    """A CSV (also gzipped) or Parquet file, and how it was read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}")
    if not suffix(path):
        raise UserError(
            f"{str(path)!r} must end in {', '.join(TABLE_SUFFIXES)}: save the table as one of these"
        )
    try:
        table = _read_parquet(path, reading) if suffix(path) == ".parquet" else _read_text(path, reading)
    except AmbiguousError as error:
        hints = " or ".join(reading.hint("separator", word) for word in error.words)
        raise UserError(f"the file {str(path)!r} cannot be read: {error}; say which with {hints}") from None
    except (OSError, ValueError, EOFError) as error:  # pyarrow's and ours are ValueErrors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the file {str(path)!r} cannot be read: {reason}") from error
    if table.frame.empty:
        raise UserError(f"the file {str(path)!r} has no rows")
    return table


def read_frame(frame: pd.DataFrame, reading: Reading = AS_RECOGNISED) -> Table:
    """A table in memory: what it holds as texts stays text, unless `reading` says how numbers are written."""
    names = [str(name).strip() for name in frame.columns]
    refuse_repeated(names)
    frame = frame.set_axis(names, axis=1).set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"), axis=0)
    cleared = {name: _without(frame[name], reading.missing_values) for name in names}
    if (mark := reading.decimal_mark) is not None:
        cleared = {name: _numbers(values, mark) for name, values in cleared.items()}
    notes, found = _missing_note(frame, cleared, reading)
    return Table(pd.DataFrame(cleared, index=frame.index), notes, missing_values=found)


def holds_texts(values: pd.Series) -> bool:
    """Whether a column has texts, or other things that pandas keeps as objects."""
    return pd.api.types.is_object_dtype(values) or pd.api.types.is_string_dtype(values)


def suffix(path: Path) -> str:
    """How a table's file ends; nothing if it is none."""
    return next((s for s in TABLE_SUFFIXES if path.name.lower().endswith(s)), "")


def _read_parquet(path: Path, reading: Reading) -> Table:
    for setting in ("separator", "encoding"):
        if reading.chosen(setting) is not None:
            raise UserError(f"it is a Parquet file, and {reading.asked_as}{setting} is for CSV files")
    return read_frame(pd.read_parquet(path), reading)


def _read_text(path: Path, reading: Reading) -> Table:
    texts = read_texts(path, reading.chosen("encoding"), reading.chosen("separator"))
    frame, notes = _without_row_numbers(texts.frame)
    absent = (*ALWAYS_MISSING, *reading.missing_values)
    present = {str(name): _without(frame[name], absent) for name in frame}
    shapes = {name: shape_of(values.dropna()) for name, values in present.items()}
    numeric = {name: shape for name, shape in shapes.items() if shape is not None and len(frame)}
    mark = reading.decimal_mark or _recognised_mark(numeric)
    doubts = {} if reading.decimal_mark else _doubts(numeric, texts.separator, reading)
    columns = {
        name: _numbers(values, mark) if name in numeric else _truths(values)
        for name, values in present.items()
    }
    missing, found = _missing_note(frame, present, reading)
    grouped = any(
        present[name].str.contains("," if mark == "." else ".", regex=False).any() for name in numeric
    )
    manner = _manner(texts.encoding, texts.separator, mark, grouped)
    said = (*manner, *texts.notes, *notes, *missing)
    return Table(pd.DataFrame(columns, index=frame.index), said, doubts, found)


def _without_row_numbers(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Without pandas' index and R's row names: a first column without a name that counts."""
    if not len(frame) or frame.columns[0] != "Unnamed: 0" or not counts_rows(frame.iloc[:, 0].str.strip()):
        return frame, []
    return frame.iloc[:, 1:], ["the first column was left out: it has no name and counts the rows"]


def _without(values: pd.Series, missing: Sequence[str]) -> pd.Series:
    """A column with some texts, and the numbers that they stand for, as missing values."""
    if holds_texts(values):
        return values.mask(values.astype(str).str.strip().isin(list(missing)) & values.notna())
    numbers = pd.to_numeric(pd.Series(missing, dtype=object), errors="coerce").dropna()
    if numbers.empty or not pd.api.types.is_numeric_dtype(values):
        return values
    return values.mask(values.isin(numbers.to_list()))


def _numbers(values: pd.Series, mark: DecimalMark) -> pd.Series:
    """A column of texts as numbers, if all of them are."""
    present = values.dropna()
    if not holds_texts(values) or present.empty:
        return values if len(present) else values.astype(float)
    numbers = as_written(present.astype(str), mark)
    if numbers is None:
        return values
    return numbers if len(numbers) == len(values) else numbers.astype(float).reindex(values.index)


def _truths(values: pd.Series) -> pd.Series:
    """A column of texts; those that say true and false are spelled as Python does."""
    present = values.dropna()
    if len(present) and set(present.str.strip().str.lower().unique()) <= {"true", "false"}:
        return values.str.strip().str.capitalize()
    return values


def _recognised_mark(shapes: dict[str, NumberShape]) -> DecimalMark:
    return "," if any(shape.comma for shape in shapes.values()) else "."


def _doubts(shapes: dict[str, NumberShape], separator: str, reading: Reading) -> dict[str, str]:
    """What has to be asked about numbers that can be read in two ways, by column."""
    commas = {name: shape.comma for name, shape in shapes.items() if shape.comma}
    points = {name: shape.point for name, shape in shapes.items() if shape.point}
    by_comma, by_point = reading.hint("decimal", "comma"), reading.hint("decimal", "point")
    if commas and points:
        (one, first), (other, second) = next(iter(commas.items())), next(iter(points.items()))
        sentence = (
            f"column {one!r} holds {first!r}, with a decimal comma, and column {other!r} {second!r}, with a "
            f"decimal point: mend the file, or set {by_comma} or {by_point} and leave the other column out"
        )
        return dict.fromkeys((*commas, *points), sentence)
    if commas or points:
        return {}
    doubts = {}
    for name, shape in shapes.items():
        # A point is a decimal one, but where lines are divided by semicolons, as with decimal commas.
        if text := shape.either_comma or (shape.either_point if separator == ";" else None):
            whole = text.replace(",", "").replace(".", "")
            parts = text.replace(",", ".")
            is_comma = "," in text
            doubts[name] = (
                f"column {name!r} holds {text!r}, and nothing tells whether that is {whole} or {parts}: set "
                f"{by_point if is_comma else by_comma} for {whole}, or "
                f"{by_comma if is_comma else by_point} for {parts}"
            )
    return doubts


def _manner(encoding: str, separator: str, mark: DecimalMark, grouped: bool) -> list[str]:
    """How a file was read, where that is not the usual way."""
    ways = []
    if encoding not in ("utf-8-sig",):
        ways.append("as Latin-1" if encoding == "cp1252" else "as UTF-16")
    if separator != ",":
        word = next((word for word, mark in SEPARATORS.items() if mark == separator), repr(separator))
        ways.append(f"with {word}s between columns")
    if mark == ",":
        ways.append("with decimal commas")
    if grouped:
        ways.append(f"with {'commas' if mark == '.' else 'points'} between thousands")
    settings = "data.encoding, data.separator and data.decimal"
    return [f"the file was read {', '.join(ways)} ({settings} say otherwise)"] if ways else []


def _missing_note(
    before: pd.DataFrame, after: dict[str, pd.Series], reading: Reading
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A note of how many values `missing_values` makes missing, by column; and which of these there are."""
    counts: dict[str, int] = {}
    found: set[str] = set()
    for name, values in after.items():
        lost = before[name][before[name].notna() & values.isna()].astype(str).str.strip()
        meant = lost[~lost.isin(ALWAYS_MISSING)] if holds_texts(before[name]) else lost
        found |= set(meant)
        if len(meant):
            counts[name] = len(meant)
    if not counts:
        return (), ()
    columns = ", ".join(f"{count} in {name!r}" for name, count in counts.items())
    marks = tuple(value for value in reading.missing_values if value in found) or reading.missing_values
    return (f"{listed(marks)} counts as a missing value: {columns} (data.missing_values)",), marks
