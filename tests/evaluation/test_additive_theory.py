"""Section 7.2: closed forms against simulations in NumPy, bounds where they are valid, golden numbers."""

import math

import numpy as np
import pytest
import torch

from idiolect.data.quadratics import quadratics
from idiolect.errors import UserError
from idiolect.evaluation.theory import additive
from idiolect.evaluation.theory.consensus import (
    average_consensus_error,
    consensus_error,
    printed_consensus_bound,
)
from idiolect.evaluation.theory.quadratics import QuadraticProblem
from idiolect.evaluation.theory.rates import convex_rates, strongly_convex_rates
from idiolect.methods.additive import Additive
from idiolect.models import build_model
from idiolect.simulation import Simulation


def simulated(optima, curvatures, *, steps, rounds, rate, alpha, outer, noise=None):
    """Additive as its algorithm is written: all models after the last round, and ξ before each step."""
    machines, d = optima.shape
    w, theta, errors = np.zeros(d), np.zeros((machines, d)), []
    for r in range(rounds):
        own = np.tile(w, (machines, 1))
        for k in range(steps):
            errors.append(((own - own.mean(0)) ** 2).sum(1).mean())
            g = curvatures * (own + theta - optima) + (0 if noise is None else noise[r, k])
            theta, own = theta - alpha * rate * g, own - rate * g
        w = w + outer * (own.mean(0) - w)
    return w + theta, np.array(errors)


def line(distance=1.0, centre=0.7):
    return np.array([[centre - distance], [centre + distance]]), np.ones((2, 1))


@pytest.mark.parametrize(("alpha", "rate"), [(0.0, 0.5), (1.0, 0.25), (0.3, 0.9), (4.0, 0.11)])
def test_consensus_error_is_the_simulated_one(alpha, rate):
    _, errors = simulated(*line(1.4), steps=5, rounds=7, rate=rate, alpha=alpha, outer=1.0)
    options = {"local_steps": 5, "rate": rate, "alpha": alpha, "distance": 1.4}
    np.testing.assert_allclose([consensus_error(t, **options) for t in range(35)], errors, atol=1e-13)
    assert average_consensus_error(rounds=7, **options) == pytest.approx(errors.mean())


@pytest.mark.parametrize("rounds", [1, 20, 300])
def test_without_personalisation_the_average_is_equation_20(rounds):
    k, eta, zeta = 5, 0.37, 1.3
    q = 1 - eta
    expected = zeta**2 * (1 + (1 - q ** (2 * k)) / ((2 - eta) * eta * k) - 2 * (1 - q**k) / (eta * k))
    found = average_consensus_error(local_steps=k, rounds=rounds, rate=eta, alpha=0.0, distance=zeta)
    assert found == pytest.approx(expected)


def test_golden_averages_of_the_specification():
    options = {"local_steps": 5, "rounds": 20, "distance": 1.0}
    assert average_consensus_error(rate=0.5, alpha=0.0, **options) == pytest.approx(0.491406, abs=5e-7)
    assert average_consensus_error(rate=0.25, alpha=1.0, **options) == pytest.approx(0.008367, abs=5e-7)
    assert printed_consensus_bound(rate=0.25, alpha=1.0, **options) == pytest.approx(0.030625, abs=5e-7)


@pytest.mark.parametrize(
    ("alpha", "rate", "exceeded"),
    [(0.1, 0.4545, True), (0.25, 0.72, True), (0.5, 0.6, True), (1.0, 0.25, False), (2.0, 0.33, False)],
)
def test_the_printed_bound_21_is_exceeded_for_small_alpha(alpha, rate, exceeded):
    options = {"local_steps": 5, "rounds": 20, "rate": rate, "alpha": alpha, "distance": 1.0}
    assert (average_consensus_error(**options) > printed_consensus_bound(**options)) == exceeded


RATES = {"local sgd": (0.1, 0.0), "additive": (0.06, 0.04), "alone": (0.0, 0.1)}


@pytest.mark.parametrize(("shared", "own"), RATES.values(), ids=RATES)
@pytest.mark.parametrize("outer", [1.0, 1.7])
def test_quadratic_error_without_noise_is_the_simulated_one(shared, own, outer):
    optima = np.random.default_rng(1).normal(loc=[1.0, 0.0, -2.0], size=(5, 3))
    models, w = np.zeros((5, 3)), np.zeros(3)
    theta = np.zeros((5, 3))
    for _ in range(6):
        copies = np.tile(w, (5, 1))
        for _ in range(4):
            g = 1.6 * (copies + theta - optima)
            theta, copies = theta - own * g, copies - shared * g
        w = w + outer * (copies.mean(0) - w)
        models = w + theta
    found = additive.quadratic_error(
        shared_rate=shared,
        personal_rate=own,
        outer=outer,
        curvature=1.6,
        machines=5,
        local_steps=4,
        rounds=6,
        start_distance=(optima.mean(0) ** 2).sum(),
        spread=((optima - optima.mean(0)) ** 2).sum(1).mean(),
    )
    assert found == pytest.approx(((models - optima) ** 2).sum(1).mean())


@pytest.mark.parametrize(("shared", "own"), RATES.values(), ids=RATES)
def test_quadratic_error_with_noise_is_the_simulated_mean(shared, own):
    draw, runs, machines, steps, rounds = np.random.default_rng(2), 4000, 3, 4, 5
    optima = np.array([0.5, -1.0, 2.0])
    w, theta = np.zeros((runs, 1)), np.zeros((runs, machines))
    for _ in range(rounds):
        copies = np.tile(w, (1, machines))
        for _ in range(steps):
            g = 0.8 * (copies + theta - optima) + 3 * draw.normal(size=(runs, machines))
            theta, copies = theta - own * g, copies - shared * g
        w = w + 1.3 * (copies - w).mean(1, keepdims=True)
    errors = ((w + theta - optima) ** 2).mean(1)
    expected = additive.quadratic_error(
        shared_rate=shared,
        personal_rate=own,
        outer=1.3,
        curvature=0.8,
        machines=machines,
        local_steps=steps,
        rounds=rounds,
        start_distance=optima.mean() ** 2,
        spread=optima.var(),
        noise=9.0,
    )
    assert abs(errors.mean() - expected) < 4 * errors.std() / math.sqrt(runs)


def test_quadratic_error_is_what_runs_measure():
    """Rows as the engines draw them, without replacement in a round; the mean over seeds."""
    federation = quadratics(
        seed=4, clients=4, dimensions=400, smallest=1.0, largest=1.0, noise=1.0, rows=12, double=True
    )
    problem, rounds = QuadraticProblem.of(federation), 3
    method = Additive(learning_rate=0.1, local_steps=4, outer_step=1.0)
    module = build_model("quadratic", federation)
    errors = []
    for seed in range(6):
        simulation = Simulation(
            method, module, federation, seed=seed, batch_size=3, dtype=torch.float64
        ).play(rounds)
        (models,) = simulation.predictors()["personal"].values()
        errors.append(problem.mean_squared_distance(models))
    spread = problem.optima - problem.optima.mean(0)

    def expected(rows):
        return additive.quadratic_error(
            shared_rate=0.1,
            personal_rate=0.1,
            curvature=1.0,
            machines=4,
            local_steps=4,
            rounds=rounds,
            start_distance=float(problem.optima.mean(0).square().sum()),
            spread=float(spread.square().sum(1).mean()),
            noise=float(problem.row_variance.mean()),
            rows=rows,
            batch_size=3,
        )

    margin = 4 * np.std(errors) / math.sqrt(len(errors))
    assert abs(np.mean(errors) - expected(12)) < margin
    assert abs(np.mean(errors) - expected(None)) > margin  # rows drawn independently are noisier


def test_all_rows_in_a_round_leave_the_noise_of_their_order_alone():
    """With a step so small that ν = 1, a round that sees every row once has no noise."""
    options = {
        "curvature": 1e-9,
        "machines": 3,
        "local_steps": 6,
        "rounds": 2,
        "start_distance": 0,
        "spread": 0,
    }
    error = additive.quadratic_error(
        shared_rate=1, personal_rate=0, noise=5, rows=12, batch_size=2, **options
    )
    independent = additive.quadratic_error(shared_rate=1, personal_rate=0, noise=5, batch_size=2, **options)
    assert error < 1e-6 * independent


def test_three_regimes_of_heterogeneity():
    problem = {"curvature": 1.0, "machines": 10, "local_steps": 5, "rounds": 50, "start_distance": 1}

    def best(spread):
        errors = {
            name: additive.quadratic_error(
                shared_rate=shared, personal_rate=own, spread=spread, noise=1, **problem
            )
            for name, (shared, own) in {**RATES, "additive": (0.09, 0.01)}.items()
        }
        return min(errors, key=errors.get)

    order = [best(spread) for spread in np.logspace(-5, 3, 60)]
    assert list(dict.fromkeys(order)) == ["local sgd", "additive", "alone"]


def theorem_1(alpha, rounds, **options):
    return additive.personal_distance(
        strong_convexity=0.001,
        smoothness=1.0,
        noise=0.0,
        radius=1.0,
        machines=2,
        local_steps=10,
        rounds=rounds,
        rate=0.99 / (1 + alpha),
        alpha=alpha,
        outer=1.0,
        **options,
    )


def unequal(alpha, rounds):
    optima, curvatures = np.array([[1.0], [-1.0]]), np.array([[1.0], [0.001]])
    models, _ = simulated(
        optima, curvatures, steps=10, rounds=rounds, rate=0.99 / (1 + alpha), alpha=alpha, outer=1.0
    )
    return ((models - optima) ** 2).sum(1).mean()


def test_theorem_1_is_exceeded_for_small_alpha_and_holds_for_1():
    assert unequal(0.1, 5) == pytest.approx(1.608, abs=5e-4)
    assert theorem_1(0.1, 5, as_printed=True) == pytest.approx(0.991, abs=5e-4)
    with pytest.raises(UserError, match=r"alpha=0\.1 must be at least 1"):
        theorem_1(0.1, 5)
    for rounds in (1, 2, 5, 20):
        assert unequal(1.0, rounds) <= theorem_1(1.0, rounds)


@pytest.mark.parametrize("machines", [4, 9, 16, 100])
def test_outer_steps_above_3_diverge_at_alpha_1(machines):
    """The specification's check of β = √M: the border is M = 9."""
    factor = additive.round_factor(
        curvature=1.0, local_steps=10, rate=0.245, alpha=1.0, outer=math.sqrt(machines)
    )
    optima = np.random.default_rng(0).normal(size=(machines, 1)) + 1
    options = {"steps": 10, "rate": 0.245, "alpha": 1.0, "outer": math.sqrt(machines)}
    errors = [simulated(optima, 1.0, rounds=r, **options)[0].mean() - optima.mean() for r in (20, 21)]
    assert errors[1] / errors[0] == pytest.approx(factor, rel=1e-6)
    assert (abs(factor) > 1) == (machines > 9)


def test_bound_15_is_14_and_bound_16_lies_above_it():
    mu, machines, steps, rounds, noise, radius = 0.5, 4, 3, 6, 2.0, 1.5
    low, high = additive.condition_range(machines=machines, local_steps=steps, rounds=rounds)
    rate = 1 / (8 * mu * machines * steps * rounds)
    for kappa in (low, (low + high) / 2, 0.999 * high):
        problem = {"strong_convexity": mu, "smoothness": kappa * mu, "noise": noise, "radius": radius}
        sizes = {"machines": machines, "local_steps": steps, "rounds": rounds}
        one = additive.personal_distance(**problem, **sizes, rate=rate, alpha=1.0, outer=math.sqrt(machines))
        start = math.exp(-rounds * (1 - math.exp(-2 * rate * mu * steps))) * radius**2
        assert one == pytest.approx(start + 8 * rate * noise / mu)
        best = additive.best_personal_distance(**problem, **sizes)
        assert 8 * rate * noise / mu == pytest.approx(noise / (mu**2 * machines * steps * rounds))
        assert one <= best * (1 + 1e-12)
    with pytest.raises(UserError, match="must be from"):
        additive.best_personal_distance(**(problem | {"smoothness": high * mu}), **sizes)


def test_condition_range_of_the_papers_example():
    low, high = additive.condition_range(machines=10, local_steps=7, rounds=10)
    assert low == pytest.approx(7 / (2 * (1 - math.exp(-1 / 400))))
    assert 200 * 7 < low < 201 * 7
    assert high == 400 * 7
    for machines in (1, 2, 50):
        for rounds in (1, 3, 200):
            low, high = additive.condition_range(machines=machines, local_steps=2, rounds=rounds)
            assert 2 < low < high


def test_figure_4():
    crossing = additive.faster_than_alone_below()
    assert crossing == pytest.approx(0.797, abs=5e-4)
    assert 1 - math.exp(-2 * crossing) == pytest.approx(crossing, abs=1e-14)
    for x in np.linspace(0.01, 1, 50):
        assert (additive.personal_exponent(x) > x) == (x < crossing)
        assert additive.regime_curve(x) > x


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_theorem_2_bounds_the_loss_of_the_average(alpha):
    optima, curvatures = np.array([[2.0, 0.3], [-1.0, 1.0], [0.4, -3.0]]), np.array([[1.0, 0.1]])
    rate, steps, rounds = 1 / (2 * (1 + alpha)), 4, 5
    total, errors, w, theta = np.zeros((3, 2)), [], np.zeros(2), np.zeros((3, 2))
    for _ in range(rounds):
        own = np.tile(w, (3, 1))
        for _ in range(steps):
            errors.append(((own - own.mean(0)) ** 2).sum(1).mean())
            total += own.mean(0) + theta
            g = curvatures * (own + theta - optima)
            theta, own = theta - alpha * rate * g, own - rate * g
        w = own.mean(0)
    loss = 0.5 * (curvatures * (total / (steps * rounds) - optima) ** 2).sum(1).mean()
    bound = additive.convex_excess(
        smoothness=1.0,
        noise=0.0,
        radius=np.linalg.norm(optima, axis=1).max(),
        machines=3,
        steps=steps * rounds,
        rate=rate,
        alpha=alpha,
        consensus=np.mean(errors),
    )
    assert 0 < loss <= bound
    with pytest.raises(UserError, match="must be at most"):
        additive.convex_excess(
            smoothness=1, noise=0, radius=1, machines=3, steps=9, rate=1.01 * rate, alpha=alpha, consensus=0
        )


TABLE = {"noise": 4.0, "radius": 1.5, "heterogeneity": 0.6, "machines": 8, "local_steps": 27, "rounds": 8}


def test_strongly_convex_rows_by_hand():
    rates = strongly_convex_rates(strong_convexity=0.5, smoothness=2.0, **TABLE)
    minibatch, local_sgd, local = (rates[name] for name in ("minibatch-sgd", "local-sgd", "local"))
    assert minibatch.optimisation == pytest.approx(2.25 * math.exp(-8 / 4))
    assert minibatch.noise == pytest.approx(4 / (0.25 * 8 * 216))
    assert minibatch.heterogeneity == pytest.approx(0.09)
    assert local_sgd.optimisation == pytest.approx(4 * minibatch.optimisation)
    assert local_sgd.noise == pytest.approx(minibatch.noise + 4 * 4 / (0.25 * 27 * 64))
    assert local_sgd.heterogeneity == pytest.approx(0.36 * (1 / 4 + 4 / (0.25 * 64)))
    assert local.optimisation == pytest.approx(2.25 * math.exp(-216 / 8))
    assert local.noise == pytest.approx(8 * minibatch.noise)
    assert local.heterogeneity == 0
    assert "additive" not in rates  # κ = 4 is far below its regime


def test_additive_has_the_best_column_of_each_kind_in_its_regime():
    low, high = additive.condition_range(machines=8, local_steps=27, rounds=8)
    rates = strongly_convex_rates(strong_convexity=0.5, smoothness=0.5 * (low + high) / 2, **TABLE)
    assert rates["additive"].optimisation == rates["local"].optimisation
    assert rates["additive"].noise == rates["minibatch-sgd"].noise
    assert rates["additive"].total < min(rate.total for name, rate in rates.items() if name != "additive")


def test_convex_rows_by_hand():
    rates = convex_rates(smoothness=2.0, **TABLE)
    assert rates["minibatch-sgd"].total == pytest.approx(
        2 * 2.25 / 8 + 2 * 1.5 / math.sqrt(8 * 216) + 0.36 / 2
    )
    local_sgd, earlier = rates["local-sgd"], rates["additive-earlier"]
    fourth = 1.5**4
    assert local_sgd.noise == pytest.approx(
        3 / math.sqrt(1728) + (2 * 4 * fourth) ** (1 / 3) / (3 * 4)  # 27^{1/3} = 3, 8^{2/3} = 4
    )
    assert local_sgd.heterogeneity == pytest.approx(0.18 + (2 * 0.36 * fourth) ** (1 / 3) / 4)
    assert earlier.optimisation == pytest.approx(8 * 4.5 / 8)
    assert earlier.noise == pytest.approx(3 / math.sqrt(216) + (2 * 4 * 64 * fourth) ** (1 / 3) / 4)
    assert earlier.heterogeneity == pytest.approx((2 * 0.36 * 64 * fourth) ** (1 / 3) / 4)
    assert rates["local"].total == pytest.approx(4.5 / 216 + 3 / math.sqrt(216))
    assert "additive-one-step" not in rates
    one_step = convex_rates(smoothness=2.0, **(TABLE | {"local_steps": 1}))
    assert one_step["additive-one-step"].optimisation == one_step["minibatch-sgd"].optimisation
    assert one_step["additive-one-step"].heterogeneity == 0


def refused_distance(**changes):
    options = {
        "strong_convexity": 0.1,
        "smoothness": 1.0,
        "noise": 1.0,
        "radius": 1.0,
        "machines": 4,
        "local_steps": 3,
        "rounds": 5,
        "rate": 0.2,
        "alpha": 1.0,
        "outer": 1.0,
    }
    return additive.personal_distance(**(options | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0.5}, r"rate=0\.5 must be below 0\.5 = 1 / \(\(1 \+ alpha\) smoothness\)"),
        ({"rate": 0.0}, r"rate=0\.0 must be above 0"),
        ({"outer": 2.5}, r"outer=2\.5 must be at most 2"),
        ({"alpha": 0.0}, r"alpha=0\.0 must be above 0"),
        ({"strong_convexity": 2.0}, r"strong_convexity=2\.0 must not be above smoothness=1\.0"),
        ({"machines": 0}, "machines=0 must be at least 1"),
        ({"noise": float("nan")}, "noise=nan must be at least 0"),
    ],
)
def test_outside_of_its_domain_a_bound_says_why(changes, message):
    assert refused_distance() > 0
    with pytest.raises(UserError, match=message):
        refused_distance(**changes)


def test_rows_that_would_come_twice_in_a_round_are_refused():
    with pytest.raises(UserError, match="rows=11 must be at least local_steps"):
        additive.quadratic_error(
            shared_rate=0.1,
            personal_rate=0.0,
            curvature=1,
            machines=2,
            local_steps=4,
            rounds=1,
            start_distance=1,
            spread=1,
            rows=11,
            batch_size=3,
        )
