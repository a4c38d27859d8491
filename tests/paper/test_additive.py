"""Additive personalised Local SGD against the paper: a transcription, and the identities AD1 to AD11."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core.schedule import InverseTime
from idiolect.data.quadratics import quadratic_line, quadratic_pair, quadratics
from idiolect.methods.additive import Additive
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.methods.local_sgd import LocalSGD
from idiolect.methods.minibatch_sgd import MiniBatchSGD
from idiolect.participation import Participation
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation
from paper.problems import (
    ENGINES,
    Softmax,
    close,
    identical,
    identical_clients,
    of_method,
    on_quadratics,
    vector,
)

EXACT = 1e-12
pytestmark = pytest.mark.parametrize("engine", ENGINES)


def transcription(problem, rounds, *, eta, own, beta, steps):
    """Spec 2.5 and 2.6, literally; the personal rate αη is a function of the time."""
    w = problem.start()
    theta = [np.zeros_like(w) for _ in range(problem.clients)]
    local = [w + 0 for _ in range(problem.clients)]
    w_bars, thetas, sums = [], [], [[] for _ in range(problem.clients)]
    consensus = []
    for r in range(rounds):
        asked = problem.asked(r)
        w_m = dict.fromkeys(asked, w)
        for k in range(steps):
            mean = sum(w_m.values()) / len(asked)
            consensus.append(sum(np.sum((w_m[m] - mean) ** 2) for m in asked) / len(asked))
            w_bars.append(mean)
            thetas.append([t.copy() for t in theta])
            for m in asked:
                sums[m].append(w_m[m] + theta[m])
                g = problem.gradient(w_m[m] + theta[m], problem.batch(m, r, k))
                theta[m] = theta[m] - own(r * steps + k) * g
                w_m[m] = w_m[m] - eta * g
        for m in asked:
            local[m] = w_m[m] + theta[m]
        w = w + beta * sum(w_m[m] - w for m in asked) / len(asked)
    option_2 = [np.mean(w_bars, 0) + np.mean([t[m] for t in thetas], 0) for m in range(problem.clients)]
    option_3 = [np.mean(s, 0) if s else w for s in sums]
    return {
        "w": w,
        "localized": np.array(local),
        "last": w + np.array(theta),
        "average": np.array(option_2),
        "local_average": np.array(option_3),
        "consensus": np.array(consensus).reshape(rounds, steps),
    }


PERSONAL_RATES = {
    "constant": (0.14, lambda t: 0.14),
    "decaying": (InverseTime(0.3, 0.5), lambda t: 0.3 / (1 + 0.5 * t)),
}


@pytest.mark.parametrize("personal_rate", PERSONAL_RATES)
@pytest.mark.parametrize("output", ["last", "average", "local_average"])
@pytest.mark.parametrize("logged", [False, True])
def test_additive_matches_the_transcription(engine, output, personal_rate, logged):
    problem = Softmax()
    rate, own = PERSONAL_RATES[personal_rate]
    method = Additive(
        learning_rate=0.2,
        personal_rate=rate,
        outer_step=1.3,
        local_steps=4,
        output=output,
        log_consensus_error=logged,
    )
    simulation = problem.simulate(method, engine)
    info = [simulation.advance().info for _ in range(6)]
    expected = transcription(problem, 6, eta=0.2, own=own, beta=1.3, steps=4)
    models = simulation.predictors()
    assert close(vector(of_method(simulation.server).w), expected["w"])
    assert close(vector(models["localized"]), expected["localized"])
    assert close(vector(models["personal"]), expected[output])
    if logged:
        consensus = np.array([of_round["consensus_error"].numpy() for of_round in info])
        assert np.abs(consensus - expected["consensus"]).max() <= 1e-9 * expected["consensus"].max()


def test_ad1_no_personal_rate_is_local_sgd_with_an_outer_step(engine):
    problem = Softmax()
    ours = problem.simulate(Additive(lr=0.2, personal_rate=0, outer_step=1.4, local_steps=3), engine).play(5)
    theirs = problem.simulate(LocalSGD(lr=0.2, outer_step=1.4, local_steps=3), engine).play(5)
    assert identical(ours.server.w, theirs.server.w, engine)
    assert identical(ours.predictors()["localized"], theirs.predictors()["localized"], engine)
    assert not vector(ours.clients().theta).any()


def test_ad2_no_personal_rate_and_unit_outer_step_is_fedavg(engine):
    problem = Softmax()
    ours = problem.simulate(Additive(lr=0.2, personal_rate=0, local_steps=3), engine).play(5)
    fedavg = problem.simulate(FedAvg(lr=0.2, local_steps=3), engine).play(5)
    assert close(vector(ours.server.w), vector(fedavg.server.w), EXACT)
    moving = problem.simulate(Additive(lr=0.2, personal_rate=0.1, local_steps=3), engine).play(5)
    assert not close(vector(moving.server.w), vector(fedavg.server.w), 1e-3)


def test_ad3_one_step_and_no_outer_step_is_local_training(engine):
    problem = Softmax()
    method = Additive(lr=0.3, personal_rate=0.2, outer_step=0, local_steps=1)
    ours = problem.simulate(method, engine).play(6)
    alone = problem.simulate(Local(lr=0.2, local_steps=1), engine).play(6)
    assert close(vector(ours.predictors()["personal"]), vector(alone.predictors()["personal"]), EXACT)


def test_ad4_no_shared_rate_is_local_training_bitwise(engine):
    # From zero: w + θ is then θ without rounding.
    method = Additive(lr=0, personal_rate=0.2, outer_step=1.7, local_steps=3)
    ours = on_quadratics(method, engine, plan=Uniform(rate=0.5)).play(6)
    alone = on_quadratics(Local(lr=0.2, local_steps=3), engine, plan=Uniform(rate=0.5)).play(6)
    assert np.array_equal(vector(ours.predictors()["personal"]), vector(alone.predictors()["personal"]))


def test_ad4_with_a_shared_rate_and_no_outer_step_is_not_local_training(engine):
    ours = on_quadratics(Additive(lr=0.1, personal_rate=0.2, outer_step=0, local_steps=3), engine).play(6)
    alone = on_quadratics(Local(lr=0.2, local_steps=3), engine).play(6)
    assert not close(vector(ours.predictors()["personal"]), vector(alone.predictors()["personal"]), 1e-3)


@pytest.mark.parametrize("steps", [1, 4])
def test_ad5_one_machine_is_sgd_with_the_sum_of_the_rates(engine, steps):
    data = quadratics(seed=4, clients=1, dimensions=3, noise=0.4, rows=6, double=True)
    ours = on_quadratics(Additive(lr=0.1, personal_rate=0.07, local_steps=steps), engine, data).play(5)
    alone = on_quadratics(Local(lr=0.17, local_steps=steps), engine, data).play(5)
    assert close(vector(ours.predictors()["personal"]), vector(alone.predictors()["personal"]), EXACT)


def test_ad6_one_step_moves_by_the_mean_gradient_and_alpha_times_the_own(engine):
    problem, eta, alpha = Softmax(participation=1.0), 0.2, 0.6
    simulation = problem.simulate(Additive(lr=eta, personal_rate=alpha * eta, local_steps=1), engine).play(5)
    v = np.tile(problem.start(), (problem.clients, 1))
    for r in range(5):
        g = np.array([problem.gradient(v[m], problem.batch(m, r, 0)) for m in range(problem.clients)])
        v = v - eta * (g.mean(0) + alpha * g)
    assert close(vector(simulation.predictors()["personal"]), v, EXACT)


@pytest.mark.parametrize("both_are_followed", [True, False])
def test_ad7_one_model_and_one_division_give_the_same(engine, both_are_followed):
    problem, eta, alpha, beta, steps = Softmax(), 0.2, 0.6, 1.3, 4
    method = Additive(
        lr=eta,
        personal_rate=alpha * eta,
        outer_step=beta,
        local_steps=steps,
        log_consensus_error=both_are_followed,
    )
    simulation = problem.simulate(method, engine)
    w = problem.start()
    theta = np.zeros((problem.clients, len(w)))
    for r in range(5):
        before, kept = vector(of_method(simulation.server).w), vector(of_method(simulation.clients()).theta)
        simulation.advance()
        moves = []
        for m in problem.asked(r):
            v = w + theta[m]
            for k in range(steps):
                v = v - (1 + alpha) * eta * problem.gradient(v, problem.batch(m, r, k))
            move = (v - (w + theta[m])) / (1 + alpha)
            theta[m] = theta[m] + alpha * move
            moves.append(move)
        w = w + beta * np.mean(moves, 0)
        clients = of_method(simulation.clients())
        for m in problem.asked(r):  # α w_m - θ_m stands still inside a round
            start = alpha * before - kept[m]
            assert close(alpha * vector(clients.w)[m] - vector(clients.theta)[m], start, EXACT)
    assert close(vector(simulation.predictors()["personal"]), w + theta, EXACT)


def test_ad8_small_inner_steps_approach_minibatch_sgd(engine):
    problem, gamma, steps = Softmax(), 0.8, 4
    theirs = vector(problem.simulate(MiniBatchSGD(lr=gamma, local_steps=steps), engine).play(4).server.w)
    apart = []
    for eta in (1e-3, 1e-4):
        beta = gamma / (eta * steps)
        method = Additive(lr=eta, personal_rate=0, outer_step=beta, local_steps=steps, allow_unstable=True)
        ours = vector(problem.simulate(method, engine).play(4).server.w)
        apart.append(np.abs(ours - theirs).max())
    assert apart[0] < 1e-2
    assert apart[1] == pytest.approx(apart[0] / 10, rel=0.05)  # the error is of first order in η


def test_ad8_without_an_inner_step_nothing_moves(engine):
    problem = Softmax()
    method = Additive(lr=0, personal_rate=0, outer_step=2, local_steps=3)
    assert np.array_equal(vector(problem.simulate(method, engine).play(3).server.w), problem.start())


def consensus_errors(method, engine, rounds, distance=1.0, optimum=0.0):
    data = quadratic_line(optimum=optimum, distance=distance, double=True)
    simulation = on_quadratics(method, engine, data, batch_size=None)
    return torch.stack([simulation.advance().info["consensus_error"] for _ in range(rounds)]).numpy()


@pytest.mark.parametrize(("alpha", "eta"), [(0.0, 0.5), (1.0, 0.25), (0.5, 0.6), (0.1, 0.455)])
def test_ad9_consensus_error_has_its_closed_form(engine, alpha, eta):
    K, R, zeta = 5, 20, 1.5
    method = Additive(lr=eta, personal_rate=alpha * eta, local_steps=K, log_consensus_error=True)
    measured = consensus_errors(method, engine, R, distance=zeta, optimum=0.4)
    nu = 1 - eta * (1 + alpha)
    q = (1 + alpha * nu**K) / (1 + alpha)
    r, k = np.arange(R)[:, None], np.arange(K)[None]
    expected = zeta**2 / (1 + alpha) ** 2 * (1 - nu**k) ** 2 * q ** (2 * r)
    assert np.abs(measured - expected).max() <= EXACT * expected.max()
    teeth = 1 - 2 * (1 - nu**K) / (K * (1 - nu)) + (1 - nu ** (2 * K)) / (K * (1 - nu**2))
    decay = (1 - q ** (2 * R)) / (R * (1 - q**2)) if alpha else 1.0
    assert measured.mean() == pytest.approx(zeta**2 / (1 + alpha) ** 2 * teeth * decay, rel=EXACT)
    assert not measured[:, 0].any()  # zero at every communication


def test_ad9_golden_averages(engine):
    def average(**options):
        return consensus_errors(
            Additive(local_steps=5, log_consensus_error=True, **options), engine, 20
        ).mean()

    assert average(lr=0.5, personal_rate=0) == pytest.approx(0.491406, abs=5e-7)
    assert average(lr=0.25, personal_rate=0.25) == pytest.approx(0.008367, abs=5e-7)


def test_ad9_the_papers_bound_21_is_not_one(engine):
    K, R, alpha, eta = 5, 20, 0.25, 0.72
    method = Additive(lr=eta, personal_rate=alpha * eta, local_steps=K, log_consensus_error=True)
    a = eta * (1 + alpha)
    bound = (1 - (1 - (1 - a) ** K) / (a * K)) * ((1 - (1 - a) ** R) / (a * R)) / (1 + alpha)
    assert consensus_errors(method, engine, R).mean() > bound


def test_ad10_figure_1b(engine):
    data = quadratic_pair(double=True)
    local = on_quadratics(FedAvg(lr=0.05, local_steps=3), engine, data, batch_size=None).play(8)
    assert vector(local.server.w) == pytest.approx([13.763218, 15.858433], abs=5e-7)
    assert vector(local.play(40).server.w) == pytest.approx([14.072464, 16.214756], abs=5e-7)
    method = Additive(lr=0.05, personal_rate=0.05, local_steps=3)
    ours = on_quadratics(method, engine, data, batch_size=None).play(8)
    assert vector(ours.server.w) == pytest.approx([6.286155, 7.738652], abs=5e-7)
    expected = np.array([[7.248244, 18.025016], [17.896376, 12.929593]])
    assert np.abs(vector(ours.predictors()["personal"]) - expected).max() < 5e-7
    assert np.abs(vector(ours.play(70).predictors()["personal"]) - [[7, 18], [18, 13]]).max() < 1e-8


def test_ad11_identical_machines_agree(engine):
    method = Additive(lr=0.3, personal_rate=0.2, local_steps=3, log_consensus_error=True)
    simulation = Simulation(
        method,
        lambda: nn.Linear(4, 3),
        identical_clients(),
        engine=engine,
        batch_size=None,
        dtype=torch.float64,
    )
    for _ in range(4):
        before = vector(of_method(simulation.server).w)
        error = simulation.advance().info["consensus_error"]
        moved = np.sum((vector(of_method(simulation.server).w) - before) ** 2)
        assert error.max() <= EXACT * moved
    thetas = vector(of_method(simulation.clients()).theta)
    assert all(close(a, b, EXACT) for a, b in pairwise(thetas))


def test_an_outer_step_that_can_diverge_is_lowered_with_a_warning(engine):
    data = quadratics(seed=1, clients=2, dimensions=1, largest=1.0, smallest=1.0, double=True)
    options = {"lr": 0.245, "personal_rate": 0.245, "local_steps": 6}
    with pytest.warns(UserWarning, match=r"outer_step=4 can diverge above 2 \+ α = 3"):
        clamped = Additive(outer_step=4, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_hand, free = (
            Additive(outer_step=3, **options),
            Additive(outer_step=4, allow_unstable=True, **options),
        )

    def end(method):
        return vector(on_quadratics(method, engine, data, batch_size=None).play(16).server.w)

    assert np.array_equal(end(clamped), end(by_hand))
    assert np.abs(end(clamped)).max() < 10 < 100 < np.abs(end(free)).max()


def test_ad_option_2_counts_the_steps_since_a_client_arrived(engine):
    """(1/T) Σ_t w̄_t over the run, and the mean of θ_t over the rounds in which the client was there."""
    problem, joined, rounds, steps = Softmax(participation=1.0), 2, 5, 4
    plan = Participation(clients={"client-3": {"join": joined}}).bind(problem.federation.names)
    method = Additive(lr=0.2, personal_rate=0.1, local_steps=steps, output="average")
    simulation = problem.simulate(method, engine, plan=plan).play(rounds)
    w, w_bars, thetas = problem.start(), [], {m: [np.zeros(15)] for m in range(problem.clients)}
    for r in range(rounds):
        there = [m for m in thetas if m != 3 or r >= joined]
        w_m = dict.fromkeys(there, w)
        for k in range(steps):
            w_bars.append(sum(w_m.values()) / len(there))
            for m in there:
                g = problem.gradient(w_m[m] + thetas[m][-1], problem.batch(m, r, k))
                thetas[m].append(thetas[m][-1] - 0.1 * g)
                w_m[m] = w_m[m] - 0.2 * g
        w = sum(w_m.values()) / len(there)
    assert [len(thetas[m]) - 1 for m in (2, 3)] == [rounds * steps, (rounds - joined) * steps]
    expected = [np.mean(w_bars, 0) + np.mean(thetas[m][:-1], 0) for m in thetas]
    assert close(vector(simulation.predictors()["personal"]), np.array(expected))


def test_additive_newcomer_trains_theta_alone(engine):
    problem = Softmax(participation=1.0)
    method = Additive(lr=0.2, personal_rate=0.1, local_steps=4)
    trained = problem.simulate(method, engine).play(3)
    fresh = trained.newcomers(problem.federation, round_number=9)
    w = vector(trained.server.w)
    assert np.array_equal(vector(fresh.clients().w), np.tile(w, (problem.clients, 1)))
    theta = np.zeros((problem.clients, len(w)))
    for m in range(problem.clients):
        for k in range(4):
            theta[m] -= 0.1 * problem.gradient(w + theta[m], problem.batch(m, 9, k))
    assert close(vector(fresh.clients().theta), theta)
