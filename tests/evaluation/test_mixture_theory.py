"""Section 7.4: the bounds of PERM's proofs hold on quadratics; pieces by hand, golden numbers."""

import math

import numpy as np
import pytest
import torch

from idiolect.errors import UserError
from idiolect.evaluation.theory.mixtures import (
    MixtureRates,
    distance_budget,
    effective_helpers,
    generalisation_bound,
    gradient_distances,
    mean_distances,
)
from idiolect.evaluation.theory.quadratics import QuadraticProblem
from idiolect.methods.perm.weights import optimal_weights


def problem(draw, clients=4, d=3):
    shape = (clients, d)
    curvatures, optima = draw.uniform(0.2, 1, shape), draw.normal(size=shape)
    sizes = torch.tensor(draw.integers(20, 200, clients))
    none = torch.zeros(clients, dtype=torch.float64)
    return QuadraticProblem(torch.tensor(curvatures), torch.tensor(optima), none, sizes)


def test_distances_by_hand():
    gradients = torch.tensor([[0.0, 1.0], [3.0, 5.0], [0.0, 1.0]])
    expected = torch.tensor([[0, 25, 0], [25, 0, 25], [0, 25, 0]]).double()
    torch.testing.assert_close(gradient_distances(gradients), expected)
    torch.testing.assert_close(mean_distances(gradients), torch.tensor([25 / 3, 50 / 3, 25 / 3]).double())
    # around the mean: Σ_i ζ̄_i / N = 2 Σ_i |g_i - ḡ|² / N
    spread = (gradients - gradients.mean(0)).square().sum(1).mean().double()
    torch.testing.assert_close(mean_distances(gradients).mean(), 2 * spread)


def test_helpers_of_the_specifications_weights():
    costs, sizes = torch.tensor([[0, 0.3, 0.05, 2]]).double(), torch.full((4,), 100)
    weights = optimal_weights(costs, sizes, 7.0)
    np.testing.assert_allclose(weights, [[0.678571, 0, 0.321429, 0]], atol=5e-7)
    assert float(effective_helpers(weights)) == pytest.approx(1 / (0.678571**2 + 0.321429**2), abs=1e-5)
    shares = torch.tensor([1.0, 2.0, 3.0, 4.0]) / 10
    assert float(effective_helpers(shares)) == pytest.approx(100 / 30)
    with pytest.raises(UserError, match="sum to 1"):
        effective_helpers(torch.tensor([0.5, 0.6]))


def test_the_budget_decides_who_enters():
    draw = np.random.default_rng(0)
    for _ in range(50):
        costs = torch.tensor(np.sort(np.append(draw.exponential(size=6), 0)))
        regulariser = float(10 ** draw.uniform(0, 2.5))
        weights = optimal_weights(costs[None], torch.full((7,), 60), regulariser)[0]
        spent = torch.stack([(costs[j] - costs[:j]).sum() for j in range(7)])
        assert ((weights > 0) == (spent < distance_budget(regulariser, 60))).all()


def test_weights_move_less_than_the_corrected_lemma_3_says():
    draw, worst = np.random.default_rng(1), 0.0
    for _ in range(300):
        quadratics = problem(draw)
        regulariser = draw.uniform(1, 40)
        best = quadratics.optimum
        w = best + torch.tensor(draw.normal(size=3) * 10 ** draw.uniform(-2, 0.5))
        at_w, at_best = (gradient_distances(quadratics.gradients(point))[:1] for point in (w, best))
        change = optimal_weights(at_w, quadratics.sizes, regulariser) - optimal_weights(
            at_best, quadratics.sizes, regulariser
        )
        rates = MixtureRates(
            strong_convexity=0.2,
            smoothness=1.0,
            regulariser=regulariser,
            largest_size=int(quadratics.sizes.max()),
            clients=4,
        )
        bound = rates.weight_change(at_best[0], float((w - best).square().sum()))
        assert float(change.square().sum()) <= bound + 1e-12
        worst = max(worst, float(change.square().sum()) / bound)
    assert worst > 1e-4


def test_the_optimality_gap_of_lemma_2():
    draw = np.random.default_rng(2)
    for _ in range(200):
        quadratics = problem(draw)
        h, c = quadratics.curvatures, quadratics.optima
        true, found = torch.tensor(draw.dirichlet(np.ones(4), size=2))

        def minimiser(weights, h=h, c=c):
            return (weights[:, None] * h * c).sum(0) / (weights[:, None] * h).sum(0)

        def loss(weights, v, h=h, c=c):
            return float((weights * 0.5 * (h * (v - c).square()).sum(1)).sum())

        start = minimiser(found) + torch.tensor(0.3 * draw.normal(size=3))
        stepped = start - (found[:, None] * quadratics.gradients(start)).sum(0)  # 1/L with L = 1
        box = float(c.abs().max()) + 2  # all models of this test lie in it
        gradient_norm = float((h * (box + c.abs())).square().sum(1).max().sqrt())
        rates = MixtureRates(
            strong_convexity=0.2, smoothness=1.0, regulariser=5.0, largest_size=200, clients=4
        )
        bound = rates.optimality_gap(
            model_error=float((start - minimiser(found)).square().sum()),
            weight_error=float((found - true).square().sum()),
            gradient_norm=gradient_norm,
        )
        assert loss(true, stepped) - loss(true, minimiser(true)) <= bound
        moved = float((minimiser(found) - minimiser(true)).norm())
        assert moved <= rates.model_sensitivity(gradient_norm) * float((found - true).norm())


def test_generalisation_by_hand_and_its_trade():
    weights, sizes = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([30, 60, 500])
    apart, complexity = torch.tensor([0.0, 0.05, 0.4]), torch.tensor([0.2, 0.1, 0.02])
    found = generalisation_bound(weights, sizes, apart, best_risk=0.1, complexities=complexity, constant=1.5)
    expected = 0.1 + 0.12 + 0.03 + 0.002 + 2 * (0.015 + 0.04)
    expected += 1.5 * math.sqrt(0.36 / 30 + 0.09 / 60 + 0.01 / 500)
    assert found == pytest.approx(expected, abs=1e-7)
    # among equals n_j / n is best: sqrt(1 / n)
    nobody = torch.zeros(3)
    shares = sizes / sizes.sum()
    best = generalisation_bound(shares, sizes, nobody, best_risk=0.0)
    assert best == pytest.approx(math.sqrt(1 / 590))
    assert best < generalisation_bound(weights, sizes, nobody, best_risk=0.0)


def test_theorem_1_by_hand_and_without_distance():
    rates = MixtureRates(strong_convexity=0.5, smoothness=2.0, regulariser=10.0, largest_size=100, clients=4)
    options = {"local_steps": 5, "diameter": 3.0, "dissimilarity": 0.7, "noise": 0.2}
    found = rates.weights_after(rounds=10, mean_distance=0.3, weight_steps=8, smallest_size=25, **options)
    model = 9 / 50 + 4 * 0.7 / (0.25 * 100) + 0.2 / (0.25 * 4 * 50)
    assert found == pytest.approx(math.exp(-8 * 25 / 100) + 25 * 0.3 * 4 * 4 * model)
    # clients whose gradients agree at w* have n_j / n at once, with the closed form
    assert rates.weights_after(rounds=10, mean_distance=0.0, **options) == 0
    with pytest.raises(UserError, match="rounds=0 must be at least 1"):
        rates.weights_after(rounds=0, mean_distance=0.3, **options)
