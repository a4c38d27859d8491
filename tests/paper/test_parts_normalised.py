"""Methods on parts with batch normalisation against torch's own layers, one client after the other."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.aggregation.outer import Outer
from idiolect.core.outer_step import Adam
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedbabu import FedBABU
from idiolect.methods.fedrep import FedRep
from idiolect.methods.personal_parts import FedBN, FedPer, SiloBN
from idiolect.simulation import Simulation
from paper.network import (
    BATCH,
    CLIENTS,
    DATA,
    PLAN,
    RATE,
    SEED,
    asked,
    assert_close,
    assert_same,
    batch,
    part,
)
from paper.problems import ENGINES

each_engine = pytest.mark.parametrize("engine", ENGINES)
NORM = ("1.weight", "1.bias")
STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
BODY, HEAD = ("0.weight", "0.bias", *NORM), ("3.weight", "3.bias")
ROUNDS = 3


def network(affine=True):
    generator = torch.Generator().manual_seed(8)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, affine=affine), nn.Tanh(), nn.Linear(5, 3))
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def simulate(method, engine, affine=True, **options):
    settings = {"plan": PLAN, "batch_size": BATCH, "seed": SEED, "dtype": torch.float64, **options}
    return Simulation(method, network(affine), DATA, engine=engine, **settings)


def descend(state, names, rows):
    """One step of torch.optim.SGD in training mode; a layer that is not trained keeps its statistics."""
    module = network()
    module.load_state_dict(state)
    trained = [value for name, value in module.named_parameters() if name in names]
    optimizer = torch.optim.SGD(trained, lr=RATE)
    loss = nn.functional.cross_entropy(module.train()(DATA.inputs[rows]), DATA.targets[rows])
    loss.backward()
    optimizer.step()
    after = copy.deepcopy(module.state_dict())
    return after if set(NORM) & set(names) else {**after, **{name: state[name] for name in STATISTICS}}


def transcribed(personal, phases):
    """The stacked personal models, statistics being personal: (θ, φ_i) with those of client i."""
    first = copy.deepcopy(network().state_dict())
    shared = [name for name in first if name not in (*personal, *STATISTICS)]
    theta, own = part(first, shared), [first for _ in CLIENTS]
    for r in range(ROUNDS):
        for i in asked(r):
            w, call = {**own[i], **theta}, 0
            for names, steps in phases:
                for _ in range(steps):
                    w, call = descend(w, names, batch(i, r, call)), call + 1
            own[i] = w
        theta = {name: torch.stack([own[i][name] for i in asked(r)]).mean(0) for name in shared}
    models = [{**w, **theta} for w in own]
    return {name: torch.stack([w[name] for w in models]) for name in first}


TRANSCRIBED = {
    "fedbn": (FedBN(lr=RATE, local_steps=3), NORM, [(BODY + HEAD, 3)]),
    "silobn": (SiloBN(lr=RATE, local_steps=3), (), [(BODY + HEAD, 3)]),
    "fedper": (FedPer(lr=RATE, local_steps=3, weighting="uniform"), HEAD, [(BODY + HEAD, 3)]),
    "fedrep": (FedRep(lr=RATE, local_steps=5, body_steps=2), HEAD, [(HEAD, 3), (BODY, 2)]),
    "fedrep, norm personal": (
        FedRep(lr=RATE, local_steps=5, body_steps=2, personal="norm"),
        NORM,
        [(NORM, 3), (("0.weight", "0.bias", *HEAD), 2)],
    ),
}


@each_engine
@pytest.mark.parametrize("name", TRANSCRIBED)
def test_methods_on_parts_match_torchs_own_layers(engine, name):
    method, personal, phases = TRANSCRIBED[name]
    ours = simulate(method, engine).play(ROUNDS).predictors()["personal"]
    assert_close(ours, transcribed(personal, phases))


@each_engine
def test_p15_silobn_trains_fedavgs_parameters_and_predicts_with_statistics_of_its_own(engine):
    ours = simulate(SiloBN(lr=RATE, local_steps=3), engine).play(ROUNDS).predictors()["personal"]
    fedavg = simulate(FedAvg(lr=RATE, local_steps=3), engine).play(ROUNDS).predictors()["global"]
    silo = simulate(FedAvg(lr=RATE, local_steps=3), engine, statistics="silo").play(ROUNDS)
    assert_same(part(ours, BODY + HEAD), part(fedavg, BODY + HEAD), engine)
    assert_same(ours, silo.predictors()["global"], engine)
    assert not np.allclose(ours["1.running_mean"], fedavg["1.running_mean"])


@each_engine
def test_p16_fedbn_is_not_fedavg(engine):
    ours = simulate(FedBN(lr=RATE, local_steps=3), engine).play(ROUNDS).predictors()["personal"]
    fedavg = simulate(FedAvg(lr=RATE, local_steps=3), engine).play(ROUNDS).predictors()["global"]
    for name in (*NORM, "0.weight"):
        assert not np.allclose(ours[name], fedavg[name])
    assert len({tuple(value.tolist()) for value in ours["1.weight"]}) > 1


@each_engine
def test_fedbn_without_parameters_of_its_own_is_silobn(engine):
    models = [
        simulate(kind(lr=RATE, local_steps=3), engine, affine=False).play(ROUNDS).predictors()["personal"]
        for kind in (FedBN, SiloBN)
    ]
    assert_same(*models, engine)


@each_engine
def test_p58_an_outer_step_moves_no_statistics(engine):
    """After one round they are the average, whatever the step; a variance below zero cannot be."""
    outer = simulate(Outer(FedAvg(lr=RATE, local_steps=3), Adam(rate=1.0)), engine).play(1)
    plain = simulate(FedAvg(lr=RATE, local_steps=3), engine).play(1)
    ours, theirs = outer.predictors()["global"], plain.predictors()["global"]
    assert_same(part(ours, STATISTICS), part(theirs, STATISTICS), engine)
    assert not np.allclose(ours["0.weight"], theirs["0.weight"])


@each_engine
def test_fedbabu_fine_tunes_with_statistics_that_stay(engine):
    method = FedBABU(lr=RATE, local_steps=3, fine_tune_part="head", fine_tune_steps=2)
    models = simulate(method, engine).play(2).predictors()
    assert_same(part(models["personal"], BODY), part(models["global"], BODY), engine)
    assert_same(part(models["personal"], STATISTICS), part(models["global"], STATISTICS), engine)
    assert (models["global"]["1.num_batches_tracked"] == 6).all()
