"""What a message tells the user to type, so that it can be typed as it stands."""

import json
import re
import shlex
from collections.abc import Iterable

import pandas as pd

# What a shell and YAML both leave alone; the words that YAML takes for something else than a text.
_PLAIN = re.compile(r"[\w.%/+-][\w.,%/+-]*")
_WORDS = re.compile(r"(yes|no|on|off|true|false|null)", re.IGNORECASE)


def typed(setting: str, values: str | Iterable[str]) -> str:
    r"""A setting as it can be typed after a command.

    >>> typed("data.ignore", ["x", "z"]), typed("data.ignore", "patient name")
    ('data.ignore=x,z', '\'data.ignore=["patient name"]\'')
    """
    given = [values] if isinstance(values, str) else list(values)
    simple = all(_PLAIN.fullmatch(v) and "," not in v and not _WORDS.fullmatch(v) for v in given)
    if simple:
        return f"{setting}={','.join(given)}"
    return shlex.quote(f"{setting}={json.dumps(given, ensure_ascii=False)}")


def names(given: str | Iterable[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """Several names, given as a list or as a text with commas; a text that is known is one name.

    >>> names("x,z"), names(["x", "z"]), names("a,b", known=["a,b", "c"])
    (('x', 'z'), ('x', 'z'), ('a,b',))
    """
    if not isinstance(given, str):
        return tuple(given)
    if given in set(known):
        return (given,)
    return tuple(part.strip() for part in given.split(",") if part.strip())


def listed(texts: Iterable[str], most: int = 8) -> str:
    """Some texts, quoted; of many the first few."""
    found = list(texts)
    shown = ", ".join(repr(text) for text in found[:most])
    return shown if len(found) <= most else f"{shown} and {len(found) - most} more"


def place(marked: "pd.Series[bool]") -> str:
    """The first row that is marked, as its file numbers it: the table's index has the lines."""
    at = int(marked.to_numpy().argmax())
    named = marked.index.name in ("line", "row")
    return f"{marked.index.name} {marked.index[at]}" if named else f"row {at + 1}"
