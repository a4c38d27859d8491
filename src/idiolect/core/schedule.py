"""Learning-rate schedules: pure functions of the round and the local step.

With t = round * local_steps + step, the number of steps before this one on the clock of the whole run
(a client that sat out some rounds does not fall behind the clock):

| name            | rate                                                               |
|-----------------|--------------------------------------------------------------------|
| constant        | initial                                                            |
| inverse_time    | initial / (1 + decay * t)                                          |
| per_round       | initial * factor ** round                                          |
| per_step        | initial * factor ** t                                              |
| strongly_convex | 16 / (mu * (t + max(128 * kappa, local_steps)))                    |
| elastic         | 16 E / (mu * ((round + 1) E + offset) * work), E = local_steps     |
| restart         | another schedule, whose clock starts anew at the given rounds      |
"""

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core.device import precise
from idiolect.core.hyper import STRICT

Number = Tensor | float


def _to_double(number: Number) -> Number:
    return precise(number) if isinstance(number, Tensor) else number


class Clock(NamedTuple):
    """When something happens: the round, the local step in it, and how many steps a round has."""

    round: Number
    step: Number
    local_steps: int

    def precise(self) -> "Clock":
        """The same time in float64: powers of integer tensors would be float32 whatever the run's type."""
        return Clock(_to_double(self.round), _to_double(self.step), self.local_steps)

    @property
    def time(self) -> Number:
        """Steps before this one since the run began."""
        return self.round * self.local_steps + self.step


@dataclass(frozen=True, config=STRICT)
class Constant:
    """The same rate always."""

    initial: float = Field(ge=0)
    name: Literal["constant"] = "constant"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        return self.initial


@dataclass(frozen=True, config=STRICT)
class InverseTime:
    """initial / (1 + decay * t)."""

    initial: float = Field(ge=0)
    decay: float = Field(default=0.01, ge=0)
    name: Literal["inverse_time"] = "inverse_time"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        return self.initial / (1 + self.decay * clock.time)


@dataclass(frozen=True, config=STRICT)
class PerRound:
    """initial * factor ** round; the APFL authors' "1 %" is the factor 1 / 1.01."""

    initial: float = Field(ge=0)
    factor: float = Field(default=1 / 1.01, gt=0, le=1)
    name: Literal["per_round"] = "per_round"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        return self.initial * self.factor**clock.round


@dataclass(frozen=True, config=STRICT)
class PerStep:
    """initial * factor ** t: the literal "1 % per iteration", which leaves nothing after 1,000 steps."""

    initial: float = Field(ge=0)
    factor: float = Field(default=0.99, gt=0, le=1)
    name: Literal["per_step"] = "per_step"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        return self.initial * self.factor**clock.time


@dataclass(frozen=True, config=STRICT)
class StronglyConvex:
    """16 / (mu (t + a)), a = max(128 kappa, local_steps): APFL's Theorem 2."""

    mu: float = Field(gt=0)
    kappa: float = Field(ge=1)
    name: Literal["strongly_convex"] = "strongly_convex"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        return 16 / (self.mu * (clock.time + max(128 * self.kappa, clock.local_steps)))


@dataclass(frozen=True, config=STRICT)
class Elastic:
    """16 E / (mu ((round + 1) E + offset) * work): EFL's Theorem 1, constant inside a round.

    `work` is the expectation of the sum over clients of aggregation weight times completed steps.
    """

    mu: float = Field(gt=0)
    offset: float = Field(gt=0)
    work: float = Field(gt=0)
    name: Literal["elastic"] = "elastic"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        steps = clock.local_steps
        return 16 * steps / (self.mu * ((clock.round + 1) * steps + self.offset) * self.work)


PlainSchedule = Constant | InverseTime | PerRound | PerStep | StronglyConvex | Elastic


@dataclass(frozen=True, config=STRICT)
class Restart:
    """Another schedule whose clock is set back to zero at each of the given rounds."""

    rounds: tuple[int, ...]
    schedule: PlainSchedule = Field(discriminator="name")
    name: Literal["restart"] = "restart"

    def __call__(self, clock: Clock) -> Number:
        """The rate at a time."""
        now = precise(torch.as_tensor(clock.round))
        since = now
        for start in sorted(self.rounds):
            since = torch.where(now >= start, now - start, since)
        return self.schedule(clock._replace(round=since))


def _number_means_constant(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"name": "constant", "initial": value}
    return value


# What a method's field is declared as: a schedule, or a number for a constant one.
Schedule = Annotated[
    PlainSchedule | Restart, Field(discriminator="name"), BeforeValidator(_number_means_constant)
]


def round_total(schedule: Schedule, clock: Clock) -> Number:
    """The sum of the rates of all steps of the clock's round."""
    return sum(schedule(clock._replace(step=step).precise()) for step in range(clock.local_steps))
