"""What theory says of the very federations of quadratics that recipes run on, as functions of one number."""

import math
from typing import Any

import torch

from idiolect.data.quadratics import quadratics
from idiolect.evaluation.theory.additive import quadratic_error
from idiolect.evaluation.theory.quadratics import QuadraticProblem
from idiolect.evaluation.theory.rates import strongly_convex_rates


def table_1_rate(rounds: float, *, method: str, local_steps: int, data: dict[str, Any]) -> float:
    """The rate of a method after R rounds, without its constant; NaN where its theorem does not apply.

    data: options of the data set `quadratics`, with its seed; rows are drawn one by one.

    >>> data = dict(seed=0, clients=10, smallest=0.001, heterogeneity=1.0)
    >>> table_1_rate(10, method="local", local_steps=5, data=data) > 0
    True
    >>> table_1_rate(100, method="additive", local_steps=5, data=data)
    nan
    """
    problem = QuadraticProblem.of(quadratics(**data))
    rates = strongly_convex_rates(
        strong_convexity=problem.strong_convexity,
        smoothness=problem.smoothness,
        noise=float(problem.row_variance.mean()),
        radius=problem.radius,
        heterogeneity=problem.heterogeneity,
        machines=problem.clients,
        local_steps=local_steps,
        rounds=round(rounds),
    )
    return rates[method].total if method in rates else math.nan


def expected_error(
    heterogeneity: float,
    *,
    shared_rate: float,
    personal_rate: float,
    local_steps: int,
    rounds: int,
    batch_size: int,
    data: dict[str, Any],
) -> float:
    """E (1/M) Σ_m |v_m - v_m*|² after R rounds from zero, exactly; curvatures must be equal.

    data: options of the data set `quadratics`, with its seed, but for the heterogeneity.

    >>> data = dict(seed=0, clients=10, smallest=1.0, largest=1.0, noise=1.0, rows=50)
    >>> training = dict(local_steps=5, rounds=50, batch_size=1, data=data)
    >>> shared = expected_error(10.0, shared_rate=0.1, personal_rate=0.0, **training)
    >>> shared > expected_error(10.0, shared_rate=0.0, personal_rate=0.1, **training)
    True
    """
    problem = QuadraticProblem.of(quadratics(**data, heterogeneity=heterogeneity))
    assert torch.allclose(problem.curvatures, problem.curvatures[:1, :1]), "curvatures must be equal"
    centre = problem.optima.mean(0)
    return quadratic_error(
        shared_rate=shared_rate,
        personal_rate=personal_rate,
        curvature=problem.strong_convexity,
        machines=problem.clients,
        local_steps=local_steps,
        rounds=rounds,
        start_distance=float(centre.square().sum()),
        spread=float((problem.optima - centre).square().sum(1).mean()),
        noise=float(problem.row_variance.mean()),
        rows=int(problem.sizes[0]),
        batch_size=batch_size,
    )
