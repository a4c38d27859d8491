"""FedRep against its transcription in NumPy, and its identities."""

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core import Epochs
from idiolect.methods.fedrep import FedRep
from idiolect.methods.local import Local
from idiolect.methods.personal_parts import FedPer
from idiolect.participation.plan import Participation
from idiolect.participation.sampling import Uniform
from idiolect.participation.work import Fixed
from idiolect.simulation import Simulation
from paper.network import (
    BATCH,
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
    part,
    regression,
    same,
    simulate,
    stacked,
)
from paper.problems import ENGINES

each_engine = pytest.mark.parametrize("engine", ENGINES)


def fedrep(head_steps, body_steps, **options):
    return FedRep(lr=RATE, local_steps=head_steps + body_steps, body_steps=body_steps, **options)


def transcribed(rounds, phases, weights=None):
    """FedRep's equations, from each client's (τ_h, τ_b): the stacked personal and localized models."""
    theta, own = {name: START[name] for name in BODY}, [dict(START) for _ in CLIENTS]
    for r in range(rounds):
        for i in asked(r):
            own[i] = {**own[i], **theta}
            head_steps, body_steps = phases(i)
            for call in range(head_steps + body_steps):
                own[i] = descend(own[i], HEAD if call < head_steps else BODY, batch(i, r, call))
        theta = average([own[i] for i in asked(r)], BODY, None if weights is None else weights[asked(r)])
    return stacked([{**w, **theta} for w in own]), stacked(own)


@each_engine
@pytest.mark.parametrize(("head_steps", "body_steps"), [(3, 2), (1, 4)])
def test_fedrep_matches_its_transcription(engine, head_steps, body_steps):
    simulation = simulate(fedrep(head_steps, body_steps, weighting="samples"), engine).play(4)
    personal, localized = transcribed(4, lambda i: (head_steps, body_steps), SIZES)
    assert_close(simulation.predictors()["personal"], personal)
    assert_close(simulation.predictors()["localized"], localized)


@each_engine
def test_phases_counted_in_passes_divide_each_clients_own_steps(engine):
    method = FedRep(lr=RATE, local_steps={"epochs": 3}, body_steps={"epochs": 1})
    simulation = simulate(method, engine).play(3)

    def phases(client):
        per_pass = -(-int(SIZES[client]) // BATCH)
        return 2 * per_pass, per_pass

    assert len({phases(i) for i in CLIENTS}) > 2
    personal, localized = transcribed(3, phases)
    assert_close(simulation.predictors()["personal"], personal)
    assert_close(simulation.predictors()["localized"], localized)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"local_steps": 3, "body_steps": 4}, "body_steps=4 must be at most local_steps=3"),
        ({"local_steps": 3, "body_steps": Epochs(1)}, "must both be steps, or both passes"),
        ({"local_steps": Epochs(2), "body_steps": 1}, "must both be steps, or both passes"),
    ],
)
def test_body_steps_are_some_of_the_local_steps(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        FedRep(**options)


@each_engine
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_p63_what_stands_still_keeps_its_bits(engine, optimizer):
    """Also under weight decay and with a memory: a gradient set to zero would let both move it."""
    simulation = simulate(fedrep(2, 3, optimizer=optimizer), engine, plan=Uniform()).play(2)
    before, received = simulation.clients(), simulation.server.shared
    plan = Participation(work=Fixed(0.4)).bind(DATA.names)  # two of five steps: heads alone
    simulation = resumed(fedrep(2, 3, optimizer=optimizer), engine, plan, simulation)
    after = simulation.play(1).clients()
    for name in BODY:
        assert all(torch.equal(after.w[name][i], received[name]) for i in CLIENTS)
    for name in HEAD:
        assert not any(torch.equal(after.w[name][i], before.w[name][i]) for i in CLIENTS)
    if optimizer == "momentum":
        assert same(after.body_memory, before.body_memory)
        assert not same(after.head_memory, before.head_memory)


def resumed(method, engine, plan, other):
    simulation = simulate(method, engine, plan=plan)
    simulation.server, simulation.round = other.server, other.round
    simulation.engine.setting.store.put(torch.arange(len(DATA)), other.clients())
    return simulation


@each_engine
def test_p7_without_body_steps_it_probes_the_first_body(engine):
    simulation = simulate(fedrep(3, 0), engine).play(3)
    assert_close(simulation.server.shared, {name: START[name] for name in BODY}, 1e-15)
    probes = [dict(START) for _ in CLIENTS]
    for r in range(3):
        for i in asked(r):
            for call in range(3):
                probes[i] = descend(probes[i], HEAD, batch(i, r, call))
    assert_close(part(simulation.clients().w, HEAD), part(stacked(probes), HEAD), 1e-12)


@each_engine
def test_p8_one_after_the_other_differs_from_together_by_the_square_of_the_rate(engine):
    def apart(rate):
        options = {"lr": rate, "weighting": "uniform"}
        together = simulate(FedPer(local_steps=1, **options), engine, batch_size=None, plan=Uniform())
        phases = FedRep(local_steps=2, body_steps=1, **options)
        in_turn = simulate(phases, engine, batch_size=None, plan=Uniform())
        ours, theirs = (s.play(1).predictors()["localized"] for s in (in_turn, together))
        return max(float((ours[name] - theirs[name]).abs().max()) for name in START)

    assert apart(0.01) > 0
    assert 3.6 < apart(0.02) / apart(0.01) < 4.4


def test_p9_the_body_finds_the_subspace_that_clients_have_in_common():
    """Noiseless linear targets of rank two in eight dimensions; heads nearly exact in every round."""
    generator = torch.Generator().manual_seed(4)
    clients, rows, dimension, rank = 12, 40, 8, 2
    truth, _ = torch.linalg.qr(torch.randn(dimension, rank, dtype=torch.float64, generator=generator))
    own = torch.randn(clients, rank, dtype=torch.float64, generator=generator)
    x = torch.randn(clients, rows, dimension, dtype=torch.float64, generator=generator)
    x = torch.linalg.qr(x)[0] * rows**0.5  # the rows' covariance is the identity, as in the theorem
    module = nn.Sequential(nn.Linear(dimension, rank, bias=False), nn.Linear(rank, 1, bias=False)).double()
    for layer in module:
        nn.init.orthogonal_(layer.weight, generator=generator)
    data = regression(x, torch.einsum("crd,dk,ck->cr", x, truth, own))
    method = FedRep(lr=0.5, local_steps=16, body_steps=1)
    simulation = Simulation(method, module, data, batch_size=None, dtype=torch.float64)

    def distance():
        basis, _ = torch.linalg.qr(simulation.server.shared["0.weight"].T)
        return float(torch.linalg.matrix_norm(truth - basis @ (basis.T @ truth), 2))

    assert distance() > 0.5
    simulation.play(60)
    assert distance() < 1e-6


@each_engine
def test_with_everything_personal_and_no_body_steps_it_is_local_training(engine):
    ours = simulate(fedrep(3, 0, personal="*"), engine).play(3)
    alone = simulate(Local(lr=RATE, local_steps=3), engine).play(3)
    assert_same(ours.predictors()["personal"], alone.predictors()["personal"], engine)


@each_engine
def test_only_the_body_crosses(engine):
    simulation = simulate(fedrep(1, 1), engine)
    played = simulation.advance()
    bits = 64 * sum(START[name].size for name in BODY)
    for parts in (played.down_parts, played.up_parts):
        assert set(parts) == {"shared"}
        assert parts["shared"].nonzero()[:, 0].tolist() == asked(0)
        assert parts["shared"].unique().tolist() == [0, bits]


@each_engine
@pytest.mark.parametrize("steps", [None, 7])
def test_a_newcomer_trains_a_head_on_the_body_as_it_is(engine, steps):
    trained = simulate(fedrep(3, 2), engine).play(2)
    fresh = trained.newcomers(DATA, steps=steps, round_number=9).predictors()
    models = [{**START, **{n: v.numpy() for n, v in trained.server.shared.items()}} for _ in CLIENTS]
    for i in CLIENTS:
        for call in range(steps or 5):
            models[i] = descend(models[i], HEAD, batch(i, 9, call))
    assert_close(fresh["personal"], stacked(models))
    assert np.array_equal(fresh["localized"]["2.bias"], fresh["personal"]["2.bias"])
