"""Idiolect from Python: build a federation, choose a method, train, look, and take the models.

>>> import idiolect
>>> federation = idiolect.load("vowels", seed=0)
>>> result = idiolect.train(idiolect.method("apfl", local_steps=5), federation, rounds=4, evaluate_every=2)
>>> result.metrics.columns.tolist()
['round', 'client', 'kind', 'part', 'metric', 'value']
>>> result.summary.index.tolist()
['global', 'localized', 'personal']
>>> model = result.model("speaker-03")  # a torch.nn.Module
>>> model(federation.inputs[:2]).shape
torch.Size([2, 11])
>>> result.predict("speaker-03", federation.inputs[:2])[0] in federation.class_names
True
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from idiolect.core.exchange import ClientState, ServerState
from idiolect.core.method import Method, PredictorKind
from idiolect.data.federation import Federation
from idiolect.engines.compiler.doubt import Doubt
from idiolect.errors import UserError
from idiolect.evaluation.summary import Choice
from idiolect.methods.catalogue import find_method
from idiolect.models import build_model
from idiolect.participation import Participation
from idiolect.runs.checks import build
from idiolect.runs.folder import client_table
from idiolect.runs.loop import Pace, play_rounds
from idiolect.runs.personal import PersonalModel, as_module, client_number
from idiolect.runs.tables import TABLES, TableName, join
from idiolect.runs.train import summarise_run
from idiolect.simulation import EngineName, Simulation


def method(name: str, **hyper_parameters: Any) -> Method:
    """A method by its name, such as `method("apfl", mixing=0.5)`; see `idiolect methods`."""
    return build(find_method(name), hyper_parameters, "method")


def train(
    method: Method | str,
    federation: Federation,
    model: str | nn.Module | Callable[[], nn.Module] = "linear",
    *,
    rounds: int = 50,
    seed: int = 0,
    participation: Participation | None = None,
    batch_size: int | None = 20,
    weight_decay: float = 0.0,
    dtype: torch.dtype = torch.float32,
    engine: EngineName = "vectorised",
    evaluate_every: int = 5,
    choose: Choice = "validation",
) -> "Result":
    """Train in memory and evaluate every client as it goes on.

    model: a name of `idiolect.models`, a module, or a function that makes one.
    batch_size: rows in each gradient; None: all.
    choose: which round is reported and whose models are handed out: the best on validation rows, or the
        last.
    """
    for name, number in (("rounds", rounds), ("evaluate_every", evaluate_every)):
        if number < 1:
            raise UserError(f"{name}={number} is not possible: it must be at least 1")
    chosen_method = build(find_method(method), {}, "method") if isinstance(method, str) else method
    simulation = Simulation(
        chosen_method,
        build_model(model, federation, seed=seed) if isinstance(model, str) else model,
        federation,
        plan=(participation or Participation()).bind(federation.names),
        seed=seed,
        batch_size=batch_size,
        weight_decay=weight_decay,
        dtype=dtype,
        engine=engine,
    )
    memory = _Memory()
    play_rounds(simulation, Pace(rounds, evaluate_every, rounds), memory)
    if choose == "validation":
        memory.return_to_chosen(simulation)
    return Result(simulation, memory, choose)


class Result:
    """What a training gave: tables of numbers, and every client's models.

    `simulation` stands at the round that is reported for the kind that the method is judged by.
    """

    def __init__(self, simulation: Simulation, memory: "_Memory", choose: Choice) -> None:
        self.simulation = simulation
        self.metrics = memory.metrics()
        self.rounds = memory.table("rounds")
        self.traffic = memory.table("traffic")
        self.diagnostics = memory.table("diagnostics")
        clients = client_table(simulation.federation).set_index("client")
        self._summary = summarise_run(
            self.metrics, clients, self.rounds, simulation.federation.task, simulation.method, choose
        )

    @property
    def summary(self) -> pd.DataFrame:
        """The reported numbers, a row for each model kind."""
        return pd.DataFrame.from_dict(self._summary["kinds"], orient="index")

    def model(self, client: str, kind: PredictorKind | None = None) -> nn.Module:
        """A client's model as a module of its own."""
        method, federation = self.simulation.method, self.simulation.federation
        kind = kind or method.judged_by
        if kind not in method.kinds:
            raise UserError(f"kind={kind} is not possible: the models are {', '.join(method.kinds)}")
        predictors = self.simulation.predictor(client_number(client, federation.names))
        return as_module(predictors[kind], self.simulation.engine.setting.objective.module)

    def predict(
        self, client: str, inputs: Tensor | pd.DataFrame, kind: PredictorKind | None = None
    ) -> list[Any]:
        """A client's predictions: class names where there are any, class numbers, or numbers.

        `inputs` are rows like those of the federation, or a table like the one it was made of.
        """
        federation = self.simulation.federation
        personal = PersonalModel(
            self.model(client, kind), federation.task, federation.class_names, federation.preprocessing
        )
        if isinstance(inputs, pd.DataFrame):
            return personal.predict(inputs).tolist()
        decided: list[Any] = personal.decide(inputs.to(federation.inputs.dtype)).tolist()
        if federation.task.is_classification and federation.class_names:
            return [federation.class_names[c] for c in decided]
        return decided


class _Memory:
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
