"""kNN-Per against a plain float64 transcription, and its identities P50 to P52."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core import rng, tree
from idiolect.core.neighbours import Store, answer, votes
from idiolect.core.task import Task
from idiolect.data.federation import Rows
from idiolect.engines.batches import Batches
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.knn_per import KNNPer
from idiolect.runs.personal_model import as_module
from idiolect.simulation import Simulation
from paper.network import (
    BATCH,
    BODY,
    CLASSES,
    CLIENTS,
    DATA,
    HEAD,
    PLAN,
    SEED,
    START,
    WEIGHT_DECAY,
    asked,
    average,
    descend,
    network,
)

ENGINES = ("sequential", "vectorised")
each_engine = pytest.mark.parametrize("engine", ENGINES)
WITHOUT_VALIDATION = 3


def split() -> object:
    """Of each client the last rows are for validation: 2, 3, 4, .. of them, of one client none."""
    rows = [DATA.train.of(client) for client in CLIENTS]
    kept = [0 if client == WITHOUT_VALIDATION else 2 + client for client in CLIENTS]
    train = [own[: len(own) - k] for own, k in zip(rows, kept, strict=True)]
    held = [own[len(own) - k :] for own, k in zip(rows, kept, strict=True)]
    return replace(DATA, train=Rows.of_clients(train), validation=Rows.of_clients(held))


FEDERATION = split()
INPUTS, TARGETS = DATA.inputs.numpy(), DATA.targets.numpy()


def simulate(method, engine="sequential", **options):
    settings = {"plan": PLAN, "batch_size": BATCH, "weight_decay": WEIGHT_DECAY, "seed": SEED}
    data = options.pop("data", FEDERATION)
    return Simulation(method, network(), data, engine=engine, dtype=torch.float64, **(settings | options))


def fedavg(rounds, steps, rate):
    batches, w = Batches(FEDERATION, SEED, BATCH), START
    for r in range(rounds):
        local = []
        for i in asked(r):
            w_i, size = w, int(batches.batch_sizes[i])
            for k in range(steps):
                rows = batches.draw(torch.tensor(i), r, torch.tensor(k), size).numpy()
                w_i = descend(w_i, BODY + HEAD, rows, rate)
            local.append(w_i)
        w = average(local, BODY + HEAD)
    return w


def features(w, rows):
    return np.tanh(INPUTS[rows] @ w["0.weight"].T + w["0.bias"])


def probabilities(w, rows):
    odds = np.exp(features(w, rows) @ w["2.weight"].T + w["2.bias"])
    return odds / odds.sum(1, keepdims=True)


def neighbours_say(w, stored, rows, k, sigma, kernel):
    """q of each row, one row after the other."""
    said = np.zeros((len(rows), CLASSES))
    for place, z in enumerate(features(w, rows)):
        squares = ((features(w, stored) - z) ** 2).sum(1)
        nearest = np.argsort(squares, kind="stable")[:k]
        size = (
            squares[nearest] / (len(z) * sigma) if kernel == "squared" else np.sqrt(squares[nearest]) / sigma
        )
        for j, s in zip(nearest, np.exp(-size) / np.exp(-size).sum(), strict=True):
            said[place, TARGETS[stored[j]]] += s
    return said


def transcribed(w, client, rows, rounds, k, sigma, kernel, mixing, share):
    own = FEDERATION.train.of(client).numpy()
    rank = rng.permute(
        torch.arange(len(own)), torch.tensor(len(own)), rng.key(SEED, "client", client, rounds)
    )
    stored = own[rank.numpy() < np.ceil(share * len(own))]
    held = FEDERATION.validation.of(client).numpy()
    if mixing is None and len(held):
        p, q = probabilities(w, held), neighbours_say(w, stored, held, k, sigma, kernel)
        losses = [
            -np.log(((1 - value) * p + value * q)[np.arange(len(held)), TARGETS[held]].clip(1e-300)).mean()
            for value in np.linspace(0, 1, 101)
        ]
        mixing = np.linspace(0, 1, 101)[int(np.argmin(losses))]
    mixing = 0.5 if mixing is None else mixing
    p, q = probabilities(w, rows), neighbours_say(w, stored, rows, k, sigma, kernel)
    return mixing, (1 - mixing) * p + mixing * q


def said(simulation, kind, client, rows):
    objective = simulation.engine.setting.objective
    predictor = simulation.predictor(client)[kind]
    outputs = objective.predict(predictor, DATA.inputs[torch.as_tensor(rows)])
    return objective.task.probabilities(outputs).numpy()


@each_engine
@pytest.mark.parametrize(
    ("k", "sigma", "kernel", "mixing", "share"),
    [(4, 0.05, "squared", None, 1.0), (3, 0.7, "plain", 0.4, 0.6), (50, 1.0, "squared", None, 0.5)],
)
def test_knn_per_matches_its_transcription(engine, k, sigma, kernel, mixing, share):
    method = KNNPer(
        lr=0.3, local_steps=3, neighbours=k, bandwidth=sigma, kernel=kernel, mixing=mixing, store_share=share
    )
    simulation = simulate(method, engine).play(4)
    w, everything, shares = fedavg(4, 3, 0.3), np.arange(len(INPUTS)), []
    personal = simulation.predictors()["personal"]
    for client in CLIENTS:
        chosen, expected = transcribed(w, client, everything, 4, k, sigma, kernel, mixing, share)
        assert float(personal.store.share[client]) == pytest.approx(chosen, abs=1e-12)
        assert np.abs(said(simulation, "personal", client, everything) - expected).max() < 1e-9
        shares.append(chosen)
    assert shares[WITHOUT_VALIDATION] == (0.5 if mixing is None else mixing)


@each_engine
def test_p50_without_a_share_or_without_rows_it_is_fedavgs_model(engine):
    method = KNNPer(lr=0.3, local_steps=3, mixing=0.0)
    ours = simulate(method, engine).play(4)
    theirs = simulate(FedAvg(lr=0.3, local_steps=3), engine).play(4)
    assert all(torch.equal(ours.server.w[name], theirs.server.w[name]) for name in START)
    objective, inputs = ours.engine.setting.objective, DATA.inputs
    models = ours.predictor(2)
    shared = objective.predict(theirs.predictor(2)["global"], inputs)
    assert torch.equal(objective.predict(models["personal"], inputs), shared)
    store = models["personal"].store
    empty = store._replace(share=torch.tensor(0.7).double(), taken=torch.zeros_like(store.taken))
    assert torch.equal(objective.predict(models["personal"]._replace(store=empty), inputs), shared)
    mixed = store._replace(share=torch.tensor(0.7).double())
    outputs = objective.predict(models["personal"]._replace(store=mixed), inputs)
    assert not torch.allclose(outputs.softmax(1), shared.softmax(1), atol=1e-2)
    assert torch.allclose(outputs.exp().sum(1), torch.ones(len(inputs)).double())


def test_p51_a_stored_row_is_its_own_neighbour_and_all_of_them_alike_are_class_shares():
    own = FEDERATION.train.of(4)
    nearest = simulate(KNNPer(mixing=1.0, neighbours=1)).play(1)
    assert (said(nearest, "personal", 4, own).argmax(1) == TARGETS[own]).all()
    alike = simulate(KNNPer(mixing=1.0, neighbours=1000, bandwidth=1e9)).play(1)
    frequencies = np.bincount(TARGETS[own], minlength=CLASSES) / len(own)
    assert np.abs(said(alike, "personal", 4, np.arange(len(INPUTS))) - frequencies).max() < 1e-7


def some_store(**changes):
    generator = torch.Generator().manual_seed(3)
    store = Store(
        features=torch.randn(9, 4, generator=generator, dtype=torch.float64),
        values=torch.randn(9, 2, generator=generator, dtype=torch.float64),
        taken=torch.arange(9) < 7,
        asked=torch.tensor(3),
        scale=torch.tensor(2.0).double(),
        power=torch.tensor(1.0).double(),
        share=torch.tensor(0.3).double(),
    )
    return store._replace(**changes)


def test_p52_neighbours_do_not_see_a_rotation_of_the_features():
    store = some_store()
    generator = torch.Generator().manual_seed(4)
    asking = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q
    turned = store._replace(features=store.features @ turn)
    assert torch.allclose(votes(turned, asking @ turn), votes(store, asking), atol=1e-12)
    stretched = store._replace(features=store.features * torch.tensor([3.0, 1, 1, 0.2]).double())
    assert not torch.allclose(votes(stretched, asking), votes(store, asking), atol=1e-3)


def test_of_equally_near_rows_the_first_are_asked_and_places_without_rows_never():
    same = some_store(features=torch.zeros(9, 4).double(), asked=torch.tensor(2))
    assert torch.allclose(votes(same, torch.zeros(1, 4).double())[0], same.values[:2].mean(0))
    many = some_store(asked=torch.tensor(100), scale=torch.tensor(1e12).double())
    assert torch.allclose(votes(many, torch.ones(1, 4).double())[0], many.values[:7].mean(0), atol=1e-9)
    far = some_store(features=torch.full((9, 4), 1e4).double())  # every exp(-distance) alone would be 0
    assert votes(far, torch.zeros(1, 4).double()).isfinite().all()


def test_answers_of_two_classes_and_of_numbers():
    store, asking = some_store(), torch.ones(2, 4).double()
    outputs = torch.tensor([[0.3], [-2.0]]).double()
    yes = store._replace(values=(store.values[:, :1] > 0).double())
    odds = answer(yes, Task("binary", 1), asking, outputs)
    expected = 0.7 * outputs.sigmoid() + 0.3 * votes(yes, asking)
    assert torch.allclose(odds.sigmoid(), expected, atol=1e-12)
    numbers = answer(store, Task("regression", 2), asking, torch.ones(2, 2).double())
    assert torch.allclose(numbers, 0.7 + 0.3 * votes(store, asking), atol=1e-12)


@each_engine
def test_a_newcomer_stores_its_rows_and_trains_nothing(engine):
    trained = simulate(KNNPer(lr=0.3, local_steps=3, mixing=0.6, neighbours=3), engine).play(3)
    fresh = trained.newcomers(FEDERATION.subset([4, 1]))
    for place, client in enumerate((4, 1)):
        ours = said(fresh, "personal", place, np.arange(5))
        assert np.allclose(ours, said(trained, "personal", client, np.arange(5)), atol=1e-12)


def test_as_a_module_it_says_the_same_and_keeps_only_real_rows():
    simulation = simulate(KNNPer(mixing=0.6, neighbours=3)).play(2)
    objective, predictor = simulation.engine.setting.objective, simulation.predictor(1)["personal"]
    module = as_module(predictor, objective.module, objective.task, "client 1")
    assert torch.allclose(module(DATA.inputs), objective.predict(predictor, DATA.inputs), atol=1e-12)
    assert len(module.features) == int(FEDERATION.train.sizes[1]) < len(predictor.store.features)


def test_a_convolution_of_several_axes_has_features_too():
    model = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3)).double()
    settings = {"batch_size": 4, "dtype": torch.float64}
    by_engine = [
        Simulation(KNNPer(local_steps=2), model, FEDERATION, engine=engine, **settings).play(2).predictors()
        for engine in ENGINES
    ]
    for ours, theirs in zip(*(tree.leaves(models) for models in by_engine), strict=True):
        assert torch.allclose(ours.double(), theirs.double(), atol=1e-9)
