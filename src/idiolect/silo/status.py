"""What a coordinator's run looks like now, as plain data: the terminal and the page show nothing else."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from idiolect.quantities import show_value

Phase = Literal["greeting", "silos", "server", "evaluation", "saving"]
PHASES: tuple[Phase, ...] = get_args(Phase)
PHASE_NAMES: dict[Phase, str] = {
    "greeting": "waiting for silos",
    "silos": "silos at work",
    "server": "server step",
    "evaluation": "evaluation",
    "saving": "saving",
}
ROUNDS_TO_EXPECT_BY = 10  # the last ones tell how long the next will take


class Warned(NamedTuple):
    """A line of the log that somebody should read."""

    time: float
    line: str


@dataclass(frozen=True)
class SiloStatus:
    """One silo, as its messages tell. Times are seconds since 1970."""

    name: str
    rows: int | None = None  # training rows; None before it was greeted
    asked: float | None = None  # since when an answer is awaited
    heard: float | None = None  # when it last answered
    trouble: str = ""  # why the last request had no answer; empty when it had one
    answer: str = ""  # what it answered last
    down_bytes: int = 0  # of requests that were answered, as they were sent
    up_bytes: int = 0
    shares: bool | None = None  # whether it tells its metrics; None before the first evaluation
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # last, by part and kind
    epsilon: float | None = None  # what its part in the run has cost; None: nothing, or it counts alone

    @property
    def connection(self) -> str:
        """Whether it is there, in a word or two."""
        if self.trouble:
            return self.trouble
        if self.asked is not None:
            return "asked" if self.heard is None else "at work"
        return "not asked yet" if self.heard is None else "connected"

    @property
    def mood(self) -> Literal["good", "busy", "bad", "unknown"]:
        """The same for colours."""
        if self.trouble:
            return "bad"
        if self.asked is not None:
            return "busy"
        return "unknown" if self.heard is None else "good"


@dataclass(frozen=True)
class RoundRecord:
    """What a round took, from the end of the one before; round 0 is all that comes before the first."""

    round: int
    down_bits: int  # of the method's messages, as a simulation counts them
    up_bits: int
    down_bytes: int  # on the wire: with headers, greetings, evaluation
    up_bytes: int
    seconds: Mapping[Phase, float]

    @property
    def total_seconds(self) -> float:
        """All phases."""
        return sum(self.seconds.values())

    @property
    def own_seconds(self) -> float:
        """Without the time until all silos had joined, which comes once."""
        return self.total_seconds - self.seconds["greeting"]


@dataclass(frozen=True)
class Status:
    """The whole run at one moment."""

    run: str
    method: str
    metric: str  # the one that models are shown by
    judged_by: str  # the kind of model that the method is judged by
    rounds: int
    state: Literal["running", "finished", "stopped"]
    reason: str  # why it was stopped
    phase: Phase
    phase_since: float
    now: float
    silos: tuple[SiloStatus, ...]
    history: tuple[RoundRecord, ...]
    warnings: tuple[Warned, ...]

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return self.history[-1].round if self.history else 0

    @property
    def headline(self) -> str:
        """Where the run is, in one line."""
        if self.state == "finished":
            return f"finished after round {self.rounds}"
        if self.state == "stopped":
            return f"stopped after round {self.done} of {self.rounds}: {self.reason}"
        if self.phase == "greeting":
            return f"waiting for silos: {self.heard_now} of {len(self.silos)} have answered"
        if self.phase in ("evaluation", "saving"):
            when = f"after round {self.done} of {self.rounds}" if self.done else "before round 1"
            return f"{PHASE_NAMES[self.phase]} {when}"
        return f"round {min(self.done + 1, self.rounds)} of {self.rounds}: {PHASE_NAMES[self.phase]}"

    @property
    def heard_now(self) -> int:
        """Silos whose last request was answered or may still be, of those that ever answered."""
        return sum(silo.heard is not None and not silo.trouble for silo in self.silos)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the data, such as validation rows, of which any silo tells its metrics."""
        return tuple(dict.fromkeys(part for silo in self.silos for part in silo.metrics))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of models that any silo tells metrics of."""
        values = (kinds for silo in self.silos for kinds in silo.metrics.values())
        return tuple(dict.fromkeys(kind for kinds in values for kind in kinds))

    def show_metric(self, silo: SiloStatus, part: str, kind: str) -> str:
        """One of a silo's last metrics as text, or why it is not there."""
        if silo.shares is None:
            return ""
        if not silo.shares:
            return "not shared"
        return show_value(silo.metrics.get(part, {}).get(kind, math.nan), self.metric)

    @property
    def is_private(self) -> bool:
        """Whether it is counted here what silos have spent."""
        return any(silo.epsilon is not None for silo in self.silos)

    @property
    def phase_seconds(self) -> dict[Phase, float]:
        """Where the time of all rounds went."""
        return {phase: sum(record.seconds[phase] for record in self.history) for phase in PHASES}

    @property
    def down_bytes(self) -> int:
        """All that silos received in rounds that are over."""
        return sum(record.down_bytes for record in self.history)

    @property
    def up_bytes(self) -> int:
        """All that silos sent in rounds that are over."""
        return sum(record.up_bytes for record in self.history)

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the last rounds; None where there is nothing to estimate from."""
        played = [record for record in self.history if record.round > 0][-ROUNDS_TO_EXPECT_BY:]
        if self.state != "running" or self.done == self.rounds or not played:
            return None
        typical = sum(record.own_seconds for record in played) / len(played)
        return typical * (self.rounds - self.done)
