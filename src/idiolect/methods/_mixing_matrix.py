"""PERM's mixing matrix A as its non-zero weights: 12 bytes each in single precision. Spec 5.2."""

from typing import NamedTuple

import torch
from torch import Tensor


class MixingMatrix(NamedTuple):
    """The non-zero weights in row order; α_i(j) lies at place i · clients + j."""

    places: Tensor  # int64[weights], ascending
    weights: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> "MixingMatrix":
        """No weights yet."""
        return cls(torch.zeros(0, dtype=torch.int64), like.new_zeros(0))

    def at(self, rows: Tensor, columns: Tensor, clients: int) -> Tensor:
        """α_row(column) for each pair."""
        if not len(self.places):
            return self.weights.new_zeros(rows.shape)
        wanted = rows * clients + columns
        found = torch.searchsorted(self.places, wanted).clamp_max(len(self.places) - 1)
        return torch.where(self.places[found] == wanted, self.weights[found], 0)

    def largest(self, clients: int) -> Tensor:
        """max_j α_i(j) of each row (1 for a row without weights)."""
        top = self.weights.new_zeros(clients)
        top = top.scatter_reduce(0, self.places // clients, self.weights, "amax")
        return torch.where(top > 0, top, 1)

    def rows(self, first: int, last: int, clients: int) -> Tensor:
        """Rows [first, last) with their zeros."""
        start, end = torch.searchsorted(self.places, torch.tensor([first, last]) * clients)
        dense = self.weights.new_zeros((last - first) * clients)
        dense[self.places[start:end] - first * clients] = self.weights[start:end]
        return dense.reshape(last - first, clients)

    def row_entropy(self, clients: int) -> Tensor:
        """-Σ_j α_i(j) log α_i(j) of each row."""
        terms = torch.special.entr(self.weights)
        return self.weights.new_zeros(clients).index_add(0, self.places // clients, terms)

    def effective_helpers(self, clients: int) -> Tensor:
        """1 / Σ_j α_i(j)² of each row (0 for a row without weights)."""
        squares = self.weights.new_zeros(clients)
        squares = squares.index_add(0, self.places // clients, self.weights.square())
        return torch.where(squares > 0, 1 / squares, 0)
