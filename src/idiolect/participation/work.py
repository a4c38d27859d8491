"""How much of its local work a client completes: laws, each a pure function of (seed, round, client).

| law     | fraction of the local work                                                             |
|---------|----------------------------------------------------------------------------------------|
| fixed   | the same number for everybody; a plain number means this                               |
| uniform | drawn anew from [low, high] for each client and round: with [0, 1] and E local steps,  |
|         | the steps are uniform on {0, .., E}                                                    |
| speed   | each client's own, drawn once from [slowest, 1]                                        |
| size    | min(1, (median rows / own rows) ** power): all have the same time, large clients       |
|         | do not finish; a negative power makes small clients the slow ones                      |
| classes | `slow` for those who have most of the upper half of the classes, else all: who is slow    |
|         | has other data than the rest                                                           |
| trace   | read from a file, again from its beginning after its last round                        |

0 is an inactive client: as if it had never been asked.
"""

import csv
import math
from dataclasses import dataclass as plain_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import rng
from idiolect.core.cohort import Cohort
from idiolect.core.hyper import STRICT
from idiolect.errors import UserError, did_you_mean

Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class Fixed:
    """The same fraction always."""

    fraction: Fraction = 1.0
    law: Literal["fixed"] = "fixed"

    def fractions(self, seed: int, round_number: int, cohort: Cohort, names: tuple[str, ...]) -> Tensor:
        """Of every client of the cohort, float64[m]."""
        return torch.full((len(cohort),), self.fraction, dtype=torch.float64)


@dataclass(frozen=True, config=STRICT)
class UniformWork:
    """A fraction drawn anew for each client and round."""

    low: Fraction = 0.0
    high: Fraction = 1.0
    law: Literal["uniform"] = "uniform"

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} must not be above high = {self.high}")
        return self

    def fractions(self, seed: int, round_number: int, cohort: Cohort, names: tuple[str, ...]) -> Tensor:
        """low + (high - low) * u."""
        draw = rng.uniform(rng.key(seed, "work", cohort.ids, round_number))
        return self.low + (self.high - self.low) * draw


@dataclass(frozen=True, config=STRICT)
class Speed:
    """A fraction of each client's own, the same in every round."""

    slowest: Fraction = 0.1
    law: Literal["speed"] = "speed"

    def fractions(self, seed: int, round_number: int, cohort: Cohort, names: tuple[str, ...]) -> Tensor:
        """slowest + (1 - slowest) * u."""
        return self.slowest + (1 - self.slowest) * rng.uniform(rng.key(seed, "speed", cohort.ids))


@dataclass(frozen=True, config=STRICT)
class BySize:
    """A fraction that follows from the number of training rows."""

    power: float = 1.0
    law: Literal["size"] = "size"

    def fractions(self, seed: int, round_number: int, cohort: Cohort, names: tuple[str, ...]) -> Tensor:
        """min(1, (median / n_k) ** power)."""
        median = cohort.population.sizes.to(torch.float64).median()
        return (median / cohort.sizes).pow(self.power).clamp(max=1.0)


@dataclass(frozen=True, config=STRICT)
class ByClasses:
    """Clients with the largest shares of training rows of the upper half of the classes are slow."""

    slow: Fraction = 0.3
    share: Fraction = 0.5
    law: Literal["classes"] = "classes"

    def settled(self, upper_shares: Tensor | None) -> "OwnWork":
        """Each client's fraction; of clients with the same share of such rows the later ones are slow first.

        upper_shares: the share of each client's training rows that are of the upper half of the classes.
        """
        if upper_shares is None:
            raise UserError(
                "participation.work=classes is not possible: it needs clients whose rows are here and have "
                "classes; let data.task be classification, or choose another law, such as size"
            )
        clients = len(upper_shares)
        fast = math.floor((1 - self.share) * clients + 1e-9)
        work = torch.ones(clients, dtype=torch.float64)
        work[upper_shares.argsort(stable=True)[fast:]] = self.slow
        return OwnWork(work)


@plain_dataclass(frozen=True)
class OwnWork:
    """A fraction of each client's own that follows from its data, the same in every round."""

    work: Tensor  # float64[clients]

    def fractions(self, seed: int, round_number: int, cohort: Cohort, names: tuple[str, ...]) -> Tensor:
        """Of every client of the cohort."""
        return self.work[cohort.ids]


@dataclass(frozen=True, config=STRICT)
class Trace:
    """Fractions from a CSV file with the columns round, client and work; who is not listed is inactive."""

    file: Path
    law: Literal["trace"] = "trace"

    def fractions(self, seed: int, round_number: int, cohort: Cohort, names: tuple[str, ...]) -> Tensor:
        """What the file says for this round, counted anew after its last one."""
        table = _read_trace(self.file, names)
        return table[round_number % len(table)][cohort.ids]


@lru_cache(maxsize=8)
def _read_trace(file: Path, names: tuple[str, ...]) -> Tensor:
    """The file as float64[rounds, clients]."""
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            lines = list(csv.DictReader(stream))
    except OSError:
        raise UserError(f"participation.work: the trace file '{file}' cannot be read") from None
    entries = [_trace_entry(file, number, line, names) for number, line in enumerate(lines, start=2)]
    if not entries:
        raise UserError(f"participation.work: the trace file '{file}' has no line besides its header")
    table = torch.zeros(max(entry[0] for entry in entries) + 1, len(names), dtype=torch.float64)
    for round_number, client, work in entries:
        table[round_number, client] = work
    return table


def _trace_entry(
    file: Path, number: int, line: dict[str, str], names: tuple[str, ...]
) -> tuple[int, int, float]:
    try:
        round_number, name, work = int(line["round"]), line["client"], float(line["work"])
        well_formed = round_number >= 0 and 0 <= work <= 1
    except (KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed:
        raise UserError(
            f"participation.work: line {number} of the trace file '{file}' must have the columns round "
            "(a whole number from 0), client (a name) and work (a number from 0 to 1)"
        )
    return round_number, client_number(name, names, f"line {number} of the trace file '{file}'"), work


def client_number(name: str, names: tuple[str, ...], where: str) -> int:
    """The number of a client by its name."""
    if name not in names:
        raise UserError(f"{where}: there is no client '{name}'{did_you_mean(name, names)}")
    return names.index(name)


def _number_means_fixed(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"law": "fixed", "fraction": value}
    return {"law": value} if isinstance(value, str) else value


SettledLaw = Fixed | UniformWork | Speed | BySize | OwnWork | Trace  # that needs nothing more of the data

# What a field is declared as: a law, its name for its defaults, or a number for a fixed fraction.
WorkLaw = Annotated[
    Fixed | UniformWork | Speed | BySize | ByClasses | Trace,
    Field(discriminator="law"),
    BeforeValidator(_number_means_fixed),
]
