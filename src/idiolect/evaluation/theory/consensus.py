"""How far Additive's machines are apart, exactly, on the two quadratics of proposition 1. Spec 7.2.

Reference: Patel and others: Personalization mitigates the perils of local SGD for heterogeneous distributed
learning, proposition 1, eq. 20 and 21, figure 2.
"""

from idiolect.evaluation.theory.checks import (
    geometric_sum,
    require_counts,
    require_not_negative,
    require_positive,
    require_rate_below,
)


def consensus_error(step: int, *, local_steps: int, rate: float, alpha: float, distance: float) -> float:
    """Proposition 1, exactly: ξ_t = (1/M) Σ_m |w_t^m - w̄_t|² before step t = r K + k.

        ξ_{rK+k} = ζ²/(1+α)² (1 - ν^k)² q^{2r},   ν = 1 - η(1+α),   q = (1 + α ν^K)/(1 + α)

    Valid for the federation `quadratic-line` (two machines, curvature 1, optima v* ∓ ζ), β = 1, no noise, any
    η.

    >>> figure_2 = dict(local_steps=5, rate=0.25, alpha=1.0, distance=1.0)
    >>> [round(consensus_error(t, **figure_2), 6) for t in (0, 1, 4, 5, 6)]
    [0.0, 0.0625, 0.219727, 0.0, 0.016617]
    """
    require_not_negative(step=step, alpha=alpha, distance=distance)
    require_counts(local_steps=local_steps)
    require_positive(rate=rate)
    rounds, since = divmod(step, local_steps)
    kept = 1 - rate * (1 + alpha)
    shrink = (1 + alpha * kept**local_steps) / (1 + alpha)
    return float((distance / (1 + alpha) * (1 - kept**since) * shrink**rounds) ** 2)


def average_consensus_error(
    *, local_steps: int, rounds: int, rate: float, alpha: float, distance: float
) -> float:
    """The mean of `consensus_error` over all K R steps; at α = 0, eq. 20, it does not decay in R.

        ζ²/(1+α)² · [1 - 2(1-ν^K)/(K(1-ν)) + (1-ν^{2K})/(K(1-ν²))] · (1-q^{2R})/(R(1-q²))

    Valid as `consensus_error` is.

    >>> round(average_consensus_error(local_steps=5, rounds=20, rate=0.5, alpha=0.0, distance=1.0), 6)
    0.491406
    >>> round(average_consensus_error(local_steps=5, rounds=20, rate=0.25, alpha=1.0, distance=1.0), 6)
    0.008367
    """
    require_counts(local_steps=local_steps, rounds=rounds)
    require_positive(rate=rate)
    require_not_negative(alpha=alpha, distance=distance)
    kept = 1 - rate * (1 + alpha)
    shrink = (1 + alpha * kept**local_steps) / (1 + alpha)
    teeth = sum((1 - kept**k) ** 2 for k in range(local_steps)) / local_steps
    return (distance / (1 + alpha)) ** 2 * teeth * geometric_sum(shrink**2, rounds) / rounds


def printed_consensus_bound(
    *, local_steps: int, rounds: int, rate: float, alpha: float, distance: float
) -> float:
    """Eq. 21 as the paper prints it, for the record: it is exceeded for α < 1 (spec 7.2).

        ζ²/(1+α) · (1 - (1-(1-a)^K)/(aK)) · (1-(1-a)^R)/(aR),   a = η(1+α)

    Stated for η < 1/(1+α); no bound to rely on.

    >>> round(printed_consensus_bound(local_steps=5, rounds=20, rate=0.25, alpha=1.0, distance=1.0), 6)
    0.030625
    """
    require_counts(local_steps=local_steps, rounds=rounds)
    require_not_negative(alpha=alpha, distance=distance)
    require_rate_below(rate, 1 / (1 + alpha), "1 / (1 + alpha)")
    a = rate * (1 + alpha)
    teeth = 1 - (1 - (1 - a) ** local_steps) / (a * local_steps)
    return distance**2 / (1 + alpha) * teeth * (1 - (1 - a) ** rounds) / (a * rounds)
