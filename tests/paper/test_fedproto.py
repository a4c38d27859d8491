"""FedProto against a transcription in plain torch, and its identities P42 to P44. Spec 8.8."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import idiolect
from idiolect.core import Cohort, Task, tree
from idiolect.errors import UserError
from idiolect.methods.fedpac import FedPAC
from idiolect.methods.fedproto import FedProto
from idiolect.methods.local import Local
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from paper.heads import (
    ALL,
    CLASSES,
    CLIENTS,
    DATA,
    ENGINES,
    START,
    UNITS,
    Model,
    asked,
    assert_close,
    assert_same,
    batch,
    counts_of,
    cross_entropy,
    descend,
    features,
    outputs,
    rows_of,
    simulate,
    stacked,
)

each_engine = pytest.mark.parametrize("engine", ENGINES)
ETA, STEPS, ROUNDS = 0.2, 3, 5
Known = dict[int, Tensor]  # class -> prototype


def class_means(w: Model, client: int) -> Known:
    x, y = rows_of(client)
    return {c: features(w, x)[y == c].mean(0) for c in range(CLASSES) if (y == c).any()}


def pulled(w: Model, x: Tensor, y: Tensor, prototypes: Known, pull: float) -> Tensor:
    loss, z = cross_entropy(w, x, y), features(w, x)
    for row, label in enumerate(y.tolist()):
        if label in prototypes:
            loss = loss + pull * (z[row] - prototypes[label]).square().sum() / (len(y) * UNITS)
    return loss


def averaged(means: dict[int, Known], weighting: str) -> Known:
    found = {}
    for c in range(CLASSES):
        owners = [i for i in means if c in means[i]]
        weights = [float(counts_of(i)[c]) if weighting == "counts" else 1.0 for i in owners]
        if owners:
            found[c] = sum(a * means[i][c] for a, i in zip(weights, owners, strict=True)) / sum(weights)
    return found


def transcription(first: list[Model], pull: float, weighting: str = "counts") -> tuple[list[Model], Known]:
    own, prototypes = list(first), Known()
    for r in range(ROUNDS):
        for i in asked(r):
            for c in range(STEPS):
                x, y = batch(i, r, c)
                loss = lambda q, x=x, y=y, known=prototypes: pulled(q, x, y, known, pull)  # noqa: E731
                own[i] = descend(own[i], loss, ALL, ETA)
        means = {i: class_means(own[i], i) for i in asked(r)}
        prototypes = {**prototypes, **averaged(means, weighting)}
    return own, prototypes


def first_models(simulation: Simulation) -> list[Model]:
    return [dict(tree.row(simulation.clients().w, i)) for i in CLIENTS]


@each_engine
@pytest.mark.parametrize("weighting", ["counts", "uniform"])
def test_fedproto_matches_its_transcription(engine: EngineName, weighting: str) -> None:
    method = FedProto(lr=ETA, pull=1.5, local_steps=STEPS, weighting=weighting)  # type: ignore[arg-type]
    simulation = simulate(method, engine)
    own, prototypes = transcription(first_models(simulation), 1.5, weighting)
    simulation.play(ROUNDS)
    assert_close(simulation.predictors()["personal"], stacked(own))
    assert simulation.server.prototypes.known.all()
    assert_close(simulation.server.prototypes.means, torch.stack([prototypes[c] for c in range(CLASSES)]))


def test_first_models_are_draws_of_each_clients_own() -> None:
    first = first_models(simulate(FedProto()))
    assert not torch.equal(first[0]["0.weight"], first[1]["0.weight"])
    entries = [model["0.weight"].flatten().sort().values for model in first]
    assert all(torch.equal(drawn, START["0.weight"].flatten().sort().values) for drawn in entries)
    alike = first_models(simulate(FedProto(first="equal")))
    assert all(torch.equal(alike[0][name], alike[4][name]) for name in ALL)


@each_engine
def test_p42_without_a_pull_or_in_the_first_round_clients_train_alone(engine: EngineName) -> None:
    options = {"lr": ETA, "local_steps": STEPS}
    alone = simulate(Local(**options), engine)
    free = simulate(FedProto(pull=0.0, first="equal", **options), engine)
    pulled_first = simulate(FedProto(pull=3.0, first="equal", **options), engine)
    assert_same(pulled_first.play(1).predictors()["personal"], alone.play(1).predictors()["personal"], engine)
    assert_same(free.play(4).predictors()["personal"], alone.play(3).predictors()["personal"], engine)
    later = tree.subtract(pulled_first.play(3).predictors()["personal"], alone.predictors()["personal"])
    assert float(tree.squared_norm(later)) > 1e-3


@each_engine
@pytest.mark.parametrize("weighting", ["counts", "uniform"])
def test_p43_on_a_common_body_counts_give_the_pooled_means(engine: EngineName, weighting: str) -> None:
    """The printed formula, which divides once more by the number of owners, gives neither."""
    method = FedProto(lr=0.0, local_steps=1, first="equal", weighting=weighting)  # type: ignore[arg-type]
    simulation = simulate(method, engine, plan=None).play(1)
    w = first_models(simulation)[0]
    z, y = features(w, DATA.inputs), DATA.targets
    pooled = torch.stack([z[y == c].mean(0) for c in range(CLASSES)])
    apart = float((simulation.server.prototypes.means - pooled).abs().max())
    assert apart < 1e-14 if weighting == "counts" else apart > 1e-3


def test_p44_the_pull_brings_the_clients_class_means_together() -> None:
    def spread(pull: float) -> float:
        simulation = simulate(FedProto(lr=0.3, pull=pull, local_steps=5), plan=None).play(15)
        means = [class_means(w, i) for i, w in enumerate(first_models(simulation))]
        pairs = [(i, j, c) for i in CLIENTS for j in range(i) for c in means[i].keys() & means[j].keys()]
        return sum(float((means[i][c] - means[j][c]).square().sum()) for i, j, c in pairs)

    assert spread(8.0) < 0.5 * spread(0.0)


@each_engine
def test_a_class_that_nobody_replies_about_keeps_its_prototype(engine: EngineName) -> None:
    simulation = simulate(FedProto(lr=ETA, local_steps=STEPS), engine, plan=None).play(1)
    before = simulation.server.prototypes.means.clone()
    only_two = simulate(FedProto(lr=ETA, local_steps=STEPS), engine, plan=OnlyClient(2))
    only_two.server = simulation.server
    after = only_two.play(1).server.prototypes.means
    missing = int(counts_of(2).argmin())
    changed = (after != before).any(1)
    assert changed.tolist() == [c != missing for c in range(CLASSES)]


class OnlyClient:
    """A plan that asks one client alone."""

    def __init__(self, client: int) -> None:
        self.client = client

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        return Uniform().cohort(seed, round_number, sizes).select(torch.tensor([self.client]))

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(clients, dtype=torch.bool)


@each_engine
def test_the_nearest_prototype_decides(engine: EngineName) -> None:
    options = {"lr": ETA, "local_steps": STEPS}
    by_head = simulate(FedProto(**options), engine, plan=OnlyClient(2)).play(2)
    by_prototype = simulate(FedProto(prediction="prototype", **options), engine, plan=OnlyClient(2)).play(2)
    assert_same(by_prototype.server.prototypes.means, by_head.server.prototypes.means, engine)
    prototypes = by_prototype.server.prototypes
    known = prototypes.known.nonzero()[:, 0].tolist()
    assert known == [0, 2]
    models = by_prototype.predictors()["personal"]
    for i, own in enumerate(first_models(by_head)):
        z = features(own, DATA.inputs)
        distances = torch.stack([(z - prototypes.means[c]).square().sum(1) for c in known], 1)
        expected = torch.tensor(known)[distances.argmin(1)]
        assert torch.equal(outputs(tree.row(models, i), DATA.inputs).argmax(1), expected)


@each_engine
def test_two_classes_of_one_output_have_two_prototypes(engine: EngineName) -> None:
    data = replace(DATA, targets=(DATA.targets == 1).long(), task=Task("binary", 1))
    model = nn.Sequential(nn.Linear(4, UNITS), nn.Tanh(), nn.Linear(UNITS, 1)).double()
    simulation = Simulation(
        FedProto(prediction="prototype"), model, data, engine=engine, dtype=torch.float64, seed=3
    ).play(3)
    means, models = simulation.server.prototypes.means, simulation.predictors()["personal"]
    assert means.shape == (2, UNITS)
    for i, own in enumerate(first_models(simulation)):
        z = features(own, data.inputs)
        nearer_one = (z - means[1]).square().sum(1) < (z - means[0]).square().sum(1)
        assert torch.equal(outputs(tree.row(models, i), data.inputs)[:, 0] > 0, nearer_one)


@each_engine
def test_fedprotos_newcomer_trains_near_the_prototypes(engine: EngineName) -> None:
    trained = simulate(FedProto(lr=ETA, pull=1.5, local_steps=STEPS), engine, plan=None).play(3)
    means = trained.server.prototypes.means
    fresh = trained.newcomers(DATA, round_number=7)
    expected = []
    for i in CLIENTS:
        w = dict(trained.server.start.part)
        for c in range(STEPS):
            x, y = batch(i, 7, c)
            loss = lambda q, x=x, y=y: pulled(q, x, y, dict(enumerate(means)), 1.5)  # noqa: E731
            w = descend(w, loss, ALL, ETA)
        expected.append(w)
    assert_close(fresh.predictors()["personal"], stacked(expected))


def test_models_without_a_linear_end_are_refused() -> None:
    ends_in_norm = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
    with pytest.raises(UserError, match=r"last layer has 1\.weight, 1\.bias"):
        Simulation(FedProto(), ends_in_norm, DATA, dtype=torch.float64)
    no_bias = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, bias=False)).double()
    Simulation(FedProto(), no_bias, DATA, dtype=torch.float64)
    with pytest.raises(UserError, match="prediction=prototype"):
        Simulation(FedProto(prediction="prototype"), no_bias, DATA, dtype=torch.float64)
    pools_late = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), Mean()).double()
    with pytest.raises(UserError, match="has 2 axes in each row"):
        Simulation(FedProto(), pools_late, DATA, dtype=torch.float64).play(1)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


@pytest.mark.parametrize("method", ["fedproto", "fedpac"])
@pytest.mark.parametrize("settings", [{"train": "body"}, {"model": {"adapter": {"rank": 2}}}])
def test_prototypes_need_a_last_layer_that_is_trained(method, settings):
    model = {"name": "mlp", "hidden": [4], **settings.get("model", {})}
    with pytest.raises(UserError, match=f"method={method} trains the last layer of a model"):
        idiolect.train(method, "vowels", model, rounds=1, train=settings.get("train"))


@pytest.mark.parametrize("method", [FedProto(), FedPAC()])
def test_prototypes_need_a_last_layer_of_its_own_and_without_parametrizations(method):
    shared = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    shared[2].weight = shared[1].weight
    with pytest.raises(UserError, match=r"'2\.weight' is the same parameter as '1\.weight'"):
        Simulation(method, shared, DATA)
    orthogonal = nn.Sequential(nn.Linear(4, 3), parametrizations.orthogonal(nn.Linear(3, 3)))
    with pytest.raises(UserError, match=r"has 1\.bias, 1\.parametrizations\.weight\.original"):
        Simulation(method, orthogonal, DATA)
