"""DP-SGD against a transcription in NumPy, its sensitivity, its noise, and what it lets nobody ask."""

import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from idiolect import core, models
from idiolect.core import rng, tree
from idiolect.core.objective import Batch, Objective
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.fedrep import FedRep
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.privacy.linear_rows import linear_layers
from idiolect.privacy.row_gradients import PrivateObjective, SealedBatch, counting_gradients
from idiolect.privacy.row_private import RowPrivate
from idiolect.privacy.settings import RowPrivacy
from idiolect.simulation import Simulation
from idiolect.testing.problems import small_network, uneven_classification

FEDERATION = uneven_classification()
MULTINOMIAL = FEDERATION.task
ENGINES: Any = ["sequential", "vectorised"]


def private(method: Any, batch_size: int | None, *, noise: float, clip: float = 1.0) -> RowPrivate:
    return RowPrivate(method, RowPrivacy(noise=noise, clip=clip), batch_size)


def simulate(method: Any, model: Any, batch_size: int | None, engine: Any, **options: Any) -> Simulation:
    return Simulation(
        method,
        model,
        FEDERATION,
        batch_size=batch_size,
        engine=engine,
        dtype=torch.float64,
        seed=5,
        **options,
    )


def linear() -> nn.Module:
    return models.linear(FEDERATION)


def perceptron() -> nn.Module:
    return models.mlp(FEDERATION, hidden=(5,))


# --- an independent transcription -------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def row_gradient(w: dict[str, np.ndarray], x: np.ndarray, y: int) -> dict[str, np.ndarray]:
    """Of the cross entropy of one row, by the chain rule."""
    if "linear.weight" in w:
        delta = softmax(w["linear.weight"] @ x + w["linear.bias"])
        delta[y] -= 1
        return {"linear.weight": np.outer(delta, x), "linear.bias": delta}
    before = w["hidden.0.weight"] @ x + w["hidden.0.bias"]
    h = np.maximum(before, 0)
    delta = softmax(w["output.weight"] @ h + w["output.bias"])
    delta[y] -= 1
    back = (w["output.weight"].T @ delta) * (before > 0)
    return {
        "hidden.0.weight": np.outer(back, x),
        "hidden.0.bias": back,
        "output.weight": np.outer(delta, h),
        "output.bias": delta,
    }


def noise_of(seed: int, client: int, round_number: int, call: int, place: int, shape: Any) -> np.ndarray:
    key = rng.key(seed, "dropout", client, round_number, call)
    return rng.normal(rng.fold(key, zlib.crc32(b"privacy"), 0, 0, place), *shape).numpy()


def transcribed(model: nn.Module, batch_size: int | None, *, noise: float, clip: float, decay: float) -> Any:
    """Two rounds of FedAvg with 3 local steps of rate 0.5, the second round with partial work."""
    setting = simulate(
        private(FedAvg(), batch_size, noise=noise), model, batch_size, "sequential"
    ).engine.setting
    shared = {name: value.numpy() for name, value in setting.objective.initial_params().items()}
    inputs, targets = FEDERATION.inputs.double().numpy(), FEDERATION.targets.numpy()
    for round_number in range(2):
        uploads = []
        for client in range(len(FEDERATION)):
            w = {name: value.copy() for name, value in shared.items()}
            rows_in_all = int(FEDERATION.train.sizes[client])
            b = rows_in_all if batch_size is None else min(batch_size, rows_in_all)
            for call in range(3):
                ids, width = torch.tensor(client), int(setting.batches.widths[client])
                rows = setting.batches.draw(ids, round_number, torch.tensor(call), width).numpy()
                total = {name: np.zeros_like(value) for name, value in w.items()}
                for row in rows[rows >= 0]:
                    g = row_gradient(w, inputs[row], int(targets[row]))
                    length = np.sqrt(sum((v**2).sum() for v in g.values()))
                    for name in total:
                        total[name] += g[name] * min(1.0, clip / length)
                for place, name in enumerate(w):
                    z = noise_of(5, client, round_number, call, place, w[name].shape)
                    w[name] -= 0.5 * ((total[name] + noise * clip * z) / b + decay * w[name])
            uploads.append(w)
        shared = {name: np.mean([w[name] for w in uploads], 0) for name in shared}
    return shared


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factory", [linear, perceptron])
@pytest.mark.parametrize("batch_size", [3, None])
def test_private_fedavg_is_the_transcribed_one(engine: Any, factory: Any, batch_size: int | None) -> None:
    torch.manual_seed(1)
    model = factory()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    options = {"noise": 0.7, "clip": 0.4}
    method = private(FedAvg(local_steps=3, learning_rate=0.5), batch_size, **options)
    played = simulate(method, model, batch_size, engine, weight_decay=0.01).play(2)
    expected = transcribed(model, batch_size, **options, decay=0.01)
    for name, value in played.server.inner.w.items():
        assert np.abs(value.numpy() - expected[name]).max() < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedAvg(local_steps=4), APFL(local_steps=4), FedRep(local_steps=4)])
@pytest.mark.parametrize("factory", [linear, perceptron, small_network])
def test_without_clip_and_noise_it_is_the_plain_run(engine: Any, method: Any, factory: Any) -> None:
    torch.manual_seed(2)
    model = factory()
    plain = simulate(method, model, None, engine).play(2)
    without = simulate(private(method, None, noise=0.0, clip=1e9), model, None, engine).play(2)
    for one, other in zip(tree.leaves(plain.predictors()), tree.leaves(without.predictors()), strict=True):
        assert (one - other).abs().max() < 1e-12


# --- sensitivity ------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Neither linear nor tame: a product of two parts, of which gradients can be huge."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.scale * x).exp() - (self.scale * x).sin())


def clipped_sum(model: nn.Module, inputs: Tensor, targets: Tensor, clip: float, loss: Any = None) -> Tensor:
    """The noiseless sum of the rows' clipped gradients, flat."""
    objective = Objective(model, MULTINOMIAL)
    one = PrivateObjective(objective, RowPrivacy(noise=0.0, clip=clip), "test", torch.tensor(1.0))
    batch = Batch(inputs, targets, torch.ones(len(inputs), dtype=inputs.dtype), torch.tensor(3))
    slopes = one.data_gradient(objective.initial_params(), SealedBatch("test", batch, 0), loss=loss)  # type: ignore[arg-type]
    return torch.cat([leaf.flatten() for leaf in slopes.values()])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    clip=st.floats(1e-3, 10),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    kind=st.sampled_from(["linear", "mlp", "network", "odd", "own loss"]),
)
def test_a_row_taken_out_moves_the_sum_by_at_most_the_clip(
    seed: int, clip: float, scale: float, kind: str
) -> None:
    torch.manual_seed(seed)
    model = {"linear": linear, "mlp": perceptron, "network": small_network, "odd": Odd, "own loss": Odd}[
        kind
    ]()
    model = model.double()
    inputs, targets = scale * torch.randn(6, 4).double(), torch.randint(0, 3, (6,))

    def mixing(seen: core.Pass, batch: Batch) -> Tensor:
        """Mixes rows as far as it can, which are all alone."""
        return (seen.outputs.logsumexp(0).square().sum() + seen.features.std(0, correction=0).sum()) * 5

    loss = mixing if kind == "own loss" else None
    whole = clipped_sum(model, inputs, targets, clip, loss)
    assert whole.isfinite().all()
    for row in range(6):
        others = torch.arange(6) != row
        without = clipped_sum(model, inputs[others], targets[others], clip, loss)
        assert (whole - without).norm() <= clip * (1 + 1e-9)


def test_rows_whose_gradients_are_not_finite_count_nothing() -> None:
    for model in (linear(), Odd()):
        inputs, targets = torch.randn(3, 4), torch.tensor([0, 1, 2])
        spoiled = torch.cat([inputs, torch.tensor([[float("nan"), 1.0, 1.0, 1.0], [1e30, 1e30, 1e30, 1e30]])])
        whole = clipped_sum(model, spoiled, torch.cat([targets, torch.tensor([1, 1])]), 1.0)
        assert whole.isfinite().all()
        kept = clipped_sum(model, inputs, targets, 1.0)
        assert (whole - kept).norm() <= 1.0 + 1e-6


def test_both_formulas_are_one() -> None:
    model = perceptron().double()
    inputs, targets = torch.randn(7, 4).double(), torch.randint(0, 3, (7,))
    assert linear_layers(model) is not None

    def usual(seen: core.Pass, batch: Batch) -> Tensor:
        return (MULTINOMIAL.row_losses(seen.outputs, batch.targets) * batch.weights).sum()

    by_layers, by_rows = (clipped_sum(model, inputs, targets, 0.3, loss) for loss in (None, usual))
    assert (by_layers - by_rows).abs().max() < 1e-12


class MixesRows(nn.Sequential):
    """Linear layers with something between them that is known to nobody."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = self
        return second(first(x) - first(x).mean(0))


def test_models_that_may_mix_rows_are_computed_row_by_row() -> None:
    mixing = MixesRows(nn.Linear(4, 4), nn.Linear(4, 3)).double()
    assert linear_layers(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3))) is not None
    assert linear_layers(nn.Sequential(nn.Linear(4, 2), nn.Softmax(0))) is None
    assert linear_layers(nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))) is None
    shared = nn.Linear(3, 3)
    assert linear_layers(nn.Sequential(shared, nn.ReLU(), shared)) is None
    inputs, targets = torch.randn(5, 4).double(), torch.randint(0, 3, (5,))
    whole = clipped_sum(mixing, inputs, targets, 0.1)
    assert (whole - clipped_sum(mixing, inputs[1:], targets[1:], 0.1)).norm() <= 0.1 * (1 + 1e-9)


class PassesOtherwise(nn.Module):
    """Keeps rows apart, and passes its layers twice, or by several vectors of each row, or not at all."""

    takes_rows_alone = True

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "twice":
            return self.last(torch.tanh(self.first(torch.tanh(self.first(x)))))
        if self.way == "several":  # as many as there are rows: shapes fit by accident
            return self.last(torch.tanh(self.first(x[:, None] * torch.arange(1, 6)[:, None]).sum(1)))
        return self.last(x)


@pytest.mark.parametrize("way", ["twice", "several", "not at all"])
def test_layers_that_are_not_passed_once_are_clipped_all_the_same(way: str) -> None:
    torch.manual_seed(6)
    model = PassesOtherwise(way).double()
    inputs, targets = 3 * torch.randn(5, 4).double(), torch.randint(0, 3, (5,))
    lengths = []
    for row in range(5):
        loss = MULTINOMIAL.row_losses(model(inputs[row : row + 1].expand(5, 4))[:1], targets[row : row + 1])
        slopes = torch.autograd.grad(loss.sum(), list(model.parameters()), materialize_grads=True)
        lengths.append(torch.cat([slope.flatten() for slope in slopes]))
    clip = float(torch.stack([slope.norm() for slope in lengths]).median())
    expected = sum(slope * min(1.0, clip / float(slope.norm())) for slope in lengths)
    assert (clipped_sum(model, inputs, targets, clip) - expected).abs().max() < 1e-12


# --- noise ------------------------------------------------------------------------------------------------


def test_noise_has_the_stated_deviation_and_no_two_draws_are_alike() -> None:
    objective = Objective(nn.Linear(100, 50), MULTINOMIAL)
    batch = Batch(torch.zeros(2, 100), torch.zeros(2, dtype=torch.int64), torch.zeros(2))
    draws = []
    for client in range(2):
        for round_number in range(2):
            for call in range(2):
                key = rng.key(7, "dropout", client, round_number, call)
                one = PrivateObjective(objective, RowPrivacy(noise=1.5, clip=0.2), "test", torch.tensor(0.25))
                sealed: Any = SealedBatch("test", batch._replace(key=key), 0)
                draws += [one.data_gradient(objective.initial_params(), sealed) for _ in range(2)]
    flat = torch.stack([torch.cat([leaf.flatten() for leaf in draw.values()]) for draw in draws]).double()
    deviation, count = 1.5 * 0.2 * 0.25, flat.shape[1]
    assert (flat.mean(1).abs() < 5 * deviation / count**0.5).all()
    assert (flat.std(1) / deviation - 1).abs().max() < 0.05
    correlation = torch.corrcoef(flat) - torch.eye(len(flat))
    assert correlation.abs().max() < 5 / count**0.5
    ordered = (flat[0] / deviation).sort().values
    expected = torch.special.ndtri((torch.arange(count).double() + 0.5) / count)
    assert (ordered - expected)[count // 100 : -count // 100].abs().max() < 0.1


def test_normal_numbers_have_both_tails() -> None:
    numbers = rng.normal(rng.key(1, "tails"), 2_000_000)
    for bound, share in ((1.0, 0.31731), (3.0, 2.6998e-3), (4.0, 6.334e-5)):
        for side in (numbers, -numbers):
            found = float((side > bound).double().mean())
            assert abs(found - share / 2) < 5 * (share / 2 / len(numbers)) ** 0.5
    assert numbers.isfinite().all()


# --- what it lets nobody ask ------------------------------------------------------------------------------


class Peeks(FedAvg):
    """A method of somebody's own that looks where it must not."""

    name = "peeks"
    sees_all_rows = True

    def peek(self, batch: Any, site: Any) -> Any:
        raise NotImplementedError

    def begin(self, client: Any, down: Any, site: Any) -> Any:
        self.peek(None, site)
        return super().begin(client, down, site)

    def step(self, work: Any, client: Any, down: Any, batches: Any, site: Any) -> Any:
        self.peek(batches[0], site)
        return super().step(work, client, down, batches, site)


PEEKS: dict[str, Any] = {
    "inputs": lambda w, batch, site: batch.inputs.mean(),
    "targets": lambda w, batch, site: batch.targets,
    "weights": lambda w, batch, site: batch.weights.sum(),
    "unpacked": lambda w, batch, site: [*batch],
    "replaced": lambda w, batch, site: batch._replace(key=()),
    "loss": lambda w, batch, site: site.objective.loss(w, batch),
    "training loss": lambda w, batch, site: site.objective.training_loss(w, batch),
    "derivative": lambda w, batch, site: site.objective.derivative(
        lambda at: site.objective.training_loss(at, batch), w
    ),
    "features": lambda w, batch, site: site.objective.features(w, batch.inputs),
    "all rows": lambda w, batch, site: site.all_rows.inputs,
    "gradient of all rows": lambda w, batch, site: site.objective.gradient(w, site.all_rows),
    "gradients stacked": lambda w, batch, site: torch.func.vmap(
        lambda at: site.objective.gradient(at, batch)
    )(tree.map_tree(lambda leaf: torch.stack([leaf, leaf]), w)),
    "second derivative": lambda w, batch, site: torch.func.grad(
        lambda at: tree.squared_norm(site.objective.gradient(at, batch))
    )(w),
}
OF_ALL_ROWS = ("all rows", "gradient of all rows")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", PEEKS)
def test_whoever_asks_for_rows_in_another_way_is_refused_by_name(what: str, engine: Any) -> None:
    class Peeking(Peeks):
        def peek(self, batch: Any, site: Any) -> Any:
            if (batch is None) == (what in OF_ALL_ROWS):  # those are there before the first step
                PEEKS[what](site.objective.initial_params(), batch, site)

    with pytest.raises(UserError, match=r"^privacy.unit=row cannot be used with method=peeks as it is set: "):
        simulate(private(Peeking(), None, noise=1.0), linear(), None, engine).play(1)


def test_an_exact_hessian_is_refused_and_adaptation_too() -> None:
    exact = private(PerFedAvg(hessian="exact"), None, noise=1.0)
    with pytest.raises(UserError, match="derivatives of gradients"):
        simulate(exact, linear(), None, "sequential").play(1)
    with pytest.raises(UserError, match="per-fedavg"):
        simulate(private(PerFedAvg(), None, noise=1.0), linear(), None, "sequential").evaluate()


def test_gradients_are_counted_where_they_are_taken() -> None:
    played = simulate(private(APFL(local_steps=2), None, noise=1.0), linear(), None, "sequential")
    with counting_gradients() as taken:
        played.advance()
    assert taken == [0] * (2 * 2 * len(FEDERATION))


def test_batch_normalisation_is_refused_with_what_to_use() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"layer '1' normalises with statistics of many rows; use group"):
        simulate(private(FedAvg(), None, noise=1.0), model, None, "sequential")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_engines_agree_on_models_of_all_kinds(dropout: float) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Dropout(dropout), nn.Linear(6, 3))
    method = private(APFL(local_steps=3), 4, noise=0.5)
    one, other = (simulate(method, model, 4, engine).play(2).predictors() for engine in ENGINES)
    for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True):
        assert (a - b).abs().max() < 1e-12


class Convolution(nn.Module):
    """One client at a time is computed with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 2, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x[:, None])).flatten(1))


class Recurrent(nn.Module):
    """A layer that torch cannot take for many rows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x[..., None])[0][:, -1])


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_cannot_be_taken_at_once_are_taken_one_by_one(engine: Any) -> None:
    torch.manual_seed(5)
    model, method = Recurrent(), FedAvg(local_steps=2)
    plain = simulate(method, model, None, engine).play(1)
    without = simulate(private(method, None, noise=0.0, clip=1e9), model, None, engine).play(1)
    for one, other in zip(tree.leaves(plain.predictors()), tree.leaves(without.predictors()), strict=True):
        assert (one - other).abs().max() < 1e-12


@pytest.mark.parametrize("factory", [linear, Convolution])
@pytest.mark.parametrize("clients", [[2], [0, 3]])
def test_engines_agree_on_clients_that_are_computed_alone(factory: Any, clients: list[int]) -> None:
    torch.manual_seed(4)
    model, data = factory(), FEDERATION.subset(clients)
    method = private(FedAvg(local_steps=3), 4, noise=0.5)
    one, other = (
        Simulation(method, model, data, batch_size=4, engine=engine, dtype=torch.float64).play(2).predictors()
        for engine in ENGINES
    )
    for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True):
        assert (a - b).abs().max() < 1e-12


def test_a_derivative_by_autograd_is_refused() -> None:
    objective = Objective(linear(), MULTINOMIAL)
    one = PrivateObjective(objective, RowPrivacy(noise=1.0), "test", torch.tensor(1.0))
    batch = Batch(torch.randn(2, 4), torch.tensor([0, 1]), torch.ones(2), torch.tensor(3))
    w = {name: value.requires_grad_() for name, value in objective.initial_params().items()}
    sealed: Any = SealedBatch("test", batch, 0)
    with pytest.raises(UserError, match="derivatives of gradients"):
        one.gradient(w, sealed)
