"""Batch normalisation and dropout against torch's own layers and optimiser, one client after the other.

Spec: parts 1.1 to 1.3, identities P13 to P16, P18 to P23, P58. Clients have 1, 2, 7, 9, 12 rows and batches
of 4, so that all but one of them are padded where clients are stacked, and one never has two rows.
"""

import copy
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from idiolect.core.cohort import Cohort
from idiolect.core.normalisation import updated
from idiolect.core.objective import Batch, Objective
from idiolect.core.statistics import Variant
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines.batches import Batches
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local_sgd import LocalSGD
from idiolect.methods.personal_parts import FedBN, SiloBN
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from paper.problems import ENGINES

SIZES = (1, 2, 7, 9, 12)
WIDTH, CLASSES = 3, 3
SEED, BATCH, STEPS, ROUNDS, RATE = 4, 4, 3, 3, 0.2
CLOSE = {"rtol": 0.0, "atol": 1e-9}
each_engine = pytest.mark.parametrize("engine", ENGINES)


def federation() -> Federation:
    generator = torch.Generator().manual_seed(8)
    inputs = torch.randn(sum(SIZES), 4, generator=generator, dtype=torch.float64)
    inputs += torch.repeat_interleave(0.4 * torch.arange(5.0).double(), torch.tensor(SIZES))[:, None]
    targets = torch.randint(0, CLASSES, (sum(SIZES),), generator=generator)
    rows = Rows.of_clients(list(torch.arange(sum(SIZES)).split(SIZES)))
    names = tuple(f"client-{c}" for c in range(len(SIZES)))
    return Federation(inputs, targets, Task("multiclass", CLASSES), names, rows, rows, rows)


class Partly:
    """Everybody is asked, and completes from one to all steps."""

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        everybody = Uniform().cohort(seed, round_number, sizes)
        work = ((everybody.ids + round_number) % 3 + 1).double() / 3
        return Cohort(everybody.ids, work, everybody.replied, everybody.inclusion, everybody.population)

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(clients, dtype=torch.bool)


def network(**options: Any) -> nn.Module:
    norm = nn.BatchNorm1d(WIDTH, **options)
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return nn.Sequential(nn.Linear(4, WIDTH), norm, nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def simulate(method: Any, engine: EngineName, module: nn.Module, **options: Any) -> Simulation:
    settings = {"plan": Partly(), "seed": SEED, "batch_size": BATCH, **options}
    return Simulation(method, module, federation(), engine=engine, dtype=torch.float64, **settings)


def steps_of(client: int, round_number: int) -> int:
    cohort = Partly().cohort(SEED, round_number, torch.tensor(SIZES))
    cohort = Cohort(
        cohort.ids, cohort.work, cohort.replied, cohort.inclusion, cohort.population, torch.full((5,), STEPS)
    )
    return int(cohort.steps[client])


def batches_of(client: int, round_number: int) -> list[tuple[Tensor, Tensor]]:
    data = federation()
    drawing = Batches(data, SEED, BATCH)
    calls = torch.arange(steps_of(client, round_number))
    rows = drawing.draw(torch.tensor([client]), round_number, calls, min(BATCH, SIZES[client]))
    return [(data.inputs[row], data.targets[row]) for row in rows]


def torch_step(module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """One step of torch's own; a single row is normalised with the statistics that are there."""
    module.train(len(inputs) > 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    optimizer.zero_grad()
    functional.cross_entropy(module(inputs), targets).backward()
    optimizer.step()


def torch_averages(modules: list[nn.Module], variant: Variant) -> nn.Module:
    """The mean of all parameters and, unless they are kept, of the statistics."""
    mean = copy.deepcopy(modules[0])
    states = [module.state_dict() for module in modules]
    for name, value in mean.state_dict().items():
        stacked = torch.stack([state[name] for state in states])
        if not value.is_floating_point():
            value.copy_(stacked.max(0).values)
        elif name.endswith("running_var") and variant == "pooled":
            means = torch.stack([state[name.replace("running_var", "running_mean")] for state in states])
            value.copy_((stacked + (means - means.mean(0)).square()).mean(0))
        else:
            value.copy_(stacked.mean(0))
    return mean


def torch_fedavg(module: nn.Module, variant: Variant) -> tuple[nn.Module, list[nn.Module]]:
    """The shared model, and the clients' last copies."""
    shared, own = copy.deepcopy(module), [copy.deepcopy(module) for _ in SIZES]
    for round_number in range(ROUNDS):
        for client in range(len(SIZES)):
            kept = dict(own[client].named_buffers())
            local = own[client] = copy.deepcopy(shared)
            if variant == "silo":
                for name, buffer in local.named_buffers():
                    buffer.copy_(kept[name])
            for inputs, targets in batches_of(client, round_number):
                torch_step(local, inputs, targets)
        shared = torch_averages(own, variant)
    return shared, own


def assert_same(ours: dict[str, Tensor], module: nn.Module) -> None:
    theirs = module.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        torch.testing.assert_close(ours[name], value, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"momentum": 0.3, "eps": 0.1}], ids=str
)
@pytest.mark.parametrize("variant", ["average", "pooled", "silo"])
@each_engine
def test_fedavg_trains_what_torch_trains(
    engine: EngineName, variant: Variant, options: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    module = network(**options).double()
    before = copy.deepcopy(module.state_dict())
    simulation = simulate(FedAvg(lr=RATE, local_steps=STEPS), engine, module, statistics=variant).play(ROUNDS)
    shared, own = torch_fedavg(module, variant)
    for client in range(len(SIZES)):
        models = simulation.predictor(client)
        assert_same(models["localized"], own[client])
        if variant == "silo":
            for buffer, kept in zip(shared.buffers(), own[client].buffers(), strict=True):
                buffer.copy_(kept)
        assert_same(models["global"], shared)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


@each_engine
def test_a_personal_model_has_statistics_of_its_own_passes(engine: EngineName) -> None:
    """Ditto: w and v see the same batches, each with its own statistics; those of v stay at home."""
    torch.manual_seed(2)
    module = network().double()
    pull = 0.3
    simulation = simulate(Ditto(lr=RATE, proximal=pull, local_steps=STEPS), engine, module).play(ROUNDS)
    shared = copy.deepcopy(module)
    personal = [copy.deepcopy(module) for _ in SIZES]
    for round_number in range(ROUNDS):
        local = [copy.deepcopy(shared) for _ in SIZES]
        for client, (w, v) in enumerate(zip(local, personal, strict=True)):
            for inputs, targets in batches_of(client, round_number):
                torch_step(w, inputs, targets)
                old = [p.detach().clone() for p in v.parameters()]
                torch_step(v, inputs, targets)
                with torch.no_grad():
                    for p, before, centre in zip(v.parameters(), old, shared.parameters(), strict=True):
                        p -= RATE * pull * (before - centre)
        shared = torch_averages(local, "average")
    for client in range(len(SIZES)):
        models = simulation.predictor(client)
        assert_same(models["global"], shared)
        assert_same(models["localized"], local[client])
        assert_same(models["personal"], personal[client])


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows": (lambda: nn.BatchNorm1d(3), (3,)),
    "sequences": (lambda: nn.BatchNorm1d(3), (3, 5)),
    "images": (lambda: nn.BatchNorm2d(3), (3, 2, 4)),
    "volumes": (lambda: nn.BatchNorm3d(3), (3, 2, 2, 2)),
    "cumulative": (lambda: nn.BatchNorm1d(3, momentum=None), (3,)),
    "without parameters": (lambda: nn.BatchNorm2d(3, affine=False), (3, 2, 2)),
    "instances": (lambda: nn.InstanceNorm1d(3, track_running_stats=True, affine=True), (3, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_p13_padding_changes_neither_gradients_nor_statistics(name: str) -> None:
    torch.manual_seed(3)
    build, shape = LAYERS[name]
    size = torch.Size(shape).numel()
    module = nn.Sequential(
        nn.Linear(4, size),
        nn.Unflatten(1, shape),
        build(),
        nn.Tanh(),
        build(),
        nn.Flatten(),
        nn.Linear(size, 3),
    ).double()
    inputs, targets = torch.randn(6, 4).double(), torch.randint(0, 3, (6,))
    padded = Batch(
        torch.cat([inputs, 9 + torch.randn(3, 4).double()]),
        torch.cat([targets, torch.zeros(3, dtype=torch.int64)]),
        torch.cat([torch.full((6,), 1 / 6, dtype=torch.float64), torch.zeros(3).double()]),
    )
    objective, heard = Objective(module, Task("multiclass", 3)), []
    statistics = objective.statistics
    for _ in range(2):
        heard.clear()
        slopes = objective.hearing(statistics, heard).gradient(objective.initial_params(), padded)
        statistics = updated(statistics, heard[0])
    theirs = copy.deepcopy(module).train()
    theirs(inputs)
    functional.cross_entropy(theirs(inputs), targets).backward()
    for label, parameter in theirs.named_parameters():
        torch.testing.assert_close(slopes[label], parameter.grad, **CLOSE)
    for label, value in statistics.items():
        torch.testing.assert_close(value, theirs.state_dict()[label], **CLOSE)


def test_p14_one_row_is_normalised_with_what_was_kept_and_changes_nothing_of_it() -> None:
    torch.manual_seed(4)
    module = network().double()
    with torch.no_grad():
        module[1].running_mean.fill_(0.2)
        module[1].running_var.fill_(2.0)
        module[1].num_batches_tracked.fill_(5)
    objective, heard = Objective(module, Task("multiclass", CLASSES)), []
    row = Batch(torch.randn(4, 4).double(), torch.tensor([1, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0]).double())
    slopes = objective.hearing(objective.statistics, heard).gradient(objective.initial_params(), row)
    functional.cross_entropy(module.eval()(row.inputs[:1]), row.targets[:1]).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(slopes[name], parameter.grad, **CLOSE)
    kept = updated(objective.statistics, heard[0])
    assert all(torch.equal(value, objective.statistics[name]) for name, value in kept.items())
    assert int(kept["1.num_batches_tracked"]) == 5


def trained_parameters(simulation: Simulation) -> dict[str, Tensor]:
    model = simulation.global_model()
    assert isinstance(model, dict)
    return {name: value for name, value in model.items() if "running" not in name and "tracked" not in name}


@each_engine
def test_p15_variants_train_the_same_parameters_bit_for_bit(engine: EngineName) -> None:
    """Where no batch has a single row: nothing else reads statistics in training."""
    several = federation().subset([1, 2, 3, 4])
    torch.manual_seed(5)
    module = network().double()
    runs = {
        variant: Simulation(
            FedAvg(lr=RATE, local_steps=STEPS), module, several, engine=engine, dtype=torch.float64,
            batch_size=BATCH, plan=Partly(), statistics=variant,
        ).play(ROUNDS)
        for variant in ("average", "pooled", "silo")
    }  # fmt: skip
    first = trained_parameters(runs["average"])
    for run in runs.values():
        for name, value in trained_parameters(run).items():
            assert torch.equal(value, first[name])
    means = [run.predictor(0)["global"]["1.running_mean"] for run in runs.values()]
    variances = [run.predictor(0)["global"]["1.running_var"] for run in runs.values()]
    torch.testing.assert_close(means[0], means[1], **CLOSE)
    assert not torch.allclose(means[0], means[2])
    assert (variances[1] > variances[0]).all()


@each_engine
def test_p16_fedbn_keeps_what_torch_keeps_at_home(engine: EngineName) -> None:
    torch.manual_seed(12)
    module = network().double()
    run = simulate(FedBN(lr=RATE, local_steps=STEPS, weighting="uniform"), engine, module).play(ROUNDS)
    shared, own = copy.deepcopy(module), [copy.deepcopy(module) for _ in SIZES]
    for round_number in range(ROUNDS):
        for client in range(len(SIZES)):
            norm = own[client][1]
            own[client] = copy.deepcopy(shared)
            own[client][1] = norm
            for inputs, targets in batches_of(client, round_number):
                torch_step(own[client], inputs, targets)
        shared = torch_averages(own, "average")
    for client, local in enumerate(own):
        models = run.predictor(client)
        assert_same(models["localized"], local)
        shared[1] = local[1]
        assert_same(models["personal"], shared)
    silo = simulate(SiloBN(lr=RATE, local_steps=STEPS, weighting="uniform"), engine, module).play(ROUNDS)
    assert not torch.allclose(silo.predictor(3)["personal"]["0.weight"], models["personal"]["0.weight"])


@each_engine
def test_p15_fedavg_that_keeps_statistics_is_silobn_and_without_parameters_fedbn(engine: EngineName) -> None:
    for options in ({}, {"affine": False}):
        torch.manual_seed(13)
        module, work = network(**options).double(), {"lr": RATE, "local_steps": STEPS, "weighting": "uniform"}
        kept = simulate(FedAvg(**work), engine, module, statistics="silo").play(ROUNDS).predictors()["global"]
        others = [SiloBN(**work)] if not options else [SiloBN(**work), FedBN(**work)]
        for method in others:
            theirs = simulate(method, engine, module).play(ROUNDS).predictors()["personal"]
            assert all(torch.equal(theirs[name], value) for name, value in kept.items())


def test_p18_the_bias_before_normalisation_is_dead_and_weights_are_orthogonal_to_their_gradient() -> None:
    torch.manual_seed(6)
    rows = Batch(
        torch.randn(8, 4).double(), torch.randint(0, 3, (8,)), torch.full((8,), 1 / 8, dtype=torch.float64)
    )
    for eps in (1e-5, 1e-16):
        objective = Objective(network(eps=eps).double(), Task("multiclass", CLASSES))
        params = objective.initial_params()
        slopes = objective.gradient(params, rows)
        assert float(slopes["0.bias"].abs().max()) < 1e-14
        along = (slopes["0.weight"] * params["0.weight"]).sum(1).abs().max()
        assert (float(along) < 1e-13) == (eps == 1e-16)


@each_engine
def test_p19_steps_that_are_not_taken_change_nothing(engine: EngineName) -> None:
    torch.manual_seed(7)
    module = network().double()
    simulation = simulate(FedAvg(lr=RATE, local_steps=STEPS), engine, module, statistics="silo").play(1)
    for client in range(1, len(SIZES)):
        local = copy.deepcopy(module)
        for inputs, targets in batches_of(client, 0):
            torch_step(local, inputs, targets)
        assert int(local[1].num_batches_tracked) == steps_of(client, 0)
        assert_same(simulation.predictor(client)["localized"], local)
    assert len({steps_of(client, 0) for client in range(1, len(SIZES))}) == STEPS


def test_p20_running_means_average_exactly_and_variances_lack_the_spread_of_means() -> None:
    """Clients of all rows in one batch, momentum 1: what is kept is what was seen."""
    data = federation().subset([2, 3, 4])
    torch.manual_seed(8)
    module = network(momentum=1.0).double()
    seen = []
    for client in range(3):
        values = module[0](data.inputs[data.train.of(client)])
        seen.append((values.mean(0), values.var(0)))
    shares = torch.tensor([7.0, 9.0, 12.0]).double() / 28
    means, variances = (torch.stack(part) for part in zip(*seen, strict=True))
    mean = shares @ means
    for variant, missing in (("average", 0.0), ("pooled", shares @ (means - mean).square())):
        run = Simulation(
            FedAvg(lr=RATE, local_steps=1, weighting="samples"), module, data, dtype=torch.float64,
            batch_size=None, statistics=variant,
        ).play(1)  # fmt: skip
        model = run.global_model()
        torch.testing.assert_close(model["1.running_mean"], mean.detach(), **CLOSE)
        torch.testing.assert_close(model["1.running_var"], (shares @ variances + missing).detach(), **CLOSE)


@each_engine
def test_p21_counters_are_whole_and_the_largest(engine: EngineName) -> None:
    simulation = simulate(FedAvg(lr=RATE, local_steps=STEPS, weighting="samples"), engine, network().double())
    longest = 0
    for round_number in range(ROUNDS):
        simulation.advance()
        longest += max(steps_of(client, round_number) for client in range(1, len(SIZES)))
        counter = simulation.global_model()["1.num_batches_tracked"]
        assert counter.dtype == torch.int64
        assert int(counter) == longest


def test_p22_evaluation_is_an_affine_map() -> None:
    torch.manual_seed(9)
    module = network().double()
    run = simulate(FedAvg(lr=RATE, local_steps=STEPS), "vectorised", module).play(2)
    model, inputs = run.global_model(), run.federation.inputs
    scale = model["1.weight"] / (model["1.running_var"] + module[1].eps).sqrt()
    folded = {
        "0.weight": scale[:, None] * model["0.weight"],
        "0.bias": scale * (model["0.bias"] - model["1.running_mean"]) + model["1.bias"],
    }
    hidden = torch.tanh(inputs @ folded["0.weight"].T + folded["0.bias"])
    expected = hidden @ model["3.weight"].T + model["3.bias"]
    torch.testing.assert_close(run.engine.setting.objective.predict(model, inputs), expected, **CLOSE)


def test_p58_an_outer_step_beyond_the_average_moves_parameters_and_no_statistics() -> None:
    torch.manual_seed(10)
    module = network().double()
    method = LocalSGD(learning_rate=RATE, local_steps=STEPS, outer_step=2.5)
    run = simulate(method, "vectorised", module).play(1)
    average = simulate(FedAvg(lr=RATE, local_steps=STEPS), "vectorised", module).play(1)
    for name, value in average.global_model().items():
        is_statistic = "running" in name or "tracked" in name
        assert torch.allclose(run.global_model()[name], value, rtol=0, atol=1e-12) == is_statistic


# ------------------------------------------------------------------ dropout, by Python's own integers
MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def noise(client: int, round_number: int, call: int, layer: int, rows: int, units: int) -> Tensor:
    state = mix(SEED ^ zlib.crc32(b"dropout"))
    for part in (client, round_number, call, layer):
        state = mix(state ^ mix(part))
    draws = [
        (mix((state + place * 0x9E3779B97F4A7C15) & MASK) >> 11) * 2.0**-53 for place in range(rows * units)
    ]
    return torch.tensor(draws, dtype=torch.float64).reshape(rows, units)


class ByHand(nn.Module):
    """A network whose masks are given."""

    def __init__(self, layers: nn.Sequential, p: float) -> None:
        super().__init__()
        self.layers, self.p = layers, p
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        masks = iter(self.masks)
        for layer in self.layers:
            x = x * (next(masks) >= self.p) / (1 - self.p) if isinstance(layer, nn.Dropout) else layer(x)
        return x


@each_engine
def test_p23_noise_follows_from_seed_client_round_call_layer_and_place(engine: EngineName) -> None:
    torch.manual_seed(11)
    p = 0.4
    module = nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Dropout(p), nn.Linear(5, 6), nn.Dropout(p), nn.Linear(6, CLASSES)
    ).double()
    simulation = simulate(FedAvg(lr=RATE, local_steps=STEPS), engine, module).play(ROUNDS)
    shared = ByHand(copy.deepcopy(module), p)
    for round_number in range(ROUNDS):
        local = [copy.deepcopy(shared) for _ in SIZES]
        for client, own in enumerate(local):
            for call, (inputs, targets) in enumerate(batches_of(client, round_number)):
                own.masks = [
                    noise(client, round_number, call, layer, len(inputs), units)
                    for layer, units in enumerate((5, 6))
                ]
                torch_step(own, inputs, targets)
        shared = ByHand(torch_averages([own.layers for own in local], "average"), p)
    for client in range(len(SIZES)):
        models = simulation.predictor(client)
        assert_same(models["localized"], local[client].layers)
        assert_same(models["global"], shared.layers)


def test_p23_two_models_on_one_batch_share_their_noise() -> None:
    """Ditto without its pull: v is what w would be if it were never averaged."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES)).double()
    run = simulate(Ditto(lr=RATE, proximal=0.0, local_steps=STEPS), "vectorised", module).play(1)
    clients = run.predictors()
    for name, value in clients["localized"].items():
        torch.testing.assert_close(clients["personal"][name], value, **CLOSE)


@each_engine
def test_p60_a_probe_sees_fixed_normalisation_as_it_predicts(engine: EngineName) -> None:
    """A trained head on a fixed body is a linear model of the body's features in evaluation."""
    rows = federation()
    torch.manual_seed(5)
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()).double()
    body.train()(3 * rows.inputs + 1)  # statistics that are not those of the rows
    head = nn.Linear(6, CLASSES).double()
    whole = nn.Sequential(body, copy.deepcopy(head))
    options: dict[str, Any] = {
        "seed": SEED, "batch_size": BATCH, "plan": Partly(), "engine": engine, "dtype": torch.float64
    }  # fmt: skip
    method = FedAvg(learning_rate=RATE, local_steps=STEPS)
    probe = Simulation(method, whole, rows, train="head", **options)
    with torch.no_grad():
        features = replace(rows, inputs=body.eval()(rows.inputs))
    linear = Simulation(method, head, features, **options)
    for _ in range(ROUNDS):
        probe.advance()
        linear.advance()
    assert probe.server.w.keys() == {"1.weight", "1.bias"}  # and nothing else crosses
    for name, value in linear.server.w.items():
        torch.testing.assert_close(probe.server.w[f"1.{name}"], value, **CLOSE)
