"""What PERM's theorems say in numbers. Spec 7.4.

Client i's weights α_i minimise Σ_j α(j) z_ij + λ Σ_j α(j)² / n_j (eq. 2); their closed form is
`optimal_weights` in `idiolect.methods.perm.weights`. Rates hold up to constants and logarithms.

Reference: Deng, Kamani, Mahdavinia, Mahdavi: Distributed personalized empirical risk minimization (2023),
(GEN), theorem 1, lemmas 1 to 3; corrections in spec 7.4.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from idiolect.errors import UserError
from idiolect.evaluation.theory.checks import (
    require_counts,
    require_curvature,
    require_not_negative,
    require_positive,
)

_ROUNDING = 1e-6  # by how much the sum of weights may miss 1


def gradient_distances(gradients: Tensor) -> Tensor:
    """ζ_ij = |∇f_i - ∇f_j|² of all pairs, float64[clients, clients], from gradients [clients, d].

    >>> import torch
    >>> gradient_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    if gradients.ndim != 2:
        raise UserError(f"gradients {tuple(gradients.shape)} must be [clients, parameters]")
    values = gradients.double()
    return (values[:, None] - values).square().sum(2)


def mean_distances(gradients: Tensor) -> Tensor:
    """ζ̄_i = (1/N) Σ_j ζ_ij, float64[clients].

    >>> import torch
    >>> mean_distances(torch.tensor([[0.0], [2.0], [4.0]])).tolist()
    [6.666666666666667, 2.6666666666666665, 6.666666666666667]
    """
    return gradient_distances(gradients).mean(1)


def effective_helpers(weights: Tensor) -> Tensor:
    """1 / Σ_j α(j)² of each row: N where all count alike, 1 where one counts alone.

    >>> import torch
    >>> effective_helpers(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])).tolist()
    [2.0, 1.0]
    """
    _require_weights(weights)
    return 1 / weights.double().square().sum(-1)


def distance_budget(regulariser: float, rows: int) -> float:
    """2λ/n: with n rows everywhere, client j has weight iff Σ_{l nearer than j} (z_j - z_l) is below it.

    >>> distance_budget(7.0, 100)
    0.14
    """
    require_positive(regulariser=regulariser)
    require_counts(rows=rows)
    return 2 * regulariser / rows


def generalisation_bound(
    weights: Tensor,
    sizes: Tensor,
    discrepancies: Tensor,
    *,
    best_risk: float,
    complexities: Tensor | float = 0.0,
    constant: float = 1.0,
) -> float:
    """(GEN): the risk of the model trained on the mixture α, on client i's distribution, is at most

        L_i(h_i*) + Σ_j α(j) R_j + 2 Σ_j α(j) disc(D_j, D_i) + C sqrt(Σ_j α(j)² / n_j)

    R_j the Rademacher complexity at client j, disc(D, D') = sup_h |E_D ℓ - E_D' ℓ|. Valid for bounded losses
    and weights on the simplex. C and the discrepancies are seldom known.

    >>> import torch
    >>> halves, sizes, apart = torch.tensor([0.5, 0.5]), torch.tensor([8, 8]), torch.tensor([0.0, 0.1])
    >>> round(generalisation_bound(halves, sizes, apart, best_risk=0.2), 6)
    0.55
    """
    _require_weights(weights)
    require_not_negative(best_risk=best_risk)
    require_positive(constant=constant)
    if bool((sizes < 1).any()) or bool((discrepancies < 0).any()):
        raise UserError("sizes must be at least 1 and discrepancies at least 0")
    values = weights.double()
    mixed = (values * (complexities + 2 * discrepancies.double())).sum()
    return best_risk + float(mixed + constant * (values.square() / sizes).sum().sqrt())


@dataclass(frozen=True, kw_only=True)
class MixtureRates:
    """How fast PERM's weights and models converge, for μ-strongly convex, L-smooth losses with |∇f_j| <= G.

    >>> problem = dict(strong_convexity=0.5, smoothness=1.0, clients=4)
    >>> rates = MixtureRates(**problem, regulariser=10.0, largest_size=100)
    >>> rates.weight_sensitivity, rates.condition_number
    (5.0, 2.0)
    """

    strong_convexity: float  # μ
    smoothness: float  # L
    regulariser: float  # λ
    largest_size: int  # n_max
    clients: int  # N

    def __post_init__(self) -> None:
        require_curvature(self.strong_convexity, self.smoothness)
        require_positive(regulariser=self.regulariser)
        require_counts(largest_size=self.largest_size, clients=self.clients)

    @property
    def condition_number(self) -> float:
        """κ = L / μ."""
        return self.smoothness / self.strong_convexity

    @property
    def weight_sensitivity(self) -> float:
        """κ_g = n_max / (2λ): z -> α is Lipschitz with it."""
        return self.largest_size / (2 * self.regulariser)

    def model_sensitivity(self, gradient_norm: float) -> float:
        """κ_Φ = √N G / μ: α -> argmin Φ(α, .) is Lipschitz with it (lemma 1)."""
        require_not_negative(gradient_norm=gradient_norm)
        return math.sqrt(self.clients) * gradient_norm / self.strong_convexity

    def weight_change(self, distances: Tensor, moved: float) -> float:
        """Lemma 3, corrected: |α_i(w) - α_i(w*)|² <= 32 L² κ_g² Σ_j (ζ_ij(w*) + L² D) D.

        D = |w - w*|² is `moved`, and `distances` row i of ζ at w*.
        """
        require_not_negative(moved=moved)
        square = self.smoothness**2
        total = float((distances.double() + square * moved).sum())
        return 32 * square * self.weight_sensitivity**2 * total * moved

    def weights_after(
        self,
        *,
        rounds: int,
        local_steps: int,
        mean_distance: float,
        diameter: float,
        dissimilarity: float,
        noise: float,
        weight_steps: int | None = None,
        smallest_size: int | None = None,
    ) -> float:
        """Theorem 1: E |α_i^R - α_i*|² after R rounds of stage 1, up to constants and logarithms.

            exp(-T_α n_min/n_max) + κ_g² ζ̄_i(w*) N L² (D²/(RK) + κζ/(μ²R²) + δ²/(μ²NRK))

        D is the feasible set's `diameter`, ζ = `dissimilarity` = sup_w max_i |∇f_i - ∇F|², which the paper
        squares again against the dimensions, δ² = `noise`. The first term is for T_α projected steps, whose
        condition number is n_max/n_min; the closed form has none. The factor N is lost in the paper's proof
        (spec 5.11).
        """
        require_counts(rounds=rounds, local_steps=local_steps)
        require_not_negative(
            mean_distance=mean_distance, diameter=diameter, dissimilarity=dissimilarity, noise=noise
        )
        solver = 0.0
        if weight_steps is not None:
            smallest = self.largest_size if smallest_size is None else smallest_size
            require_counts(weight_steps=weight_steps, smallest_size=smallest)
            solver = math.exp(-weight_steps * smallest / self.largest_size)
        mu, steps = self.strong_convexity**2, rounds * local_steps
        model = diameter**2 / steps + self.condition_number * dissimilarity / (mu * rounds**2)
        model += noise / (mu * self.clients * steps)
        scale = self.weight_sensitivity**2 * mean_distance * self.clients * self.smoothness**2
        return solver + scale * model

    def optimality_gap(self, *, model_error: float, weight_error: float, gradient_norm: float) -> float:
        """Lemma 2: Φ(α*, v̂) - Φ(α*, v*) <= 2 L |ṽ - v*(α̂)|² + (2 κ_Φ² L + 4 N G²/L) |α̂ - α*|².

        v̂ is ṽ after one full step of size 1/L on Φ(α̂, .) (`final_step`); both errors are squared.
        """
        require_not_negative(model_error=model_error, weight_error=weight_error)
        sensitivity = 2 * self.model_sensitivity(gradient_norm) ** 2 * self.smoothness
        sensitivity += 4 * self.clients * gradient_norm**2 / self.smoothness
        return 2 * self.smoothness * model_error + sensitivity * weight_error


def _require_weights(weights: Tensor) -> None:
    if bool((weights < 0).any()) or bool(((weights.double().sum(-1) - 1).abs() > _ROUNDING).any()):
        raise UserError("weights must not be negative, and must sum to 1 in every row")
