"""FedPer, LG-FedAvg, FedBN and SiloBN against their transcription in NumPy, and their identities."""

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.methods.personal_parts import FedBN, FedPer, LGFedAvg, SiloBN
from idiolect.participation.plan import Participation
from idiolect.participation.sampling import Uniform
from idiolect.participation.work import Fixed
from idiolect.simulation import Simulation
from paper.network import (
    BODY,
    CLIENTS,
    DATA,
    HEAD,
    RATE,
    SIZES,
    START,
    asked,
    assert_close,
    assert_same,
    average,
    batch,
    descend,
    network,
    part,
    regression,
    same,
    simulate,
    stacked,
)  # fmt: skip
from paper.problems import ENGINES

each_engine = pytest.mark.parametrize("engine", ENGINES)


def transcribed(rounds, steps, personal, weighting):
    """FedPer's equations: the stacked personal and localized models."""
    shared = tuple(name for name in START if name not in personal)
    theta, own = {name: START[name] for name in shared}, [dict(START) for _ in CLIENTS]
    for r in range(rounds):
        for i in asked(r):
            own[i] = {**own[i], **theta}
            for call in range(steps):
                own[i] = descend(own[i], tuple(START), batch(i, r, call))
        a = SIZES[asked(r)] if weighting == "samples" else None
        theta = average([own[i] for i in asked(r)], shared, a)
    return stacked([{**w, **theta} for w in own]), stacked(own)


@each_engine
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedper_matches_its_transcription(engine, weighting):
    simulation = simulate(FedPer(lr=RATE, local_steps=3, weighting=weighting), engine).play(5)
    personal, localized = transcribed(5, 3, HEAD, weighting)
    assert_close(simulation.predictors()["personal"], personal)
    assert_close(simulation.predictors()["localized"], localized)


@each_engine
def test_lg_fedavg_matches_its_transcription(engine):
    simulation = simulate(LGFedAvg(lr=RATE, local_steps=3), engine).play(4)
    personal, localized = transcribed(4, 3, BODY, "uniform")
    assert_close(simulation.predictors()["personal"], personal)
    assert_close(simulation.predictors()["localized"], localized)
    assert sorted(simulation.server.shared) == sorted(HEAD)


@each_engine
def test_patterns_choose_the_personal_part(engine):
    simulation = simulate(FedPer(lr=RATE, local_steps=2, personal="*.bias"), engine).play(4)
    personal, localized = transcribed(4, 2, ("0.bias", "2.bias"), "samples")
    assert_close(simulation.predictors()["personal"], personal)
    assert_close(simulation.predictors()["localized"], localized)
    assert sorted(simulation.server.shared) == ["0.weight", "2.weight"]


def test_a_part_that_the_model_does_not_have_is_refused():
    with pytest.raises(UserError, match=r"'output\.\*', which matches no parameter"):
        simulate(FedPer(personal="output.*"))


@each_engine
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_p1_with_nothing_personal_it_is_fedavg(engine, optimizer):
    options = {"lr": RATE, "local_steps": 3, "weighting": "samples", "optimizer": optimizer}
    ours = simulate(FedPer(personal=[], **options), engine).play(4)
    fedavg = simulate(FedAvg(**options), engine).play(4)
    assert same(ours.server.shared, fedavg.server.w)
    assert same(ours.predictors()["localized"], fedavg.predictors()["localized"])


@each_engine
@pytest.mark.parametrize("first", ["equal", "own"])
def test_p2_with_everything_personal_it_is_local_training(engine, first):
    ours = simulate(FedPer(personal="*", lr=RATE, local_steps=3, first=first), engine)
    alone = simulate(Local(lr=RATE, local_steps=3), engine)
    states = ours.clients()
    alone.engine.setting.store.put(torch.arange(len(DATA)), alone.clients()._replace(v=states.w))
    ours.play(4), alone.play(4)
    assert same(ours.predictors()["personal"], alone.predictors()["personal"])
    assert same(ours.predictors()["localized"], alone.predictors()["personal"])


@each_engine
def test_p3_absent_clients_keep_their_part(engine):
    simulation = simulate(FedPer(lr=RATE, local_steps=2, first="own"), engine)
    for r in range(4):
        before = part(simulation.clients().w, HEAD)
        simulation.play(1)
        after = part(simulation.clients().w, HEAD)
        for i in CLIENTS:
            kept = all(torch.equal(before[name][i], after[name][i]) for name in HEAD)
            assert kept == (i not in asked(r))


@each_engine
def test_p4_lg_fedavg_is_fedper_with_the_parts_exchanged(engine):
    options = {"lr": RATE, "local_steps": 3, "first": "own", "weighting": "samples"}
    ours = simulate(LGFedAvg(**options), engine).play(3)
    fedper = simulate(FedPer(personal="0.*", **options), engine).play(3)
    assert same(ours.server.shared, fedper.server.shared)
    assert same(ours.predictors()["personal"], fedper.predictors()["personal"])


@each_engine
@pytest.mark.parametrize("kind", [FedBN, SiloBN])
def test_p17_without_batch_normalisation_it_is_fedavg(engine, kind):
    ours = simulate(kind(lr=RATE, local_steps=3), engine).play(3)
    fedavg = simulate(FedAvg(lr=RATE, local_steps=3), engine).play(3)
    assert same(ours.server.shared, fedavg.server.w)
    assert same(ours.predictors()["personal"], fedavg.predictors()["global"])


@each_engine
@pytest.mark.parametrize("kind", [FedPer, LGFedAvg, FedBN])
def test_one_client_trains_alone(engine, kind):
    ours, alone = (
        Simulation(method, network(), DATA.subset([3]), engine=engine, dtype=torch.float64).play(3)
        for method in (kind(lr=RATE, local_steps=3), Local(lr=RATE, local_steps=3))
    )
    assert_same(ours.predictors()["personal"], alone.predictors()["personal"], engine)


def test_first_parts_are_equal_or_draws_of_the_same_entries():
    equal, own = (part(simulate(FedPer(first=first)).clients().w, HEAD) for first in ("equal", "own"))
    for name in HEAD:
        assert all(np.array_equal(value, START[name]) for value in equal[name])
        assert all(np.array_equal(np.sort(value, None), np.sort(START[name], None)) for value in own[name])
    drawn = {tuple(value.flatten().tolist()) for value in own["2.weight"]}
    assert len(drawn) == len(DATA)
    again = part(simulate(FedPer(first="own"), "vectorised").clients().w, HEAD)
    assert same(again, own)
    other = part(simulate(FedPer(first="own"), seed=6).clients().w, HEAD)
    assert not torch.equal(other["2.weight"], own["2.weight"])


@each_engine
def test_partial_work_is_the_first_steps(engine):
    plan = Participation(work=Fixed(0.5)).bind(DATA.names)
    half = simulate(FedPer(lr=RATE, local_steps=3), engine, plan=plan).play(2)
    two = simulate(FedPer(lr=RATE, local_steps=2), engine, plan=Uniform()).play(2)
    assert_same(half.clients().w, two.clients().w, engine)


def linear(clients):
    """Noiseless regression, the mean of x xᵀ over a client's rows being the identity."""
    generator = torch.Generator().manual_seed(3)
    rows, features = 6, 4
    x = torch.randn(clients, rows, features, generator=generator, dtype=torch.float64)
    x = torch.linalg.qr(x)[0] * rows**0.5
    truth = torch.randn(clients, features, generator=generator, dtype=torch.float64)
    return regression(x, torch.einsum("irf,if->ir", x, truth)), truth


def two_linear_layers(turn=None):
    generator = torch.Generator().manual_seed(9)
    body, head = nn.Linear(4, 2, bias=False).double(), nn.Linear(2, 1, bias=False).double()
    for parameter in (body.weight, head.weight):
        nn.init.normal_(parameter, generator=generator)
    if turn is not None:
        body.weight.data, head.weight.data = turn.T @ body.weight, head.weight @ turn
    return nn.Sequential(body, head)


@each_engine
def test_p10_features_turned_by_one_rotation_change_no_prediction(engine):
    data, _ = linear(4)
    turn = torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(1)).double())[0]

    def products(turn):
        method = FedPer(lr=0.05, local_steps=3)
        model = two_linear_layers(turn)
        w = Simulation(method, model, data, engine=engine, batch_size=2, dtype=torch.float64).play(12)
        w = w.predictors()["personal"]
        return w["1.weight"] @ w["0.weight"]

    assert torch.allclose(products(None), products(turn), rtol=0, atol=1e-12)


@each_engine
def test_p11_the_balance_of_body_and_heads_changes_by_the_square_of_the_rate(engine):
    clients, rate = 4, 0.05
    data, truth = linear(clients)
    method = FedPer(lr=rate, local_steps=1, weighting="uniform")
    simulation = Simulation(
        method, two_linear_layers(), data, engine=engine, batch_size=None, dtype=torch.float64
    )

    def parts():
        w = simulation.predictors()["personal"]
        return w["0.weight"][0].T, w["1.weight"][:, 0]  # B [features, units], h [clients, units]

    def balance(body, heads):
        return body.T @ body - heads.T @ heads / clients

    for _ in range(8):
        body, heads = parts()
        errors = heads @ body.T - truth
        slope = errors.T @ heads / clients
        slopes = errors @ body
        expected = rate**2 * (slope.T @ slope - slopes.T @ slopes / clients)
        before = balance(body, heads)
        simulation.play(1)
        assert torch.allclose(balance(*parts()) - before, expected, rtol=0, atol=1e-13)
        assert expected.abs().max() > 1e-9


@each_engine
@pytest.mark.parametrize("trains", ["personal", "all"])
def test_a_newcomer_trains_a_personal_part_on_the_shared_one(engine, trains):
    method = FedPer(lr=RATE, local_steps=3, newcomer_trains=trains)
    trained = simulate(method, engine).play(3)
    fresh = trained.newcomers(DATA, round_number=7)
    theta = {name: value.numpy() for name, value in trained.server.shared.items()}
    models = []
    for i in CLIENTS:
        w = {**START, **theta}
        for call in range(3):
            w = descend(w, HEAD if trains == "personal" else BODY + HEAD, batch(i, 7, call))
        models.append(w)
    assert_close(fresh.predictors()["personal"], stacked(models))
