"""Everybody, or some clients drawn anew in each round."""

from typing import Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import rng
from idiolect.core.hyper import STRICT
from idiolect.core.method import Cohort, Population


class Plan(Protocol):
    """A pure function of (seed, round) that says who takes part."""

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """The cohort of a round; `sizes` are all clients' training rows."""
        ...

    def present(self, round_number: int, clients: int) -> Tensor:
        """Who has arrived and not left in a round, bool[clients]."""
        ...


@dataclass(frozen=True, config=STRICT)
class Uniform:
    """A fraction or a number of the clients, each set of that size equally likely; all by default."""

    rate: float = Field(default=1.0, gt=0, le=1, description="fraction of the clients asked in each round")
    count: int | None = Field(default=None, ge=1, description="number of clients asked; replaces the rate")

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """The cohort of a round: m = max(1, floor(rate * N)) clients."""
        clients = len(sizes)
        asked = min(clients, self.count or max(1, int(self.rate * clients)))
        ids = rng.permutation(rng.key(seed, "participation", round_number), clients)[:asked].sort().values
        return Cohort(
            ids=ids,
            work=torch.ones(asked, dtype=torch.float64),
            replied=torch.ones(asked, dtype=torch.bool),
            inclusion=torch.full((asked,), asked / clients, dtype=torch.float64),
            population=Population(sizes, self.present(round_number, clients)),
        )

    def present(self, round_number: int, clients: int) -> Tensor:
        """Everybody is there from the beginning to the end."""
        return torch.ones(clients, dtype=torch.bool)
