"""PERM's weight problem: how much each client's loss counts in client i's. Spec 5.1, 5.4, 7.4.

    α_i = argmin over the simplex of  Σ_j α(j) z_ij + λ Σ_j α(j)² / n_j                    (eq. 2)

z_ij is the cost of learning from client j: the squared distance of the clients' gradients. An infinite
cost forbids a pair. One row of `costs` is one problem; all rows are solved at once.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, hyper


@dataclass(frozen=True, config=STRICT)
class WeightRule:
    """How the weight problem is regularised and solved."""

    regulariser: float | None = hyper(None, "λ; None: automatic", symbol="λ", paper="not given", gt=0)
    regulariser_factor: float = hyper(
        1.0, "c in the automatic λ = ½ n̄ c median z", symbol="c", gt=0, tune=(0.1, 10.0)
    )
    projected_steps: int | None = hyper(
        None, "projected gradient steps from the last weights; None: the exact solution", symbol="T_α", ge=1
    )

    @property
    def is_automatic(self) -> bool:
        """Whether λ follows the distances, which then count as far as they are more than noise."""
        return self.regulariser is None

    def solve(self, costs: Tensor, sizes: Tensor, regulariser: float, last: Tensor) -> Tensor:
        """The weights of every row, [rows, clients]."""
        if self.projected_steps is None:
            return optimal_weights(costs, sizes, regulariser)
        return projected_weights(costs, sizes, regulariser, last, self.projected_steps)


def optimal_weights(costs: Tensor, sizes: Tensor, regulariser: Tensor | float) -> Tensor:
    """The exact solution of every row, [rows, clients], in O(N log N) each.

    With costs ascending, ν_k = (2λ + Σ_{l≤k} n_l z_l) / Σ_{l≤k} n_l; the support is the largest k with
    ν_k > z_k, and α_j = n_j / (2λ) · max(0, ν_k - z_j).
    """
    ordered, order = costs.sort(dim=-1, stable=True)
    n = sizes.to(costs.dtype)[order]
    levels = (2 * regulariser + (n * ordered).cumsum(-1)) / n.cumsum(-1)
    support = (levels > ordered).sum(-1, keepdim=True).clamp_min(1)  # NaN has none, and stays NaN
    level = levels.gather(-1, support - 1)
    return sizes.to(costs.dtype) / (2 * regulariser) * (level - costs).clamp_min(0)


def projected_weights(
    costs: Tensor, sizes: Tensor, regulariser: Tensor | float, start: Tensor, steps: int
) -> Tensor:
    """Some steps of α <- Π_Δ(α - η_α (z + 2λ α / n)) from `start`, η_α = n_min / (2λ)."""
    n = sizes.to(costs.dtype)
    rate = n.min() / (2 * regulariser)
    weights = start
    for _ in range(steps):
        weights = core.onto_simplex(weights - rate * (costs + 2 * regulariser * weights / n))
    return weights


def automatic_regulariser(distances: Tensor, sizes: Tensor, factor: float) -> float:
    """λ = ½ n̄ · factor · median of the distances between different clients.

    Where more than half of the distances are zero their mean stands in; where all are, the weights are
    n_j / n for every λ.
    """
    values = distances.flatten()
    middles = [values.kthvalue(place).values for place in ((len(values) + 1) // 2, len(values) // 2 + 1)]
    middle = float(sum(middles)) / 2 or float(values.mean()) or 1.0
    return 0.5 * float(sizes.to(torch.float64).mean()) * factor * middle
