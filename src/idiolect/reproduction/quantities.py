"""What can be measured of a run besides its metrics: a number, one for each client, or a sequence.

`diagnostic:NAME` is what a method tells of itself, at the round that is asked for. How a run went is in
`course.py`.
"""

from collections.abc import Callable

import numpy as np

from idiolect.errors import UserError
from idiolect.reproduction.course import OF_COURSE
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
DIAGNOSTIC = "diagnostic:"


def is_quantity(name: str) -> bool:
    """Whether something is measured of a run, and not of its models."""
    return name in QUANTITIES or name.startswith(DIAGNOSTIC) or name.partition(":")[0] in OF_COURSE


def measure(run: RunFolder, name: str, at: int | str) -> np.ndarray:
    """A quantity as an array; most have one number."""
    kind, _, of = name.partition(":")
    if kind in OF_COURSE:
        return np.array([OF_COURSE[kind](run, *of.split(":"))])
    if not name.startswith(DIAGNOSTIC):
        return np.array([QUANTITIES[name](run)])
    return diagnostic(run, name.removeprefix(DIAGNOSTIC), at)


def diagnostic(run: RunFolder, name: str, at: int | str) -> np.ndarray:
    """What a method told at a round, the last one unless it is a number."""
    table = run.diagnostics()
    known = table[table["name"] == name]
    if known.empty:
        names = ", ".join(dict.fromkeys(table["name"])) or "nothing"
        raise UserError(f"the run {str(run.path)!r} tells nothing called {name!r}; it tells {names}")
    number = at if isinstance(at, int) else int(known["round"].max())
    return known[known["round"] == number].sort_values("index")["value"].to_numpy()
