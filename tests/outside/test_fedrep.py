"""FedRep, a method outside of the package: its transcription in NumPy, its identities, and the contract."""

from typing import Any

import numpy as np
import pytest
import torch
from idiolect_outside.fedrep import FedRep, Model
from torch import nn

from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.data.federation import Federation, Rows
from idiolect.engines.batches import Batches
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.participation.plan import Participation
from idiolect.participation.sampling import Uniform
from idiolect.participation.work import Fixed
from idiolect.simulation import EngineName, Simulation
from idiolect.testing import check_method, uneven_classification

ENGINES: tuple[EngineName, ...] = ("sequential", "vectorised")
EXACT, CLOSE = 1e-12, 1e-9
FEATURES, UNITS, CLASSES = 4, 5, 3
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
SEED, BATCH, WEIGHT_DECAY, RATE = 5, 4, 0.02, 0.3
each_engine = pytest.mark.parametrize("engine", ENGINES)

Arrays = dict[str, np.ndarray]


def network() -> nn.Module:
    """One hidden layer, different in every entry."""
    generator = torch.Generator().manual_seed(8)
    module = nn.Sequential(nn.Linear(FEATURES, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def fedrep(head_steps: int, body_steps: int, **options: Any) -> FedRep:
    return FedRep(local_steps=head_steps + body_steps, body_steps=body_steps, **options)


def head_of(model: Model) -> Params:
    return {name: model.w[name] for name in HEAD}


def body_of(model: Model) -> Params:
    return {name: model.w[name] for name in BODY if name in model.w}


def simulate(method: Any, engine: EngineName = "sequential", **options: Any) -> Simulation:
    """Five uneven clients, of whom three take part in a round."""
    settings: dict[str, Any] = {
        "plan": Uniform(rate=0.6),
        "batch_size": BATCH,
        "weight_decay": WEIGHT_DECAY,
        "seed": SEED,
        "dtype": torch.float64,
    }
    return Simulation(method, network(), uneven_classification(), engine=engine, **(settings | options))


class Transcription:
    """The same problem in NumPy: the network, its gradient, the rows of every batch, who takes part."""

    def __init__(self) -> None:
        self.federation: Federation = uneven_classification()
        self.sizes: np.ndarray = self.federation.train.sizes.numpy()
        self.batches = Batches(self.federation, SEED, BATCH)
        self.start: Arrays = {name: p.detach().numpy() for name, p in network().named_parameters()}

    def asked(self, round_number: int) -> list[int]:
        plan = Uniform(rate=0.6)
        return plan.cohort(SEED, round_number, self.federation.train.sizes).ids.tolist()

    def descend(self, w: Arrays, names: tuple[str, ...], client: int, round_number: int, call: int) -> Arrays:
        """One step on the named tensors; the others are the same arrays as before."""
        size = int(self.batches.batch_sizes[client])
        rows = self.batches.draw(torch.tensor(client), round_number, torch.tensor(call), size).numpy()
        slopes = self.gradient(w, rows)
        return {name: w[name] - RATE * slopes[name] if name in names else w[name] for name in w}

    def gradient(self, w: Arrays, rows: np.ndarray) -> Arrays:
        x, y = self.federation.inputs.numpy()[rows], self.federation.targets.numpy()[rows]
        features = np.tanh(x @ w["0.weight"].T + w["0.bias"])
        logits = features @ w["2.weight"].T + w["2.bias"]
        odds = np.exp(logits - logits.max(1, keepdims=True))
        errors = odds / odds.sum(1, keepdims=True)
        errors[np.arange(len(rows)), y] -= 1
        errors /= len(rows)
        inner = (errors @ w["2.weight"]) * (1 - features**2)
        slopes = {
            "0.weight": inner.T @ x,
            "0.bias": inner.sum(0),
            "2.weight": errors.T @ features,
            "2.bias": errors.sum(0),
        }
        return {name: slopes[name] + WEIGHT_DECAY * w[name] for name in w}


def transcribed(rounds: int, head_steps: int, body_steps: int, weighting: str) -> tuple[Arrays, ...]:
    """FedRep's equations: the stacked personal and localized models."""
    problem = Transcription()
    theta = {name: problem.start[name] for name in BODY}
    own = [dict(problem.start) for _ in problem.sizes]
    for r in range(rounds):
        asked = problem.asked(r)
        for i in asked:
            own[i] = {**own[i], **theta}
            for call in range(head_steps + body_steps):
                own[i] = problem.descend(own[i], HEAD if call < head_steps else BODY, i, r, call)
        a = problem.sizes[asked] if weighting == "samples" else np.ones(len(asked))
        theta = {name: np.average([own[i][name] for i in asked], axis=0, weights=a) for name in BODY}
    return stacked([{**w, **theta} for w in own]), stacked(own)


def stacked(models: list[Arrays]) -> Arrays:
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def assert_close(ours: Any, theirs: Any, tolerance: float = CLOSE) -> None:
    """Parameters agree by name, relative to the largest entry."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        expected = np.asarray(theirs[name])
        assert np.abs(np.asarray(value) - expected).max() <= tolerance * np.abs(expected).max(), name


def same_bits(ours: Params, theirs: Params) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@each_engine
@pytest.mark.parametrize(("head_steps", "body_steps"), [(3, 2), (1, 4)])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedrep_matches_its_transcription(
    engine: EngineName, head_steps: int, body_steps: int, weighting: Any
) -> None:
    method = fedrep(head_steps, body_steps, lr=RATE, weighting=weighting)
    models: Any = simulate(method, engine).play(5).predictors()
    personal, localized = transcribed(5, head_steps, body_steps, weighting)
    assert_close(models["personal"], personal)
    assert_close(models["localized"], localized)


@pytest.mark.parametrize("head", [("2.weight", "2.bias"), ("2.*",), ("2.*", "2.bias")])
def test_the_head_is_the_last_layer_unless_it_is_named(head: tuple[str, ...]) -> None:
    w = simulate(FedRep()).server.w
    assert FedRep().parts(w) == FedRep(head=head).parts(w)
    assert FedRep().parts(w).names_of("head") == HEAD
    assert FedRep().parts(w).names_of("body") == BODY
    assert FedRep(head=("*.bias",)).parts(w).names_of("head") == ("0.bias", "2.bias")


def test_half_of_the_steps_train_the_body_unless_their_number_is_given() -> None:
    assert [FedRep(local_steps=steps).head_steps for steps in (1, 10, 11)] == [1, 5, 6]
    assert FedRep(local_steps=11, body_steps=1).head_steps == 10
    with pytest.raises(ValueError, match="body_steps=4 must be at most local_steps=3"):
        FedRep(local_steps=3, body_steps=4)


def test_a_head_that_the_model_does_not_have_is_refused_before_the_first_round() -> None:
    with pytest.raises(UserError, match=r"'head' has the pattern 'output\.\*', which matches no parameter"):
        simulate(FedRep(head=("output.*",)))


@each_engine
def test_who_is_absent_keeps_its_head(engine: EngineName) -> None:
    """P3."""
    simulation = simulate(fedrep(2, 2, lr=RATE), engine)
    before = head_of(simulation.clients())
    asked = Transcription().asked(0)
    after = head_of(simulation.play(1).clients())
    for i in range(5):
        kept = all(torch.equal(after[name][i], before[name][i]) for name in HEAD)
        assert kept == (i not in asked)


@each_engine
def test_without_head_steps_it_trains_a_body_under_one_fixed_head(engine: EngineName) -> None:
    """P5: FedBABU's training; the head keeps the bits of the first model (P63)."""
    problem = Transcription()
    simulation = simulate(fedrep(0, 3, lr=RATE), engine).play(4)
    body = problem.start
    for r in range(4):
        uploads = []
        for i in problem.asked(r):
            w = body
            for call in range(3):
                w = problem.descend(w, BODY, i, r, call)
            uploads.append(w)
        body = {name: np.mean([w[name] for w in uploads], axis=0) for name in body}
    assert_close(body_of(simulation.server), {name: body[name] for name in BODY}, EXACT)
    for name, heads in head_of(simulation.clients()).items():
        assert np.array_equal(heads.numpy(), np.stack([problem.start[name]] * 5))


@each_engine
def test_without_body_steps_it_probes_the_first_body(engine: EngineName) -> None:
    """P7: the body is averaged, though unchanged, hence the same to rounding only."""
    problem = Transcription()
    simulation = simulate(fedrep(3, 0, lr=RATE), engine).play(4)
    probes = [dict(problem.start) for _ in range(5)]
    for r in range(4):
        for i in problem.asked(r):
            for call in range(3):
                probes[i] = problem.descend(probes[i], HEAD, i, r, call)
    models: Any = simulation.predictors()
    assert_close(models["personal"], stacked(probes), EXACT)
    assert_close(body_of(simulation.server), {name: problem.start[name] for name in BODY}, 1e-15)


def test_a_head_step_and_a_body_step_are_no_joint_step() -> None:
    """P8: they differ by O(rate²)."""

    def apart(rate: float) -> float:
        options: Any = {"plan": Uniform(), "batch_size": None}
        two: Any = simulate(fedrep(1, 1, lr=rate), **options).play(1).predictors()
        one: Any = simulate(FedAvg(lr=rate, local_steps=1), **options).play(1).predictors()
        return max(float((two["localized"][n] - one["localized"][n]).abs().max()) for n in (*BODY, *HEAD))

    assert apart(0.02) / apart(0.01) == pytest.approx(4, rel=0.1)


@each_engine
def test_with_everything_in_the_head_every_client_trains_alone(engine: EngineName) -> None:
    """P2: nothing is shared, and nothing crosses."""
    method = fedrep(3, 0, lr=RATE, head=("*",))
    ours: Any = simulate(method, engine, weight_decay=0.0).play(4).predictors()
    alone: Any = simulate(Local(lr=RATE, local_steps=3), engine, weight_decay=0.0).play(4).predictors()
    assert_close(ours["personal"], alone["personal"], EXACT)
    if engine == "sequential":
        assert same_bits(ours["personal"], alone["personal"])


@each_engine
def test_rotated_features_give_the_same_predictions(engine: EngineName) -> None:
    """P10: for linear bodies B and heads h, B Q and Qᵀ h with one orthogonal Q for all clients."""
    linear = nn.Sequential(nn.Linear(FEATURES, 3, bias=False), nn.Linear(3, CLASSES)).double()
    rotated = nn.Sequential(nn.Linear(FEATURES, 3, bias=False), nn.Linear(3, CLASSES)).double()
    q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    rotated.load_state_dict(
        {
            "0.weight": q.T @ linear[0].weight.detach(),
            "1.weight": linear[1].weight.detach() @ q,
            "1.bias": linear[1].bias.detach(),
        }
    )
    data = uneven_classification()

    def maps(module: nn.Module) -> torch.Tensor:
        simulation = Simulation(fedrep(2, 2, lr=0.2), module, data, dtype=torch.float64, engine=engine)
        w: Any = simulation.play(5).predictors()["personal"]
        return w["1.weight"] @ w["0.weight"]

    torch.testing.assert_close(maps(rotated), maps(linear), rtol=0, atol=CLOSE)


def test_the_body_finds_the_subspace_that_clients_have_in_common() -> None:
    """P9: noiseless linear targets of rank two in eight dimensions; heads nearly exact in every round."""
    generator = torch.Generator().manual_seed(4)
    clients, rows, dimension, rank = 12, 40, 8, 2
    truth, _ = torch.linalg.qr(torch.randn(dimension, rank, dtype=torch.float64, generator=generator))
    own = torch.randn(clients, rank, dtype=torch.float64, generator=generator)
    x = torch.randn(clients, rows, dimension, dtype=torch.float64, generator=generator)
    x = torch.linalg.qr(x)[0] * rows**0.5  # the rows' covariance is the identity, as in the theorem
    y = torch.einsum("crd,dk,ck->cr", x, truth, own)
    module = nn.Sequential(nn.Linear(dimension, rank, bias=False), nn.Linear(rank, 1, bias=False)).double()
    with torch.no_grad():
        for layer in module:
            nn.init.orthogonal_(layer.weight, generator=generator)
    data = regression(x, y)
    method = fedrep(15, 1, lr=0.5)
    simulation = Simulation(method, module, data, batch_size=None, dtype=torch.float64)

    def distance() -> float:
        basis, _ = torch.linalg.qr(body_of(simulation.server)["0.weight"].T)
        return float(torch.linalg.matrix_norm(truth - basis @ (basis.T @ truth), 2))

    assert distance() > 0.5
    simulation.play(60)
    assert distance() < 1e-6


def regression(x: torch.Tensor, y: torch.Tensor) -> Federation:
    """Clients with some rows each, [clients, rows, dimension] and [clients, rows]."""
    clients, rows = y.shape
    owned = Rows.of_clients(list(torch.arange(clients * rows).split(rows)))
    names = tuple(f"client-{c}" for c in range(clients))
    task = Task("regression", 1)
    return Federation(x.flatten(0, 1), y.reshape(-1, 1), task, names, owned, owned, owned)


@each_engine
def test_only_the_body_crosses(engine: EngineName) -> None:
    simulation = simulate(fedrep(1, 1), engine)
    played = simulation.advance()
    bits = 64 * sum(value.numel() for value in body_of(simulation.server).values())
    for parts in (played.down_parts, played.up_parts):
        assert set(parts) == {"body"}
        assert parts["body"].nonzero()[:, 0].tolist() == Transcription().asked(0)
        assert parts["body"].unique().tolist() == [0, bits]


@each_engine
def test_who_stops_in_the_head_phase_sends_the_body_that_it_got(engine: EngineName) -> None:
    """Of five steps two are done, both on the head: the first steps of the list, and no others."""
    data = uneven_classification()
    plan = Participation(work=Fixed(0.4)).bind(data.names)
    simulation = simulate(fedrep(3, 2, lr=RATE), engine, plan=plan).play(2)
    heads_only = simulate(fedrep(2, 0, lr=RATE), engine, plan=Uniform()).play(2)
    start = {name: Transcription().start[name] for name in BODY}
    assert_close(body_of(simulation.server), start, 1e-15)
    assert_close(head_of(simulation.clients()), head_of(heads_only.clients()), EXACT)


@each_engine
def test_a_newcomer_trains_a_head_on_the_body_as_it_is(engine: EngineName) -> None:
    problem = Transcription()
    trained = simulate(fedrep(3, 2, lr=RATE), engine).play(3)
    fresh = uneven_classification()
    theta = {name: value.numpy() for name, value in body_of(trained.server).items()}
    for steps, expected in ((None, 5), (7, 7)):
        newcomers = trained.newcomers(fresh, steps=steps, round_number=9)
        models = []
        for i in range(5):
            w = {**problem.start, **theta}
            for call in range(expected):
                w = problem.descend(w, HEAD, i, 9, call)
            models.append(w)
        personal: Any = newcomers.predictors()["personal"]
        assert_close(personal, stacked(models))
        for name in BODY:
            assert torch.equal(personal[name][2], body_of(trained.server)[name])


@pytest.mark.parametrize(
    "method",
    [
        fedrep(2, 3),
        fedrep(1, 2, head=("*bias",), lr={"name": "per_step", "initial": 0.2}),
    ],
    ids=["last layer", "biases"],
)
def test_fedrep_keeps_the_contract(method: FedRep) -> None:
    check_method(method)
