"""SCAFFOLD, FedGATE and VRL-SGD: three ways to write one correction of client drift."""

import numpy as np
import pytest
import torch

from idiolect.core.tree import Params
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedgate import FedGATE
from idiolect.methods.scaffold import Scaffold
from idiolect.methods.vrl_sgd import VRLSGD
from idiolect.participation import Participation
from idiolect.participation.sampling import Uniform
from paper.problems import ENGINES, Softmax, close, vector

EXACT = 1e-12
pytestmark = pytest.mark.parametrize("engine", ENGINES)

DECAYING = {"name": "inverse_time", "initial": 0.2, "decay": 0.05}


def decaying(r, k, steps):
    return 0.2 / (1 + 0.05 * (r * steps + k))


class EveryThirdReplyLost:
    """Everybody is asked; in each round some replies do not arrive."""

    def cohort(self, seed, round_number, sizes):
        everybody = Uniform().cohort(seed, round_number, sizes)
        everybody.replied[:] = (everybody.ids + round_number) % 3 != 0
        return everybody

    def present(self, round_number, clients):
        return torch.ones(clients, dtype=torch.bool)


def repeated_draws():
    """Every client may be drawn several times in a round."""
    return Participation(sampling="proportional").bind(Softmax().federation.names)


@pytest.mark.parametrize("control", ["gradient", "steps"])
def test_scaffold_matches_its_transcription(engine, control):
    problem, steps, outer = Softmax(), 4, 0.8
    method = Scaffold(lr=DECAYING, outer_step=outer, local_steps=steps, control=control)
    simulation = problem.simulate(method, engine).play(7)
    x = problem.start()
    c, own = np.zeros_like(x), np.zeros((problem.clients, len(x)))
    local = np.tile(x, (problem.clients, 1))
    for r in range(7):
        moves, changes = [], []
        for i in problem.asked(r):
            y, applied = x, 0.0
            for k in range(steps):
                eta = decaying(r, k, steps)
                y = y - eta * (problem.gradient(y, problem.batch(i, r, k)) - own[i] + c)
                applied += eta
            if control == "gradient":
                new = problem.gradient(x, problem.rows(i))
            else:
                new = own[i] - c + (x - y) / applied
            moves.append(y - x)
            changes.append(new - own[i])
            own[i], local[i] = new, y
        x = x + outer * np.mean(moves, 0)
        c = c + np.sum(changes, 0) / problem.clients
    assert close(vector(simulation.server.w), x)
    assert close(vector(simulation.server.c), c)
    assert close(vector(simulation.clients().c), own)
    assert close(vector(simulation.predictors()["localized"]), local)


@pytest.mark.parametrize("plan", [Uniform(rate=0.6), repeated_draws()])
def test_scaffold_keeps_the_shared_control_at_the_mean_of_all(engine, plan):
    simulation = Softmax().simulate(Scaffold(lr=0.2, local_steps=3), engine, plan=plan)
    for _ in range(5):
        simulation.advance()
        assert close(vector(simulation.server.c), vector(simulation.clients().c).mean(0), 1e-11)
    assert np.abs(vector(simulation.clients().c)).max() > 0.01  # not by standing at zero


def test_fedgate_matches_its_transcription(engine):
    problem, steps, eta, gamma = Softmax(), 4, 0.2, 0.8
    simulation = problem.simulate(FedGATE(lr=eta, outer_step=gamma, local_steps=steps), engine).play(7)
    w = problem.start()
    delta = np.zeros((problem.clients, len(w)))
    for r in range(7):
        asked = problem.asked(r)
        changes = {}
        for i in asked:
            w_i = w
            for k in range(steps):
                w_i = w_i - eta * (problem.gradient(w_i, problem.batch(i, r, k)) - delta[i])
            changes[i] = (w - w_i) / eta
        mean = sum(changes.values()) / len(asked)
        w = w - eta * gamma * mean
        for i in asked:
            delta[i] = delta[i] + (changes[i] - mean) / steps
    assert close(vector(simulation.server.w), w)
    assert close(vector(simulation.clients().delta), delta)


def test_vrl_sgd_matches_its_transcription(engine):
    problem, steps, gamma = Softmax(participation=1.0), 4, 0.2
    simulation = problem.simulate(VRLSGD(lr=gamma, local_steps=steps), engine).play(6)
    x = np.tile(problem.start(), (problem.clients, 1))
    delta = np.zeros_like(x)
    for r in range(6):
        for i in range(problem.clients):
            for k in range(steps):
                x[i] = x[i] - gamma * (problem.gradient(x[i], problem.batch(i, r, k)) - delta[i])
        mean = x.mean(0)
        used = delta.copy()
        delta = delta + (mean - x) / (steps * gamma)
        x[:] = mean
    assert close(vector(simulation.server.w), mean)
    assert close(vector(simulation.clients().delta), used)  # the last correction waits for the next round


def test_scaffold_2_is_fedgate_is_vrl_sgd_with_full_participation(engine):
    problem, options = Softmax(participation=1.0), {"lr": 0.2, "local_steps": 4}
    scaffold = problem.simulate(Scaffold(**options), engine)
    fedgate = problem.simulate(FedGATE(**options), engine)
    vrl = problem.simulate(VRLSGD(**options), engine)
    for _ in range(6):
        before = vector(fedgate.clients().delta)
        for simulation in (scaffold, fedgate, vrl):
            simulation.advance()
        w = vector(scaffold.server.w)
        assert close(vector(fedgate.server.w), w, EXACT)
        assert close(vector(vrl.server.w), w, EXACT)
        controls = vector(scaffold.clients().c) - vector(scaffold.server.c)
        assert close(vector(fedgate.clients().delta), controls, 1e-11)  # differences of close numbers
        assert np.abs(vector(vrl.clients().delta) - before).max() <= 1e-11 * np.abs(controls).max()
    fedavg = problem.simulate(FedAvg(**options), engine).play(6)
    assert not close(vector(fedavg.server.w), w, 1e-4)


def largest_sum(deltas: Params) -> float:
    return np.abs(vector(deltas).sum(0)).max() / np.abs(vector(deltas)).max()


@pytest.mark.parametrize("plan", [Uniform(), Uniform(rate=0.6), EveryThirdReplyLost(), repeated_draws()])
def test_fedgate_corrections_always_sum_to_zero(engine, plan):
    method = FedGATE(lr=DECAYING, outer_step=0.7, local_steps=3)
    simulation = Softmax().simulate(method, engine, plan=plan)
    for _ in range(6):
        simulation.advance()
        assert largest_sum(simulation.clients().delta) < EXACT


def test_vrl_sgd_corrections_sum_to_zero_with_full_participation(engine):
    simulation = Softmax(participation=1.0).simulate(VRLSGD(lr=DECAYING, local_steps=3), engine).play(2)
    for _ in range(4):
        simulation.advance()
        assert largest_sum(simulation.clients().delta) < EXACT


def test_vrl_sgd_keeps_its_correction_when_the_mean_did_not_reach_it(engine):
    problem = Softmax()
    simulation = problem.simulate(VRLSGD(lr=0.2, local_steps=3), engine)
    for r in range(8):
        before = vector(simulation.clients().delta)
        simulation.advance()
        moved = np.abs(vector(simulation.clients().delta) - before).max(1) > 0
        in_both = set(problem.asked(r)) & set(problem.asked(r - 1) if r else [])
        assert set(np.flatnonzero(moved)) == in_both


@pytest.mark.parametrize("method", [Scaffold, FedGATE, VRLSGD])
def test_drift_is_corrected_at_the_minimum_of_the_mean_loss(engine, method):
    """With full gradients the corrected steps end where the mean gradient is zero; FedAvg does not."""
    problem = Softmax(participation=1.0, batch_size=None, weight_decay=0.5)

    def mean_gradient(method):
        w = vector(problem.simulate(method, engine).play(24).server.w)
        return np.abs(np.mean([problem.gradient(w, problem.rows(i)) for i in range(5)], 0)).max()

    assert mean_gradient(method(lr=0.4, local_steps=3)) < 1e-5
    assert mean_gradient(FedAvg(lr=0.4, local_steps=3)) > 1e-3
