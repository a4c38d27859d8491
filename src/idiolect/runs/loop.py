"""Rounds, evaluations and checkpoints in their order; who keeps and who watches them is a parameter."""

from collections.abc import Sequence
from typing import Protocol

import pandas as pd

from idiolect.engines.loop import RoundResult
from idiolect.evaluation.metrics import evaluate
from idiolect.runs.config import RunConfig
from idiolect.runs.folder import TABLES, TableName
from idiolect.simulation import Simulation


class Keeper(Protocol):
    """Where tables and states go: a run folder, or memory."""

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Keep a part of a table."""
        ...

    def save(self, simulation: Simulation) -> None:
        """Save the state."""
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
    simulation: Simulation, config: RunConfig, keeper: Keeper, watchers: Sequence[Watcher] = ()
) -> None:
    """Play the rounds that are left, evaluating and saving as the configuration says.

    What is written at a round depends on the configuration and the round alone, so a run that was killed
    and continued writes the same parts again.
    """

    def look() -> None:
        metrics = evaluate(simulation)
        keeper.add("metrics", simulation.round, metrics)
        for watcher in watchers:
            watcher.evaluated(simulation.round, metrics)

    if simulation.round == 0:
        look()
    log = _RoundLog()
    while simulation.round < config.rounds:
        log.add(simulation.advance(), simulation.round)
        last = simulation.round == config.rounds
        evaluation_due = last or simulation.round % config.evaluation.every == 0
        checkpoint_due = last or simulation.round % config.checkpoint.every == 0
        if evaluation_due:
            look()
        if evaluation_due or checkpoint_due:
            log.hand_over(keeper, simulation.round)
        if checkpoint_due:
            keeper.save(simulation)
        for watcher in watchers:
            watcher.played(simulation.round)


class _RoundLog:
    """Bits and diagnostics of the rounds since they were last kept."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int, int]] = []
        self.diagnostics: list[tuple[int, str, int, float]] = []

    def add(self, result: RoundResult, round_number: int) -> None:
        self.rounds.append((round_number, int(result.down_bits.sum()), int(result.up_bits.sum())))
        for name, value in result.info.items():
            for index, number in enumerate(value.reshape(-1).tolist()):
                self.diagnostics.append((round_number, name, index, float(number)))

    def hand_over(self, keeper: Keeper, round_number: int) -> None:
        for name, rows in (("rounds", self.rounds), ("diagnostics", self.diagnostics)):
            table = pd.DataFrame(rows, columns=list(TABLES[name]))
            if name == "diagnostics":
                table = table.astype({"round": "int64", "name": str, "index": "int64", "value": "float64"})
            keeper.add(name, round_number, table)
        self.rounds, self.diagnostics = [], []
