"""What `idiolect.train` gives, and the memory in which a training keeps its tables and its best states."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch

from idiolect.core.exchange import ClientState, LocalWork, ServerState
from idiolect.data.federation import Federation
from idiolect.engines.compiler.doubt import Doubt
from idiolect.evaluation.metrics import Measures
from idiolect.evaluation.summary import Choice, client_values
from idiolect.runs.client_model import ClientModels
from idiolect.runs.folder import client_table
from idiolect.runs.newcomers import COLUMNS as NEWCOMER_COLUMNS
from idiolect.runs.newcomers import meet_newcomers, most_of_newcomers
from idiolect.runs.notes import run_notes, training_notes
from idiolect.runs.privacy import privacy_of, spent_in_all
from idiolect.runs.records import TABLES, TableName, join
from idiolect.runs.rounds import Ending
from idiolect.runs.run_summary import summarise_run, thresholds_of
from idiolect.simulation import Simulation


class Result(ClientModels):
    """What a training gave: tables of numbers, and every client's models.

    `simulation` stands at the round that is reported for the kind that the method is judged by; models of
    other kinds are those of the rounds that are reported for these.
    """

    def __init__(
        self,
        simulation: Simulation,
        memory: "Memory",
        measures: Measures,
        choose: Choice,
        broke_off: Ending | None = None,
        newcomers: Federation | None = None,
        newcomer_steps: LocalWork | None = None,
    ) -> None:
        super().__init__(simulation)
        self.metrics = memory.metrics()
        self.rounds = memory.table("rounds")
        self.traffic = memory.table("traffic")
        self.diagnostics = memory.table("diagnostics")
        self.timing = memory.timing()
        self.privacy = memory.table("privacy")  # the ledger of a private training
        clients = client_table(simulation.federation).set_index("client")
        task = simulation.federation.task
        self._summary = summarise_run(
            self.metrics, clients, self.rounds, task, measures, simulation.method, choose, broke_off
        )
        if (privacy := privacy_of(simulation.method)) is not None:
            self._summary["privacy"] = spent_in_all(privacy, self.privacy)
        self.thresholds = thresholds_of(self._summary)
        self._memory = memory
        self._stands_at = -1  # a training that broke off is in the middle of a round
        self.newcomers = pd.DataFrame(columns=list(NEWCOMER_COLUMNS))
        if newcomers is not None:
            self.newcomers = meet_newcomers(
                simulation, newcomers, newcomer_steps, self._summary, measures, self._stand_at
            )
            if privacy is not None:
                self._summary["privacy"]["newcomers_epsilon"] = most_of_newcomers(
                    simulation, newcomers, newcomer_steps, self._summary
                )
        self._go_to(None)

    @property
    def summary(self) -> pd.DataFrame:
        """The reported numbers, a row for each model kind; and who failed or diverged."""
        return pd.DataFrame.from_dict(self._summary["kinds"], orient="index")

    @property
    def spent(self) -> dict[str, Any] | None:
        """What the privacy of a private training has cost, in the words of a run's summary."""
        return self._summary.get("privacy")

    @property
    def ended(self) -> str | None:
        """Why not all rounds were played, if they were not."""
        ended: str | None = self._summary["ended"]
        return ended

    @property
    def notes(self) -> list[str]:
        """What is to be known about the numbers: who diverged, what still improves, what privacy is spent."""
        return run_notes(self._summary, self.simulation.method)

    @property
    def training_notes(self) -> list[str]:
        """Those of them that are a reason to train again in another way."""
        return training_notes(self._summary, self.simulation.method)

    @property
    def metric(self) -> str:
        """The metric that the round was chosen by and the numbers are of."""
        return str(self._summary["metric"])

    @property
    def metric_reason(self) -> str:
        """Why it is not the usual one; empty if it is, or was given."""
        return str(self._summary["metric_reason"])

    @property
    def client_values(self) -> pd.DataFrame:
        """The reported values: a row for each client, a column for each model kind."""
        return client_values(self.metrics, self._summary)

    @contextmanager
    def reported(self, kind: str | None) -> Iterator[Simulation]:
        """The simulation at the round that is reported for a kind, as long as the block lasts."""
        self._go_to(kind)
        try:
            yield self.simulation
        finally:
            self._go_to(None)

    def _go_to(self, kind: str | None) -> None:
        kinds = self._summary["kinds"]
        self._stand_at(kinds[kind if kind in kinds else self._summary["judged_by"]]["round"])

    def _stand_at(self, number: int) -> None:
        if number != self._stands_at:
            self._memory.go_to(self.simulation, number)
            self._stands_at = number


class Memory:
    """Keeps the tables, and for each model kind the state with the best validation score."""

    def __init__(self) -> None:
        self.parts: dict[TableName, list[pd.DataFrame]] = {name: [] for name in TABLES}
        self.chosen: dict[int, tuple[ServerState, ClientState]] = {}  # by round: kinds may share one

    def metrics(self) -> pd.DataFrame:
        """All metrics so far."""
        return self.table("metrics")

    def timing(self) -> pd.DataFrame:
        """Seconds of training so far."""
        return self.table("timing")

    def table(self, name: TableName) -> pd.DataFrame:
        """A whole table."""
        return join(name, self.parts[name])

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Keep a part of a table."""
        self.parts[name].append(table)

    def save(self, simulation: Simulation) -> None:
        """Nothing to do: nobody goes on from here."""

    def keep_doubt(self, doubt: Doubt, round_number: int) -> None:
        """A line in the log has said it."""

    def save_chosen(self, simulation: Simulation, needed: Collection[int]) -> None:
        """Keep the best state so far of some kind; only the needed rounds' stay."""
        kept = {number: state for number, state in self.chosen.items() if number in needed}
        self.chosen = {**kept, simulation.round: (simulation.server, simulation.clients())}

    def go_to(self, simulation: Simulation, round_number: int) -> None:
        """Put the simulation into the state of a round that is reported."""
        simulation.server, clients = self.chosen[round_number]
        simulation.round = round_number
        simulation.engine.setting.store.put(torch.arange(len(simulation.federation)), clients)
