"""Rounds, evaluations and checkpoints in their order; who keeps and who watches them is a parameter."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pandas as pd

from idiolect.data.federation import Federation
from idiolect.engines.compiler.doubt import Doubt
from idiolect.engines.loop import PlayedRound
from idiolect.evaluation.metrics import Measures, Metric, evaluate
from idiolect.evaluation.summary import validation_scores
from idiolect.methods.groups import adjusted_rand_index
from idiolect.runs.records import TABLES, TYPES, TableName
from idiolect.simulation import Simulation


class Pace(NamedTuple):
    """How many rounds there are, and from how many to how many clients are evaluated and states saved."""

    rounds: int
    evaluate_every: int
    checkpoint_every: int


class Keeper(Protocol):
    """Where tables and states go: a run folder, or memory."""

    def metrics(self) -> pd.DataFrame:
        """What was added to the metrics."""
        ...

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Keep a part of a table."""
        ...

    def save(self, simulation: Simulation) -> None:
        """Save the state, to go on from it."""
        ...

    def save_chosen(self, simulation: Simulation) -> None:
        """Save the state, because it is the best one so far."""
        ...

    def keep_doubt(self, doubt: Doubt, round_number: int) -> None:
        """Keep what is needed to look into a rewritten step that was found to be wrong."""
        ...


class Watcher(Protocol):
    """Is told what happens: a progress bar, a tracker."""

    def played(self, round_number: int) -> None:
        """A round was played."""
        ...

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        """All clients were evaluated."""
        ...


def play_rounds(
    simulation: Simulation,
    pace: Pace,
    measures: Measures,
    keeper: Keeper,
    watchers: Sequence[Watcher] = (),
) -> None:
    """Play the rounds that are left, evaluating and saving at the pace.

    What is written at a round depends on the configuration and the round alone, so a run that was killed
    and continued writes the same parts again.
    """
    best = _BestSoFar(simulation, keeper.metrics(), measures.main)
    log = _RoundLog(simulation.federation)

    def look() -> None:
        metrics = evaluate(simulation, measures)
        keeper.add("metrics", simulation.round, metrics)
        if best.improved_by(metrics):
            keeper.save_chosen(simulation)
        for watcher in watchers:
            watcher.evaluated(simulation.round, metrics)

    if simulation.round == 0:
        look()
    while simulation.round < pace.rounds:
        result = simulation.advance()
        log.add(result, simulation.round)
        for doubt in result.doubts:
            keeper.keep_doubt(doubt, simulation.round)
        last = simulation.round == pace.rounds
        evaluation_due = last or simulation.round % pace.evaluate_every == 0
        checkpoint_due = last or simulation.round % pace.checkpoint_every == 0
        if evaluation_due:
            look()
        if evaluation_due or checkpoint_due:
            log.hand_over(keeper, simulation.round)
        if checkpoint_due:
            keeper.save(simulation)
        for watcher in watchers:
            watcher.played(simulation.round)


class _BestSoFar:
    """The best validation score of the kind that the method is judged by."""

    def __init__(self, simulation: Simulation, metrics: pd.DataFrame, metric: Metric) -> None:
        self.kind = simulation.method.judged_by
        self.metric = metric
        # A killed run may have evaluated rounds that it is about to play again.
        past = validation_scores(metrics[metrics["round"] <= simulation.round], self.kind, self.metric)
        self.score = max(past.values(), default=None) if simulation.round else None

    def improved_by(self, metrics: pd.DataFrame) -> bool:
        """Whether an evaluation is better than all before."""
        score = next(iter(validation_scores(metrics, self.kind, self.metric).values()), None)
        if score is None or (self.score is not None and score <= self.score):
            return False
        self.score = score
        return True


class _RoundLog:
    """Bits and diagnostics of the rounds since they were last kept."""

    def __init__(self, federation: Federation) -> None:
        self.clients = federation.names
        self.groups = federation.groups
        self.rounds: list[tuple[int, int, int]] = []
        self.traffic: list[tuple[int, str, str, str, int]] = []
        self.diagnostics: list[tuple[int, str, int, float]] = []

    def add(self, result: PlayedRound, round_number: int) -> None:
        self.rounds.append((round_number, int(result.down_bits.sum()), int(result.up_bits.sum())))
        for direction, parts in (("down", result.down_parts), ("up", result.up_parts)):
            for part, bits in parts.items():
                movers = bits.nonzero()[:, 0]
                for client, moved in zip(movers.tolist(), bits[movers].tolist(), strict=True):
                    self.traffic.append((round_number, self.clients[client], direction, part, moved))
        info = dict(result.info)
        if "labels" in info and self.groups is not None:  # only here are the true groups known
            info["adjusted_rand_index"] = adjusted_rand_index(info["labels"], self.groups)
        for name, value in info.items():
            for index, number in enumerate(value.reshape(-1).tolist()):
                self.diagnostics.append((round_number, name, index, float(number)))

    def hand_over(self, keeper: Keeper, round_number: int) -> None:
        keeper.add("rounds", round_number, _table("rounds", self.rounds))
        keeper.add("traffic", round_number, _table("traffic", self.traffic))
        keeper.add("diagnostics", round_number, _table("diagnostics", self.diagnostics))
        self.rounds, self.traffic, self.diagnostics = [], [], []


def _table(name: TableName, rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    # Without rows there is nothing to infer the types from.
    return pd.DataFrame(rows, columns=list(TABLES[name])).astype({c: TYPES[c] for c in TABLES[name]})
