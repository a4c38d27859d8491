"""A folder with one table for each client."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from idiolect.data.reading import AS_RECOGNISED, TABLE_SUFFIXES, Reading, Table, read_file, suffix
from idiolect.errors import UserError


def read_folder(path: str | Path, reading: Reading = AS_RECOGNISED) -> tuple[Table, str]:
    """One table from a folder with a file for each client, and the column that holds the files' names."""
    files = table_files(path)
    if not files:
        raise UserError(f"the folder {str(path)!r} has no files that end in {', '.join(TABLE_SUFFIXES)}")
    tables: dict[str, Table] = {}
    for file in files:
        name = file.name[: -len(suffix(file))]
        if name in tables:
            raise UserError(f"the folder {str(path)!r} has two files for the client {name!r}; keep one")
        table = read_file(file, reading)
        lines = [f"{line} of {file.name}" for line in table.frame.index]
        table.frame.index = pd.Index(lines, name=table.frame.index.name)
        tables[name] = table
    first_name, first = next(iter(tables.items()))
    for name, table in tables.items():
        if different := set(table.frame.columns) ^ set(first.frame.columns):
            raise UserError(
                f"the files of {first_name!r} and {name!r} differ in columns: {sorted(different)}"
            )
    column = "client"
    while column in first.frame.columns:
        column = f"{column}_"
    frames = [table.frame.assign(**{column: name}) for name, table in tables.items()]
    joined = pd.concat(frames)
    joined.index.name = first.frame.index.name
    notes = [f"{name}: {note}" for name, table in tables.items() for note in table.notes]
    doubts = {name: doubt for table in tables.values() for name, doubt in table.doubts.items()}
    return Table(joined, _shortened(notes), doubts), column


def table_files(folder: str | Path) -> list[Path]:
    """The CSV and Parquet files of a folder, in the order of their names."""
    return sorted(file for file in Path(folder).iterdir() if file.is_file() and suffix(file))


def _shortened(notes: Sequence[str], most: int = 10) -> tuple[str, ...]:
    """Notes of many files: the first few."""
    more = (f"and {len(notes) - most} more such notes",) if len(notes) > most else ()
    return (*notes[:most], *more)
