"""The network as it is, in one section of a configuration.

    participation:
      rate: 0.1                     # or count: 10; sampling: uniform | proportional
      work: uniform                 # how much of its local work each completes; see `work.py`
      inactive: 0.05                # chance that an asked client does nothing
      lost_replies: 0.1             # chance that a reply is lost after the work was done
      clients:
        client_7: {join: 20, leave: 80, work: 0.3}

`Participation` is what a user writes; `bind` gives it the clients' names and makes a plan of it. In place of
all this a user's own plan can be named: `participation: {plan: {name: package.module:Class, option: value}}`.
"""

from collections.abc import Callable
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import rng
from idiolect.core.cohort import Cohort, Population
from idiolect.core.hyper import STRICT
from idiolect.core.schedule import PlainSchedule, Restart
from idiolect.errors import UserError
from idiolect.participation.sampling import Plan, Proportional, Sampler, Uniform
from idiolect.participation.work import ByClasses, Fixed, Fraction, SettledLaw, WorkLaw, client_number
from idiolect.plugins import Catalogue, Named, call, check_options, chosen, kind_of

CATALOGUE: Catalogue[Callable[..., Plan]] = Catalogue(
    word="plan",
    several="plans",
    group="idiolect.plans",
    own="your own as package.module:Class",
    flaw=lambda found: None if callable(found) else f"it must be a class or a function, not {kind_of(found)}",
)
NEVER = torch.iinfo(torch.int64).max  # the round in which somebody leaves who stays to the end


@dataclass(frozen=True, config=STRICT)
class ClientEntry:
    """What is particular to one client."""

    join: int = Field(default=0, ge=0, description="the round from which the client is there")
    leave: int | None = Field(default=None, ge=1, description="the round from which it is gone")
    work: Fraction | None = Field(default=None, description="the part of its work that it completes")

    @model_validator(mode="after")
    def _leaves_after_joining(self) -> Self:
        if self.leave is not None and self.leave <= self.join:
            raise ValueError(f"leave = {self.leave} must be a later round than join = {self.join}")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Participation:
    """Who takes part, how much of the work each completes, whose reply arrives, who comes and goes."""

    sampling: Literal["uniform", "proportional"] = Field(
        default="uniform", description="every client alike, or in proportion to its training rows"
    )
    rate: float = Field(default=1.0, gt=0, le=1, description="fraction of the clients asked in each round")
    count: int | None = Field(default=None, ge=1, description="number of clients asked; replaces the rate")
    work: WorkLaw = Field(default_factory=Fixed, description="how much of its local work each completes")
    inactive: float = Field(default=0.0, ge=0, le=1, description="chance that an asked client does nothing")
    lost_replies: float = Field(
        default=0.0, ge=0, le=1, description="chance that a reply is lost after the work was done"
    )
    clients: dict[str, ClientEntry] = Field(
        default_factory=dict, description="join, leave and work of single clients, by name"
    )
    plan: Named | None = Field(
        default=None, description="a plan of your own, in place of all this: package.module:Class"
    )

    @model_validator(mode="after")
    def _is_one_plan(self) -> Self:
        if self.plan is not None:
            usual = Participation()
            for field in fields(self):
                if field.name != "plan" and getattr(self, field.name) != getattr(usual, field.name):
                    raise ValueError(f"{field.name} has no effect beside plan; leave out one of them")
        return self

    def check_plan(self) -> None:
        """Refuse a plan of one's own that cannot be found, or an option that it does not have."""
        if self.plan is not None:
            name, options = chosen(self.plan)
            check_options(_find_plan(name), options, f"plan {name!r}", given=("names",))

    def bind(self, names: tuple[str, ...], upper_shares: Tensor | None = None) -> Plan:
        """The plan for a federation with these clients.

        upper_shares: of each client's training rows, how many are of the upper half of the classes; None
            where there are no classes, or nobody here sees the rows.
        """
        if self.plan is not None:
            return _own_plan(*chosen(self.plan), names)
        law = self.work.settled(upper_shares) if isinstance(self.work, ByClasses) else self.work
        return self._rounds(names, law)

    def _rounds(self, names: tuple[str, ...], law: SettledLaw) -> "RoundPlan":
        joins = torch.zeros(len(names), dtype=torch.int64)
        leaves = torch.full((len(names),), NEVER)
        own_work = torch.full((len(names),), torch.nan, dtype=torch.float64)
        for name, entry in self.clients.items():
            number = client_number(name, names, "participation.clients")
            joins[number] = entry.join
            leaves[number] = NEVER if entry.leave is None else entry.leave
            own_work[number] = torch.nan if entry.work is None else entry.work
        sampler = (Uniform if self.sampling == "uniform" else Proportional)(self.rate, self.count)
        disturbances = (
            PartialWork(law, own_work, names),
            Inactivity(self.inactive),
            LostReplies(self.lost_replies),
        )
        return RoundPlan(sampler, joins, leaves, disturbances)

    @property
    def looks_at_classes(self) -> bool:
        """Whether who is slow depends on the clients' rows."""
        return isinstance(self.work, ByClasses)

    @property
    def arrival_rounds(self) -> tuple[int, ...]:
        """The rounds, after the first, in which somebody arrives."""
        return tuple(sorted({entry.join for entry in self.clients.values()} - {0}))

    def restarting(self, schedule: PlainSchedule) -> Restart:
        """A learning rate whose clock is set back whenever somebody arrives (EFL, section 4.4)."""
        return Restart(rounds=self.arrival_rounds, schedule=schedule)


def _find_plan(name: str) -> Callable[..., Plan]:
    return CATALOGUE.find(name, "participation.plan")


def _own_plan(name: str, options: dict[str, Any], names: tuple[str, ...]) -> Plan:
    """A user's plan; it gets the clients' names if it has a parameter for them."""
    plan = call(_find_plan(name), options, f"plan {name!r}", names=names)
    if not all(callable(getattr(plan, function, None)) for function in ("cohort", "present")):
        raise UserError(
            f"participation.plan={name!r} gave {kind_of(plan)}, which is no plan: it must have the functions "
            "cohort(seed, round_number, sizes) and present(round_number, clients)"
        )
    return plan


@plain_dataclass(frozen=True)
class PartialWork:
    """Everybody completes what the law says, or a fraction of its own where it has one."""

    law: SettledLaw
    own: Tensor  # float64[clients]: NaN where the law decides
    names: tuple[str, ...]

    def __call__(self, seed: int, round_number: int, cohort: Cohort) -> Cohort:
        """The cohort with its work."""
        own = self.own[cohort.ids]
        work = self.law.fractions(seed, round_number, cohort, self.names)
        return replace(cohort, work=torch.where(own.isnan(), work, own))


@plain_dataclass(frozen=True)
class Inactivity:
    """Some of those who are asked do nothing, and change nothing."""

    rate: float

    def __call__(self, seed: int, round_number: int, cohort: Cohort) -> Cohort:
        """The cohort with the work of some set to 0."""
        idle = rng.uniform(rng.key(seed, "inactive", cohort.ids, round_number)) < self.rate
        return replace(cohort, work=torch.where(idle, 0.0, cohort.work))


@plain_dataclass(frozen=True)
class LostReplies:
    """Some do the work, and the server never hears of it."""

    rate: float

    def __call__(self, seed: int, round_number: int, cohort: Cohort) -> Cohort:
        """The cohort with some replies lost."""
        lost = rng.uniform(rng.key(seed, "lost replies", cohort.ids, round_number)) < self.rate
        return replace(cohort, replied=cohort.replied & ~lost)


@plain_dataclass(frozen=True)
class RoundPlan:
    """A sampler among those who are present, then whatever disturbs the round, one after the other."""

    sampler: Sampler
    joins: Tensor  # int64[clients]: the round from which each is there
    leaves: Tensor  # int64[clients]: the round from which each is gone
    disturbances: tuple[PartialWork | Inactivity | LostReplies, ...] = ()

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """The cohort of a round."""
        population = Population(sizes, self.present(round_number, len(sizes)))
        cohort = self.sampler.among(seed, round_number, population)
        for disturb in self.disturbances:
            cohort = disturb(seed, round_number, cohort)
        return cohort

    def present(self, round_number: int, clients: int) -> Tensor:
        """Who has arrived and not left."""
        return (self.joins <= round_number) & (round_number < self.leaves)
