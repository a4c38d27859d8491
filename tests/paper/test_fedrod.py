"""FedRoD against a transcription in plain torch, and its identities P24 to P28. Spec 8.6."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.core import Params, Task, tree
from idiolect.data.federation import Federation, Rows
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedrod import FedRoD
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import Quadratics
from paper.heads import (
    ALL,
    CLASSES,
    CLIENTS,
    DATA,
    ENGINES,
    HEAD,
    SIZES,
    START,
    Model,
    asked,
    assert_close,
    assert_same,
    average,
    batch,
    counts_of,
    descend,
    outputs,
    same,
    simulate,
    stacked,
)

each_engine = pytest.mark.parametrize("engine", ENGINES)
ETA, ETA_P, STEPS, ROUNDS = 0.3, 0.2, 3, 5


def balanced(w: Model, x: Tensor, y: Tensor, counts: Tensor, power: float = 1.0) -> Tensor:
    return F.cross_entropy(outputs(w, x) + power * counts.log(), y)


def with_head(w: Model, own: Model) -> Model:
    return {name: value + own[name] if name in own else value for name, value in w.items()}


def transcription(power: float) -> tuple[Model, list[Model], list[Model]]:
    """θ, θ_i and h_i after some rounds."""
    w, local = START, [START for _ in CLIENTS]
    own = [{name: torch.zeros_like(START[name]) for name in HEAD} for _ in CLIENTS]
    for r in range(ROUNDS):
        for i in asked(r):
            local[i] = w
            for c in range(STEPS):
                x, y = batch(i, r, c)
                # The l2 term of the head that predicts, h + h_i.
                whole = with_head(local[i], own[i])
                moved = descend(whole, lambda q, x=x, y=y: F.cross_entropy(outputs(q, x), y), HEAD, ETA_P)
                own[i] = {name: own[i][name] + moved[name] - whole[name] for name in HEAD}
                loss = lambda q, x=x, y=y, i=i: balanced(q, x, y, counts_of(i), power)  # noqa: E731
                local[i] = descend(local[i], loss, ALL, ETA)
        w = average([local[i] for i in asked(r)], SIZES[asked(r)])
    return w, local, own


@each_engine
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_fedrod_matches_its_transcription(engine: EngineName, power: float) -> None:
    method = FedRoD(lr=ETA, personal_rate=ETA_P, local_steps=STEPS, balance=power)
    simulation = simulate(method, engine).play(ROUNDS)
    w, local, own = transcription(power)
    models = simulation.predictors()
    assert_close(simulation.server.w, w)
    assert_close(models["localized"], stacked(local))
    assert_close(models["personal"], stacked([with_head(w, h) for h in own]))


@each_engine
def test_p24_the_shared_model_does_not_depend_on_the_personal_heads(engine: EngineName) -> None:
    ends = [
        simulate(FedRoD(lr=ETA, personal_rate=rate, local_steps=STEPS), engine).play(ROUNDS).server.w
        for rate in (0.0, 0.1, 0.9)
    ]
    assert_same(ends[1], ends[0], engine)
    assert_same(ends[2], ends[0], engine)
    assert_close(ends[2], transcription(1.0)[0])  # FedAvg with the balanced softmax


def evenly_labelled() -> Federation:
    """Every client has as many rows of each class; other inputs and sizes."""
    rows = [DATA.train.of(i)[: 3 * (2 + i)] for i in CLIENTS]
    targets = DATA.targets.clone()
    for own in rows:
        targets[own] = torch.arange(len(own)) % CLASSES
    train = Rows.of_clients(rows)
    return replace(DATA, targets=targets, train=train, validation=train, test=train)


@each_engine
def test_p25_equal_class_counts_make_the_shared_model_fedavgs(engine: EngineName) -> None:
    data = evenly_labelled()
    fedavg = simulate(FedAvg(lr=ETA, local_steps=STEPS, weighting="samples"), engine, data=data).play(ROUNDS)
    ours = simulate(FedRoD(lr=ETA, local_steps=STEPS), engine, data=data).play(ROUNDS)
    assert_close(ours.server.w, fedavg.server.w, 1e-12)
    uneven = simulate(FedRoD(lr=ETA, local_steps=STEPS), engine).play(ROUNDS)
    plain = simulate(FedAvg(lr=ETA, local_steps=STEPS, weighting="samples"), engine).play(ROUNDS)
    assert float(tree.squared_norm(tree.subtract(uneven.server.w, plain.server.w))) > 1e-3


@each_engine
def test_p25_without_balance_the_shared_model_is_fedavgs(engine: EngineName) -> None:
    fedavg = simulate(FedAvg(lr=ETA, local_steps=STEPS, weighting="samples"), engine).play(ROUNDS)
    ours = simulate(FedRoD(lr=ETA, local_steps=STEPS, balance=0.0), engine).play(ROUNDS)
    assert_same(ours.server.w, fedavg.server.w, engine)


@each_engine
def test_p26_a_personal_head_that_never_moves_leaves_the_generic_model(engine: EngineName) -> None:
    models = simulate(FedRoD(lr=ETA, personal_rate=0.0, local_steps=STEPS), engine).play(2).predictors()
    assert same(models["personal"], models["global"])


@each_engine
def test_p27_an_absent_class_gets_no_gradient(engine: EngineName) -> None:
    missing = int(counts_of(2).argmin())
    assert counts_of(2)[missing] == 0
    simulation = simulate(FedRoD(lr=ETA, local_steps=STEPS), engine, plan=None, weight_decay=0.0).play(1)
    local = tree.row(simulation.predictors()["localized"], 2)
    assert all(torch.isfinite(value).all() for value in local.values())
    moved = {name: local[name] - START[name] for name in HEAD}
    present = [c for c in range(CLASSES) if c != missing]
    assert all(not moved[name][missing].any() and moved[name][present].any() for name in HEAD)


def test_p28_clients_that_differ_in_class_shares_alone_have_one_minimiser() -> None:
    """Rows are one-hot cells, so a linear model's weights are its logits in each cell: log p(x|y) + const."""
    cells = torch.tensor([[6, 1, 2], [2, 5, 1], [1, 3, 4], [3, 3, 5]])  # of 12 rows of each class
    shares = ((1, 2, 3), (4, 1, 1))  # how often all rows of a class are repeated
    targets, places = [], []
    for repeats in shares:
        own = [(x, y) for y in range(3) for x in range(4) for _ in range(int(cells[x, y]) * repeats[y])]
        places.append(torch.tensor([x for x, _ in own]))
        targets.append(torch.tensor([y for _, y in own]))
    sizes = [len(own) for own in targets]
    rows = Rows.of_clients([torch.arange(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(2)])
    inputs = torch.eye(4, dtype=torch.float64)[torch.cat(places)]
    data = Federation(inputs, torch.cat(targets), Task("multiclass", 3), ("a", "b"), rows, rows, rows)
    model = nn.Linear(4, 3, bias=False)
    expected = centred((cells / cells.sum(0)).double().log())
    method = FedRoD(lr=10.0, local_steps=100)
    for i in range(2):
        alone = Simulation(method, model, data.subset([i]), batch_size=None, dtype=torch.float64).play(6)
        found = centred(alone.server.w["weight"].T)
        assert np.allclose(found, expected, atol=1e-5)


def centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)


@each_engine
def test_fedrods_newcomer_trains_its_head_alone(engine: EngineName) -> None:
    trained = simulate(FedRoD(lr=ETA, personal_rate=ETA_P, local_steps=STEPS), engine, plan=None).play(3)
    fresh = trained.newcomers(DATA, round_number=7)
    w: Params = trained.server.w
    expected = []
    for i in CLIENTS:
        whole = w
        for c in range(STEPS):
            x, y = batch(i, 7, c)
            whole = descend(whole, lambda q, x=x, y=y: F.cross_entropy(outputs(q, x), y), HEAD, ETA_P)
        expected.append(whole)
    assert_close(fresh.predictors()["personal"], stacked(expected))


def binary_problem() -> Federation:
    """Class 1 is rare at some clients and missing at one."""
    targets = (DATA.targets == 1).long()
    return replace(DATA, targets=targets, task=Task("binary", 1))


@each_engine
def test_one_output_for_two_classes_is_balanced_like_two(engine: EngineName) -> None:
    data = binary_problem()
    settings = {"plan": None, "batch_size": None, "seed": 1, "dtype": torch.float64, "engine": engine}
    one = Simulation(FedRoD(lr=0.2, local_steps=2), linear(1), data, **settings).play(3)  # type: ignore[arg-type]
    two_data = replace(data, task=Task("multiclass", 2))
    # The difference of two logits, each moved by the gradient, moves twice as far.
    two = Simulation(FedRoD(lr=0.1, local_steps=2), linear(2), two_data, **settings).play(3)  # type: ignore[arg-type]
    for kind in ("global", "personal"):
        ours, theirs = one.predictors()[kind], two.predictors()[kind]  # type: ignore[index]
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        first, second = theirs["weight"].split(1, dim=-2)
        assert torch.allclose(ours["weight"], second - first, rtol=0, atol=1e-12)
        assert float(ours["weight"].abs().max()) > 0.05


def linear(outputs: int) -> nn.Module:
    module = nn.Linear(4, outputs)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def test_numbers_to_predict_are_refused() -> None:
    problem = Quadratics.asymmetric()
    with pytest.raises(UserError, match="method=fedrod looks at the rows of each class"):
        Simulation(FedRoD(), problem.model, problem.federation(), dtype=torch.float64)
