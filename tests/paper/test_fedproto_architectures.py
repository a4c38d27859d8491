"""FedProto with different architectures against models of plain torch, trained one by one. Spec 8.8."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.core import tree
from idiolect.core.several import Several
from idiolect.methods.fedproto import FedProto
from idiolect.methods.local import Local
from idiolect.simulation import EngineName, Simulation
from paper.heads import (
    BATCH,
    CLASSES,
    CLIENTS,
    DATA,
    ENGINES,
    PLAN,
    SEED,
    UNITS,
    WEIGHT_DECAY,
    Model,
    asked,
    assert_close,
    assert_same,
    batch,
    rows_of,
)

each_engine = pytest.mark.parametrize("engine", ENGINES)
ETA, STEPS, ROUNDS, PULL = 0.2, 3, 5, 1.5
SETTINGS = {
    "plan": PLAN, "batch_size": BATCH, "weight_decay": WEIGHT_DECAY, "seed": SEED, "dtype": torch.float64,
}  # fmt: skip


def shallow() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES))


def deep() -> nn.Sequential:
    lower = (nn.Linear(4, 6), nn.Softplus(), nn.LayerNorm(6))
    return nn.Sequential(*lower, nn.Linear(6, UNITS), nn.Sigmoid(), nn.Linear(UNITS, CLASSES))


def several() -> Several:
    torch.manual_seed(8)
    return Several([shallow().double(), deep().double()])


def simulate(method: FedProto | Local, engine: EngineName, model: nn.Module, **options: object) -> Simulation:
    return Simulation(method, model, DATA, engine=engine, **(SETTINGS | options))  # type: ignore[arg-type]


def own_part(predictor: Model, client: int) -> Model:
    """A client's model under the names that it has alone."""
    architecture, head = client % 2, "2" if client % 2 == 0 else "5"
    named = {f"bodies.{architecture}.": "", "output.": f"{head}."}
    return {
        new + name.removeprefix(old): value
        for name, value in predictor.items()
        for old, new in named.items()
        if name.startswith(old)
    }


def unused_part(predictor: Model, client: int) -> Model:
    return {name: value for name, value in predictor.items() if name.startswith(f"bodies.{1 - client % 2}.")}


def personal(simulation: Simulation) -> list[Model]:
    models = simulation.predictors()["personal"]
    return [dict(tree.row(models, i)) for i in CLIENTS]


def train_apart(models: list[nn.Sequential]) -> dict[int, Tensor]:
    """Each model by torch's own optimizer; what they have in common are prototypes."""
    prototypes: dict[int, Tensor] = {}
    for r in range(ROUNDS):
        sums, counts = torch.zeros(CLASSES, UNITS).double(), torch.zeros(CLASSES).double()
        for i in asked(r):
            body, head = models[i][:-1], models[i][-1]
            optimizer = torch.optim.SGD(models[i].parameters(), lr=ETA, weight_decay=WEIGHT_DECAY)
            for c in range(STEPS):
                x, y = batch(i, r, c)
                z = body(x)
                loss = F.cross_entropy(head(z), y)
                for row, label in enumerate(y.tolist()):
                    if label in prototypes:
                        loss = loss + PULL * (z[row] - prototypes[label]).square().mean() / len(y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            x, y = rows_of(i)
            sums.index_add_(0, y, body(x).detach())
            counts += y.bincount(minlength=CLASSES)
        prototypes |= {c: sums[c] / counts[c] for c in range(CLASSES) if counts[c] > 0}
    return prototypes


@each_engine
def test_it_matches_models_that_are_trained_one_by_one(engine: EngineName) -> None:
    simulation = simulate(FedProto(lr=ETA, pull=PULL, local_steps=STEPS), engine, several())
    first = personal(simulation)
    models = [(shallow, deep)[i % 2]().double() for i in CLIENTS]
    for i, model in enumerate(models):
        model.load_state_dict(own_part(first[i], i))
    prototypes = train_apart(models)
    simulation.play(ROUNDS)
    reached = personal(simulation)
    for i, model in enumerate(models):
        assert_close(own_part(reached[i], i), {n: p.detach() for n, p in model.named_parameters()})
    means = simulation.server.inner.prototypes.means
    assert_close(means, torch.stack([prototypes[c] for c in range(CLASSES)]))


@each_engine
def test_the_other_architecture_of_a_client_keeps_its_bits(engine: EngineName) -> None:
    simulation = simulate(FedProto(lr=ETA, pull=PULL, local_steps=STEPS), engine, several())
    first = personal(simulation)
    reached = personal(simulation.play(ROUNDS))
    for i in CLIENTS:
        before, after = unused_part(first[i], i), unused_part(reached[i], i)
        assert before
        assert all(torch.equal(after[name], before[name]) for name in before)


@each_engine
def test_p42_without_a_pull_each_architecture_trains_alone(engine: EngineName) -> None:
    options = {"lr": ETA, "local_steps": STEPS}
    free = simulate(FedProto(pull=0.0, first="equal", **options), engine, several()).play(ROUNDS)
    together = simulate(Local(**options), engine, several()).play(ROUNDS)
    for architecture in range(2):
        alone = simulate(Local(**options), engine, several().alone(architecture)).play(ROUNDS)
        for i in CLIENTS[architecture::2]:
            for others in (free, together):
                assert_same(own_part(personal(others)[i], i), personal(alone)[i], engine)


@each_engine
def test_of_one_architecture_it_is_that_one(engine: EngineName) -> None:
    method = FedProto(lr=ETA, pull=PULL, local_steps=STEPS, first="equal")
    one = simulate(method, engine, several().alone(0)).play(ROUNDS)
    same_one = simulate(method, engine, Several([several().alone(0)])).play(ROUNDS)
    for ours, theirs in zip(personal(same_one), personal(one), strict=True):
        assert_same(own_part(ours, 0), theirs, engine)
    assert_same(same_one.server.inner.prototypes.means, one.server.prototypes.means, engine)


@each_engine
def test_the_nearest_prototype_decides_for_every_architecture(engine: EngineName) -> None:
    method = FedProto(lr=ETA, local_steps=STEPS, prediction="prototype")
    simulation = simulate(method, engine, several()).play(ROUNDS)
    means, objective = simulation.server.inner.prototypes.means, simulation.engine.setting.objective
    for i, model in enumerate(personal(simulation)):
        alone = (shallow, deep)[i % 2]().double()
        alone.load_state_dict(own_part(model, i))
        distances = (alone[:-1](DATA.inputs)[:, None] - means).square().sum(2)
        assert torch.equal(objective.predict(model, DATA.inputs).argmax(1), distances.argmin(1))


@each_engine
def test_newcomers_take_turns_too(engine: EngineName) -> None:
    trained = simulate(FedProto(lr=ETA, pull=PULL, local_steps=STEPS), engine, several()).play(2)
    fresh = trained.newcomers(DATA, round_number=7)
    means, first = trained.server.inner.prototypes.means, several()
    for i, model in enumerate(personal(fresh)):
        alone = copy.deepcopy(first.alone(i % 2))
        optimizer = torch.optim.SGD(alone.parameters(), lr=ETA, weight_decay=WEIGHT_DECAY)
        for c in range(STEPS):
            x, y = batch(i, 7, c)
            z = alone[:-1](x)  # type: ignore[index]
            loss = F.cross_entropy(alone[-1](z), y) + PULL * (z - means[y]).square().mean()  # type: ignore[index]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert_close(own_part(model, i), {n: p.detach() for n, p in alone.named_parameters()})
