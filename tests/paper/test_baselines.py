"""The baselines against plain float64 transcriptions of their equations, and their identities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.methods.additive import Additive
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedprox import FedProx
from idiolect.methods.local_sgd import LocalSGD
from idiolect.methods.minibatch_sgd import MiniBatchSGD
from idiolect.methods.scaffold import Scaffold
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation
from paper.problems import ENGINES, Softmax, close, identical_clients, vector

EXACT = 1e-12
pytestmark = pytest.mark.parametrize("engine", ENGINES)


class Stragglers:
    """Client i completes a share of its work that depends on i and on the round; all reply."""

    def __init__(self, rate=1.0, nobody_complete_in=-1):
        self.sampling, self.nobody_complete_in = Uniform(rate=rate), nobody_complete_in

    def cohort(self, seed, round_number, sizes):
        asked = self.sampling.cohort(seed, round_number, sizes)
        work = ((asked.ids + round_number) % 3 + 1).double() / 3
        if round_number == self.nobody_complete_in:
            work = work.clamp_max(0.5)
        return replace(asked, work=work)

    def present(self, round_number, clients):
        return self.sampling.present(round_number, clients)


def completed(client, round_number, steps, nobody_complete_in=-1):
    """The local steps that the plan above lets a client complete."""
    work = ((client + round_number) % 3 + 1) / 3
    if round_number == nobody_complete_in:
        work = min(work, 0.5)
    return min(steps, int(work * (steps + 1)))


def sgd(problem, w, client, round_number, steps, eta, held=0.0):
    """Local steps, with a pull back to the start."""
    start = w
    for k in range(steps):
        w = w - eta * (problem.gradient(w, problem.batch(client, round_number, k)) + held * (w - start))
    return w


def test_localsgd_and_minibatch_sgd_match_their_transcriptions(engine):
    problem, steps = Softmax(), 4
    local = problem.simulate(LocalSGD(lr=0.2, outer_step=0.7, local_steps=steps), engine).play(6)
    batch = problem.simulate(MiniBatchSGD(lr=0.5, local_steps=steps, weighting="samples"), engine).play(6)
    w = u = problem.start()
    for r in range(6):
        asked = problem.asked(r)
        moves = [sgd(problem, w, i, r, steps, 0.2) - w for i in asked]
        w = w + 0.7 * np.mean(moves, 0)
        gradients = [
            np.mean([problem.gradient(u, problem.batch(i, r, k)) for k in range(steps)], 0) for i in asked
        ]
        u = u - 0.5 * np.average(gradients, axis=0, weights=problem.sizes[asked])
    assert close(vector(local.server.w), w)
    assert close(vector(batch.server.w), u)


def test_minibatch_sgd_averages_over_the_steps_that_were_taken(engine):
    problem, steps = Softmax(), 5
    plan = Stragglers(rate=problem.participation)
    method = MiniBatchSGD(lr=0.5, local_steps=steps)
    simulation = problem.simulate(method, engine, plan=plan).play(4)
    w = problem.start()
    own = np.tile(w, (problem.clients, 1))
    for r in range(4):
        gradients = []
        for i in problem.asked(r):
            taken = range(completed(i, r, steps))
            gradients.append(np.mean([problem.gradient(w, problem.batch(i, r, k)) for k in taken], 0))
            own[i] = w - 0.5 * gradients[-1]
        w = w - 0.5 * np.mean(gradients, 0)
    assert close(vector(simulation.server.w), w)
    assert close(vector(simulation.predictors()["localized"]), own)


def test_fedprox_matches_its_transcription_with_partial_work(engine):
    problem, steps, mu = Softmax(), 5, 0.8
    plan = Stragglers(rate=problem.participation)
    method = FedProx(lr=0.2, mu=mu, local_steps=steps, weighting="samples")
    simulation = problem.simulate(method, engine, plan=plan).play(6)
    w = problem.start()
    local = np.tile(w, (problem.clients, 1))
    for r in range(6):
        asked = problem.asked(r)
        for i in asked:
            local[i] = sgd(problem, w, i, r, completed(i, r, steps), 0.2, held=mu)
        w = np.average(local[asked], axis=0, weights=problem.sizes[asked])
    assert close(vector(simulation.server.w), w)
    assert close(vector(simulation.predictors()["localized"]), local)


def test_fedprox_without_its_term_is_fedavg_bitwise(engine):
    problem = Softmax()
    ours = problem.simulate(FedProx(lr=0.2, mu=0, local_steps=4), engine).play(5)
    fedavg = problem.simulate(FedAvg(lr=0.2, local_steps=4), engine).play(5)
    assert np.array_equal(vector(ours.server.w), vector(fedavg.server.w))
    assert np.array_equal(vector(ours.predictors()["localized"]), vector(fedavg.predictors()["localized"]))
    held = problem.simulate(FedProx(lr=0.2, mu=0.5, local_steps=4), engine).play(5)
    assert not close(vector(held.server.w), vector(fedavg.server.w), 1e-4)


def test_fedavg_drops_or_keeps_stragglers(engine):
    problem, steps, nobody = Softmax(participation=1.0), 5, 2
    plan = Stragglers(nobody_complete_in=nobody)
    keep, drop = (
        problem.simulate(
            FedAvg(lr=0.2, local_steps=steps, weighting="samples", incomplete=choice), engine, plan=plan
        ).play(5)
        for choice in ("keep", "drop")
    )
    kept = dropped = problem.start()
    for r in range(5):
        done = [completed(i, r, steps, nobody) for i in range(problem.clients)]
        local = [sgd(problem, kept, i, r, done[i], 0.2) for i in range(problem.clients)]
        kept = np.average(local, axis=0, weights=problem.sizes)
        full = [i for i in range(problem.clients) if done[i] == steps]
        if full:
            local = [sgd(problem, dropped, i, r, steps, 0.2) for i in full]
            dropped = np.average(local, axis=0, weights=problem.sizes[full])
        else:
            assert r == nobody
    assert close(vector(keep.server.w), kept)
    assert close(vector(drop.server.w), dropped)
    assert not close(kept, dropped, 1e-3)


def test_one_full_gradient_step_is_the_same_in_every_method(engine):
    problem = Softmax(participation=1.0, batch_size=None)
    eta = 0.3
    methods = [
        FedAvg(lr=eta, local_steps=1),
        MiniBatchSGD(lr=eta, local_steps=1),
        LocalSGD(lr=eta, local_steps=1),
        Additive(lr=eta, personal_rate=0, local_steps=1),
        APFL(lr=eta, local_steps=1),
        FedProx(lr=eta, mu=0.7, local_steps=1),
        Scaffold(lr=eta, local_steps=1),
    ]
    w = problem.start()
    for _ in range(5):
        w = w - eta * np.mean([problem.gradient(w, problem.rows(i)) for i in range(problem.clients)], 0)
    for method in methods:
        assert close(vector(problem.simulate(method, engine).play(5).server.w), w, EXACT), method.name


@pytest.mark.parametrize("control", ["gradient", "steps"])
def test_identical_clients_descend_as_one(engine, control):
    data, steps, eta = identical_clients(), 3, 0.4

    def end(method, federation):
        settings = {"engine": engine, "batch_size": None, "dtype": torch.float64}
        return vector(Simulation(method, lambda: nn.Linear(4, 3), federation, **settings).play(4).server.w)

    alone = end(FedAvg(lr=eta, local_steps=steps), data.subset([0]))
    assert close(end(FedAvg(lr=eta, local_steps=steps), data), alone, EXACT)
    assert close(end(Scaffold(lr=eta, local_steps=steps, control=control), data), alone, EXACT)


def test_newcomers_fine_tune_the_shared_model(engine):
    problem, steps, eta = Softmax(participation=1.0), 3, 0.2
    for method in (
        FedAvg(lr=eta, local_steps=steps),
        Scaffold(lr=eta, local_steps=steps),
        MiniBatchSGD(lr=eta, local_steps=steps),
        LocalSGD(lr=eta, local_steps=steps),
    ):
        trained = problem.simulate(method, engine).play(3)
        fresh = trained.newcomers(problem.federation, round_number=7)
        tuned = [sgd(problem, vector(trained.server.w), i, 7, steps, eta) for i in range(problem.clients)]
        assert close(vector(fresh.clients().w), np.array(tuned)), method.name
