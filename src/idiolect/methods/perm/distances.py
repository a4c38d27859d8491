"""What learning from each other costs clients: the squared distances of their gradients. Spec 5.3, 5.4, 5.7.

    z_ij = |g_i - g_j|² = G_ii + G_jj - 2 G_ij,    G: the Gram matrix of the gradients

Where λ is given, z_ij is what j costs i, as in the paper. Where it is automatic, z_ij counts as far as the
distances of all pairs together are more than the noise of the gradients (noise.py).
Rows are computed in blocks, so that no matrix of clients² exists; only the gradients themselves,
clients × parameters, are held whole. The working memory is a few times `AT_ONCE` doubles.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from idiolect.core import Params, tree
from idiolect.errors import require_finite
from idiolect.methods.perm.noise import GradientNoise
from idiolect.methods.perm.sizes import ModelSizes
from idiolect.methods.perm.weights import WeightRule, automatic_regulariser

AT_ONCE = 2**19  # entries of a matrix that are worked on together: small enough to stay in the cache
MEDIAN_ROWS = 1000  # rows that the automatic rule looks at, evenly spaced, where there are more
COMPARED = "the gradients by which clients are compared"
EQUAL = 1e-13  # squared distances below this part of the squared norms are rounding


class GradientDistances:
    """All clients' gradients, and from them the costs of any rows of the weight problem.

    `noise`: what is known of the gradients' own noise; None: they are taken as they are.
    """

    def __init__(
        self,
        gradients: Params,
        sizes: Tensor,
        model_sizes: ModelSizes | None,
        noise: GradientNoise | None = None,
    ) -> None:
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
        require_finite(self.energies, COMPARED)
        self.difference = 1.0 if noise is None else noise.difference(self._excess(noise))
        require_finite(torch.tensor(self.difference), COMPARED)

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
        distances = squared_distance(self._sums(self.energies, rows), gram)
        return torch.where(self._same(rows), 0, distances)

    def _sums(self, terms: Tensor, rows: Tensor) -> Tensor:
        """t_i + t_j of some rows with all clients, each over the parameters that both hold."""
        return terms[rows][:, self.kinds] + terms[:, self.kinds[rows]].T

    def _same(self, rows: Tensor) -> Tensor:
        return rows[:, None] == torch.arange(len(self.sizes))

    def costs(self, rows: Tensor, active: Tensor) -> Tensor:
        """What counts of z_ij, and sqrt(VC_j / n_j); infinite if j is not active or cannot hold model i."""
        costs, allowed = self.of(rows), active.expand(len(rows), -1)
        costs = self.difference * costs + self.complexity_terms
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
        distances = torch.cat([self.of(block)[active & ~self._same(block)] for block in self._some(active)])
        if not len(distances):
            distances = torch.zeros(1, dtype=torch.float64)
        return automatic_regulariser(distances, self.sizes[ids], rule.regulariser_factor)

    def _some(self, active: Tensor) -> Sequence[Tensor]:
        """Some of the active clients, evenly spaced, in blocks: enough to know what all pairs are like."""
        ids = active.nonzero()[:, 0]
        chosen = ids[torch.linspace(0, len(ids) - 1, min(len(ids), MEDIAN_ROWS)).long()]
        return chosen.split(rows_at_once(len(active)))

    def _excess(self, noise: GradientNoise) -> float:
        """The mean of (z_ij - s_i - s_j) / (s_i + s_j) over pairs."""
        total, pairs = 0.0, 0
        for block in self._some(noise.known):
            sums = self._sums(noise.of_means, block)
            ratios = (self.of(block) / sums)[noise.known & ~self._same(block)]
            total, pairs = total + float((ratios - 1).sum()), pairs + len(ratios)
        return total / max(pairs, 1)


def squared_distance(norms: Tensor, product: Tensor) -> Tensor:
    """|g - h|² from |g|² + |h|² and g·h, elementwise; zero where it is nothing but rounding."""
    distance = norms - 2 * product
    return torch.where(distance <= EQUAL * norms, 0, distance)


def rows_at_once(length: int) -> int:
    """How many rows of that length are worked on together."""
    return max(1, AT_ONCE // length)
