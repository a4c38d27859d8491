"""What EFL's theorems say in numbers. Spec 7.3.

Given a problem's constants and the law of the completed steps s_k (as draws of it), the aggregation weights
are p_τ^k = E p^k / s_k, and 0 for an inactive client. All rounds have the same law. Then

    S = E Σ_k p_τ^k s_k,   θ = max p_τ^k / p^k,   γ >= max{32 E (1 + θ) L / (μ S), 4 E² θ / S}
    |ω_τ - ω*|² <= C_τ / (τ E + γ)² + H_τ J / (τ E + γ)

with the rate 16 E / (μ ((τ + 1) E + γ) S), the schedule `elastic`. H_τ counts the rounds in which the law
favours somebody: it is 0 if E[p_τ^k s_k] / p^k is the same for all k, else τ.
"""

from dataclasses import dataclass

from torch import Tensor

from idiolect.core.schedule import Elastic

_SAME = 1e-9  # relative: when two expectations count as equal


@dataclass(frozen=True)
class ProblemConstants:
    """What the bounds need to know of a problem; all tensors are float64[clients]."""

    strong_convexity: float  # μ
    smoothness: float  # L
    shares: Tensor  # p^k = n_k / n
    gradient_variance: Tensor  # σ_k²
    gradient_bound: float  # G²: the largest squared norm of a stochastic gradient
    gaps: Tensor  # D_k = F_k(ω*) - min F_k
    start_distance: float  # |ω_0 - ω*|²


@dataclass(frozen=True)
class ElasticBound:
    """Theorem 1 for a law of completed steps that is the same in all rounds."""

    problem: ProblemConstants
    local_steps: int  # E
    steps: Tensor  # int64[draws, clients]: completed steps, 0 to E

    @property
    def weights(self) -> Tensor:
        """p_τ^k of each draw, float64[draws, clients]."""
        active = self.steps > 0
        return active * self.local_steps * self.problem.shares / self.steps.clamp(min=1)

    @property
    def work(self) -> float:
        """S = E Σ p_τ^k s_k."""
        return float((self.weights * self.steps).sum(1).mean())

    @property
    def weight_ratio(self) -> float:
        """θ = max p_τ^k / p^k."""
        return float((self.weights / self.problem.shares).max())

    @property
    def offset(self) -> float:
        """γ, the smallest that the theorem allows."""
        mu, smoothness, full = self.problem.strong_convexity, self.problem.smoothness, self.local_steps
        ratio = self.weight_ratio
        return max(32 * full * (1 + ratio) * smoothness / mu, 4 * full**2 * ratio) / self.work

    @property
    def schedule(self) -> Elastic:
        """The learning rate of the theorem."""
        return Elastic(mu=self.problem.strong_convexity, offset=self.offset, work=self.work)

    @property
    def is_unbiased(self) -> bool:
        """Whether the law treats all clients alike, in proportion to their shares (r_τ = 0)."""
        ratios = (self.weights * self.steps).mean(0) / self.problem.shares
        return bool(ratios.max() - ratios.min() <= _SAME * ratios.max())

    @property
    def bias(self) -> float:
        """J = 32 E Σ_k E[p_τ^k s_k] D_k / (μ S): what a biased law costs."""
        weighted = ((self.weights * self.steps).mean(0) * self.problem.gaps).sum()
        return float(32 * self.local_steps * weighted / (self.problem.strong_convexity * self.work))

    @property
    def variance(self) -> float:
        """C_{τ+1} - C_τ = (16 E)² E[B_τ + 2 H̄_τ] / (μ S)²."""
        problem, full, p, s = self.problem, self.local_steps, self.weights, self.steps
        theta, square = self.weight_ratio, problem.gradient_bound
        uneven = (p.square() * s / problem.shares).sum(1)  # Σ p² s / p^k
        noise = (p.square() * s * problem.gradient_variance).sum(1)
        drift = 2 * (2 + theta) * problem.smoothness * (p * s * problem.gaps).sum(1)
        factor = 2 + problem.strong_convexity / (2 * (1 + theta) * problem.smoothness)
        excess = (p.sum(1) - 2).clamp(min=0) * uneven
        local = factor * full * (full - 1) * square * ((p * s).sum(1) + excess)
        total = (noise + drift + local + 2 * full * square * uneven).mean()
        return float((16 * full) ** 2 * total / (problem.strong_convexity * self.work) ** 2)

    def variance_term(self, rounds: int) -> float:
        """C_τ / (τ E + γ)², the part that vanishes like 1 / τ."""
        start = self.offset**2 * self.problem.start_distance
        return (start + rounds * self.variance) / (rounds * self.local_steps + self.offset) ** 2

    def distance(self, rounds: int) -> float:
        """The bound on |ω_τ - ω*|² after some rounds."""
        biased_rounds = 0 if self.is_unbiased else rounds
        bias = biased_rounds * self.bias / (rounds * self.local_steps + self.offset)
        return self.variance_term(rounds) + bias

    def abandon_above(self, rounds: int) -> float:
        """The inactive rate y^a above which dropping a client now pays after `rounds` more (Corollary 1).

        Keeping it leaves a bias that tends to y^a J / E; dropping it leaves the variance term.
        """
        return self.variance_term(rounds) * self.local_steps / self.bias


def departure_shift(
    smoothness: float,
    strong_convexity: float,
    rows: int,
    leaving_rows: int,
    gap: float,
    *,
    tight: bool = False,
) -> float:
    """How far the optimum moves, squared, when a client leaves: 8 L n_a² D_a / (μ² n²) (Theorem 2).

    `rows` are those of all clients before, `gap` = F_a(new optimum) - min F_a. `tight`: 2 L instead of 8 L.
    """
    factor = 2 if tight else 8
    return factor * smoothness * leaving_rows**2 * gap / (strong_convexity * rows) ** 2


def arrival_shift(
    smoothness: float,
    strong_convexity: float,
    rows: int,
    arriving_rows: int,
    gap: float,
    *,
    tight: bool = False,
) -> float:
    """The same for an arrival: n is that after it, `gap` = F_a(old optimum) - min F_a."""
    return departure_shift(
        smoothness, strong_convexity, rows + arriving_rows, arriving_rows, gap, tight=tight
    )


def rounds_to_accuracy(
    epsilon: float, *, smoothness: float, strong_convexity: float, gradient_bound: float, asked: int
) -> float:
    """Table 1, up to constants: G² / (μ S ε) + L / (μ sqrt ε) rounds, G² = `gradient_bound`."""
    return gradient_bound / (strong_convexity * asked * epsilon) + smoothness / (
        strong_convexity * epsilon**0.5
    )


def incomplete_rate(
    rounds: int, local_steps: int, shares: Tensor, gradient_variance: Tensor, inverse_steps: Tensor
) -> float:
    """The rate for incomplete clients, up to constants; `inverse_steps` is E[1 / s_k] of each client.

    (E⁵ Σ_τ Σ_k p^k E[1/s] + E² Σ_τ Σ_k (p^k σ_k)² E[1/s]) / (τ E + E²)²
    """
    first = local_steps**5 * rounds * (shares * inverse_steps).sum()
    second = local_steps**2 * rounds * (shares.square() * gradient_variance * inverse_steps).sum()
    return float(first + second) / (rounds * local_steps + local_steps**2) ** 2
