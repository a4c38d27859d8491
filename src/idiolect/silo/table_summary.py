"""What a silo tells of its table when a schema is to be found together: sums over its rows, never a row.

| column    | told                                                                                        |
|-----------|---------------------------------------------------------------------------------------------|
| numbers   | how many training rows have a value, their mean, the sum of squared deviations from it      |
| category  | which values there are in training rows; how often each, only if missing values are imputed |
| missing   | whether training rows miss a value, only if missing values are indicated                    |
| target    | as numbers, or which classes there are in all rows                                          |

What would come close to telling rows is refused: numbers of very few rows, and texts that nearly every row
has one of its own of, such as names.
"""

import dataclasses
import re
from collections.abc import Iterable
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


def summarise(table: pd.DataFrame, name: str, search: Search) -> TableSummary:
    """What silo `name` tells of its table."""
    table = table.rename(columns=str)
    require_column(table, search.target, "target column")
    table, _ = without_missing_targets(table, search.target, search.missing)
    training = table.iloc[
        split_rows(len(table), name, search.fractions, search.split_seed).train.index.numpy()
    ]
    features = [column for column in table.columns if column != search.target]
    if search.missing == "refuse":
        _refuse_missing_values(table[features])
    columns = (_summarise_feature(training[column], search) for column in features)
    return TableSummary(
        tuple(columns), _summarise_target(table[search.target], training[search.target], search)
    )


def _summarise_feature(values: pd.Series, search: Search) -> ColumnSummary:
    if are_dates(values.dropna()):
        raise UserError(
            f"column {values.name!r} holds dates; turn it into numbers or leave it out with --ignore"
        )
    summary = summarise_column(values, str(values.name) in search.categories)
    if summary.kind == "number":
        _refuse_few(summary)
    if summary.kind == "category":
        _refuse_names(summary)
        if search.missing == "refuse":  # nothing will be filled in with the most frequent one
            summary = dataclasses.replace(summary, counts=_uncounted(summary.counts))
    return dataclasses.replace(summary, has_missing=summary.has_missing and search.missing == "indicate")


def _summarise_target(values: pd.Series, training: pd.Series, search: Search) -> ColumnSummary:
    """Classes, or moments of numbers, or both where others' tables decide which it is."""
    name = search.target
    if search.classes:
        return ColumnSummary(name, "empty")
    is_number = is_number_column(values)
    if search.task == "regression" and not is_number:
        raise UserError(f"the target {name!r} holds {values.iloc[0]!r}: regression needs numbers")
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
    if not is_number:
        return ColumnSummary(name, "category", counts=_uncounted(classes))
    if search.task == "classification":
        return ColumnSummary(name, "number", counts=_uncounted(classes))
    summary = dataclasses.replace(summarise_column(training, is_category=False), counts=_uncounted(classes))
    _refuse_few(summary)
    return summary


def _refuse_missing_values(features: pd.DataFrame) -> None:
    for name, absent in features.isna().sum().items():
        if absent:
            raise UserError(
                f"column {name!r} has {absent} missing values; fill them in, leave it out with --ignore, or "
                "agree on schema.missing=impute or schema.missing=indicate"
            )


def _refuse_few(summary: ColumnSummary) -> None:
    if (count := summary.moments.count) < FEWEST_VALUES:
        raise UserError(
            f"column {summary.name!r} has {count} values in training rows, and a summary of fewer than "
            f"{FEWEST_VALUES} would show them; write the schema's columns by hand, or leave it out with "
            "--ignore"
        )


def _refuse_names(summary: ColumnSummary) -> None:
    different, rows = len(summary.counts), sum(summary.counts.values())
    summary.fit()  # refuses too many categories
    if are_names(different, rows):
        raise UserError(
            f"column {summary.name!r} has {different} different texts in {rows} training rows, as names or "
            "identifiers have; leave it out with --ignore"
        )


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
