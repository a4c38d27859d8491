"""Columns that are no features (dates, row numbers, names, identifiers); numbers with texts among them."""

import re
from collections.abc import Sequence

import pandas as pd

from idiolect.data.hints import place, typed
from idiolect.data.number_texts import is_number_text, whole
from idiolect.data.reading import holds_texts
from idiolect.errors import UserError

FEWEST_NAMES = 10  # more different texts than this, and more than half as many as rows, may be names
FEWEST_TO_COUNT = 3  # rows of which one can say that a column counts them

_TIME = r"([T ]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?( ?(Z|[+-]\d{2}:?\d{2}|UTC))?)?"
_MONTH = r"(jan|feb|mar|mär|mrz|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zä]*"
_DATE = re.compile(
    rf"(\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}([-/.])\d{{1,2}}\2(\d{{4}}|\d{{2}})"
    rf"|\d{{1,2}}[-. ]+{_MONTH}[-., ]+\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}}){_TIME}",
    re.IGNORECASE,
)
_IDENTIFIER_WORDS = frozenset(
    ("id", "ids", "uuid", "guid", "index", "idx", "key", "rowid", "rownum", "identifier")
)
_UNIT = re.compile(r"[^\w\s.,+-]{0,3}\s*([+-]?[\d.,' ]*\d)\s*(\D{1,3})?")


def reason_to_leave_out(values: pd.Series) -> str | None:
    """Why a column tells nothing of rows that are not there yet; None if it may."""
    present = values.dropna()
    if present.empty:
        return "has no values"
    if are_dates(present):
        return "holds dates"
    if holds_texts(values) or isinstance(values.dtype, pd.CategoricalDtype):
        different = present.astype(str).nunique()
        if are_names(different, len(present)):
            return f"has {different} different texts in {len(present)} rows, as names and identifiers have"
        return None
    if pd.api.types.is_bool_dtype(values) or not pd.api.types.is_numeric_dtype(values):
        return None
    if len(present) < FEWEST_TO_COUNT or not whole(present) or not present.is_unique:
        return None
    if len(present) == len(values) and (present.diff().iloc[1:] == 1).all():
        return "counts the rows"
    return "has a number of its own in each row and an identifier's name" if _names_ids(values) else None


def are_names(different: int, rows: int) -> bool:
    """Whether so many different texts in so many rows are names rather than categories."""
    return 2 * different > rows and (different > FEWEST_NAMES or different == rows >= FEWEST_TO_COUNT)


def are_dates(present: pd.Series) -> bool:
    """Whether a column holds dates, also as texts."""
    if pd.api.types.is_datetime64_any_dtype(present) or isinstance(present.dtype, pd.PeriodDtype):
        return True
    if not holds_texts(present):
        return False
    texts = [str(text).strip() for text in present.unique()]
    dates = sum(_DATE.fullmatch(text) is not None for text in texts)
    return dates > 0.9 * len(texts)


def ask_about_mixture(
    values: pd.Series, missing_values: Sequence[str] = (), *, is_target: bool = False
) -> None:
    """Ask what is meant by a few texts in a column of numbers, besides what is known to mean missing."""
    present = values.dropna()
    if not holds_texts(values) or present.empty or are_dates(present):
        return
    texts = present.astype(str).str.strip()
    different = texts.unique()
    numbers = {text for text in different if is_number_text(text)}
    others = [text for text in different if text not in numbers]
    column = f"the target {values.name!r}" if is_target else f"column {values.name!r}"
    name = str(values.name)
    as_texts = "data.task=classification" if is_target else typed("data.categories", name)
    if not others:
        if len(numbers) > FEWEST_NAMES or not all(text.lstrip("+-").isdigit() for text in numbers):
            raise UserError(
                f"{column} holds numbers as texts, such as {different[0]!r}: set data.decimal=point or "
                f"data.decimal=comma to read them, or {as_texts} if they are codes"
            )
        return
    is_number = texts.isin(numbers)
    more = f" (one of {len(others)} such texts)" if len(others) > 1 else ""
    as_what = "classes" if is_target else "categories"
    as_missing = typed("data.missing_values", [*missing_values, *others[:5]])
    if 2 * is_number.sum() >= len(texts) or 2 * len(numbers) >= len(different):
        raise UserError(
            f"{column} holds numbers and, in {place(~is_number)}, {others[0]!r}{more}: if that means a "
            f"missing value set {as_missing}, if all are {as_what} set "
            f"{as_texts}, or mend the file"
        )
    if len(different) > FEWEST_NAMES and all(_UNIT.fullmatch(text) for text in different):
        raise UserError(
            f"{column} holds numbers with something around them, such as {different[0]!r}: write the numbers "
            f"alone, or set {as_texts}"
        )


def _names_ids(values: pd.Series) -> bool:
    if str(values.name).startswith("Unnamed: "):  # a column without a name: a table's index in another order
        return True
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", str(values.name))
    return bool(_IDENTIFIER_WORDS & set(re.split(r"[\W_]+", words.lower())))
