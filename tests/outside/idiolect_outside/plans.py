"""A participation plan of one's own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idiolect.core import Cohort
from idiolect.participation import Uniform


@dataclass(frozen=True)
class Nightly:
    """Each client in one of every so many rounds, by turns."""

    names: tuple[str, ...]
    every: int = 2

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """Those whose turn it is."""
        everybody = Uniform().cohort(seed, round_number, sizes)
        return everybody.select(everybody.ids % self.every == round_number % self.every)

    def present(self, round_number: int, clients: int) -> Tensor:
        """All clients are there from the beginning."""
        return torch.ones(len(self.names), dtype=torch.bool)
