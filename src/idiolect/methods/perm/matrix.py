"""PERM's mixing matrix A, row i of which is α_i: found row by row, kept by its non-zero weights. Spec 5.2.

Memory grows with the number of non-zero weights, 12 bytes each in single precision, and not with clients².
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.methods.perm.distances import GradientDistances, rows_at_once
from idiolect.methods.perm.weights import WeightRule


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

    def rows(self, first: int, last: int, clients: int) -> Tensor:
        """Rows [first, last) with their zeros."""
        start, end = torch.searchsorted(self.places, torch.tensor([first, last]) * clients)
        dense = self.weights.new_zeros((last - first) * clients)
        dense[self.places[start:end] - first * clients] = self.weights[start:end]
        return dense.reshape(last - first, clients)

    def largest(self, clients: int) -> Tensor:
        """max_j α_i(j) of each row (1 for a row without weights)."""
        top = self.weights.new_zeros(clients)
        top = top.scatter_reduce(0, self.places // clients, self.weights, "amax")
        return torch.where(top > 0, top, 1)

    def row_entropy(self, clients: int) -> Tensor:
        """-Σ_j α_i(j) log α_i(j) of each row."""
        return self._row_sums(torch.special.entr(self.weights), clients)

    def effective_helpers(self, clients: int) -> Tensor:
        """1 / Σ_j α_i(j)² of each row (0 for a row without weights)."""
        squares = self._row_sums(self.weights.square(), clients)
        return torch.where(squares > 0, 1 / squares, 0)

    def _row_sums(self, terms: Tensor, clients: int) -> Tensor:
        return terms.new_zeros(clients).index_add(0, self.places // clients, terms)


def mixing_matrix(
    distances: GradientDistances, active: Tensor, rule: WeightRule, last: MixingMatrix
) -> tuple[MixingMatrix, Tensor]:
    """The rows of all active clients, and the Frobenius norm of their change (from n_j / n at first)."""
    sizes, clients = distances.sizes, len(distances.sizes)
    regulariser = distances.regulariser(active, rule)
    prior = (active * sizes).to(torch.float64)
    prior = prior / prior.sum().clamp_min(1)
    places, weights, change = [], [], torch.zeros((), dtype=torch.float64)
    for block in torch.arange(clients).split(rows_at_once(clients)):
        first, end = int(block[0]), int(block[-1]) + 1
        rows = block[active[block]]
        before = last.rows(first, end, clients).to(torch.float64)[rows - first]
        before = torch.where(before.sum(1, keepdim=True) > 0, before, prior)
        found = rule.solve(distances.costs(rows, active), sizes, regulariser, before)
        change = change + (found - before).square().sum()
        row, column = found.nonzero(as_tuple=True)
        places.append(rows[row] * clients + column)
        weights.append(found[row, column].to(last.weights.dtype))
    return MixingMatrix(torch.cat(places), torch.cat(weights)), change.sqrt()
