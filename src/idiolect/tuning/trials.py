"""One trial: a training with settings that are tried, judged by validation rows alone."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch

from idiolect.data.federation import Federation, Rows
from idiolect.engines.compiler.doubt import Doubt
from idiolect.evaluation.convergence import FAR_ABOVE, failed_clients, untrained_kind
from idiolect.evaluation.metrics import Measures
from idiolect.evaluation.summary import BestRound, Choice, Score, means, values_at
from idiolect.methods.catalogue import find_method
from idiolect.runs.config import RunConfig
from idiolect.runs.decisions import decide_noise
from idiolect.runs.records import TableName, join
from idiolect.runs.rounds import play_rounds
from idiolect.runs.setup import build_simulation
from idiolect.simulation import Simulation

# complete: played to its end. stopped: others were better after as many rounds. late: the time was over.
State = Literal["complete", "stopped", "late", "diverged", "failed"]


class Trial(NamedTuple):
    """What was tried, and what came of it; only complete trials can be chosen."""

    method: str
    number: int  # 0 has the settings that are not tuned
    state: State
    value: float  # mean validation value of the kind that the method is judged by, at the round chosen
    loss: float  # mean validation loss there, which decides between equals
    round: int
    rounds: int  # played
    seconds: float
    point: dict[str, Any]  # where in the space
    settings: dict[str, Any]  # what follows for the method
    reported: dict[int, float]  # by round: the value if it had ended then
    rungs: dict[str, Any]  # what the halving keeps of it
    reason: str = ""

    def score(self, higher_is_better: bool) -> Score:
        """What trials are compared by: the larger one is better."""
        return Score(self.value if higher_is_better else -self.value, -self.loss)


class Outcome(NamedTuple):
    """How a training ended."""

    state: State
    value: float
    loss: float
    round: int
    rounds: int
    reason: str = ""


class Stop(Exception):  # noqa: N818  # no error: others are better, or the time is over
    """Ends a trial early."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.state = state


# Is told the value so far after an evaluation, and raises `Stop` where a trial is to end.
Follow = Callable[[int, float], None]


def without_test_rows(federation: Federation) -> Federation:
    """The same clients with nothing but training and validation rows: no trial can look at others."""
    none = federation.test.index[:0]
    return replace(federation, test=Rows.of_clients([none] * len(federation)))


def play_trial(config: RunConfig, federation: Federation, measures: Measures, follow: Follow) -> Outcome:
    """Train with a decided configuration on a federation without test rows."""
    config = decide_noise(config, federation).config
    simulation = build_simulation(config, federation)
    assert config.threads is not None, "decided"
    torch.set_num_threads(config.threads)
    judge = _Judge(find_method(config.method["name"]).judged_by, measures, config.evaluation.choose, follow)
    state: State = "complete"
    broke_off = None
    try:
        broke_off = play_rounds(simulation, config.pace, measures, judge, [judge], config.evaluation.choose)
    except Stop as stop:
        state = stop.state
    outcome = Outcome(state, judge.value, judge.loss, judge.best.round or 0, simulation.round)
    if broke_off or (state == "complete" and judge.diverged):
        return outcome._replace(state="diverged", reason=broke_off.reason if broke_off else judge.diverged)
    if state == "complete" and not math.isfinite(judge.value):
        return outcome._replace(
            state="failed", reason=f"{measures.main.name} has no value on validation rows"
        )
    return outcome


class _Judge:
    """Keeps the metrics, and what would be reported if the training ended now."""

    def __init__(self, kind: str, measures: Measures, choice: Choice, follow: Follow) -> None:
        self.kind, self.metric, self.follow = kind, measures.main, follow
        self.best = BestRound(kind, measures.main, choice)
        self.parts: list[pd.DataFrame] = []
        self.value = self.loss = math.nan

    @property
    def diverged(self) -> str:
        """Why it diverged, if it did: somebody's loss is not finite, or the mean ended far above the first.

        One client's loss may well: of few validation rows it is far above where training rows fit too well.
        """
        metrics, losses = self.metrics(), means(self.metrics(), self.kind, "validation", "loss")
        last = int(losses.index[-1])
        if failed := failed_clients(metrics, self.kind, self.best.round or 0):
            return f"diverged: the loss of client {failed[0]!r} is not finite"
        if failed := failed_clients(metrics, self.kind, last):
            return f"diverged: the loss of client {failed[0]!r} is not finite after round {last}"
        untrained = means(metrics, untrained_kind(metrics, self.kind), "validation", "loss")
        first, ended = float(untrained.iloc[0]), float(losses.iloc[-1])
        if 0 < FAR_ABOVE * first < ended:
            return f"diverged: the mean validation loss went from {first:.4g} to {ended:.4g}"
        return ""

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        """Look at the validation values."""
        self.parts.append(metrics)
        if self.best.told(metrics, [round_number]):
            self.value = self._mean(metrics, self.metric.name, round_number)
            loss = self._mean(metrics, "loss", round_number)
            self.loss = math.inf if math.isnan(loss) else loss
        if round_number > 0 and not math.isnan(self.value):
            self.follow(round_number, self.value)

    def _mean(self, metrics: pd.DataFrame, name: str, round_number: int) -> float:
        return float(values_at(metrics, self.kind, "validation", name, round_number).mean())

    def played(self, round_number: int) -> None:
        """Nothing to see between evaluations."""

    def metrics(self) -> pd.DataFrame:
        """All metrics so far."""
        return join("metrics", self.parts)

    def timing(self) -> pd.DataFrame:
        """A trial has a clock of its own."""
        return join("timing", [])

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Metrics come by `evaluated`; of the rest nothing is needed."""

    def save(self, training: Simulation) -> None:
        """A trial that is killed is played again."""

    def save_chosen(self, training: Simulation, needed: Collection[int]) -> None:
        """Only its value is needed."""

    def keep_doubt(self, doubt: Doubt, round_number: int) -> None:
        """A line in the log has said it."""


class Clock:
    """How long a trial has taken, and whether that was too long."""

    def __init__(self, allowed: float) -> None:
        self.began = time.monotonic()
        self.allowed = allowed

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self.began

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.seconds > self.allowed


def from_record(record: Mapping[str, Any], higher_is_better: bool) -> Trial:
    """A trial as it was written; what was not finite is null there, and was the worst there is."""
    worst = -math.inf if higher_is_better else math.inf

    def number(value: float | None) -> float:
        return worst if value is None else value

    return Trial(
        **{
            **record,
            "value": math.nan if record["value"] is None else record["value"],
            "loss": math.inf if record["loss"] is None else record["loss"],
            "reported": {int(step): number(value) for step, value in record["reported"].items()},
            "rungs": {name: number(value) for name, value in record["rungs"].items()},
        }
    )
