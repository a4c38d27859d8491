"""What can be measured of a run besides its metrics: a number, one for each client, or a sequence.

| name                                 | what                                                                |
|--------------------------------------|---------------------------------------------------------------------|
| seconds_per_round, megabytes,        | of the whole run                                                    |
| megabytes_up                         |                                                                     |
| diagnostic:NAME                      | what a method tells of itself, at the round that is asked for       |
| path:NAME, mean:NAME                 | all of it, one round after the other; its mean over all rounds      |
| late_mean:NAME, late_change:NAME,    | how it develops (`trends.py`)                                       |
| settled:NAME                         |                                                                     |
| own_mass, same_class_mass,           | from whom clients learn at that round, a number for each of them    |
| same_group_mass                      | (`helpers.py`)                                                      |
| and those of `course.py`             | how a run went                                                      |
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.reports.averages import BITS_PER_MEGABYTE
from idiolect.reproduction.course import OF_COURSE
from idiolect.reproduction.helpers import own_mass, same_class_mass, same_group_mass
from idiolect.reproduction.trends import late_change, late_mean, settled
from idiolect.runs.folder import RunFolder


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
TRENDS: dict[str, Callable[[pd.DataFrame], float]] = {
    function.__name__: function for function in (late_mean, late_change, settled)
}
OF_WEIGHTS: dict[str, Callable[[np.ndarray, Federation], np.ndarray]] = {
    function.__name__: function for function in (own_mass, same_class_mass, same_group_mass)
}
DIAGNOSTIC, PATH, MEAN = "diagnostic", "path", "mean"


def is_quantity(name: str) -> bool:
    """Whether something is measured of a run, and not of its models."""
    ways = (DIAGNOSTIC, PATH, MEAN, *TRENDS, *OF_COURSE)
    return name in (*QUANTITIES, *OF_WEIGHTS) or name.partition(":")[0] in ways


def words_of(name: str) -> str:
    """A quantity as an axis names it.

    >>> words_of("diagnostic:effective_helpers"), words_of("megabytes_of:w:delta"), words_of("own_mass")
    ('effective helpers', 'megabytes of w, delta', 'own mass')
    """
    way, _, told = name.partition(":")
    if way == DIAGNOSTIC:
        way, told = told, ""
    return " ".join([*way.split("_"), ", ".join(told.split(":"))]).strip()


def measure(run: RunFolder, name: str, at: int | str) -> np.ndarray:
    """A quantity as an array; most have one number."""
    way, _, told = name.partition(":")
    if name in QUANTITIES:
        return np.array([QUANTITIES[name](run)])
    if name in OF_WEIGHTS:
        return OF_WEIGHTS[name](diagnostic(run, "mixing_matrix", at), run.federation())
    if way in OF_COURSE:
        return np.array([OF_COURSE[way](run, *told.split(":"))])
    if way in TRENDS:
        return np.array([TRENDS[way](_told(run, told).pivot(index="round", columns="index", values="value"))])
    if way == MEAN:
        return np.array([_told(run, told)["value"].mean()])
    if way == PATH:
        return _told(run, told).sort_values(["round", "index"])["value"].to_numpy()
    return diagnostic(run, told, at)


def diagnostic(run: RunFolder, name: str, at: int | str) -> np.ndarray:
    """What a method told at a round, the last one unless it is a number."""
    told = _told(run, name)
    number = at if isinstance(at, int) else int(told["round"].max())
    return told[told["round"] == number].sort_values("index")["value"].to_numpy()


def _told(run: RunFolder, name: str) -> pd.DataFrame:
    """All that a method told under a name."""
    table = run.diagnostics()
    known = table[table["name"] == name]
    if known.empty:
        names = ", ".join(dict.fromkeys(table["name"])) or "nothing"
        raise UserError(f"the run {str(run.path)!r} tells nothing called {name!r}; it tells {names}")
    return known
