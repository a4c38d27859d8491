"""What can be measured of a run besides its metrics: a number, one for each client, or a sequence.

`diagnostic:NAME` is what a method tells of itself, at the round that is asked for; `path:NAME` all of it, one
round after the other; `mean:NAME` its mean over all rounds.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder

Measured = "float | np.ndarray | pd.Series[float]"
BITS_PER_MEGABYTE = 8e6


def seconds_per_round(run: RunFolder) -> float:
    """Of training, without evaluation."""
    timing = run.timing().sort_values("round")
    return float(timing["seconds"].iloc[-1] / timing["round"].iloc[-1])


def megabytes(run: RunFolder) -> float:
    """Sent in both directions in the whole run."""
    return float(run.rounds()[["down_bits", "up_bits"]].to_numpy().sum() / BITS_PER_MEGABYTE)


def megabytes_up(run: RunFolder) -> float:
    """Sent by clients in the whole run."""
    return float(run.rounds()["up_bits"].sum() / BITS_PER_MEGABYTE)


QUANTITIES: dict[str, Callable[[RunFolder], float]] = {
    function.__name__: function for function in (seconds_per_round, megabytes, megabytes_up)
}
DIAGNOSTIC, PATH, MEAN = "diagnostic:", "path:", "mean:"


def is_quantity(name: str) -> bool:
    """Whether something is measured of a run, and not of its models."""
    return name in QUANTITIES or name.startswith((DIAGNOSTIC, PATH, MEAN))


def measure(run: RunFolder, name: str, at: int | str) -> np.ndarray:
    """A quantity as an array; most have one number."""
    if name in QUANTITIES:
        return np.array([QUANTITIES[name](run)])
    way, _, told = name.partition(":")
    known = _told(run, told)
    if way == "mean":
        return np.array([known["value"].mean()])
    if way == "path":
        return known.sort_values(["round", "index"])["value"].to_numpy()
    number = at if isinstance(at, int) else int(known["round"].max())
    return known[known["round"] == number].sort_values("index")["value"].to_numpy()


def _told(run: RunFolder, name: str) -> pd.DataFrame:
    """All that a method told under a name."""
    table = run.diagnostics()
    known = table[table["name"] == name]
    if known.empty:
        names = ", ".join(dict.fromkeys(table["name"])) or "nothing"
        raise UserError(f"the run {str(run.path)!r} tells nothing called {name!r}; it tells {names}")
    return known
