"""What a silo tells of its table at most, whatever is asked for and by however many runs.

    summary.json    the target, the split and the codes that a summary was first told for, and a hash of each
                    column
    misfits.json    how often it was said that the table does not fit what was to be agreed

One summary of a table, because differences of two would tell rows. Whoever asks again, with another seed or
other fractions, gets the sums over the same rows. A table in which values have changed is not summarised
again, nor is another target, which may leave other rows out, nor are numbers as codes that were told as
numbers: of all of them and of the common ones the difference is the rare ones. The silo can decide otherwise
by removing files.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.data.preprocessing import is_number_column
from idiolect.errors import UserError
from idiolect.silo.schema import Search
from idiolect.store.files import read_json, write_json

_FILE, _MISFITS = "summary.json", "misfits.json"
FORMAT = "idiolect-summary-1"


class SummaryBudget:
    """What was told of a table, kept in the silo's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE

    def admit(self, search: Search, table: pd.DataFrame) -> Search:
        """The search as it is answered: on the rows that were told of first."""
        told = self._told()
        if told is None:
            return search
        remedy = f"; to allow it remove {_FILE} from this silo's state folder"
        if told["target"] != search.target:
            raise UserError(f"this silo has told a summary for the target {told['target']!r} already{remedy}")
        now = _hashes(table)
        if changed := [
            name for name, content in told["columns"].items() if now.get(name, content) != content
        ]:
            raise UserError(
                f"this silo has told a summary already, and {', '.join(map(repr, changed))} has other values "
                f"now: two summaries would show which{remedy}"
            )
        numbers = [name for name in told["columns"] if name in now and is_number_column(table[name])]
        if other := [name for name in numbers if (name in search.categories) != (name in told["categories"])]:
            raise UserError(
                f"this silo has told a summary already, and {', '.join(map(repr, other))} the other way, as "
                f"numbers or as codes: both together would show rare values{remedy}"
            )
        first, second, third = told["fractions"]
        return dataclasses.replace(
            search, fractions=(first, second, third), split_seed=int(told["split_seed"])
        )

    def spend(self, search: Search, table: pd.DataFrame) -> None:
        """Remember what is told, before it is."""
        told = self._told()
        columns, codes = ({}, []) if told is None else (told["columns"], told["categories"])
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(
            self.path,
            {
                "format": FORMAT,
                "target": search.target,
                "fractions": list(search.fractions),
                "split_seed": search.split_seed,
                "categories": sorted({*codes, *search.categories}),
                "columns": {**columns, **_hashes(table)},
            },
        )

    def _told(self) -> dict[str, Any] | None:
        if not self.path.is_file():
            return None
        told: dict[str, Any] = read_json(self.path)
        if told.get("format") != FORMAT:
            raise UserError(f"{str(self.path)!r} is not of the format {FORMAT}")
        return {"categories": [], **told}  # which was not kept at first


class MisfitBudget:
    """How often a silo says that its table does not fit: each time tells a little of it."""

    def __init__(self, folder: Path, most: int) -> None:
        self.path = folder / _MISFITS
        self.most = most

    def require_left(self) -> None:
        """Refuse when all of it is spent."""
        if self._count() >= self.most:
            raise UserError(
                f"this silo has said {self.most} times that its table does not fit and says no more; "
                f"to allow it remove {_MISFITS} from its state folder"
            )

    def spend(self) -> None:
        """Count one more."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(self.path, {"count": self._count() + 1})

    def _count(self) -> int:
        return int(read_json(self.path)["count"]) if self.path.is_file() else 0


def _hashes(table: pd.DataFrame) -> dict[str, str]:
    """What tells a column from a changed one."""
    return {str(name): _hash(table[name]) for name in table.columns}


def _hash(values: pd.Series) -> str:
    plain = values if pd.api.types.is_numeric_dtype(values) else values.astype(str)
    return hashlib.sha256(pd.util.hash_pandas_object(plain, index=False).to_numpy().tobytes()).hexdigest()
