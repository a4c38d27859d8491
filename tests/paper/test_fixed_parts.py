"""Training a part of a model, and adapters (spec 8.15): P59 to P62, with every method."""

import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from idiolect.core import tree
from idiolect.core.fixed import training_only
from idiolect.core.method import Method
from idiolect.core.neighbours import Neighbours
from idiolect.core.objective import Batch, Mixture, Objective
from idiolect.core.schedule import Constant
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.local import Local
from idiolect.models import add_adapters, merge_adapters
from idiolect.models.adapters import AdapterSettings
from idiolect.runs.personal_model import as_module
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import uneven_classification
from paper.problems import ENGINES


class Body(nn.Module):
    """What comes before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(Body(), nn.Linear(5, 3)).double()


def featured(federation: Federation, body: nn.Module) -> Federation:
    """The same rows as the head sees them."""
    with torch.no_grad():
        inputs = body(federation.inputs)
    return Federation(
        inputs,
        federation.targets,
        federation.task,
        federation.names,
        federation.train,
        federation.validation,
        federation.test,
    )


def simulate(method: Method, model: nn.Module, federation: Federation, engine: EngineName, **options):
    settings = {"seed": 4, "batch_size": 4, "weight_decay": 0.05, "dtype": torch.float64}
    return Simulation(method, model, federation, engine=engine, **settings, **options)


def short(kind: type[Method]) -> Method:
    """The method with few local steps, where their number is not part of it."""
    try:
        return kind(local_steps=2)
    except ValidationError:
        return kind()


def all_members(predictor):
    if isinstance(predictor, Mixture):
        return predictor.members
    return (predictor.params,) if isinstance(predictor, Neighbours) else (predictor,)


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_p59_whatever_the_method_the_body_keeps_its_bits_and_the_head_is_trained_on_its_features(kind):
    """Linear probing is training the head alone, on rows as the fixed body shows them."""
    model, federation = network(), uneven_classification()
    body, head = copy.deepcopy(model[0]), nn.Sequential(nn.Identity(), copy.deepcopy(model[1]))
    whole = simulate(short(kind), model, federation, "vectorised", train="head")
    probe = simulate(short(kind), head, featured(federation, body), "sequential")
    results = [(whole.advance(), probe.advance()) for _ in range(2)]
    for ours, theirs in results:
        assert torch.equal(ours.down_bits, theirs.down_bits)
        assert torch.equal(ours.up_bits, theirs.up_bits)
    pairs = zip(tree.leaves(whole.predictors()), tree.leaves(probe.predictors()), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in pairs)
    moved = False
    for kind_of_model, predictor in whole.predictor(1).items():
        objective = whole.engine.setting.objective
        module = as_module(predictor, objective.module, objective.task, kind_of_model)
        for member in getattr(module, "members", [getattr(module, "model", module)]):
            assert torch.equal(member[0].linear.weight, body.linear.weight)
            assert torch.equal(member[0].linear.bias, body.linear.bias)
            moved = moved or not torch.equal(member[1].weight, head[1].weight)
        for params in all_members(predictor):
            assert set(params) == {"1.weight", "1.bias"}
    assert moved
    assert all(parameter.requires_grad for parameter in model.parameters())  # the user's own is left alone


@pytest.mark.parametrize("engine", ENGINES)
def test_p60_linear_probing_reaches_the_closed_form_of_ridge_regression(engine):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    rows = Rows.of_clients([torch.arange(30)])
    federation = Federation(x, y, Task("regression", 3), ("only",), rows, rows, rows)
    model, ridge = network(), 0.1
    features = torch.cat([model[0](x).detach(), torch.ones(30, 1, dtype=torch.float64)], 1)
    covariance = features.T @ features / 30
    rate = 1 / (float(torch.linalg.eigvalsh(covariance)[-1]) + ridge)
    method = FedAvg(learning_rate=Constant(rate), local_steps=100)
    simulation = Simulation(
        method,
        model,
        federation,
        batch_size=None,
        weight_decay=ridge,
        dtype=torch.float64,
        engine=engine,
        train="head",
    ).play(12)
    found = simulation.predictor(0)["global"]
    exact = torch.linalg.solve(covariance + ridge * torch.eye(6, dtype=torch.float64), features.T @ y / 30).T
    assert torch.allclose(torch.cat([found["1.weight"], found["1.bias"][:, None]], 1), exact, atol=1e-10)


SETTINGS = AdapterSettings(rank=2, scale=1.5)


def adapted(freeze_a: bool = True) -> nn.Module:
    settings = AdapterSettings(rank=2, scale=1.5, freeze_a=freeze_a)
    return training_only(add_adapters(network(), settings, seed=7), "adapter")


def rows_of(federation: Federation) -> Batch:
    weights = torch.full((len(federation.inputs),), 1 / len(federation.inputs), dtype=torch.float64)
    return Batch(federation.inputs, federation.targets, weights)


def test_p61_the_first_model_is_unchanged_and_only_b_has_a_gradient():
    federation, factor = uneven_classification(), 1.5 / 2
    plain, model = network(), adapted(freeze_a=False)
    assert torch.equal(plain(federation.inputs), model(federation.inputs))
    objective, batch = Objective(model, federation.task), rows_of(federation)
    slopes = objective.gradient(objective.initial_params(), batch)
    assert set(slopes) == {
        f"{layer}.adapter.{map_}" for layer in ("0.linear", "1") for map_ in ("down", "up")
    }
    whole = Objective(plain, federation.task)
    full = whole.gradient(whole.initial_params(), batch)
    for layer in ("0.linear", "1"):
        assert not slopes[f"{layer}.adapter.down"].any()
        down = model.get_parameter(f"{layer}.adapter.down")
        expected = factor * full[f"{layer}.weight"] @ down.T
        assert torch.allclose(slopes[f"{layer}.adapter.up"], expected, rtol=0, atol=1e-15)
    sizes = torch.cat(
        [(p * np.sqrt(p.shape[1])).flatten() for n, p in model.named_parameters() if "down" in n]
    )
    assert 0.5 < float(sizes.detach().std()) < 1.6  # normal with standard deviation 1 / sqrt(inputs)


def test_p61_merged_is_unmerged():
    federation = uneven_classification()
    model = adapted()
    simulation = simulate(FedAvg(local_steps=5), model, federation, "vectorised").play(3)
    objective = simulation.engine.setting.objective
    predictor = simulation.predictor(2)["global"]
    unmerged = objective.predict(predictor, federation.inputs)
    merged = as_module(predictor, objective.module, objective.task, "all")
    assert not any("adapter" in name for name in merged.state_dict())
    assert merged.state_dict().keys() == network().state_dict().keys()
    assert torch.allclose(merged(federation.inputs), unmerged, rtol=0, atol=1e-12)
    assert not torch.allclose(unmerged, network()(federation.inputs), atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_p62_averages_of_adapters_are_those_of_the_models_if_a_is_common_and_fixed(engine):
    """FedAvg's round is the mean of what clients have alone: of B always, of B A only with a common A."""
    federation = uneven_classification()
    shares = federation.train.sizes.double() / federation.train.sizes.sum()
    for freeze_a in (True, False):
        method, alone = FedAvg(local_steps=9, weighting="samples"), Local(local_steps=9)
        model = adapted(freeze_a)
        together = simulate(method, model, federation, engine).play(2)
        start = together.engine.setting.objective
        # The second round starts from what the first one gave, where A may have left its place.
        with torch.no_grad():
            first = simulate(method, model, federation, engine).play(1).predictor(0)["global"]
            for name, value in first.items():
                model.get_parameter(name).copy_(value)
        apart = simulate(alone, model, federation, engine)
        apart.round = 1
        apart.advance()
        average = merged_weights(together.predictor(0)["global"], start)
        each = [merged_weights(apart.predictor(i)["personal"], start) for i in range(len(federation))]
        gap = max(
            float(
                (average[name] - sum(s * own[name] for s, own in zip(shares, each, strict=True))).abs().max()
            )
            for name in average
        )
        assert gap < 1e-13 if freeze_a else gap > 1e-5, (freeze_a, gap)


def merged_weights(params, objective):
    return as_module(params, objective.module, objective.task, "somebody").state_dict()


def test_adapters_of_a_layer_at_two_places_are_one_and_merge_at_both():
    layer = nn.Linear(4, 4)
    model = add_adapters(nn.Sequential(layer, nn.Tanh(), layer), SETTINGS, seed=0)
    assert model[0] is model[2]
    with torch.no_grad():
        model[0].adapter.up += 0.3
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    expected = model(x)
    merged = merge_adapters(model)
    assert merged[0] is merged[2]
    assert torch.allclose(merged(x), expected, atol=1e-6)
