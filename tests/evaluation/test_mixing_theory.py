"""Section 7.1: the best mixing is the least of its bound, rates term by term, lemma 3 on quadratics."""

import math

import numpy as np
import pytest

from idiolect.errors import UserError
from idiolect.evaluation.theory.mixing import (
    MixingBound,
    MixingRates,
    label_divergence,
    largest_mixing_beside_local,
    linear_discrepancy,
    smallest_mixing,
)

BOUND = {
    "local_risk": 0.07,
    "shared_risk": 0.2,
    "rows": 50,
    "all_rows": 900,
    "dimension": 6,
    "divergence": 0.4,
    "discrepancy": 0.3,
    "constant": 1.3,
    "lipschitz": 0.8,
    "largest_loss": 2.5,
    "failure": 0.1,
}


def test_the_pieces_of_theorem_1_by_hand():
    bound = MixingBound(**BOUND)
    a = 0.07 + 2 * 1.3 * math.sqrt((6 + math.log(10)) / 50) + 0.8 * 0.3
    b = 0.2 + 2.5 * 0.4 + 1.3 * math.sqrt((6 + math.log(10)) / 900)
    assert bound.local_error == pytest.approx(a)
    assert bound.shared_error == pytest.approx(b)
    assert bound.at(0.3) == pytest.approx(2 * 0.09 * a + 2 * 0.49 * b)
    assert bound.at(bound.best_mixing) == pytest.approx(2 * a * b / (a + b))


def test_the_best_mixing_is_where_the_bound_is_least():
    bound = MixingBound(**BOUND)
    grid = np.linspace(0, 1, 10_001)
    least = grid[np.argmin([bound.at(mixing) for mixing in grid])]
    assert bound.best_mixing == pytest.approx(least, abs=1e-4)


def test_the_best_mixing_tends_to_alone_with_divergence_or_rows_and_to_shared_without_rows():
    def best(**changes):
        return MixingBound(**(BOUND | {"local_risk": 0.0, "discrepancy": 0.0} | changes)).best_mixing

    assert best(divergence=2) > best(divergence=1) > best(divergence=0)
    assert best(rows=10**12, all_rows=10**12) == pytest.approx(1, abs=1e-4)
    assert best(rows=1, dimension=10**12, all_rows=10**18, divergence=0) < 1e-3
    # nothing known of either: both errors are deviations, of which the local one counts twice
    assert best(rows=50, all_rows=50, shared_risk=0, divergence=0) == pytest.approx(1 / 3)


def test_corollary_1():
    bound = MixingBound(**BOUND)
    deviation = math.sqrt((6 + math.log(10)) / 50)
    # the paper's form of the difference, term by term
    alpha, lower = 0.4, 0.9
    by_hand = (2 * alpha**2 - 1) * 0.07 + (2 * alpha**2 * 2 * 1.3 - lower) * deviation
    by_hand += 2 * alpha**2 * 0.8 * 0.3 + 2 * (1 - alpha) ** 2 * bound.shared_error
    assert bound.excess_over_local(alpha, lower) == pytest.approx(by_hand)
    assert largest_mixing_beside_local(1.0, 5.0) == pytest.approx(math.sqrt(0.5))
    limit = largest_mixing_beside_local(1.3, 0.9)
    assert 2 * limit**2 * 1.3 == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"all_rows": 49}, "all_rows=49 must not be below rows=50"),
        ({"divergence": 2.1}, r"divergence=2\.1 must be from 0 to 2"),
        ({"failure": 1.0}, r"failure=1\.0 must be between 0 and 1"),
        ({"shared_risk": -0.1}, r"shared_risk=-0\.1 must be at least 0"),
        ({"largest_loss": 0.0}, r"largest_loss=0\.0 must be above 0"),
    ],
)
def test_theorem_1_says_what_it_does_not_take(changes, message):
    with pytest.raises(UserError, match=message):
        MixingBound(**(BOUND | changes))
    with pytest.raises(UserError, match=r"mixing=1\.5 must be from 0 to 1"):
        MixingBound(**BOUND).at(1.5)


def test_label_divergence_by_hand_and_at_its_ends():
    counts = np.array([[8, 0, 0], [2, 2, 0], [0, 0, 5]])
    mean = np.array([0.5, 0.5 / 3, 1 / 3])
    shares = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]])
    np.testing.assert_allclose(label_divergence(counts), np.abs(shares - mean).sum(1))
    assert label_divergence(np.array([[3, 6], [10, 20]])).max() == pytest.approx(0)
    one_class_each = label_divergence(np.eye(200))
    np.testing.assert_allclose(one_class_each, 2 - 2 / 200)  # towards 2
    with pytest.raises(UserError, match="a row at each client"):
        label_divergence(np.array([[1, 2], [0, 0]]))


def test_linear_discrepancy_bounds_all_pairs_and_is_reached():
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(40, 3)) * [3.0, 1.0, 0.2]
    bound = linear_discrepancy(inputs, radius=1.7)
    for _ in range(300):
        h, other = (1.7 * v / np.linalg.norm(v) for v in draw.normal(size=(2, 3)))
        assert np.abs(inputs @ (h - other)).mean() <= bound
    row = np.array([[1.0, 2.0, 2.0]] * 5)  # all rows alike: h along them and -h reach it
    assert linear_discrepancy(row, radius=0.5) == pytest.approx(2 * 0.5 * 3)


def test_smallest_mixing_depends_on_the_smaller_of_1_and_mu():
    assert smallest_mixing(4.0, 8.0) == pytest.approx(1 - 1 / (4 * math.sqrt(6) * 2 * 2))
    assert smallest_mixing(0.25, 1.0) == pytest.approx(1 - 1 / (4 * math.sqrt(6) * 4))
    with pytest.raises(UserError, match="must not be above"):
        smallest_mixing(2.0, 1.0)


RATES = {
    "strong_convexity": 0.5,
    "smoothness": 1.0,
    "noise": 0.3,
    "diversity": 0.2,
    "all_diversity": 3.0,
    "optimum_gap": 0.4,
    "clients": 12,
    "asked": 3,
    "local_steps": 5,
}


def test_theorem_2_by_hand_and_its_limits():
    rates, alpha, steps = MixingRates(**RATES), 0.97, 400
    scale = 0.5 * 0.25  # μ b, b = 3/12
    inner = 4 * 0.3 / (scale * 3 * 400) + 4 * 5 * (5 * 0.2 + 4 * 5 * 1.0) / (scale * 400**2)
    inner += (0.2 + 1.0) / scale + 2 * 1 * 0.4 / 0.25
    expected = alpha**2 * 0.3 / (scale * 400) + (1 - alpha) ** 2 * inner
    assert rates.strongly_convex(alpha, steps=steps) == pytest.approx(expected)
    assert rates.strongly_convex(1.0, steps=steps) == pytest.approx(0.3 / (scale * 400))
    assert rates.strongly_convex(alpha, steps=10**12) == pytest.approx(rates.residual(alpha), rel=1e-6)
    with pytest.raises(UserError, match="in theorem 2"):
        rates.strongly_convex(0.5, steps=steps)


def test_theorem_7_by_hand():
    rates, alpha, steps, square = MixingRates(**RATES), 0.4, 100, 7.0
    scale, b = 0.125, 0.25
    shared = square / scale + 2 * math.log(100) / (b * 1e6) + 4 * 0.3 / (scale * 300)
    shared += (4 * 25 * 1.2 + 4 * 5 * 0.3) / (scale * 1e4) + 16 * 5 * (0.3 + 2 * 5 * 1.0) / (scale * 1e4)
    expected = 0.5 / (b * 1e6) + 0.16 * 0.3 / (scale * 100) + 0.36 * shared
    assert rates.any_mixing(alpha, steps=steps, gradient_bound=square) == pytest.approx(expected)


def test_theorem_3_by_hand():
    rates = MixingRates(**(RATES | {"asked": 12}))
    alpha, steps = 0.4, 100
    expected = 1.36 * 0.1 + (1 - 0.16) ** 2 * (0.2 + 5.0)
    expected += 0.4**4 * 0.36 * (625 * 3 / (12 * 1e4) + 25 * 0.2 / 100) + 0.36 * 25 * 3 / (12 * 100)
    assert rates.nonconvex(alpha, steps=steps, diameter=5.0) == pytest.approx(expected)
    with pytest.raises(UserError, match="asked=3 must be clients=12 for theorem 3"):
        MixingRates(**RATES).nonconvex(alpha, steps=steps, diameter=5.0)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_lemma_3_on_quadratics(noise):
    """Local steps on quadratics of one Hessian, where ζ_i = |A (c_i - c̄)|² exactly."""
    draw, runs, clients, tau = np.random.default_rng(3), 500, 4, 6
    hessian, centres = np.array([0.5, 1.0]), draw.normal(size=(clients, 2))
    diversity = ((hessian * (centres - centres.mean(0))) ** 2).sum(1)
    w = np.zeros((runs, clients, 2))
    offset, met = max(128 * 2, tau), 0
    for t in range(5 * tau):
        rate = 16 / (0.5 * (t + offset))
        gradient = hessian * (w - centres) + math.sqrt(noise / 2) * draw.normal(size=w.shape)
        w = w - rate * gradient
        deviation = ((w - w.mean(1, keepdims=True)) ** 2).sum(2).mean(0)
        for i in range(clients):
            options = RATES | {"noise": noise, "clients": clients, "asked": clients, "local_steps": tau}
            options |= {"diversity": diversity[i], "all_diversity": diversity.sum()}
            bound = MixingRates(**options).local_deviation(rate)
            assert deviation[i] <= bound
            met = max(met, deviation[i] / bound)
        if (t + 1) % tau == 0:
            w[:] = w.mean(1, keepdims=True)
    assert met > 0.05  # the bound is of the right size, not merely large
