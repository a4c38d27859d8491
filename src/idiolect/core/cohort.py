"""Who there is, and who is asked in an exchange."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Population:
    """All clients there ever are in a run, present or not."""

    sizes: Tensor  # int64[clients]: training rows
    present: Tensor  # bool[clients]: who has arrived and not left

    @property
    def count(self) -> int:
        """How many clients are present."""
        return int(self.present.sum())

    @property
    def rows(self) -> Tensor:
        """Training rows of all present clients."""
        return (self.sizes * self.present).sum()


@dataclass(frozen=True)
class Cohort:
    """Who is asked in one exchange, and what becomes of the request."""

    ids: Tensor  # int64[m], ascending
    work: Tensor  # float64[m]: the fraction of the local work that each completes; 0 is inactive
    replied: Tensor  # bool[m]: whose reply arrives
    inclusion: Tensor  # float64[m]: the probability with which each was asked (how often, if draws repeat)
    population: Population
    local_steps: Tensor | None = None  # int64[m]: full local work of each, set for each exchange
    multiplicity: Tensor | None = None  # float64[m]: how often each was drawn, where draws can repeat

    @property
    def sizes(self) -> Tensor:
        """Training rows of each, int64[m]."""
        return self.population.sizes[self.ids]

    @property
    def steps(self) -> Tensor:
        """Local steps that each completes, int64[m].

        The fraction is spread evenly over {0, .., local_steps}, so that a uniform fraction gives a
        uniform number of steps and 1 gives all of them.
        """
        return torch.minimum(self.full_steps, (self.work * (self.full_steps + 1)).long())

    @property
    def full_steps(self) -> Tensor:
        """Local steps that each would complete if it did all of its work, int64[m]."""
        assert self.local_steps is not None, "set by the engine for each exchange"
        return self.local_steps

    @property
    def complete(self) -> Tensor:
        """Who completes all of its local steps, bool[m]."""
        return self.steps == self.full_steps

    def select(self, chosen: Tensor) -> "Cohort":
        """The part of the cohort that a mask or an index names."""
        return Cohort(
            self.ids[chosen],
            self.work[chosen],
            self.replied[chosen],
            self.inclusion[chosen],
            self.population,
            None if self.local_steps is None else self.local_steps[chosen],
            None if self.multiplicity is None else self.multiplicity[chosen],
        )

    def __len__(self) -> int:
        return len(self.ids)
