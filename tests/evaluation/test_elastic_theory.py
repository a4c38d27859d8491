"""Section 7.3: the bounds hold where they can be checked, and their pieces are what the proofs say."""

import numpy as np
import pytest
import torch

from idiolect.evaluation.theory.elastic import (
    ElasticBound,
    ProblemConstants,
    arrival_shift,
    departure_shift,
    incomplete_rate,
    rounds_to_accuracy,
)
from idiolect.methods.efl import EFL
from idiolect.participation import Participation
from idiolect.simulation import Simulation
from idiolect.testing.problems import Quadratics

STEPS = 4


def constants(problem: Quadratics, radius: float) -> ProblemConstants:
    """Exact constants of f_k(w) = ½ Σ h (w - c)² with equal shares, for models within a radius of 0."""
    h, c = problem.curvature, problem.optimum
    best = (h * c).sum(0) / h.sum(0)
    gaps = 0.5 * (h * (best - c).square()).sum(1)
    gradient = (h * (radius + c.abs())).square().sum(1).max()
    return ProblemConstants(
        strong_convexity=float(h.min()),
        smoothness=float(h.max()),
        shares=torch.full((len(h),), 1 / len(h), dtype=torch.float64),
        gradient_variance=torch.zeros(len(h), dtype=torch.float64),
        gradient_bound=float(gradient),
        gaps=gaps,
        start_distance=float(best.square().sum()),
    )


def test_pieces_for_complete_work_by_hand():
    problem = ProblemConstants(
        strong_convexity=0.5,
        smoothness=2.0,
        shares=torch.tensor([0.25, 0.75], dtype=torch.float64),
        gradient_variance=torch.tensor([1.0, 3.0], dtype=torch.float64),
        gradient_bound=10.0,
        gaps=torch.tensor([0.2, 0.6], dtype=torch.float64),
        start_distance=7.0,
    )
    bound = ElasticBound(problem, STEPS, torch.tensor([[4, 4]]))
    assert bound.work == pytest.approx(4)  # Σ p E
    assert bound.weight_ratio == pytest.approx(1)
    assert bound.offset == pytest.approx(max(32 * 4 * 2 * 2 / 0.5 / 4, 4 * 16 / 4))
    assert bound.is_unbiased
    noise = 4 * (0.25**2 * 1 + 0.75**2 * 3)
    drift = 2 * 3 * 2 * 4 * (0.25 * 0.2 + 0.75 * 0.6)
    local = (2 + 0.5 / 8) * 12 * 10 * 4  # Σ p = 1 < 2: no excess
    uneven = 2 * 4 * 10 * 4 * 1.0  # 2 H̄ = 2 E G² Σ p² s / p^k
    assert bound.variance == pytest.approx(64**2 * (noise + drift + local + uneven) / (0.5 * 4) ** 2)
    assert bound.distance(0) == pytest.approx(7.0)
    assert bound.distance(5) == pytest.approx(
        (bound.offset**2 * 7 + 5 * bound.variance) / (20 + bound.offset) ** 2
    )


def test_a_client_that_is_sometimes_inactive_makes_the_law_biased():
    problem = constants(Quadratics.asymmetric(), radius=5)
    always = torch.full((2, 4), STEPS)
    sometimes = always.clone()
    sometimes[1, 2] = 0  # client 2 is inactive half of the time
    assert ElasticBound(problem, STEPS, always).is_unbiased
    bound = ElasticBound(problem, STEPS, sometimes)
    assert not bound.is_unbiased
    expected = torch.tensor([1, 1, 0.5, 1]).double() * STEPS / 4  # E[p s]
    assert bound.work == pytest.approx(float(expected.sum()))
    assert bound.bias == pytest.approx(
        32
        * STEPS
        * float((expected * problem.gaps).sum())
        / (problem.strong_convexity * float(expected.sum()))
    )


def test_partial_work_is_unbiased_as_long_as_nobody_is_inactive():
    problem = constants(Quadratics.asymmetric(), radius=5)
    uneven = torch.tensor([[1, 4, 2, 3], [3, 2, 4, 4]])
    bound = ElasticBound(problem, STEPS, uneven)
    assert bound.is_unbiased
    assert bound.weight_ratio == pytest.approx(4)  # E for s >= 1
    assert bound.work == pytest.approx(STEPS)


@pytest.mark.parametrize("work", [1.0, "uniform"])
def test_the_bound_of_theorem_1_holds_along_a_run(work):
    problem = Quadratics.asymmetric()
    data = problem.federation()
    plan = Participation(work={"law": "uniform", "low": 0.25} if work == "uniform" else work).bind(data.names)
    draws = torch.stack([plan.cohort(0, number, data.train.sizes).work for number in range(40)])
    steps = torch.clamp((draws * (STEPS + 1)).long(), max=STEPS)
    assert (steps > 0).all()
    bound = ElasticBound(constants(problem, radius=6), STEPS, steps)
    method = EFL(learning_rate=bound.schedule, local_steps=STEPS, elasticity=0.0, keep=None)
    simulation = Simulation(method, problem.model, data, plan=plan, batch_size=None, dtype=torch.float64)
    h, c = problem.curvature, problem.optimum
    best = (h * c).sum(0) / h.sum(0)
    distances = []
    for number in range(40):
        distance = float((simulation.predictor(0)["global"]["weight"] - best).square().sum())
        distances.append(distance)
        assert distance <= bound.distance(number) * (1 + 1e-12)
        simulation.advance()
    assert distances[-1] < 0.2 * distances[0]


def test_abandoning_pays_exactly_where_the_two_terms_cross():
    problem = constants(Quadratics.asymmetric(), radius=5)
    steps = torch.full((2, 4), STEPS)
    steps[1, 2] = 0
    bound = ElasticBound(problem, STEPS, steps)
    threshold = bound.abandon_above(100)
    assert threshold * bound.bias / STEPS == pytest.approx(bound.variance_term(100))
    assert bound.abandon_above(10_000) < threshold  # the longer the run, the sooner it pays


def quadratic(draw: np.random.Generator, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """A Hessian with eigenvalues in [1, 10] and an optimum."""
    q, _ = np.linalg.qr(draw.normal(size=(dimension, dimension)))
    return q @ np.diag(draw.uniform(1, 10, dimension)) @ q.T, draw.normal(size=dimension) * 3


def optimum(parts: list[tuple[np.ndarray, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    total = sum(n * a for (a, _), n in zip(parts, rows, strict=True))
    pull = sum(n * a @ c for (a, c), n in zip(parts, rows, strict=True))
    return np.linalg.solve(total, pull)


@pytest.mark.parametrize("tight", [False, True])
def test_theorem_2_bounds_the_shift_of_the_optimum_on_random_quadratics(tight):
    draw = np.random.default_rng(4)
    for _ in range(100):
        parts = [quadratic(draw, 3) for _ in range(4)]
        rows = draw.integers(5, 200, 4)
        everybody, without = optimum(parts, rows), optimum(parts[:-1], rows[:-1])
        hessian, centre = parts[-1]
        shift = np.sum((everybody - without) ** 2)
        n, n_a = int(rows.sum()), int(rows[-1])

        def gap(w: np.ndarray, hessian=hessian, centre=centre) -> float:
            return float(0.5 * (w - centre) @ hessian @ (w - centre))

        assert shift <= departure_shift(10, 1, n, n_a, gap(without), tight=tight)
        assert shift <= arrival_shift(10, 1, n - n_a, n_a, gap(without), tight=tight)


def test_rates_fall_as_the_table_says():
    rate = {"smoothness": 2.0, "strong_convexity": 0.5, "gradient_bound": 9.0}
    assert rounds_to_accuracy(0.01, asked=10, **rate) == pytest.approx(
        9 / (0.5 * 10 * 0.01) + 2 / (0.5 * 0.1)
    )
    shares, ones = torch.tensor([0.25, 0.75]).double(), torch.ones(2).double()
    value = incomplete_rate(10, 4, shares, torch.tensor([1.0, 2.0]).double(), ones / 2)
    by_hand = (4**5 * 10 * 0.5 + 16 * 10 * (0.0625 * 1 + 0.5625 * 2) * 0.5) / (40 + 16) ** 2
    assert value == pytest.approx(by_hand)
