"""Who is asked in a round: everybody, or some of the clients that are there, drawn anew in each round."""

from typing import Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import rng
from idiolect.core.cohort import Cohort, Population
from idiolect.core.hyper import STRICT
from idiolect.errors import UserError


class Plan(Protocol):
    """A pure function of (seed, round) that says who takes part."""

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """The cohort of a round, each client once; `sizes` are all clients' training rows."""
        ...

    def present(self, round_number: int, clients: int) -> Tensor:
        """Who has arrived and not left in a round, bool[clients]."""
        ...


def in_order(cohort: Cohort, clients: int) -> Cohort:
    """A plan's cohort with its clients in ascending order, as everybody after the plan expects it.

    What is no set of the federation's clients is refused.
    """
    ids = cohort.ids
    unknown = ids[(ids < 0) | (ids >= clients)]
    if len(unknown):
        raise UserError(
            f"the plan asks client {int(unknown[0])}, but the clients are numbered from 0 to {clients - 1}"
        )
    if (ids.diff() > 0).all():
        return cohort
    order = ids.argsort()
    again = ids[order][1:][ids[order].diff() == 0]
    if len(again):
        raise UserError(
            f"the plan asks client {int(again[0])} more than once in a round; "
            "how often it was drawn is the cohort's multiplicity"
        )
    return cohort.select(order)


class Sampler(Protocol):
    """Chooses from the clients that are present; who those are is the plan's concern."""

    def among(self, seed: int, round_number: int, population: Population) -> Cohort:
        """Whom a round asks: all complete their work and reply, until the plan says otherwise."""
        ...


@dataclass(frozen=True, config=STRICT)
class Uniform:
    """A fraction or a number of the clients, each set of that size equally likely; all by default."""

    rate: float = Field(default=1.0, gt=0, le=1, description="fraction of the clients asked in each round")
    count: int | None = Field(default=None, ge=1, description="number of clients asked; replaces the rate")

    def among(self, seed: int, round_number: int, population: Population) -> Cohort:
        """The first m clients of a random order of all who are present."""
        asked = how_many(population.count, self.rate, self.count)
        if asked == population.count:  # no need to draw
            ids = population.present.nonzero()[:, 0]
        else:
            order = rng.permutation(rng.key(seed, "participation", round_number), len(population.sizes))
            ids = order[population.present[order]][:asked].sort().values
        chance = asked / max(population.count, 1)
        return undisturbed(ids, torch.full((asked,), chance, dtype=torch.float64), population)

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """The cohort of a round in which everybody is present."""
        return self.among(seed, round_number, Population(sizes, self.present(round_number, len(sizes))))

    def present(self, round_number: int, clients: int) -> Tensor:
        """Everybody is there from the beginning to the end."""
        return torch.ones(clients, dtype=torch.bool)


@dataclass(frozen=True, config=STRICT)
class Proportional:
    """m independent draws, each a client with probability n_k / n: one that is drawn twice counts twice."""

    rate: float = Field(default=1.0, gt=0, le=1, description="draws in each round over the clients there are")
    count: int | None = Field(default=None, ge=1, description="number of draws; replaces the rate")

    def among(self, seed: int, round_number: int, population: Population) -> Cohort:
        """Inclusion is how often each is expected to be drawn, m n_k / n."""
        draws = how_many(population.count, self.rate, self.count)
        shares = (population.sizes * population.present).to(torch.float64)
        ends = shares.cumsum(0)
        points = rng.uniform(rng.key(seed, "participation", round_number), draws) * ends[-1]
        ids, times = torch.searchsorted(ends, points, right=True).unique(return_counts=True)
        return undisturbed(ids, draws * shares[ids] / ends[-1], population, times.to(torch.float64))


def how_many(present: int, rate: float, count: int | None) -> int:
    """max(1, floor(rate * N)) of N clients, or `count`, but no more than there are."""
    # The small number: 0.29 * 100 is below 29 in binary.
    return min(present, count or max(1, int(rate * present + 1e-9)))


def undisturbed(
    ids: Tensor, inclusion: Tensor, population: Population, multiplicity: Tensor | None = None
) -> Cohort:
    """A cohort in which everybody completes its work and every reply arrives."""
    return Cohort(
        ids=ids,
        work=torch.ones(len(ids), dtype=torch.float64),
        replied=torch.ones(len(ids), dtype=torch.bool),
        inclusion=inclusion,
        population=population,
        multiplicity=multiplicity,
    )
