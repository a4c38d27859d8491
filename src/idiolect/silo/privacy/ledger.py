"""What a silo has spent, in all runs with its state folder: written before an answer leaves, never forgotten.

    ledger.json    by run: its unit, and for each answer what it cost, by the hash of what it follows from

The same message in the same state has the same answer, which costs nothing again. An answer that was lost on
the way, or never finished because the silo was killed, is spent. One without noise costs everything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from idiolect.errors import UserError
from idiolect.privacy.accounting import Release, Spending, epsilon_of, together
from idiolect.store.files import read_json, write_json

FILE = "ledger.json"
FORMAT = "idiolect-ledger-1"
Unit = Literal["row", "silo"]  # whose presence is hidden
ALL_THAT_THERE_IS: Spending = {Release(noise=0.0): 1}  # what is answered without noise


class Entry(NamedTuple):
    """What the answers in one run cost."""

    unit: Unit | None  # None: the run is not private
    answers: Mapping[str, Spending]  # by the hash of the message and the state before it

    @property
    def spending(self) -> Spending:
        """All answers together."""
        return together(*self.answers.values())

    def spending_of(self, unit: Unit) -> Spending:
        """What they cost a row, or the silo as a whole."""
        if unit == self.unit or not self.spending:
            return self.spending
        if unit == "silo" or self.unit is None:
            return ALL_THAT_THERE_IS
        # A row changes an upload from one that is no longer than the clip into another such one: by up to
        # twice as much as if it had been taken away.
        halves = ((release._replace(noise=release.noise / 2), n) for release, n in self.spending.items())
        return dict(halves)


class Ledger:
    """A silo's file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    @property
    def runs(self) -> dict[str, Entry]:
        """What each run cost."""
        if not self.path.is_file():
            return {}
        content = read_json(self.path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f"{str(self.path)!r} is not a ledger of the format {FORMAT}")
        return {run: _read(plain) for run, plain in content["runs"].items()}

    def is_paid(self, run: str, origin: str) -> bool:
        """Whether an answer was paid for before."""
        runs = self.runs
        return run in runs and origin in runs[run].answers

    def with_answer(self, run: str, unit: Unit | None, origin: str, cost: Spending) -> dict[str, Entry]:
        """What all runs will have cost with one answer more."""
        runs = self.runs
        answers = runs[run].answers if run in runs else {}
        return {**runs, run: Entry(unit, {**answers, origin: cost})}

    def keep(self, runs: Mapping[str, Entry]) -> None:
        """Note what all runs cost, before an answer leaves."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        plain = {name: _plain(entry) for name, entry in runs.items()}
        write_json(self.path, {"format": FORMAT, "runs": plain}, mode=0o600)


def epsilon_in_all(runs: Mapping[str, Entry], unit: Unit, delta: float) -> float:
    """What a row, or the silo as a whole, has paid in all runs together."""
    return epsilon_of(together(*(entry.spending_of(unit) for entry in runs.values())), delta)


def _plain(entry: Entry) -> dict[str, Any]:
    answers = {
        origin: [{**release._asdict(), "times": times} for release, times in cost.items()]
        for origin, cost in entry.answers.items()
    }
    return {"unit": entry.unit, "answers": answers}


def _read(plain: dict[str, Any]) -> Entry:
    answers = {
        origin: {Release(one["noise"], one["rate"], one["cut"]): int(one["times"]) for one in cost}
        for origin, cost in plain["answers"].items()
    }
    return Entry(plain["unit"], answers)
