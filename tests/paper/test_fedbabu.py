"""FedBABU against its transcription in NumPy, and its identities."""

import numpy as np
import pytest
import torch
from torch import nn

from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedbabu import FedBABU
from idiolect.methods.fedrep import FedRep
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
    part,
    same,
    simulate,
    stacked,
)
from paper.problems import ENGINES

each_engine = pytest.mark.parametrize("engine", ENGINES)
PARTS = {"all": BODY + HEAD, "head": HEAD, "body": BODY}


def transcribed(rounds, steps):
    """The shared body after some rounds."""
    theta = {name: START[name] for name in BODY}
    for r in range(rounds):
        uploads = []
        for i in asked(r):
            w = {**START, **theta}
            for call in range(steps):
                w = descend(w, BODY, batch(i, r, call))
            uploads.append(w)
        theta = average(uploads, BODY, SIZES[asked(r)])
    return theta


def fine_tuned(w, names, steps):
    """Each client's copy, trained on all of its rows."""
    models = []
    for i in CLIENTS:
        copy = w
        for _ in range(steps):
            copy = descend(copy, names, DATA.train.of(i).numpy())
        models.append(copy)
    return stacked(models)


@each_engine
@pytest.mark.parametrize("trained", PARTS)
def test_fedbabu_matches_its_transcription(engine, trained):
    method = FedBABU(lr=RATE, local_steps=3, weighting="samples", fine_tune_steps=4, fine_tune_part=trained)
    simulation = simulate(method, engine).play(4)
    w = {**START, **transcribed(4, 3)}
    models = simulation.predictors()
    assert_close(models["global"], stacked([w for _ in CLIENTS]))
    assert_close(models["personal"], fine_tuned(w, PARTS[trained], 4))
    fresh = simulation.newcomers(DATA).predictors()["personal"]
    assert_close(fresh, fine_tuned(w, PARTS[trained], 4))


@each_engine
def test_p5_fedrep_without_head_steps_trains_the_same_body(engine):
    ours = simulate(FedBABU(lr=RATE, local_steps=3), engine).play(4)
    fedrep = simulate(FedRep(lr=RATE, local_steps=3, body_steps=3), engine).play(4)
    assert_same(ours.server.shared, fedrep.server.shared, engine)
    assert all(np.array_equal(head, START["2.weight"]) for head in fedrep.clients().w["2.weight"])


class StoppedGradient(nn.Linear):
    """A layer in whose parameters the gradient is zero: its rate might as well be."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.detach(), self.bias.detach())


def test_p6_fedavg_with_a_head_of_rate_zero_is_the_same_but_rounds_the_head():
    def play(method, head):
        module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), head(5, 3)).double()
        module.load_state_dict({name: torch.tensor(value) for name, value in START.items()})
        return Simulation(method, module, DATA, engine="sequential", dtype=torch.float64).play(4).server

    ours = play(FedBABU(lr=RATE, local_steps=3, weighting="samples"), nn.Linear)
    fedavg = play(FedAvg(lr=RATE, local_steps=3, weighting="samples"), StoppedGradient).w
    assert_close(ours.shared, part(fedavg, BODY), 1e-13)
    assert_close(part(fedavg, HEAD), part(START, HEAD), 1e-13)
    assert not same(part(fedavg, HEAD), ours.head)  # the mean of equal numbers is not always that number
    assert not same(part(fedavg, BODY), ours.shared)
    assert all(np.array_equal(ours.head[name], START[name]) for name in HEAD)


@each_engine
def test_p12_scalars_end_where_mathematics_says(engine):
    """f_i = (b h - c_i)²/2: b tends to Σ a_i c_i / h, and fine-tuned heads to b h_i = c_i."""
    targets, mean = torch.tensor([1.0, -2.0, 4.0]).double(), (1 * 1.0 - 3 * 2.0 + 2 * 4.0) / 6
    owned = Rows.of_clients(list(torch.arange(6).split([1, 3, 2])))
    inputs, task = torch.ones(6, 1).double(), Task("regression", 1)
    y = targets.repeat_interleave(torch.tensor([1, 3, 2]))[:, None]
    data = Federation(inputs, y, task, ("a", "b", "c"), owned, owned, owned)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    nn.init.constant_(module[0].weight, 0.3)
    nn.init.constant_(module[1].weight, 0.7)
    method = FedBABU(lr=0.2, local_steps=3, weighting="samples", fine_tune_part="head", fine_tune_steps=400)
    simulation = Simulation(method, module, data, engine=engine, batch_size=None, dtype=torch.float64).play(
        150
    )
    b = simulation.server.shared["0.weight"]
    assert abs(float(b) * 0.7 - mean) < 1e-12
    heads = simulation.predictors()["personal"]["1.weight"]
    assert torch.allclose(b * heads.flatten(), targets, rtol=0, atol=1e-9)


def test_a_head_with_orthonormal_rows():
    head = simulate(FedBABU(head_init="orthogonal")).server.head
    gram = head["2.weight"] @ head["2.weight"].T
    assert torch.allclose(gram, torch.eye(3).double(), rtol=0, atol=1e-12)
    assert np.array_equal(head["2.bias"], START["2.bias"])


@each_engine
def test_p59_fine_tuning_the_head_leaves_the_body_untouched(engine):
    """Under weight decay and momentum as well."""
    method = FedBABU(lr=RATE, local_steps=2, fine_tune_part="head", optimizer="momentum")
    simulation = simulate(method, engine).play(2)
    body = part(simulation.predictors()["personal"], BODY)
    assert all(torch.equal(body[name][i], simulation.server.shared[name]) for name in BODY for i in CLIENTS)


@each_engine
def test_only_the_body_crosses(engine):
    played = simulate(FedBABU(), engine).advance()
    bits = 64 * sum(START[name].size for name in BODY)
    for parts in (played.down_parts, played.up_parts):
        assert set(parts) == {"shared"}
        assert parts["shared"].unique().tolist() == [0, bits]
