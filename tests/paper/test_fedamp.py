"""FedAMP and HeurFedAMP against plain float64 transcriptions, and their identities P34 to P38."""

import numpy as np
import pytest
import torch

from idiolect.core import tree
from idiolect.data.quadratics import quadratics
from idiolect.methods._attention import attention_by_cosine, attention_by_distance
from idiolect.methods.fedamp import FedAMP, HeurFedAMP
from idiolect.methods.fedprox import FedProx
from idiolect.methods.local import Local
from idiolect.simulation import Simulation
from paper.problems import ENGINES, Softmax, close, identical, on_quadratics, vector

each_engine = pytest.mark.parametrize("engine", ENGINES)
MODELS = np.random.default_rng(4).normal(size=(5, 7)) * np.array([[0.3], [1.0], [0.7], [2.0], [0.5]])


def by_distance(w, share, width):
    """ξ as the paper writes it, with α = share * width / N."""
    clients = len(w)
    alpha = share * width / clients
    xi = np.zeros((clients, clients))
    for i in range(clients):
        for j in range(clients):
            if i != j:
                xi[i, j] = alpha * np.exp(-((w[i] - w[j]) ** 2).sum() / width) / width
        xi[i, i] = 1 - xi[i].sum()
    return xi


def by_cosine(w, own, sharpness):
    clients = len(w)
    xi = np.zeros((clients, clients))
    for i in range(clients):
        scores = {
            j: np.exp(sharpness * (w[i] @ w[j]) / np.sqrt((w[i] @ w[i]) * (w[j] @ w[j])))
            for j in range(clients)
            if j != i
        }
        for j, score in scores.items():
            xi[i, j] = (1 - own) * score / sum(scores.values())
        xi[i, i] = own
    return xi


def median_width(w):
    pairs = sorted(((w[i] - w[j]) ** 2).sum() for i in range(len(w)) for j in range(i))
    return pairs[(len(pairs) - 1) // 2]


def transcribed(problem, rounds, steps, eta, pull, attend, start="own"):
    """Server and clients in NumPy; `attend` gives ξ of the models that were heard."""
    w = np.tile(problem.start(), (problem.clients, 1))
    heard: list[int] = []
    for r in range(rounds):
        u = cloud(w, heard, attend)
        for i in problem.asked(r):
            w[i] = w[i] if start == "own" else u[i]
            for k in range(steps):
                gradient = problem.gradient(w[i], problem.batch(i, r, k))
                w[i] = w[i] - eta * (gradient + pull * (w[i] - u[i]))
        heard = sorted({*heard, *problem.asked(r)})
    return w, cloud(w, heard, attend)


def cloud(w, heard, attend):
    if not heard:
        return w.copy()
    u = np.tile(w[heard].mean(0), (len(w), 1))
    u[heard] = (attend(w[heard]) if len(heard) > 1 else np.ones((1, 1))) @ w[heard]
    return u


@each_engine
@pytest.mark.parametrize(
    ("method", "attend"),
    [
        (FedAMP(width=0.8, share=0.7), lambda w: by_distance(w, 0.7, 0.8)),
        (FedAMP(start="cloud"), lambda w: by_distance(w, 1, median_width(w))),
        (HeurFedAMP(own_weight=0.3, sharpness=4.0), lambda w: by_cosine(w, 0.3, 4.0)),
        (HeurFedAMP(start="cloud"), lambda w: by_cosine(w, 1 / len(w), 10.0)),
    ],
)
def test_fedamp_matches_its_transcription(engine, method, attend):
    problem = Softmax()
    method = type(method)(**{**method.__dict__, "learning_rate": 0.2, "local_steps": 3, "proximal": 0.6})
    simulation = problem.simulate(method, engine).play(6)
    w, u = transcribed(problem, 6, 3, 0.2, 0.6, attend, method.start)
    models = simulation.predictors()
    assert close(vector(models["personal"]), w)
    assert close(vector(models["group"]), u)


def test_p34_attention_sums_to_one_keeps_consensus_and_the_sum_of_models():
    simulation = Softmax(participation=1.0).simulate(FedAMP(width=5.0), "sequential").play(3)
    server = simulation.server
    w, u = vector(server.w), vector(FedAMP().down(server, torch.arange(5)).u)
    assert close(server.attention.sum(1), np.ones(5), 1e-12)
    assert close(server.attention, by_distance(w, 1.0, 5.0))
    assert close(u.sum(0), w.sum(0), 1e-12)
    assert not close(u, w, 1e-3)
    equal = np.tile(MODELS[0], (5, 1))
    for width in ("median", 0.5):
        assert close(attention_by_distance(torch.tensor(equal), width, 1.0).numpy() @ equal, equal, 1e-12)


def test_p35_attention_is_convex_and_stable_up_to_the_largest_share():
    near, clients = torch.tensor(MODELS * 1e-9), len(MODELS)
    spread = near - near.mean(0)
    for share in (0.3, 1.0, 2.5, float(clients)):
        xi = attention_by_distance(near, 1.0, share)
        assert bool((xi >= 0).all()) == (share * (clients - 1) <= clients)
        # Each round multiplies what separates the models by 1 - share: beyond 2 it grows.
        assert close(xi @ spread, (1 - share) * spread, 1e-6) or share == 1.0
    assert close(xi.diagonal(), np.full(clients, 2.0 - clients), 1e-6)  # α = σ = 1, as libraries have it
    with pytest.raises(ValueError, match="less than or equal to 1"):
        FedAMP(share=2.5)


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_p36_fixed_points_are_stationary_points_of_the_objective(share):
    data = quadratics(seed=3, clients=4, dimensions=3, noise=0.0, rows=1, double=True)
    width, pull = 3.0, 0.8
    method = FedAMP(width=width, share=share, proximal=pull, learning_rate=0.4, local_steps=8)
    simulation = on_quadratics(method, "vectorised", data, batch_size=None).play(200)
    w = simulation.predictors()["personal"]["weight"].reshape(4, -1)
    weight = pull * share * width / (2 * len(w))  # λ of the sum over pairs

    def objective(w):
        pairs = [(w[i] - w[j]).square().sum() for i in range(4) for j in range(i)]
        return sum(loss_of(simulation, i, w[i]) for i in range(4)) + weight * sum(
            1 - torch.exp(-t / width) for t in pairs
        )

    slope = torch.func.grad(objective)(w)
    alone = torch.func.grad(lambda w: sum(loss_of(simulation, i, w[i]) for i in range(4)))(w)
    assert float(slope.abs().max()) < 1e-8
    assert float(alone.abs().max()) > 1e-2


def loss_of(simulation, client, weight):
    setting = simulation.engine.setting
    rows = tree.row(setting.batches.all_rows(setting.federation.train, torch.tensor([client]), 0), 0)
    params = setting.objective.initial_params()
    return setting.objective.loss({"weight": weight.reshape(params["weight"].shape)}, rows)


@each_engine
def test_p37_without_the_pull_everybody_trains_alone(engine):
    problem = Softmax()
    ours = problem.simulate(FedAMP(lr=0.2, local_steps=3, proximal=0), engine).play(5)
    alone = problem.simulate(Local(lr=0.2, local_steps=3), engine).play(5)
    assert identical(ours.predictors()["personal"], alone.predictors()["personal"], engine)


@each_engine
def test_p37_with_unlimited_width_it_is_fedprox_from_the_mean(engine):
    problem = Softmax(participation=1.0)
    wide = FedAMP(lr=0.2, local_steps=3, proximal=0.7, width=1e12, start="cloud")
    ours = problem.simulate(wide, engine).play(5).predictors()
    theirs = problem.simulate(FedProx(lr=0.2, local_steps=3, proximal=0.7), engine).play(5).predictors()
    assert close(vector(ours["group"]), vector(theirs["global"]), 1e-9)
    assert close(vector(ours["personal"]), vector(theirs["localized"]), 1e-9)


def test_p38_limits_of_heurfedamp():
    models = torch.tensor(MODELS)
    mean = models.mean(0).expand_as(models)
    assert close(attention_by_cosine(models, 0.2, 0.0) @ models, mean, 1e-12)
    assert close(attention_by_cosine(models, 1.0, 5.0) @ models, models, 1e-12)
    scaled = models * torch.tensor([[1.0], [2.0], [0.3], [4.0], [7.0]])
    assert close(attention_by_cosine(scaled, 0.3, 5.0), attention_by_cosine(models, 0.3, 5.0), 1e-12)
    alike = torch.cat([models, 1.5 * models[:1]])  # the first one has a twin
    sharp = attention_by_cosine(alike, 0.3, 1e4)
    assert close(sharp[0], [0.3, 0, 0, 0, 0, 0.7], 1e-9)


@pytest.mark.parametrize("method", [FedAMP(lr=0.2), HeurFedAMP(lr=0.2)])
def test_a_client_alone_has_nobody_to_attend_to(method):
    problem = Softmax(participation=1.0)
    one = problem.federation.subset([2])
    ours = Simulation(method, problem._module, one, dtype=torch.float64, batch_size=4).play(3)
    assert close(vector(ours.predictors()["group"]), vector(ours.predictors()["personal"]), 1e-12)


@each_engine
def test_newcomers_are_drawn_to_the_mean_of_all_models(engine):
    problem = Softmax(participation=1.0)
    trained = problem.simulate(FedAMP(lr=0.2, proximal=0.6, local_steps=3), engine).play(3)
    fresh = trained.newcomers(problem.federation, round_number=7).predictors()
    u = vector(trained.server.w).mean(0)
    w = np.tile(u, (problem.clients, 1))
    for i in range(problem.clients):
        for k in range(3):
            w[i] = w[i] - 0.2 * (problem.gradient(w[i], problem.batch(i, 7, k)) + 0.6 * (w[i] - u))
    assert close(vector(fresh["personal"]), w)
    assert close(vector(fresh["group"]), np.tile(u, (problem.clients, 1)))
