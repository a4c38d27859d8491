"""Numbers as people write them: with a decimal point or comma, and with marks between thousands.

"1,5" can only have a decimal comma and "1,234,567" only commas between thousands; "1,234" may be either, and
what it is in a file follows from the others. Where nothing tells, the user is asked.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

DecimalMark = Literal[".", ","]

_BETWEEN_THOUSANDS = re.compile(r"(?<=\d)[ '’\u00a0\u202f](?=\d{3}(?!\d))")
_MARKED_POINT = re.compile(r"[1-9]\d{0,2}\.\d{3}")


def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    whole = rf"([1-9]\d{{0,2}}({thousands}\d{{3}})+|\d+)"
    number = rf"({whole}({decimal}\d*)?|{decimal}\d+)(e[+-]?\d+)?"
    return re.compile(rf"[+-]?({number}|inf|infinity)", re.IGNORECASE)


_NUMBER: dict[DecimalMark, re.Pattern[str]] = {".": _pattern(r"\.", ","), ",": _pattern(",", r"\.")}


def is_number_text(text: str) -> bool:
    """Whether a text is a number, by one of the two decimal marks.

    >>> [is_number_text(text) for text in ("1.5", "1,5", "1'234", "1.234.567,8", "?", "1-2")]
    [True, True, True, True, False, False]
    """
    bare = _bare(text)
    return any(pattern.fullmatch(bare) for pattern in _NUMBER.values())


@dataclass(frozen=True)
class NumberShape:
    """What a column of numbers shows of how they are written: a text for each, or None."""

    comma: str | None = None  # it has a decimal comma for certain
    point: str | None = None  # it has a decimal point for certain
    either_comma: str | None = None  # as in "1,234": the comma is a decimal one or between thousands
    either_point: str | None = None  # as in "1.234"


def shape_of(texts: "pd.Series[str]") -> NumberShape | None:
    """How the numbers of a column are written; None if some of its texts are no numbers."""
    if _plain_numbers(texts) is not None:  # most columns: no need to look at each
        dotted = texts[texts.str.contains(".", regex=False)]
        point = next((t for t in dotted if not _MARKED_POINT.fullmatch(t.strip().lstrip("+-"))), None)
        return NumberShape(point=point, either_point=None if dotted.empty else dotted.iloc[0])
    found: dict[str, str] = {}
    for text in texts.unique():
        bare = _bare(text)
        by_point, by_comma = _NUMBER["."].fullmatch(bare), _NUMBER[","].fullmatch(bare)
        if not by_point and not by_comma:
            return None
        if by_point and by_comma:
            kind = "either_comma" if "," in bare else "either_point" if "." in bare else ""
        else:
            kind = "point" if by_point else "comma"
        found.setdefault(kind, text)
    found.pop("", None)
    return NumberShape(**found)


def as_written(texts: "pd.Series[str]", decimal: DecimalMark) -> "pd.Series[float] | None":
    """The numbers that texts stand for under a decimal mark; None if some of them are no numbers."""
    if decimal == "." or not texts.str.contains(".", regex=False).any():
        numbers = _plain_numbers(texts)
        if numbers is not None:
            return numbers
    bare = texts.map(_bare)
    if not bare.map(lambda text: _NUMBER[decimal].fullmatch(text) is not None).all():
        return None
    thousands = "," if decimal == "." else "."
    plain = bare.str.replace(thousands, "", regex=False).str.replace(decimal, ".", regex=False)
    return pd.to_numeric(plain)


def _plain_numbers(texts: "pd.Series[str]") -> "pd.Series[float] | None":
    """Texts that all are numbers with decimal points and nothing else, as numbers."""
    trimmed = pc.utf8_trim_whitespace(pa.array(texts, pa.string()))
    for kind in (pa.int64(), pa.float64()):
        try:
            numbers = trimmed.cast(kind).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            continue
        return pd.Series(numbers, index=texts.index, name=texts.name)
    return None


def _bare(text: str) -> str:
    return _BETWEEN_THOUSANDS.sub("", text.strip().replace("\u2212", "-"))


def whole(numbers: "pd.Series[float]") -> bool:
    """Whether all numbers are whole."""
    values = numbers.to_numpy(np.float64)
    return bool((np.isfinite(values) & (np.floor(values) == values)).all())
