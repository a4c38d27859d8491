"""What APFL's theorems say in numbers. Spec 7.1.

A client mixes its own model with the shared one, α its own share:  v̄ = α v + (1 - α) w.

Reference: Deng, Kamani, Mahdavi: Adaptive personalized federated learning (2020), theorems 1, 2, 3 and 7,
corollary 1, lemma 3. Rates hold up to constants: every O(x) is x here.
"""

import math
from dataclasses import dataclass

import numpy as np

from idiolect.errors import UserError
from idiolect.evaluation.theory.checks import (
    require_counts,
    require_curvature,
    require_not_negative,
    require_positive,
    require_share,
)


@dataclass(frozen=True, kw_only=True)
class MixingBound:
    """Theorem 1: the risk of a mixed model on the client's own distribution, and the best mixing.

        L_i(h_α) <= 2 α² A_i + 2 (1 - α)² B_i                               with probability 1 - δ
        A_i = L_i(h_i*) + 2 C sqrt((d + log 1/δ) / m_i) + G λ_H(S_i)        learning alone from m_i rows
        B_i = L̂(h̄*) + B |D̄ - D_i|_1 + C sqrt((d + log 1/δ) / m)            the shared model, from m rows
        α_i* = B_i / (A_i + B_i)

    Valid for a loss in [0, B] with Lipschitz constant G and models of VC dimension d. C, G and B are seldom
    known: the bound says how α_i* moves with rows and divergence, not where it is.

    >>> bound = MixingBound(local_risk=0.1, shared_risk=0.2, rows=100, all_rows=10_000, dimension=10,
    ...                     divergence=0.5, discrepancy=0.0)
    >>> round(bound.best_mixing, 4)
    0.4727
    >>> bound.at(bound.best_mixing) <= min(bound.at(0.0), bound.at(1.0))
    True
    """

    local_risk: float  # L_i(h_i*): of the best model for the client
    shared_risk: float  # L̂(h̄*): of the shared model on everybody's rows
    rows: int  # m_i
    all_rows: int  # m
    dimension: float  # d
    divergence: float  # |D̄ - D_i|_1, from 0 to 2
    discrepancy: float  # λ_H(S_i)
    constant: float = 1.0  # C
    lipschitz: float = 1.0  # G
    largest_loss: float = 1.0  # B
    failure: float = 0.05  # δ

    def __post_init__(self) -> None:
        require_not_negative(
            local_risk=self.local_risk, shared_risk=self.shared_risk, discrepancy=self.discrepancy
        )
        require_counts(rows=self.rows)
        require_positive(
            dimension=self.dimension,
            constant=self.constant,
            lipschitz=self.lipschitz,
            largest_loss=self.largest_loss,
        )
        if self.all_rows < self.rows:
            raise UserError(f"all_rows={self.all_rows} must not be below rows={self.rows}, a part of them")
        if not 0 <= self.divergence <= 2:
            raise UserError(f"divergence={self.divergence} must be from 0 to 2, as |D̄ - D_i|_1 always is")
        if not 0 < self.failure < 1:
            raise UserError(f"failure={self.failure} must be between 0 and 1: it is a probability")

    def _deviation(self, rows: int) -> float:
        return self.constant * math.sqrt((self.dimension - math.log(self.failure)) / rows)

    @property
    def local_error(self) -> float:
        """A_i."""
        return self.local_risk + 2 * self._deviation(self.rows) + self.lipschitz * self.discrepancy

    @property
    def shared_error(self) -> float:
        """B_i."""
        return self.shared_risk + self.largest_loss * self.divergence + self._deviation(self.all_rows)

    @property
    def best_mixing(self) -> float:
        """α_i* = B_i / (A_i + B_i)."""
        return self.shared_error / (self.local_error + self.shared_error)

    def at(self, mixing: float) -> float:
        """The bound at some α."""
        require_share(mixing=mixing)
        return 2 * mixing**2 * self.local_error + 2 * (1 - mixing) ** 2 * self.shared_error

    def excess_over_local(self, mixing: float, lower_constant: float) -> float:
        """Corollary 1: L_i(h_α) - L_i(client's own empirical optimum) is at most this; below 0 mixing pays.

        The bound minus L_i(h_i*) + C_2 sqrt((d + log 1/δ) / m_i), which no learner from m_i rows can beat in
        the worst case. `lower_constant` is C_2.
        """
        require_positive(lower_constant=lower_constant)
        best_alone = self.local_risk + lower_constant / self.constant * self._deviation(self.rows)
        return self.at(mixing) - best_alone


def largest_mixing_beside_local(constant: float, lower_constant: float) -> float:
    """Corollary 1: up to which α mixing can be better than training alone, min{√2/2, sqrt(C_2/(2 C_1))}.

    >>> round(largest_mixing_beside_local(1.0, 0.5), 4)
    0.5
    """
    require_positive(constant=constant, lower_constant=lower_constant)
    return min(math.sqrt(0.5), math.sqrt(lower_constant / (2 * constant)))


def label_divergence(counts: np.ndarray) -> np.ndarray:
    """|D̄ - D_i|_1 of each client where clients differ in their labels alone: Σ_y |p̄(y) - p_i(y)|, in [0, 2].

    `counts`: rows of each class at each client, [clients, classes]. D̄ is the plain mean of the clients'
    distributions.

    >>> label_divergence(np.array([[10, 0], [0, 30]])).tolist()
    [1.0, 1.0]
    """
    counts = np.asarray(counts, dtype=float)
    if counts.ndim != 2 or (counts < 0).any() or not (counts.sum(1) > 0).all():
        raise UserError("counts must be [clients, classes], not negative, with a row at each client")
    shares = counts / counts.sum(1, keepdims=True)
    return np.asarray(np.abs(shares - shares.mean(0)).sum(1))


def linear_discrepancy(inputs: np.ndarray, radius: float) -> float:
    """λ_H(S) = sup mean_S |h(x) - h'(x)| of linear models |h|, |h'| <= ρ: at most 2ρ sqrt(λ_max(XᵀX / |S|)).

    >>> round(linear_discrepancy(np.array([[3.0, 4.0]]), radius=1.0), 6)
    10.0
    """
    require_positive(radius=radius)
    inputs = np.asarray(inputs, dtype=float)
    if inputs.ndim != 2 or not len(inputs):
        raise UserError(f"inputs {inputs.shape} must be [rows, features] with at least one row")
    return float(2 * radius * np.linalg.norm(inputs, ord=2) / math.sqrt(len(inputs)))


def smallest_mixing(strong_convexity: float, smoothness: float) -> float:
    """The α_i that theorem 2 needs at least: max{1 - 1/(4√6 κ), 1 - 1/(4√6 κ √μ)}.

    >>> round(smallest_mixing(1.0, 1.0), 6)
    0.897938
    """
    require_curvature(strong_convexity, smoothness)
    share = 1 / (4 * math.sqrt(6) * smoothness / strong_convexity)
    return max(1 - share, 1 - share / math.sqrt(strong_convexity))


@dataclass(frozen=True, kw_only=True)
class MixingRates:
    """Theorems 2, 3 and 7: E f_i(v̂_i) - min f_i of client i after T steps, up to constants.

    Valid for μ-strongly convex (not theorem 3), L-smooth losses, gradient noise of variance σ² and finite
    diversity ζ_i = sup_w |∇F(w) - ∇f_i(w)|², ζ = Σ_i ζ_i over all n clients; K of them take part in a round
    of τ steps. v̂_i averages the path with weights (t + a)². Δ_i = |v_i* - w*|².

    >>> rates = MixingRates(strong_convexity=1.0, smoothness=2.0, noise=0.5, diversity=0.1, all_diversity=1.0,
    ...                     optimum_gap=0.1, clients=10, asked=10, local_steps=4)
    >>> rates.strongly_convex(1.0, steps=100)  # alone: σ² / (μ b T), b = ½
    0.01
    >>> rates.strongly_convex(0.5, steps=100)
    Traceback (most recent call last):
    idiolect.errors.UserError: mixing=0.5 must be from 0.948969 to 1 in theorem 2: take any_mixing
    """

    strong_convexity: float  # μ
    smoothness: float  # L
    noise: float  # σ²
    diversity: float  # ζ_i
    all_diversity: float  # ζ
    optimum_gap: float  # Δ_i
    clients: int  # n
    asked: int  # K
    local_steps: int  # τ

    def __post_init__(self) -> None:
        require_curvature(self.strong_convexity, self.smoothness)
        require_not_negative(
            noise=self.noise,
            diversity=self.diversity,
            all_diversity=self.all_diversity,
            optimum_gap=self.optimum_gap,
        )
        require_counts(clients=self.clients, asked=self.asked, local_steps=self.local_steps)
        if self.asked > self.clients:
            raise UserError(f"asked={self.asked} must not be above clients={self.clients}")

    @property
    def condition_number(self) -> float:
        """κ = L / μ."""
        return self.smoothness / self.strong_convexity

    @property
    def participation(self) -> float:
        """b = min{K/n, ½}."""
        return min(self.asked / self.clients, 0.5)

    def residual(self, mixing: float) -> float:
        """What no number of steps takes away: (1-α)² ((ζ_i + ζ/K) / (μ b) + κ L Δ_i / b)."""
        require_share(mixing=mixing)
        diversity = self.diversity + self.all_diversity / self.asked
        gap = self.condition_number * self.smoothness * self.optimum_gap
        return (1 - mixing) ** 2 * (diversity / self.strong_convexity + gap) / self.participation

    def strongly_convex(self, mixing: float, *, steps: int) -> float:
        """Theorem 2, rate η_t = 16 / (μ (t + a)), a = max{128 κ, τ}; for α_i of at least `smallest_mixing`.

        α² σ²/(μbT) + (1-α)² (κ²σ²/(μbKT) + κ²τ(τζ_i + κ²τζ/K)/(μbT²) + (ζ_i + ζ/K)/(μb) + κLΔ_i/b)
        """
        least = smallest_mixing(self.strong_convexity, self.smoothness)
        if not least <= mixing <= 1:
            raise UserError(f"mixing={mixing} must be from {least:.6f} to 1 in theorem 2: take any_mixing")
        require_counts(steps=steps)
        kappa, scale = self.condition_number, self.strong_convexity * self.participation
        shared_noise = kappa**2 * self.noise / (scale * self.asked * steps)
        spread = self.diversity + kappa**2 * self.all_diversity / self.asked
        drift = kappa**2 * self.local_steps**2 * spread / (scale * steps**2)
        own = mixing**2 * self.noise / (scale * steps)
        return own + (1 - mixing) ** 2 * (shared_noise + drift) + self.residual(mixing)

    def any_mixing(self, mixing: float, *, steps: int, gradient_bound: float) -> float:
        """Theorem 7, for every α_i: rate 8 / (μ (t + a)), a = max{64 κ, τ}; G² = `gradient_bound` >= |∇f_i|².

        μ/(bT³) + α² σ²/(μbT) + (1-α)² (G²/(μb) + κ L ln T/(bT³) + κ²σ²/(μbKT)
            + (κ²τ²(ζ_i + ζ/K) + κ²τσ²)/(μbT²) + κ⁴τ(σ² + 2τζ/K)/(μbT²))
        """
        require_share(mixing=mixing)
        require_counts(steps=steps)
        require_not_negative(gradient_bound=gradient_bound)
        kappa, b, tau = self.condition_number, self.participation, self.local_steps
        scale, spread = self.strong_convexity * b, self.all_diversity / self.asked
        start = self.strong_convexity / (b * steps**3)
        own = mixing**2 * self.noise / (scale * steps)
        shared = (
            gradient_bound / scale
            + kappa * self.smoothness * math.log(steps) / (b * steps**3)
            + kappa**2 * self.noise / (scale * self.asked * steps)
            + kappa**2 * tau * (tau * (self.diversity + spread) + self.noise) / (scale * steps**2)
            + kappa**4 * tau * (self.noise + 2 * tau * spread) / (scale * steps**2)
        )
        return start + own + (1 - mixing) ** 2 * shared

    def nonconvex(self, mixing: float, *, steps: int, diameter: float) -> float:
        """Theorem 3: the mean of |∇f_i|² over the steps; full gradients, everybody, rate 1/(2√5 L √T).

        L/√T + (1-α)² L/√T + (1-α²)² (ζ_i + L² D) + α⁴(1-α)² (τ⁴ζ/(nT²) + τ²ζ_i/T) + (1-α)² τ²ζ/(nT)

        D = `diameter` is the squared diameter of the feasible set.
        """
        require_share(mixing=mixing)
        require_counts(steps=steps)
        require_not_negative(diameter=diameter)
        if self.asked != self.clients:
            raise UserError(f"asked={self.asked} must be clients={self.clients} for theorem 3")
        tau, other, mean = self.local_steps, (1 - mixing) ** 2, self.all_diversity / self.clients
        start = (1 + other) * self.smoothness / math.sqrt(steps)
        residual = (1 - mixing**2) ** 2 * (self.diversity + self.smoothness**2 * diameter)
        drift = tau**4 * mean / steps**2 + tau**2 * self.diversity / steps
        return start + residual + mixing**4 * other * drift + other * tau**2 * mean / steps

    def local_deviation(self, rate: float) -> float:
        """Lemma 3: E |w - w_i|² <= 3 τ σ² η² + 3 (ζ_i + ζ/n) τ² η², η the rate of the step before; K = n."""
        require_positive(rate=rate)
        if self.asked != self.clients:
            raise UserError(f"asked={self.asked} must be clients={self.clients} for lemma 3")
        spread = self.diversity + self.all_diversity / self.clients
        return 3 * rate**2 * self.local_steps * (self.noise + spread * self.local_steps)
