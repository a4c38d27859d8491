"""Which combination of all clients' heads suits each client best. Spec 8.9.

    α_i = argmin over α ≥ 0, Σ_j α_j = 1 of  Σ_j α_j² V_j + |M_i - Σ_j α_j M_j|²

with M_j the mean of e_y ⊗ z over client j's rows (z a row's features, e_y its class) and V_j the variance of
that mean. The first term is the noise of the combination, the second how far it is from what client i has.

Accelerated projected gradient, for all i at once. On the simplex half of the gradient is, up to a constant
that the projection takes out, α_j V_j - M_j·(M_i - Σ_k α_k M_k).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import Site, onto_simplex
from idiolect.errors import require_finite
from idiolect.methods._classes import ClassSums


class Statistics(NamedTuple):
    """Of e_y ⊗ z over a client's rows: the mean M_i, and V_i, the variance of that mean."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, features: Tensor, classes: ClassSums, site: Site) -> "Statistics":
        """From the features z of all rows, and their sums for each class."""
        count = classes.counts.sum().clamp_min(1)
        mean = classes.sums / count
        spread = (site.all_rows.weights * features.square().sum(-1)).sum() - mean.square().sum()
        return cls(mean, spread.clamp_min(0) / count)


STILL = 1e-13  # a step that moves no weight further ends the search
LONGEST = 20_000  # steps


def best_combinations(means: Tensor, variances: Tensor, smallest: float) -> Tensor:
    """α [clients, clients], a row for each client, from M [clients, ...] and V [clients].

    Weights below `smallest` become zero, unless all are, and the others sum to one again.
    """
    means, variances = means.double().flatten(1), variances.double()
    for each in (means, variances):
        require_finite(each, "the features by which heads are combined")
    means = means - means.mean(0)  # the distances are the same, and large entries do not hide them
    half_curvature = variances.max() + torch.linalg.matrix_norm(means @ means.T, ord=2)
    # Whoever is served best by its own head alone is there from the start.
    weights = _descend(torch.eye(len(means), dtype=torch.float64), means, variances, half_curvature)
    # Of very many heads all may be small: the largest always stay.
    least = weights.amax(1, keepdim=True).clamp_max(smallest)
    weights = torch.where(weights < least, 0.0, weights)
    return weights / weights.sum(1, keepdim=True)


def _descend(weights: Tensor, means: Tensor, variances: Tensor, half_curvature: Tensor) -> Tensor:
    """Nesterov's method, whose momentum starts anew in every row where it leads uphill."""
    ahead, pace = weights, torch.ones(len(weights), 1, dtype=torch.float64)
    for _ in range(LONGEST):
        half_slope = ahead * variances - (means - ahead @ means) @ means.T
        moved = onto_simplex(ahead - half_slope / half_curvature.clamp_min(1e-300))
        if (moved - ahead).abs().max() < STILL:
            return moved
        uphill = ((ahead - moved) * (moved - weights)).sum(1, keepdim=True) > 0
        pace = torch.where(uphill, 1.0, pace)
        faster = (1 + (1 + 4 * pace.square()).sqrt()) / 2
        ahead = moved + (pace - 1) / faster * (moved - weights)
        weights, pace = moved, faster
    return weights
