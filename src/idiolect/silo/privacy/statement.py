"""What a silo's ledger says, for its people."""

from dataclasses import asdict, dataclass
from typing import Any

from idiolect.errors import UserError
from idiolect.silo.privacy.ledger import Entry, Ledger, epsilon_in_all


@dataclass(frozen=True)
class Line:
    """What a run, or all of them together, cost at some δ."""

    run: str
    hides: str  # row, silo or nothing
    answers: int
    row: float  # ε of any one row; infinite: nothing hides it
    silo: float  # ε of the silo as a whole


@dataclass(frozen=True)
class Statement:
    """All lines."""

    delta: float
    runs: tuple[Line, ...]
    in_all: Line

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def statement_of(ledger: Ledger, delta: float) -> Statement:
    """What has been spent at some δ."""
    if not ledger.path.is_file():
        raise UserError(f"{str(ledger.path.parent)!r} has no {ledger.path.name}; give a silo's state folder")
    if not 0 < delta < 1:
        raise UserError(f"--delta {delta:g} is not possible: it must be between 0 and 1")
    runs = ledger.runs
    lines = tuple(_line(name, entry.unit or "nothing", {name: entry}, delta) for name, entry in runs.items())
    return Statement(delta, lines, _line("in all", "", runs, delta))


def _line(name: str, hides: str, runs: dict[str, Entry], delta: float) -> Line:
    row, silo = epsilon_in_all(runs, "row", delta), epsilon_in_all(runs, "silo", delta)
    return Line(name, hides, sum(len(entry.answers) for entry in runs.values()), row, silo)
