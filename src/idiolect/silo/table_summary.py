"""What a silo tells of its table when a schema is to be found together: sums over its rows, never a row.

| column    | told                                                                                        |
|-----------|---------------------------------------------------------------------------------------------|
| numbers   | how many training rows have a value, their mean, the sum of squared deviations from it      |
| category  | which values several training rows have; how often, only if missing values are imputed      |
| missing   | whether training rows miss a value, only if missing values are indicated                    |
| target    | as numbers, or which classes several rows have                                              |

What would come close to telling rows is refused: numbers of very few rows, and texts that nearly every row
has one of its own of, such as names. Of a category or class that fewer than `fewest` rows have, nothing is
told: its rows are as if it were missing from the agreement.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from idiolect.data.preprocessing import (
    MOST_CATEGORIES,
    ColumnSummary,
    as_numbers,
    as_text,
    is_number_column,
    require_column,
    summarise_column,
)
from idiolect.data.roles import are_dates, are_names
from idiolect.data.tables import without_missing_targets
from idiolect.data.targets import MOST_WHOLE_CLASSES
from idiolect.errors import UserError
from idiolect.silo.schema import Search, split_rows
from idiolect.silo.table_problems import Problem, refuse_problems

FEWEST_VALUES = 5  # a mean and a spread of fewer come close to the values themselves
_LARGEST, _LARGEST_COUNT = 1e140, 2**53  # their sums and squares can still be computed with


@dataclass(frozen=True)
class TableSummary:
    """The summary of a silo's table."""

    columns: tuple[ColumnSummary, ...]
    target: ColumnSummary  # `counts` has classes, all of them 0 times

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> "TableSummary":
        """The inverse of `plain`; what cannot be a summary is refused."""
        try:
            summary = _READER.validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise UserError(f"sent a summary that cannot be read: {place}: {first['msg']}") from None
        names = [column.name for column in summary.columns]
        if len(set(names)) < len(names) or not all(map(_is_possible, (*summary.columns, summary.target))):
            raise UserError("sent a summary with a column twice, or with numbers that cannot be")
        return summary


_READER = TypeAdapter(TableSummary)


def summarise(table: pd.DataFrame, name: str, search: Search, fewest: int = FEWEST_VALUES) -> TableSummary:
    """What silo `name` tells of its table; all that stands against it is said at once."""
    table = table.rename(columns=str)
    require_column(table, search.target, "target column")
    problems: list[Problem] = []
    with _collected(problems):
        without_missing_targets(table, search.target, search.missing)
    table = table[table[search.target].notna()]
    training = table.iloc[
        split_rows(len(table), name, search.fractions, search.split_seed).train.index.numpy()
    ]
    columns = []
    for column in table.columns:
        if column != search.target:
            with _collected(problems, column):
                _refuse_missing_values(table[column], search)
            with _collected(problems, column):
                columns.append(_summarise_feature(training[column], search, fewest))
    with _collected(problems):
        target = _summarise_target(table[search.target], training[search.target], search, fewest)
    refuse_problems(problems)
    return TableSummary(tuple(columns), target)


@contextmanager
def _collected(problems: list[Problem], column: str = "") -> Iterator[None]:
    """What is wrong in the block is noted; only a mixed-up table would show a value by it."""
    try:
        yield
    except UserError as error:
        imputable = "missing values" in str(error)
        problems.append(Problem(str(error), str(error), column, imputable))


def _summarise_feature(values: pd.Series, search: Search, fewest: int) -> ColumnSummary:
    if are_dates(values.dropna()):
        raise UserError(f"column {values.name!r} holds dates; turn it into numbers or leave it out")
    summary = summarise_column(values, str(values.name) in search.categories)
    if summary.kind == "number":
        _refuse_few(summary, fewest)
    if summary.kind == "category":
        _refuse_names(summary)
        summary = dataclasses.replace(summary, counts=_common(summary.counts, fewest))
        if not summary.counts:
            raise UserError(f"column {values.name!r} has no value that {fewest} training rows share")
        if search.missing == "refuse":  # nothing will be filled in with the most frequent one
            summary = dataclasses.replace(summary, counts=_uncounted(summary.counts))
    return dataclasses.replace(summary, has_missing=summary.has_missing and search.missing == "indicate")


def _summarise_target(values: pd.Series, training: pd.Series, search: Search, fewest: int) -> ColumnSummary:
    """Classes, or moments of numbers, or both where others' tables decide which it is."""
    name = search.target
    if search.classes:
        return ColumnSummary(name, "empty")
    is_number = is_number_column(values)
    if search.task == "regression" and not is_number:
        raise UserError(f"the target {name!r} holds texts: regression needs numbers")
    whole = not is_number or not (as_numbers(values) % 1).any()
    if search.task == "classification" and not whole:
        raise UserError(f"the target {name!r} has numbers with fractions; set schema.task=regression")
    classes = sorted(set(as_text(values))) if whole and search.task != "regression" else []
    if is_number and search.task == "auto" and len(classes) > MOST_WHOLE_CLASSES:
        classes = []
    if len(classes) > MOST_CATEGORIES:
        raise UserError(
            f"the target {name!r} has {len(classes)} different values, too many for classes that are found "
            f"together (at most {MOST_CATEGORIES}); list them in schema.classes"
        )
    if classes:
        counts = {str(text): int(count) for text, count in as_text(values).value_counts().items()}
        classes = sorted(_common(counts, fewest))
    if not is_number:
        return ColumnSummary(name, "category", counts=_uncounted(classes))
    if search.task == "classification":
        return ColumnSummary(name, "number", counts=_uncounted(classes))
    summary = dataclasses.replace(summarise_column(training, is_category=False), counts=_uncounted(classes))
    _refuse_few(summary, fewest)
    return summary


def _refuse_missing_values(values: pd.Series, search: Search) -> None:
    if search.missing == "refuse" and (absent := int(values.isna().sum())):
        raise UserError(
            f"column {values.name!r} has {absent} missing values; fill them in, leave it out, or agree on "
            "schema.missing=impute or schema.missing=indicate"
        )


def _refuse_few(summary: ColumnSummary, fewest: int) -> None:
    if (count := summary.moments.count) < fewest:
        raise UserError(
            f"column {summary.name!r} has {count} values in training rows, and a summary of fewer than "
            f"{fewest} would show them; write the schema's columns by hand, or leave it out"
        )


def _refuse_names(summary: ColumnSummary) -> None:
    different, rows = len(summary.counts), sum(summary.counts.values())
    summary.fit()  # refuses too many categories
    if are_names(different, rows):
        raise UserError(
            f"column {summary.name!r} has {different} different texts in {rows} training rows, as names or "
            "identifiers have; leave it out"
        )


def _common(counts: Mapping[str, int], fewest: int) -> dict[str, int]:
    """Those that several rows have."""
    return {text: count for text, count in counts.items() if count >= fewest}


def _uncounted(categories: Iterable[str]) -> dict[str, int]:
    """Which categories there are, in an order that does not tell how often."""
    return dict.fromkeys(sorted(categories), 0)


def _is_possible(column: ColumnSummary) -> bool:
    """Whether a summary that was sent can be one, and can be joined with others."""
    moments = column.moments
    counts = (moments.count, *column.counts.values())
    codes = column.counts if column.kind == "number" else ()
    return (
        all(0 <= count <= _LARGEST_COUNT for count in counts)
        and abs(moments.mean) < _LARGEST
        and 0 <= moments.squares < _LARGEST
        and all(re.fullmatch(r"-?\d{1,18}", code) for code in codes)
        and len(column.counts) <= MOST_CATEGORIES
    )
