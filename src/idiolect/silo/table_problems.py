"""All that is wrong with a silo's table at once: in the silo's own words, and in those that may leave it.

What leaves has names of columns, counts and kinds, never a value of a row.
"""

import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from idiolect.errors import UserError


class Problem(NamedTuple):
    """One thing that is wrong."""

    own: str  # for the silo's own log
    told: str  # for the coordinator
    ignore: str = ""  # the column that it would help to leave out
    impute: bool = False  # whether filling in missing values would help


class TableProblemsError(UserError):
    """All of them; `told` is what the coordinator gets."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(_sentence([problem.own for problem in problems], problems))
        self.told = _sentence([problem.told for problem in problems], problems)


def refuse_problems(problems: Iterable[Problem]) -> None:
    """Say what is wrong, if anything is."""
    if found := list(problems):
        raise TableProblemsError(found)


def _sentence(texts: Sequence[str], problems: Sequence[Problem]) -> str:
    lines = []
    if columns := list(dict.fromkeys(problem.ignore for problem in problems if problem.ignore)):
        lines.append(f"at the silo --ignore {shlex.quote(','.join(columns))}")
    if any(problem.impute for problem in problems):
        lines.append("at the coordinator, for a new run, schema.missing=impute")
    told = "; ".join(dict.fromkeys(texts))
    return f"{told} (what helps: {'; '.join(lines)})" if lines else told
