"""Ditto and Per-FedAvg against plain float64 transcriptions of their equations, and their identities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core.objective import Batch, Objective
from idiolect.data.federation import Rows
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.simulation import Simulation
from paper.problems import ENGINES, Softmax, close, finite_difference, on_quadratics, vector

EXACT = 1e-12
HESSIANS = ("first_order", "hessian_free", "exact")
each_engine = pytest.mark.parametrize("engine", ENGINES)


@each_engine
def test_ditto_matches_its_transcription(engine):
    problem, steps, eta, rate, lam = Softmax(), 4, 0.2, 0.15, 0.6
    method = Ditto(lr=eta, personal_rate=rate, proximal=lam, local_steps=steps, weighting="samples")
    simulation = problem.simulate(method, engine).play(6)
    w = problem.start()
    v, local = np.tile(w, (problem.clients, 1)), np.tile(w, (problem.clients, 1))
    for r in range(6):
        asked = problem.asked(r)
        for i in asked:
            local[i] = w
            for k in range(steps):
                rows = problem.batch(i, r, k)
                local[i] = local[i] - eta * problem.gradient(local[i], rows)
                v[i] = v[i] - rate * (problem.gradient(v[i], rows) + lam * (v[i] - w))
        w = np.average(local[asked], axis=0, weights=problem.sizes[asked])
    models = simulation.predictors()
    assert close(vector(simulation.server.w), w)
    assert close(vector(models["localized"]), local)
    assert close(vector(models["personal"]), v)


@each_engine
def test_ditto_shares_fedavgs_model_bitwise_and_without_its_term_trains_alone(engine):
    problem = Softmax()
    fedavg = problem.simulate(FedAvg(lr=0.2, local_steps=3), engine).play(5)
    alone = problem.simulate(Local(lr=0.2, local_steps=3), engine).play(5)
    for proximal in (0.0, 0.9):
        ditto = problem.simulate(Ditto(lr=0.2, proximal=proximal, local_steps=3), engine).play(5)
        assert np.array_equal(vector(ditto.server.w), vector(fedavg.server.w))
        own = np.array_equal(vector(ditto.clients().v), vector(alone.predictors()["personal"]))
        assert own == (proximal == 0)


@each_engine
def test_ditto_newcomer_trains_near_the_shared_model(engine):
    problem, method = Softmax(participation=1.0), Ditto(lr=0.2, proximal=0.6, local_steps=3)
    trained = problem.simulate(method, engine).play(3)
    fresh = trained.newcomers(problem.federation, round_number=7)
    w = vector(trained.server.w)
    v = np.tile(w, (problem.clients, 1))
    for i in range(problem.clients):
        for k in range(3):
            v[i] = v[i] - 0.2 * (problem.gradient(v[i], problem.batch(i, 7, k)) + 0.6 * (v[i] - w))
    assert close(vector(fresh.clients().v), v)


def softmax_hessian(problem, w, rows):
    """The Hessian of the mean cross entropy of a linear model: E[(diag p - p pᵀ) ⊗ x xᵀ], plus l2."""
    split = problem.features * problem.classes
    x = np.hstack([problem.federation.inputs.numpy()[rows], np.ones((len(rows), 1))])
    logits = x[:, :-1] @ w[:split].reshape(problem.classes, problem.features).T + w[split:]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    curvature = np.einsum("na,ab->nab", p, np.eye(problem.classes)) - np.einsum("na,nb->nab", p, p)
    full = np.einsum("nab,nc,nd->acbd", curvature, x, x) / len(rows)
    places = [(a, c) for a in range(problem.classes) for c in range(problem.features)]
    places += [(a, problem.features) for a in range(problem.classes)]
    hessian = np.array([[full[a, c, b, d] for b, d in places] for a, c in places])
    return hessian + problem.weight_decay * np.eye(len(w))


@each_engine
@pytest.mark.parametrize("hessian", HESSIANS)
def test_per_fedavg_matches_its_transcription(engine, hessian):
    problem, steps, alpha, beta, width = Softmax(), 3, 0.3, 0.2, 1e-3
    method = PerFedAvg(lr=beta, adaptation_rate=alpha, hessian=hessian, local_steps=steps, difference=width)
    simulation = problem.simulate(method, engine).play(5)
    w = problem.start()
    for r in range(5):
        asked, local = problem.asked(r), []
        for i in asked:
            w_i = w
            for k in range(steps):
                first, second, third = (problem.batch(i, r, 3 * k + b) for b in range(3))
                adapted = w_i - alpha * problem.gradient(w_i, first)
                g = problem.gradient(adapted, second)
                step = g
                if hessian == "hessian_free":
                    ahead = problem.gradient(w_i + width * g, third)
                    behind = problem.gradient(w_i - width * g, third)
                    step = g - alpha * (ahead - behind) / (2 * width)
                elif hessian == "exact":
                    step = g - alpha * softmax_hessian(problem, w_i, third) @ g
                w_i = w_i - beta * step
            local.append(w_i)
        w = np.mean(local, 0)
    personal = [w - alpha * problem.gradient(w, problem.rows(i)) for i in range(problem.clients)]
    assert close(vector(simulation.server.w), w)
    assert close(vector(simulation.predictors()["personal"]), np.array(personal))


@each_engine
@pytest.mark.parametrize("hessian", HESSIANS)
def test_per_fedavg_without_adaptation_is_fedavg_with_the_outer_rate(engine, hessian):
    # All rows in every batch: then FedAvg sees the gradient that the second of three batches gives.
    problem = Softmax(batch_size=None)
    method = PerFedAvg(lr=0.2, adaptation_rate=0, hessian=hessian, local_steps=3)
    ours = problem.simulate(method, engine).play(5)
    fedavg = problem.simulate(FedAvg(lr=0.2, local_steps=3), engine).play(5)
    assert close(vector(ours.server.w), vector(fedavg.server.w), EXACT)
    assert close(vector(ours.predictors()["personal"]), np.tile(vector(ours.server.w), (5, 1)), EXACT)


@each_engine
def test_per_fedavg_hessian_free_is_exact_on_quadratics(engine):
    def end(hessian):
        method = PerFedAvg(lr=0.2, adaptation_rate=0.4, hessian=hessian, local_steps=3, difference=0.5)
        return vector(on_quadratics(method, engine).play(6).server.w)

    assert close(end("hessian_free"), end("exact"), EXACT)
    assert not close(end("first_order"), end("exact"), 1e-2)


@each_engine
def test_per_fedavg_is_judged_on_rows_that_did_not_adapt_it(engine):
    problem = Softmax(weight_decay=0.0)
    judged = [problem.federation.train.of(i)[: 2 + i] for i in range(problem.clients)]
    data = replace(problem.federation, validation=Rows.of_clients(judged))
    method = PerFedAvg(lr=0.2, adaptation_rate=0.5, local_steps=2)
    simulation = Simulation(method, lambda: nn.Linear(4, 3), data, engine=engine, dtype=torch.float64).play(2)
    table = evaluate(simulation)
    table = table[(table.kind == "personal") & (table.metric == "loss") & (table.part == "validation")]
    w = vector(simulation.server.w)
    for i in range(problem.clients):
        personal = w - 0.5 * problem.gradient(w, problem.rows(i))
        measured = table[table.client == f"client-{i}"].value.item()
        assert measured == pytest.approx(problem.loss(personal, judged[i].numpy()), rel=1e-9)


def test_per_fedavg_exact_step_is_the_gradient_of_the_adapted_loss():
    problem, alpha = Softmax(), 0.3
    rows = problem.rows(2)
    w = problem.start()
    expected = finite_difference(lambda u: problem.loss(u - alpha * problem.gradient(u, rows), rows), w)
    module = nn.Linear(problem.features, problem.classes, dtype=torch.float64)
    objective = Objective(module, problem.federation.task, problem.weight_decay)
    split = problem.features * problem.classes
    params = {
        "weight": torch.tensor(w[:split].reshape(problem.classes, problem.features)),
        "bias": torch.tensor(w[split:]),
    }
    inputs, targets = problem.federation.inputs[rows], problem.federation.targets[rows]
    batch = Batch(inputs, targets, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64))
    method = PerFedAvg(lr=1.0, adaptation_rate=alpha, hessian="exact")
    g = objective.gradient(method._adapted(objective, params, batch), batch)
    step = vector(g) - alpha * vector(method._hessian_product(objective, params, g, batch))
    assert close(step, expected, 1e-7)
