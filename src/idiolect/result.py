"""What `idiolect.train` gives, and the memory in which a training keeps its tables and its best state."""

import pandas as pd
import torch

from idiolect.core.exchange import ClientState, ServerState
from idiolect.engines.compiler.doubt import Doubt
from idiolect.evaluation.metrics import Measures
from idiolect.evaluation.summary import Choice, client_values
from idiolect.runs.client_model import ClientModels, thresholds_of
from idiolect.runs.folder import client_table
from idiolect.runs.lifecycle import summarise_run, told_of
from idiolect.runs.records import TABLES, TableName, join
from idiolect.simulation import Simulation


class Result(ClientModels):
    """What a training gave: tables of numbers, and every client's models.

    `simulation` stands at the round that is reported for the kind that the method is judged by.
    """

    def __init__(self, simulation: Simulation, memory: "Memory", measures: Measures, choose: Choice) -> None:
        super().__init__(simulation)
        self.metrics = memory.metrics()
        self.rounds = memory.table("rounds")
        self.traffic = memory.table("traffic")
        self.diagnostics = memory.table("diagnostics")
        clients = client_table(simulation.federation).set_index("client")
        task = simulation.federation.task
        self._summary = summarise_run(
            self.metrics, clients, self.rounds, task, measures.main, simulation.method, choose
        )
        self._told = told_of(measures, task)
        self.thresholds = thresholds_of(self._summary)

    @property
    def summary(self) -> pd.DataFrame:
        """The reported numbers, a row for each model kind."""
        return pd.DataFrame.from_dict(self._summary["kinds"], orient="index")

    @property
    def metric(self) -> str:
        """The metric that the round was chosen by and the numbers are of."""
        return str(self._summary["metric"])

    @property
    def metric_reason(self) -> str:
        """Why it is not the usual one; empty if it is, or was given."""
        return self._told["metric_reason"]

    @property
    def client_values(self) -> pd.DataFrame:
        """The reported values: a row for each client, a column for each model kind."""
        return client_values(self.metrics, self._summary)


class Memory:
    """Keeps the tables, and the state with the best validation score."""

    def __init__(self) -> None:
        self.parts: dict[TableName, list[pd.DataFrame]] = {name: [] for name in TABLES}
        self.chosen: tuple[int, ServerState, ClientState] | None = None

    def metrics(self) -> pd.DataFrame:
        """All metrics so far."""
        return self.table("metrics")

    def table(self, name: TableName) -> pd.DataFrame:
        """A whole table."""
        return join(name, self.parts[name])

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Keep a part of a table."""
        self.parts[name].append(table)

    def save(self, simulation: Simulation) -> None:
        """Nothing to do: the simulation itself is the last state."""

    def keep_doubt(self, doubt: Doubt, round_number: int) -> None:
        """A line in the log has said it."""

    def save_chosen(self, simulation: Simulation) -> None:
        """Keep the best state so far."""
        self.chosen = simulation.round, simulation.server, simulation.clients()

    def return_to_chosen(self, simulation: Simulation) -> None:
        """Put the simulation into the best state, if there is one."""
        if self.chosen is not None:
            simulation.round, simulation.server, clients = self.chosen
            simulation.engine.setting.store.put(torch.arange(len(simulation.federation)), clients)
