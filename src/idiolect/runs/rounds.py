"""Rounds, evaluations and checkpoints in their order; who keeps and who watches them is a parameter."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import pandas as pd
from torch import Tensor

from idiolect.core.exchange import ServerState
from idiolect.core.method import Method
from idiolect.core.transport import plain_bits
from idiolect.data.federation import Federation
from idiolect.engines.compiler.doubt import Doubt
from idiolect.engines.engine import Engine
from idiolect.engines.round import PlayedRound
from idiolect.errors import DivergenceError
from idiolect.evaluation.metrics import Measures, Metric
from idiolect.evaluation.summary import BestRound, Choice, Score, last_improvement, validation_scores
from idiolect.methods.groups import adjusted_rand_index
from idiolect.participation.sampling import Plan
from idiolect.runs.privacy import BudgetSpentError, Ledger
from idiolect.runs.records import TABLES, TYPES, TableName


class Pace(NamedTuple):
    """How many rounds there are, and from how many to how many clients are evaluated and states saved."""

    rounds: int
    evaluate_every: int
    checkpoint_every: int
    patience: int | None = None  # rounds without a better validation value or loss after which all ends

    def evaluates_after(self, rounds: int) -> bool:
        """Whether clients are evaluated after so many rounds: before all, now and then, after the last."""
        return rounds == self.rounds or rounds % self.evaluate_every == 0


class Training(Protocol):
    """What is played: a simulation in this process, or the coordination of silos.

    All that changes is `server`, `round` and the client states in the engine's store.
    """

    server: ServerState
    round: int
    plan: Plan

    @property
    def knows_rows(self) -> bool:
        """Whether it is known here how many rows each client has."""
        ...

    @property
    def engine(self) -> Engine:
        """What carries exchanges out."""
        ...

    @property
    def method(self) -> Method:
        """The method, with what stands around it."""
        ...

    @property
    def federation(self) -> Federation:
        """The data, or what is known of them here."""
        ...

    @property
    def briefed(self) -> Tensor:
        """The ids of the clients that are sent a brief when they are evaluated."""
        ...

    def advance(self) -> PlayedRound:
        """Play one round."""
        ...

    def evaluate(self, measures: Measures) -> pd.DataFrame:
        """All metrics of all clients now, as far as they are told."""
        ...

    def client_facts(self) -> Mapping[str, Tensor]:
        """What the method tells of each client's state, by name."""
        ...


T = TypeVar("T", bound=Training)
Kept = TypeVar("Kept", bound=Training, contravariant=True)


class Keeper(Protocol[Kept]):
    """Where tables and states go: a run folder, or memory."""

    def metrics(self) -> pd.DataFrame:
        """What was added to the metrics."""
        ...

    def timing(self) -> pd.DataFrame:
        """What was added to the seconds."""
        ...

    def add(self, name: TableName, round_number: int, table: pd.DataFrame) -> None:
        """Keep a part of a table."""
        ...

    def save(self, training: Kept) -> None:
        """Save the state, to go on from it."""
        ...

    def save_chosen(self, training: Kept, needed: Collection[int]) -> None:
        """Save the state, because it is the best one so far of some kind; only the `needed` rounds' stay."""
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


class Ending(NamedTuple):
    """Why a training has fewer rounds than were planned."""

    reason: str
    diverged: bool


def play_rounds(
    training: T,
    pace: Pace,
    measures: Measures,
    keeper: Keeper[T],
    watchers: Sequence[Watcher] = (),
    choice: Choice = "validation",
    ledger: Ledger | None = None,
) -> Ending | None:
    """Play the rounds that are left, evaluating and saving at the pace; why rounds are missing, if they are.

    What is written at a round depends on the configuration and the round alone, but for the seconds, so a run
    that was killed and continued writes the same parts again. A training that cannot go on because it
    diverged has ended, and one whose privacy is spent.
    """
    best = _BestSoFar(training, keeper.metrics(), measures.main, choice)
    stagnation = _Stagnation(training, keeper.metrics(), measures.main, pace.patience)
    log = _RoundLog(training.federation)
    watch = _StopWatch(keeper.timing(), training.round)

    def look() -> None:
        metrics = training.evaluate(measures)
        log.add_briefs(training)
        log.add_told(training.client_facts(), training.round)
        keeper.add("metrics", training.round, metrics)
        if best.improved_by(metrics, training.round):
            keeper.save_chosen(training, best.rounds)
        stagnation.add(metrics)
        for watcher in watchers:
            watcher.evaluated(training.round, metrics)

    if training.round == 0:
        look()
        log.seconds[0] = 0.0
        log.hand_over(keeper, 0)
    while training.round < pace.rounds and not stagnation.over:
        try:
            if ledger is not None:  # paid before the work: a round that diverges has released something too
                spent = ledger.charge(training.server, training.round)
                keeper.add("privacy", training.round + 1, _table("privacy", spent))
            with watch.running(), ledger.witnessing(training.engine) if ledger is not None else nullcontext():
                result = training.advance()
        except (DivergenceError, BudgetSpentError) as end:
            if log.exchanged:  # else the parts of this round are written already
                log.hand_over(keeper, training.round)
            if isinstance(end, DivergenceError):
                return Ending(f"diverged in round {training.round + 1}: {end}", diverged=True)
            return Ending(str(end), diverged=False)
        log.add(result, training.round)
        log.seconds[training.round] = watch.seconds
        for doubt in result.doubts:
            keeper.keep_doubt(doubt, training.round)
        last = training.round == pace.rounds
        evaluation_due = pace.evaluates_after(training.round)
        if evaluation_due:
            look()
        last = last or stagnation.over
        checkpoint_due = last or training.round % pace.checkpoint_every == 0
        if evaluation_due or checkpoint_due:
            log.hand_over(keeper, training.round)
        if checkpoint_due:
            keeper.save(training)
        for watcher in watchers:
            watcher.played(training.round)
    return None


class _BestSoFar:
    """For each model kind, the round that would be reported if the run ended now."""

    def __init__(self, training: Training, metrics: pd.DataFrame, metric: Metric, choice: Choice) -> None:
        self.kinds = [BestRound(kind, metric, choice) for kind in training.method.kinds]
        # A killed run may have evaluated rounds that it is about to play again.
        if training.round:
            past = metrics[metrics["round"] <= training.round]
            for kind in self.kinds:
                kind.told(past, past["round"].tolist())

    @property
    def rounds(self) -> set[int]:
        """Those of all kinds."""
        return {kind.round for kind in self.kinds if kind.round is not None}

    def improved_by(self, metrics: pd.DataFrame, round_number: int) -> bool:
        """Whether an evaluation is, for some kind, better than all before; silos may have told nothing."""
        improved = [kind.told(metrics, [round_number]) for kind in self.kinds]
        return any(improved)


class _Stagnation:
    """Whether none of the method's models has become better for too long."""

    def __init__(
        self, training: Training, metrics: pd.DataFrame, metric: Metric, patience: int | None
    ) -> None:
        self.training = training
        self.metric = metric
        self.patience = patience
        self.scores: dict[str, dict[int, Score]] = {kind: {} for kind in training.method.kinds}
        # A killed run may have evaluated rounds that it is about to play again.
        self.add(metrics[metrics["round"] <= training.round])

    def add(self, metrics: pd.DataFrame) -> None:
        """Note an evaluation."""
        for kind, scores in self.scores.items():
            scores.update(validation_scores(metrics, kind, self.metric))

    @property
    def over(self) -> bool:
        """Whether the patience is at its end."""
        if self.patience is None or not any(self.scores.values()):
            return False
        last = max(last_improvement(scores) for scores in self.scores.values())
        return self.training.round - last >= self.patience


class _StopWatch:
    """Seconds of training since the run began; of a run that was continued without the pause."""

    def __init__(self, timing: pd.DataFrame, round_number: int) -> None:
        # A killed run may have played rounds that it is about to play again.
        past = timing["seconds"][timing["round"] <= round_number]
        self.seconds = float(past.max()) if len(past) else 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


class _RoundLog:
    """Bits, diagnostics and seconds of the rounds since they were last kept."""

    def __init__(self, federation: Federation) -> None:
        self.clients = federation.names
        self.groups = federation.groups
        self.exchanged: dict[int, tuple[int, int]] = {}  # round -> bits down and up
        self.briefs: dict[int, int] = {}  # round -> bits of all briefs
        self.traffic: list[tuple[int, str, str, str, int]] = []
        self.diagnostics: list[tuple[int, str, int, float]] = []
        self.seconds: dict[int, float] = {}  # round -> of training, since the run began

    def add(self, result: PlayedRound, round_number: int) -> None:
        """What a round moved, and what the method told of it."""
        self.exchanged[round_number] = int(result.down_bits.sum()), int(result.up_bits.sum())
        for direction, parts in (("down", result.down_parts), ("up", result.up_parts)):
            for part, bits in parts.items():
                movers = bits.nonzero()[:, 0]
                for client, moved in zip(movers.tolist(), bits[movers].tolist(), strict=True):
                    self.traffic.append((round_number, self.clients[client], direction, part, moved))
        info = dict(result.info)
        if "labels" in info and self.groups is not None:  # only here are the true groups known
            info["adjusted_rand_index"] = adjusted_rand_index(info["labels"], self.groups)
        self.add_told(info, round_number)

    def add_told(self, info: Mapping[str, Tensor], round_number: int) -> None:
        """What a method tells of itself or of its clients."""
        for name, value in info.items():
            for index, number in enumerate(value.reshape(-1).tolist()):
                self.diagnostics.append((round_number, name, index, float(number)))

    def add_briefs(self, training: Training) -> None:
        """What clients were sent to be evaluated: each as much as the first."""
        method, ids = training.method, training.briefed
        brief = method.brief(training.server, ids[:1])
        sizes = plain_bits(brief, 1, stacked=method.personal_brief)
        for client in ids.tolist():
            for part, bits in sizes.items():
                self.traffic.append((training.round, self.clients[client], "brief", part, int(bits)))
        self.briefs[training.round] = len(ids) * sum(int(bits) for bits in sizes.values())

    def hand_over(self, keeper: Keeper[T], round_number: int) -> None:
        """Give all that was noted to the keeper."""
        rounds = [
            (number, *self.exchanged.get(number, (0, 0)), self.briefs.get(number, 0))
            for number in sorted(self.exchanged.keys() | self.briefs.keys())
        ]
        keeper.add("rounds", round_number, _table("rounds", rounds))
        keeper.add("traffic", round_number, _table("traffic", self.traffic))
        keeper.add("diagnostics", round_number, _table("diagnostics", self.diagnostics))
        keeper.add("timing", round_number, _table("timing", list(self.seconds.items())))
        for noted in (self.exchanged, self.briefs, self.traffic, self.diagnostics, self.seconds):
            noted.clear()


def _table(name: TableName, rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    # Without rows there is nothing to infer the types from.
    return pd.DataFrame(rows, columns=list(TABLES[name])).astype({c: TYPES[c] for c in TABLES[name]})
