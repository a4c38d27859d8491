"""What learning from each other costs clients: the squared distances of their gradients. Spec 5.3, 5.7.

    z_ij = |g_i - g_j|² = G_ii + G_jj - 2 G_ij,    G: the Gram matrix of the gradients

Rows are computed in blocks, so that no matrix of clients² exists; only the gradients themselves,
clients × parameters, are held whole. The working memory is a few times `AT_ONCE` doubles.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from idiolect.core import Params, tree
from idiolect.methods.perm.sizes import ModelSizes
from idiolect.methods.perm.weights import WeightRule, automatic_regulariser

AT_ONCE = 2**19  # entries of a matrix that are worked on together: small enough to stay in the cache
MEDIAN_ROWS = 1000  # rows that the automatic regulariser looks at, evenly spaced, where there are more
EQUAL = 1e-13  # squared distances below this part of the squared norms are rounding


class GradientDistances:
    """All clients' gradients, and from them the costs of any rows of the weight problem."""

    def __init__(self, gradients: Params, sizes: Tensor, model_sizes: ModelSizes | None) -> None:
        self.vectors = tree.flatten_rows(gradients)
        self.sizes = sizes
        self.model_sizes = model_sizes
        self.complexity_terms = torch.zeros_like(sizes, dtype=torch.float64)
        # The clients of one kind hold the same parameters; energies[i, k] = |gradient i where kind k holds|².
        masks = [torch.ones(self.vectors.shape[1], dtype=torch.bool)]
        self.kinds = torch.zeros_like(sizes)
        if model_sizes:
            model = tree.row(gradients, 0)
            self.complexity_terms = model_sizes.complexity_terms(model, sizes)
            if model_sizes.support == "intersection":
                masks, self.kinds = model_sizes.masks(model, len(sizes))
        self.energies = torch.stack([self._energy(mask) for mask in masks], dim=1)

    def _energy(self, mask: Tensor) -> Tensor:
        held = mask.split(rows_at_once(len(self.sizes)))
        return sum(
            ((part.square() * kept).sum(1) for part, kept in zip(self._parts(), held, strict=True)),
            start=torch.zeros(len(self.sizes), dtype=torch.float64),
        )

    def _parts(self) -> Iterator[Tensor]:
        """All vectors in double precision, some of the parameters at a time."""
        for part in self.vectors.split(rows_at_once(len(self.sizes)), dim=1):
            yield part.to(torch.float64)

    def of(self, rows: Tensor) -> Tensor:
        """z_ij of some rows with all clients."""
        gram = torch.zeros(len(rows), len(self.sizes), dtype=torch.float64)
        for part in self._parts():
            gram.addmm_(part[rows], part.T)
        norms = self.energies[rows][:, self.kinds] + self.energies[:, self.kinds[rows]].T
        same = rows[:, None] == torch.arange(len(self.sizes))
        return torch.where(same, 0, squared_distance(norms, gram))

    def costs(self, rows: Tensor, active: Tensor) -> Tensor:
        """z_ij + sqrt(VC_j / n_j); infinite where j is not active or cannot hold model i."""
        costs, allowed = self.of(rows) + self.complexity_terms, active.expand(len(rows), -1)
        if self.model_sizes and self.model_sizes.rule == "zero_weight":
            ratios = self.model_sizes.ratios(len(self.sizes))
            allowed = allowed & (ratios[rows][:, None] <= ratios)
        return torch.where(allowed, costs, math.inf)

    def regulariser(self, active: Tensor, rule: WeightRule) -> float:
        """λ, given or automatic."""
        if rule.regulariser is not None:
            return rule.regulariser
        ids = active.nonzero()[:, 0]
        if not len(ids):
            return 1.0  # nobody to weigh: every λ gives the same weights
        rows = ids[torch.linspace(0, len(ids) - 1, min(len(ids), MEDIAN_ROWS)).long()]
        everybody, blocks = torch.arange(len(active)), rows.split(rows_at_once(len(active)))
        distances = torch.cat([self.of(block)[active & (block[:, None] != everybody)] for block in blocks])
        if not len(distances):
            distances = torch.zeros(1, dtype=torch.float64)
        return automatic_regulariser(distances, self.sizes[ids], rule.regulariser_factor)


def squared_distance(norms: Tensor, product: Tensor) -> Tensor:
    """|g - h|² from |g|² + |h|² and g·h, elementwise; zero where it is nothing but rounding."""
    distance = norms - 2 * product
    return torch.where(distance <= EQUAL * norms, 0, distance)


def rows_at_once(length: int) -> int:
    """How many rows of that length are worked on together."""
    return max(1, AT_ONCE // length)
