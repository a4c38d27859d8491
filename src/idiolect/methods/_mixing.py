"""PERM's mixing matrix A: from all clients' gradients to sparse rows α_i. Spec 5.1, 5.3, 5.7, 7.4.

Rows are solved in blocks, so that memory grows with the number of non-zero weights (12 bytes each in
single precision) and not with clients²; only the gradients themselves, clients × parameters, are held
whole. The working memory is a few times `AT_ONCE` doubles.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import STRICT, Params, hyper, tree
from idiolect.core.mixing_weights import automatic_regulariser, optimal_weights, projected_weights
from idiolect.core.submodel import Chain, Ratio, client_ratios, restrict
from idiolect.methods._mixing_matrix import MixingMatrix

AT_ONCE = 2**19  # entries of a matrix that are worked on together: small enough to stay in the cache
MEDIAN_ROWS = 1000  # rows that the automatic regulariser looks at, evenly spaced, where there are more
EQUAL = 1e-13  # squared distances below this part of the squared norms are rounding


@dataclass(frozen=True, config=STRICT)
class WeightRule:
    """How the weight problem is regularised and solved."""

    regulariser: float | None = hyper(None, "λ; None: automatic", symbol="λ", paper="not given", gt=0)
    regulariser_factor: float = hyper(1.0, "c in the automatic λ = ½ n̄ c median z", symbol="c", gt=0)
    projected_steps: int | None = hyper(
        None, "projected gradient steps from the last weights; None: the exact solution", symbol="T_α", ge=1
    )


@dataclass(frozen=True, config=STRICT)
class ModelSizes:
    """Clients that hold sub-models of different sizes (spec 5.7)."""

    capacities: tuple[Ratio, ...] = Field(
        min_length=1, description="part of every hidden layer that each client holds, given in turn"
    )
    support: Literal["literal", "intersection"] = hyper(
        "literal", "compare gradients padded with zeros, or where both clients hold parameters"
    )
    complexity: Literal["parameters", "w_log_w"] | None = hyper(
        "parameters", "surrogate of VC_j in the term sqrt(VC_j / n_j); None: no such term", symbol="VC_j"
    )
    rule: Literal["zero_weight", "submodel"] = hyper(
        "zero_weight", "a model too large for a client gets no weight there, or trains only what fits"
    )

    def ratios(self, clients: int) -> Tensor:
        """ρ of each client, float64[clients]."""
        return client_ratios(self.capacities, torch.arange(clients))


class Comparison:
    """Whose gradients are compared, and at what cost each client may learn from each."""

    def __init__(self, gradients: Params, like: Params, sizes: Tensor, sizes_rule: ModelSizes | None) -> None:
        self.vectors = tree.flatten_rows(gradients, like=like)
        self.sizes = sizes
        self.rule = sizes_rule
        clients = len(sizes)
        self.ratios = sizes_rule.ratios(clients) if sizes_rule else torch.ones(clients, dtype=torch.float64)
        self.penalties = torch.zeros(clients, dtype=torch.float64)
        # The clients of one kind hold the same parameters; energies[i, k] = |gradient i where kind k holds|².
        distinct, kinds = self.ratios.unique(return_inverse=True)
        masks = [torch.ones(self.vectors.shape[1], dtype=torch.bool)]
        self.kinds = torch.zeros(clients, dtype=torch.int64)
        if sizes_rule:
            held = [_held(like, ratio) for ratio in distinct]
            counts = torch.stack([mask.sum() for mask in held]).to(torch.float64)[kinds]
            if sizes_rule.complexity == "w_log_w":
                counts = counts * counts.log()
            if sizes_rule.complexity:
                self.penalties = (counts / sizes).sqrt()
            if sizes_rule.support == "intersection":
                masks, self.kinds = held, kinds
        self.energies = torch.stack([self._energy(mask) for mask in masks], dim=1)

    def _energy(self, mask: Tensor) -> Tensor:
        held = mask.split(_together(len(self.sizes)))
        return sum(
            ((part.square() * kept).sum(1) for part, kept in zip(self._parts(), held, strict=True)),
            start=torch.zeros(len(self.sizes), dtype=torch.float64),
        )

    def _parts(self) -> Iterator[Tensor]:
        """All vectors in double precision, some of the parameters at a time."""
        for part in self.vectors.split(_together(len(self.sizes)), dim=1):
            yield part.to(torch.float64)

    def distances(self, rows: Tensor) -> Tensor:
        """z_ij = G_ii + G_jj - 2 G_ij of some rows with all clients, G the Gram matrix of the gradients."""
        gram = torch.zeros(len(rows), len(self.sizes), dtype=torch.float64)
        for part in self._parts():
            gram.addmm_(part[rows], part.T)
        norms = self.energies[rows][:, self.kinds] + self.energies[:, self.kinds[rows]].T
        same = rows[:, None] == torch.arange(len(self.sizes))
        return torch.where(same, 0, squared_distance(norms, gram))

    def costs(self, rows: Tensor, active: Tensor) -> Tensor:
        """z_ij + sqrt(VC_j / n_j); infinite where j is not active or cannot hold model i."""
        costs = self.distances(rows) + self.penalties
        allowed = active.expand(len(rows), -1)
        if self.rule and self.rule.rule == "zero_weight":
            allowed = allowed & (self.ratios[rows][:, None] <= self.ratios)
        return torch.where(allowed, costs, math.inf)

    def regulariser(self, active: Tensor, rule: WeightRule) -> float:
        """λ, given or automatic."""
        if rule.regulariser is not None:
            return rule.regulariser
        ids = active.nonzero()[:, 0]
        if not len(ids):
            return 1.0  # nobody to weigh: every λ gives the same weights
        rows = ids[torch.linspace(0, len(ids) - 1, min(len(ids), MEDIAN_ROWS)).long()]
        distances = torch.cat(
            [self._to_others(block, active) for block in rows.split(_together(len(active)))]
        )
        if not len(distances):
            distances = torch.zeros(1, dtype=torch.float64)
        return automatic_regulariser(distances, self.sizes[ids], rule.regulariser_factor)

    def _to_others(self, rows: Tensor, active: Tensor) -> Tensor:
        return self.distances(rows)[active & (rows[:, None] != torch.arange(len(active)))]


def mixing_matrix(
    comparison: Comparison, active: Tensor, rule: WeightRule, last: MixingMatrix
) -> tuple[MixingMatrix, Tensor]:
    """The rows of all active clients, and the Frobenius norm of their change (from n_j / n at first)."""
    sizes, clients = comparison.sizes, len(comparison.sizes)
    regulariser = comparison.regulariser(active, rule)
    prior = (active * sizes).to(torch.float64)
    prior = prior / prior.sum().clamp_min(1)
    places, weights, change = [], [], torch.zeros((), dtype=torch.float64)
    for block in torch.arange(clients).split(_together(clients)):
        first, end = int(block[0]), int(block[-1]) + 1
        rows = block[active[block]]
        costs = comparison.costs(rows, active)
        before = last.rows(first, end, clients).to(torch.float64)[rows - first]
        before = torch.where(before.sum(1, keepdim=True) > 0, before, prior)
        if rule.projected_steps is None:
            found = optimal_weights(costs, sizes, regulariser)
        else:
            found = projected_weights(costs, sizes, regulariser, before, rule.projected_steps)
        change = change + (found - before).square().sum()
        row, column = found.nonzero(as_tuple=True)
        places.append(rows[row] * clients + column)
        weights.append(found[row, column].to(last.weights.dtype))
    return MixingMatrix(torch.cat(places), torch.cat(weights)), change.sqrt()


def squared_distance(norms: Tensor, product: Tensor) -> Tensor:
    """|g - h|² from |g|² + |h|² and g·h, elementwise; zero where it is nothing but rounding."""
    distance = norms - 2 * product
    return torch.where(distance <= EQUAL * norms, 0, distance)


def _together(length: int) -> int:
    """How many rows of that length are worked on together."""
    return max(1, AT_ONCE // length)


def _held(like: Params, ratio: Tensor) -> Tensor:
    chain = Chain.of(like)
    return (
        tree.flatten(restrict(tree.map_tree(torch.ones_like, like), chain.masks(chain.first_units(ratio))))
        > 0
    )
