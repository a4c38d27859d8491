"""What Additive's theorems say in numbers, and what is exact on quadratics. Spec 7.2.

M machines, R rounds of K steps, inner rate η, personal rate α η, outer step β; v_m = w + θ_m starts at zero.

Reference: Patel and others: Personalization mitigates the perils of local SGD for heterogeneous distributed
learning, theorems 1 and 2, figure 4; corrections in spec 2.7, 2.9 and 7.2.
"""

import math

from idiolect.errors import UserError
from idiolect.evaluation.theory.checks import (
    geometric_sum,
    require_counts,
    require_curvature,
    require_not_negative,
    require_positive,
    require_rate_below,
)


def round_factor(*, curvature: float, local_steps: int, rate: float, alpha: float, outer: float) -> float:
    """What a round multiplies the mean error by where all curvatures are h; must lie between -1 and 1.

        1 - (α+β)/(1+α) · (1 - (1 - η(1+α)h)^K)

    >>> round_factor(curvature=1.0, local_steps=10, rate=0.245, alpha=1.0, outer=4.0) < -1  # β = √M, M = 16
    True
    """
    require_positive(curvature=curvature, rate=rate)
    require_counts(local_steps=local_steps)
    require_not_negative(alpha=alpha, outer=outer)
    progress = 1 - (1 - rate * (1 + alpha) * curvature) ** local_steps
    return float(1 - (alpha + outer) / (1 + alpha) * progress)


def quadratic_error(
    *,
    shared_rate: float,
    personal_rate: float,
    outer: float = 1.0,
    curvature: float,
    machines: int,
    local_steps: int,
    rounds: int,
    start_distance: float,
    spread: float,
    noise: float = 0.0,
    rows: int | None = None,
    batch_size: int = 1,
) -> float:
    """E (1/M) Σ_m |v_m - v_m*|² after R rounds, exactly, where all curvatures are h.

    With a = η_w + η_θ, ν = 1 - a h, p_θ = η_θ/a, p = (η_θ + β η_w)/a, and the noise s of K steps,

        q = 1 - p_θ (1 - ν^K),   u = 1 - p (1 - ν^K)
        q^{2R} ζ² + p_θ² s (1 - 1/M) Σ_{r<R} q^{2r}   +   u^{2R} |w_0 - v̄*|² + p² (s/M) Σ_{r<R} u^{2r}

    the first part from how clients differ from their mean, the second from that mean. One formula for three
    methods: Local SGD (and FedAvg) has personal_rate=0, training alone shared_rate=0, Additive both. `spread`
    is ζ² = (1/M) Σ_m |v_m* - v̄*|², `start_distance` |w_0 - v̄*|², `noise` the variance σ² of one row's
    gradient. Rows are drawn independently (rows=None), or without replacement in each round out of `rows`
    rows in batches of `batch_size`, as the engines do: s = a² σ² (Σ_k ν^{2k} (n-b)/b - (Σ_k ν^k)² + Σ_k
    ν^{2k})/(n-1).

    Valid for equal curvatures of all machines and coordinates, everybody in every round, constant rates, and,
    with `rows`, K b <= rows. Spec 2.5.

    >>> problem = dict(curvature=1.0, machines=10, local_steps=5, rounds=50, start_distance=1.0, noise=1.0)
    >>> rates = {"local sgd": (0.1, 0.0), "additive": (0.09, 0.01), "alone": (0.0, 0.1)}
    >>> def best(spread):
    ...     errors = {name: quadratic_error(shared_rate=shared, personal_rate=own, spread=spread, **problem)
    ...               for name, (shared, own) in rates.items()}
    ...     return min(errors, key=errors.get)
    >>> best(0.0001), best(0.1), best(100.0)
    ('local sgd', 'additive', 'alone')
    """
    require_positive(curvature=curvature)
    require_counts(machines=machines, local_steps=local_steps)
    require_not_negative(
        shared_rate=shared_rate,
        personal_rate=personal_rate,
        outer=outer,
        rounds=rounds,
        start_distance=start_distance,
        spread=spread,
        noise=noise,
    )
    total = shared_rate + personal_rate
    require_positive(shared_rate_and_personal_rate=total)
    kept = 1 - total * curvature
    powers = [kept**k for k in range(local_steps)]
    squares, sums = sum(power**2 for power in powers), sum(powers)
    if rows is None:
        noise_of_round = squares / batch_size
    else:
        if local_steps * batch_size > rows:
            raise UserError(
                f"rows={rows} must be at least local_steps * batch_size = {local_steps * batch_size}: "
                "no row may come twice in a round"
            )
        noise_of_round = (squares * (rows - batch_size) / batch_size - sums**2 + squares) / max(rows - 1, 1)
    noise_of_round *= total**2 * noise
    own, all_of_it = personal_rate / total, (personal_rate + outer * shared_rate) / total
    progress = 1 - kept**local_steps
    apart, together = (1 - own * progress) ** 2, (1 - all_of_it * progress) ** 2
    differences = apart**rounds * spread
    differences += own**2 * noise_of_round * (1 - 1 / machines) * geometric_sum(apart, rounds)
    mean = together**rounds * start_distance
    mean += all_of_it**2 * noise_of_round / machines * geometric_sum(together, rounds)
    return float(differences + mean)


def personal_distance(
    *,
    strong_convexity: float,
    smoothness: float,
    noise: float,
    radius: float,
    machines: int,
    local_steps: int,
    rounds: int,
    rate: float,
    alpha: float,
    outer: float,
    as_printed: bool = False,
) -> float:
    """Theorem 1 (14): (1/M) Σ_m E |v_m - v_m*|² is at most

        exp(-(2αR/(1+α)) (1 - e^{-η(1+α)μK})) B² + (4ησ²α/μ) (1 + β²/(Mα²))

    σ² = `noise` the variance of a gradient, B = `radius` >= |v_m*|. Valid for η < 1/((1+α)L), α >= 1 and β <=
    2 (for α = 1, β <= √M it is (15)). The paper also states it for smaller α and larger β, where quadratics
    exceed it (spec 2.9); `as_printed` computes it there too.

    >>> problem = dict(strong_convexity=0.001, smoothness=1.0, noise=0.0, radius=1.0, machines=2)
    >>> bound = personal_distance(**problem, local_steps=10, rounds=5, rate=0.9, alpha=0.1, outer=1.0,
    ...                           as_printed=True)
    >>> round(bound, 3)  # two machines with curvatures 1 and 0.001 are at 1.608
    0.991
    """
    require_curvature(strong_convexity, smoothness)
    require_not_negative(noise=noise, radius=radius, rounds=rounds, outer=outer)
    require_counts(machines=machines, local_steps=local_steps)
    require_positive(alpha=alpha)
    require_rate_below(rate, 1 / ((1 + alpha) * smoothness), "1 / ((1 + alpha) smoothness)")
    if not as_printed and alpha < 1:
        raise UserError(f"alpha={alpha} must be at least 1: below it quadratics exceed theorem 1")
    if not as_printed and outer > 2:
        raise UserError(f"outer={outer} must be at most 2: above it quadratics exceed theorem 1 or diverge")
    gain = 1 - math.exp(-rate * (1 + alpha) * strong_convexity * local_steps)
    start = math.exp(-2 * alpha * rounds / (1 + alpha) * gain) * radius**2
    return start + 4 * rate * noise * alpha / strong_convexity * (1 + outer**2 / (machines * alpha**2))


def condition_range(*, machines: int, local_steps: int, rounds: int) -> tuple[float, float]:
    """The κ for which theorem 1 (16) holds: from K / (2(1 - e^{-1/(4MR)})) to (and without) 4 M K R.

    Never empty, since x < 2(1 - e^{-x}) for 0 < x < 1: the second pair of curves of figure 4.

    >>> low, high = condition_range(machines=10, local_steps=1, rounds=10)
    >>> round(low, 2), high
    (200.25, 400.0)
    """
    require_counts(machines=machines, local_steps=local_steps, rounds=rounds)
    low = local_steps / regime_curve(1 / (4 * machines * rounds))
    return low, 4.0 * machines * local_steps * rounds


def best_personal_distance(
    *,
    strong_convexity: float,
    smoothness: float,
    noise: float,
    radius: float,
    machines: int,
    local_steps: int,
    rounds: int,
) -> float:
    """Theorem 1 (16): e^{-KR/(2κ)} B² + σ²/(μ² M K R), with α = 1, β = √M, η = 1/(8μMKR).

    Valid for κ in `condition_range`. That forces KR/(2κ) <= 1/(4M): the first term hardly shrinks, and the
    bound says nothing about convergence. For M > 4 it is β > 2, where η is small enough to keep the method
    stable.

    >>> problem = dict(strong_convexity=1.0, smoothness=300.0, noise=4.0, radius=1.0, machines=10)
    >>> round(best_personal_distance(**problem, local_steps=1, rounds=10), 4)
    1.0235
    """
    require_curvature(strong_convexity, smoothness)
    require_not_negative(noise=noise, radius=radius)
    low, high = condition_range(machines=machines, local_steps=local_steps, rounds=rounds)
    kappa = smoothness / strong_convexity
    if not low <= kappa < high:
        raise UserError(f"smoothness / strong_convexity = {kappa:.6g} must be from {low:.6g} to {high:.6g}")
    steps = local_steps * rounds
    return math.exp(-steps / (2 * kappa)) * radius**2 + noise / (strong_convexity**2 * machines * steps)


def convex_excess(
    *,
    smoothness: float,
    noise: float,
    radius: float,
    machines: int,
    steps: int,
    rate: float,
    alpha: float,
    consensus: float,
) -> float:
    """Theorem 2 (17) with the constants of its proof: (1/M) Σ_m E F_m(v̂_m) - min F_m is at most

        5 B² (1+α)/(η α T) + 2 η γ σ²/M + (2L/T) Σ_t ξ_t,    γ = max{1, M α}

    v̂_m averages the path (option II); `consensus` is the mean of ξ_t over the T = `steps` steps, measured or
    by `average_consensus_error`. Valid for convex losses, η <= 1/(2L(1+α)), α > 0, β = 1. (18), which needs
    no ξ_t, is unproven.

    >>> problem = dict(smoothness=1.0, noise=0.0, radius=1.0, machines=2)
    >>> round(convex_excess(**problem, steps=100, rate=0.25, alpha=1.0, consensus=0.01), 6)
    0.42
    """
    require_positive(smoothness=smoothness, alpha=alpha, rate=rate)
    require_not_negative(noise=noise, radius=radius, consensus=consensus)
    require_counts(machines=machines, steps=steps)
    largest = 1 / (2 * smoothness * (1 + alpha))
    if rate > largest * (1 + 1e-12):
        raise UserError(f"rate={rate} must be at most {largest:.6g} = 1 / (2 smoothness (1 + alpha))")
    start = 5 * radius**2 * (1 + alpha) / (rate * alpha * steps)
    return start + 2 * rate * max(1, machines * alpha) * noise / machines + 2 * smoothness * consensus


def personal_exponent(x: float) -> float:
    """1 - e^{-2x}, what a round of (15) gains in the exponent, x = ημK; training alone gains x (figure 4).

    >>> round(personal_exponent(0.5), 6)
    0.632121
    """
    require_not_negative(x=x)
    return -math.expm1(-2 * x)


def regime_curve(x: float) -> float:
    """2(1 - e^{-x}), above x for 0 < x <= 1: `condition_range` is not empty, x = 1/(4MR) (figure 4).

    >>> round(regime_curve(0.5), 6)
    0.786939
    """
    require_not_negative(x=x)
    return -2 * math.expm1(-x)


def faster_than_alone_below() -> float:
    """The x = ημK up to which `personal_exponent` is above x: up to there (15) beats training alone.

    >>> round(faster_than_alone_below(), 3)
    0.797
    """
    x = 0.8
    for _ in range(50):  # x = 1 - e^{-2x} is a contraction there: its slope is 2 e^{-2x} = 0.41
        x = personal_exponent(x)
    return x
