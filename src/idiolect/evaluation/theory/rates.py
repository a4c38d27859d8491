"""The rates of Additive's table 1, up to constants: what each method needs to be told of a problem. Spec 7.2.

Strongly convex: the mean squared distance to the clients' optima; convex: the mean excess loss. Methods with
one model for all pay for heterogeneity, by assumption 3: (1/M) Σ_m |v_m* - v*|² <= ζ*²/L².
"""

import math
from dataclasses import dataclass

from idiolect.evaluation.theory.additive import condition_range
from idiolect.evaluation.theory.checks import (
    require_counts,
    require_curvature,
    require_not_negative,
    require_positive,
)


@dataclass(frozen=True)
class Rate:
    """A row of the table."""

    optimisation: float
    noise: float
    heterogeneity: float = 0.0

    @property
    def total(self) -> float:
        """The sum of its three columns."""
        return self.optimisation + self.noise + self.heterogeneity


def strongly_convex_rates(
    *,
    strong_convexity: float,
    smoothness: float,
    noise: float,
    radius: float,
    heterogeneity: float,
    machines: int,
    local_steps: int,
    rounds: int,
) -> dict[str, Rate]:
    """The upper half of table 1; κ = L/μ, B = `radius`, σ² = `noise`, ζ* = `heterogeneity`.

        minibatch-sgd   B² e^{-R/κ}          σ²/(μ²MKR)                   ζ*²/L²
        local-sgd       κ B² e^{-R/κ}        σ²/(μ²MKR) + κσ²/(μ²KR²)     ζ*² (1/L² + κ/(μ²R²))
        local           B² e^{-KR/(2κ)}      σ²/(μ²KR)
        additive        B² e^{-KR/(2κ)}      σ²/(μ²MKR)

    Valid for μ > 0. `additive` is there only for κ in `condition_range`, where its theorem holds.

    >>> rates = strongly_convex_rates(strong_convexity=1.0, smoothness=300.0, noise=4.0, radius=1.0,
    ...                               heterogeneity=300.0, machines=10, local_steps=1, rounds=10)
    >>> min(rates, key=lambda name: rates[name].total), rates["minibatch-sgd"].heterogeneity
    ('additive', 1.0)
    """
    require_curvature(strong_convexity, smoothness)
    require_not_negative(noise=noise, radius=radius, heterogeneity=heterogeneity)
    require_counts(machines=machines, local_steps=local_steps, rounds=rounds)
    kappa, steps, square = smoothness / strong_convexity, local_steps * rounds, strong_convexity**2
    together = noise / (square * machines * steps)
    rounds_only = radius**2 * math.exp(-rounds / kappa)
    all_steps = radius**2 * math.exp(-steps / (2 * kappa))
    drift = kappa / (square * rounds**2)
    rates = {
        "minibatch-sgd": Rate(rounds_only, together, (heterogeneity / smoothness) ** 2),
        "local-sgd": Rate(
            kappa * rounds_only,
            together + drift * noise / local_steps,
            heterogeneity**2 * (1 / smoothness**2 + drift),
        ),
        "local": Rate(all_steps, noise / (square * steps)),
    }
    low, high = condition_range(machines=machines, local_steps=local_steps, rounds=rounds)
    return rates | ({"additive": Rate(all_steps, together)} if low <= kappa < high else {})


def convex_rates(
    *,
    smoothness: float,
    noise: float,
    radius: float,
    heterogeneity: float,
    machines: int,
    local_steps: int,
    rounds: int,
) -> dict[str, Rate]:
    """The lower half of table 1, for μ = 0.

        minibatch-sgd      LB²/R      σB/√(MKR)                                    ζ*²/L
        local-sgd          LB²/R      σB/√(MKR) + (Lσ²B⁴)^{1/3}/(K^{1/3}R^{2/3})   ζ*²/L + (Lζ*²B⁴/R²)^{1/3}
        local              LB²/(KR)   σB/√(KR)
        additive-earlier   MLB²/R     σB/√(KR) + (Lσ²M²B⁴/R²)^{1/3}                (Lζ*²M²B⁴/R²)^{1/3}
        additive-one-step  LB²/R      σB/√(MKR)                                    (only for K = 1)

    `additive-earlier` is by Hanzely and others, `additive-one-step` by Bietti and others. The paper's own
    row, with MLB²/(KR), is a conjecture with unknown further terms and is not here.

    >>> problem = dict(smoothness=1.0, noise=0.0, radius=1.0, heterogeneity=0.0, machines=4)
    >>> rates = convex_rates(**problem, local_steps=5, rounds=10)
    >>> {name: rate.total for name, rate in rates.items()}
    {'minibatch-sgd': 0.1, 'local-sgd': 0.1, 'local': 0.02, 'additive-earlier': 0.4}
    """
    require_positive(smoothness=smoothness)
    require_not_negative(noise=noise, radius=radius, heterogeneity=heterogeneity)
    require_counts(machines=machines, local_steps=local_steps, rounds=rounds)
    steps, slow = local_steps * rounds, rounds ** (2 / 3)
    start, one_model = smoothness * radius**2, heterogeneity**2 / smoothness
    alone = math.sqrt(noise / steps) * radius
    together = alone / math.sqrt(machines)

    def drift(variance: float) -> float:
        return float((smoothness * variance * radius**4) ** (1 / 3) / slow)

    rates = {
        "minibatch-sgd": Rate(start / rounds, together, one_model),
        "local-sgd": Rate(
            start / rounds,
            together + drift(noise) / local_steps ** (1 / 3),
            one_model + drift(heterogeneity**2),
        ),
        "local": Rate(start / steps, alone),
        "additive-earlier": Rate(
            machines * start / rounds,
            alone + drift(noise * machines**2),
            drift((heterogeneity * machines) ** 2),
        ),
    }
    return rates | ({"additive-one-step": Rate(start / rounds, together)} if local_steps == 1 else {})
