"""The tables of a run, and their columns."""

from typing import Literal

import pandas as pd

from idiolect.evaluation.metrics import COLUMNS

TableName = Literal["metrics", "rounds", "traffic", "diagnostics", "timing", "privacy"]
TABLES: dict[TableName, tuple[str, ...]] = {
    "metrics": COLUMNS,
    "rounds": ("round", "down_bits", "up_bits", "brief_bits"),
    "traffic": ("round", "client", "direction", "part", "bits"),
    "diagnostics": ("round", "name", "index", "value"),
    "timing": ("round", "seconds"),
    "privacy": ("round", "client", "gradients", "releases", "epsilon"),
}
# Of the tables that may be empty.
TYPES = {
    "round": "int64",
    "down_bits": "int64",
    "up_bits": "int64",
    "brief_bits": "int64",
    "client": "str",
    "direction": "str",
    "part": "str",
    "bits": "int64",
    "name": "str",
    "index": "int64",
    "value": "float64",
    "seconds": "float64",
    "gradients": "int64",
    "releases": "int64",
    "epsilon": "float64",
}


def join(name: TableName, parts: list[pd.DataFrame]) -> pd.DataFrame:
    """The whole table from its parts."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return parts[0] if parts else pd.DataFrame(columns=list(TABLES[name]))
    return pd.concat(filled, ignore_index=True)
