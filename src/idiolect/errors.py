"""The one exception for what a user can mend, a hint at what was meant, and what other errors say."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """A user's mistake, told in one sentence: the field, the value, and what would be right."""


class DivergenceError(UserError):
    """Numbers grew until they were not finite, and a method cannot go on with them: an end of a training."""


def require_finite(values: Any, what: str) -> None:
    """Say that a training has diverged where something that a method computes with is not finite."""
    if not values.isfinite().all():
        raise DivergenceError(f"{what} are not finite")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A parenthesis with the nearest known names, or nothing; to be put after the unknown one.

    >>> did_you_mean("partion", ["partition", "clients"])
    ' (did you mean partition?)'
    """
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def first_sentence(error: Exception) -> str:
    """What an error says first, without the advice that follows.

    >>> first_sentence(RuntimeError("this cannot be done. Please file an issue."))
    'this cannot be done'
    """
    return str(error).strip().split("\n")[0].split(". ")[0] or type(error).__name__
