"""The objective: gradients against finite differences, and layers that are refused by name."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap

from idiolect.core import tree
from idiolect.core.objective import Batch, Mixture, Objective, Pass, seeded_module
from idiolect.core.task import Task
from idiolect.errors import UserError


def problem(task: Task) -> tuple[Objective, dict[str, torch.Tensor], Batch]:
    generator = torch.Generator().manual_seed(0)
    objective = Objective(
        seeded_module(
            lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, task.outputs)), 1, torch.float64
        ),
        task,
        weight_decay=0.3,
    )
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    if task.kind == "regression":
        targets = torch.randn(5, task.outputs, generator=generator, dtype=torch.float64)
    else:
        targets = torch.randint(0, max(task.outputs, 2), (5,), generator=generator)
    weights = torch.tensor([0.1, 0.4, 0.2, 0.3, 0.0], dtype=torch.float64)
    return objective, objective.initial_params(), Batch(inputs, targets, weights)


@pytest.mark.parametrize(
    "task", [Task("multiclass", 3), Task("binary", 1), Task("regression", 2), Task("next-character", 4)]
)
def test_gradient_is_the_finite_difference_of_the_loss(task: Task) -> None:
    objective, params, batch = problem(task)
    vector = tree.flatten(params)
    gradient = tree.flatten(objective.gradient(params, batch))
    for place in range(0, len(vector), 3):
        shift = torch.zeros_like(vector)
        shift[place] = 1e-6
        up = objective.loss(tree.unflatten(vector + shift, params), batch)
        down = objective.loss(tree.unflatten(vector - shift, params), batch)
        assert gradient[place] == pytest.approx(float(up - down) / 2e-6, rel=1e-5, abs=1e-8)


def test_rows_of_weight_zero_do_not_count() -> None:
    objective, params, batch = problem(Task("regression", 2))
    changed = batch._replace(targets=batch.targets.index_fill(0, torch.tensor([4]), 1e6))
    assert objective.loss(params, batch) == objective.loss(params, changed)


def test_a_mixture_adds_outputs() -> None:
    objective, params, batch = problem(Task("regression", 2))
    other = tree.scale(params, 2.0)
    mixture = Mixture((params, other), (torch.tensor(0.3), torch.tensor(0.7)))
    expected = 0.3 * objective.predict(params, batch.inputs) + 0.7 * objective.predict(other, batch.inputs)
    assert torch.allclose(objective.predict(mixture, batch.inputs), expected)


def test_initial_parameters_follow_from_the_seed_and_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (
        seeded_module(lambda: nn.Linear(2, 2), seed, torch.float32).weight for seed in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (nn.BatchNorm1d(3, track_running_stats=False), "'1' is a BatchNorm1d that keeps no statistics"),
        (nn.BatchNorm2d(3, track_running_stats=False), "'1' is a BatchNorm2d that keeps no statistics"),
    ],
)
def test_layers_that_would_be_silently_wrong_are_refused_by_name(layer: nn.Module, advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        Objective(nn.Sequential(nn.Linear(3, 3), layer), Task("multiclass", 3))


def test_harmless_relatives_of_refused_layers_are_accepted() -> None:
    Objective(nn.Sequential(nn.Linear(3, 3), nn.InstanceNorm1d(3), nn.Dropout(0.0)), Task("multiclass", 3))


def test_a_predictor_has_every_parameter_and_no_other() -> None:
    objective, params, batch = problem(Task("regression", 2))
    backwards = dict(reversed(params.items()))
    assert torch.equal(objective.predict(backwards, batch.inputs), objective.predict(params, batch.inputs))
    lacking = {name: value for name, value in params.items() if name != "2.bias"}
    with pytest.raises(UserError, match=r"a predictor of the model Sequential lacks its parameter '2\.bias'"):
        objective.predict(lacking, batch.inputs)
    with pytest.raises(UserError, match=r"has '2\.bais', which is none of its .*did you mean 2\.bias"):
        objective.predict({**lacking, "2.bais": params["2.bias"]}, batch.inputs)
    with pytest.raises(UserError, match=r"lacks its parameter '2\.bias'"):
        objective.gradient(lacking, batch)
    half = torch.tensor(0.5)
    with pytest.raises(UserError, match=r"lacks its parameter '2\.bias'"):
        objective.predict(Mixture((params, lacking), (half, half)), batch.inputs)


def test_the_names_of_a_predictor_are_looked_at_inside_of_vmap_too() -> None:
    objective, params, batch = problem(Task("regression", 2))
    stacked = tree.stack([params, params])
    stacked.pop("0.bias")
    with pytest.raises(UserError, match=r"lacks its parameter '0\.bias'"):
        vmap(lambda w: objective.predict(w, batch.inputs))(stacked)


def test_tied_parameters_are_given_once_under_the_name_they_are_known_by_and_fixed_ones_never() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    module[1].bias.requires_grad_(False)
    objective = Objective(module, Task("regression", 3))
    params = tree.scale(objective.initial_params(), 2.0)
    assert list(params) == ["0.weight", "0.bias"]
    x = torch.randn(2, 3)
    inner = x @ params["0.weight"].T + params["0.bias"]
    expected = inner @ params["0.weight"].T + module[1].bias
    assert torch.allclose(objective.predict(params, x), expected, atol=1e-6)
    with pytest.raises(UserError, match=r"lacks its parameter '0\.bias'"):
        objective.predict({"0.weight": params["0.weight"]}, x)
    with pytest.raises(UserError, match=r"has '1\.bias', which is none of its parameters"):
        objective.predict({**params, "1.bias": module[1].bias}, x)
    with pytest.raises(UserError, match=r"has '1\.weight', which is none of its parameters"):
        objective.predict({**params, "1.weight": params["0.weight"]}, x)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_gradient_with_its_loss_is_the_gradient_and_the_loss_of_one_pass(clip: float | None) -> None:
    objective, params, batch = problem(Task("multiclass", 3))
    objective.clip = clip
    head = {name: value for name, value in params.items() if name.startswith("2.")}
    body = {name: value for name, value in params.items() if name not in head}

    def both(scale: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return objective.gradient_and_loss(tree.scale(head, scale), batch, fixed=body)

    scales = torch.tensor([1.0, 0.5], dtype=torch.float64)
    stacked_slopes, stacked_losses = vmap(both)(scales)
    for place, scale in enumerate(scales):
        slopes, loss = both(scale)
        expected = objective.gradient(tree.scale(head, scale), batch, fixed=body)
        assert all(torch.equal(slopes[name], expected[name]) for name in head)
        assert loss == objective.training_loss({**body, **tree.scale(head, scale)}, batch)
        assert not loss.requires_grad
        torch.testing.assert_close(stacked_losses[place], loss)
        torch.testing.assert_close(tree.row(stacked_slopes, place), slopes)


def test_a_gradient_with_its_loss_of_an_empty_part_has_the_loss() -> None:
    objective, params, batch = problem(Task("multiclass", 3))
    slopes, loss = objective.gradient_and_loss({}, batch, fixed=params)
    assert slopes == {}
    assert loss == objective.training_loss(params, batch)


def test_the_gradient_in_a_layer_that_no_pass_goes_through_is_its_penalty() -> None:
    objective, _, batch = problem(Task("multiclass", 3))
    module = objective.module
    module.aside = nn.Linear(2, 2).double()
    module.forward = lambda x: module[2](module[1](module[0](x)))
    beside = Objective(module, objective.task, weight_decay=0.3)
    params = beside.initial_params()
    aside = {name: value for name, value in params.items() if name.startswith("aside")}
    fixed = {name: value for name, value in params.items() if name not in aside}
    slopes = beside.gradient(aside, batch, fixed=fixed)
    assert all(torch.equal(slopes[name], 0.3 * aside[name]) for name in aside)


def test_the_gradient_in_a_part_is_that_part_of_the_gradient() -> None:
    objective, params, batch = problem(Task("multiclass", 3))
    whole = objective.gradient(params, batch)
    head = {name: value for name, value in params.items() if name.startswith("2.")}
    body = {name: value for name, value in params.items() if name not in head}
    for part, fixed in ((head, body), (body, head)):
        found = objective.gradient(part, batch, fixed=fixed)
        assert found.keys() == part.keys()
        assert all(torch.equal(found[name], whole[name]) for name in part)


def test_a_loss_of_what_a_pass_gives_has_its_gradient() -> None:
    objective, params, batch = problem(Task("multiclass", 3))

    def loss(passed: Pass, batch: Batch) -> torch.Tensor:
        return (batch.weights[:, None] * passed.features**2).sum() + passed.outputs[0, 1]

    found = objective.gradient(params, batch, loss=loss)
    hidden = torch.tanh(batch.inputs @ params["0.weight"].T + params["0.bias"])
    assert torch.allclose(objective.features(params, batch.inputs), hidden, rtol=0, atol=1e-14)
    by_hand = {"2.weight": torch.zeros(3, 4).double(), "2.bias": torch.tensor([0.0, 1, 0]).double()}
    by_hand["2.weight"][1] = hidden[0]
    slope = 2 * batch.weights[:, None] * hidden
    slope[0] += params["2.weight"][1]
    slope = slope * (1 - hidden**2)
    by_hand |= {"0.weight": slope.T @ batch.inputs, "0.bias": slope.sum(0)}
    for name, value in params.items():
        expected = by_hand[name] + objective.weight_decay * value
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-12)
    stacked = vmap(lambda p: objective.gradient(p, batch, loss=loss))(tree.stack([params, params]))
    assert torch.allclose(stacked["0.weight"][1], found["0.weight"], rtol=0, atol=1e-14)


def test_features_need_a_head_that_is_used_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)))

    objective = Objective(Twice(), Task("regression", 2))
    with pytest.raises(UserError, match="the model's last layer 'layer' is used 2 times"):
        objective.features(objective.initial_params(), torch.ones(1, 2))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="ReLU has nothing to train"):
        Objective(nn.ReLU(), Task("regression", 2))


@pytest.mark.parametrize("frozen_by", ["batch", "kept"])
def test_fixed_normalisation_layers_keep_their_statistics(frozen_by: Any) -> None:
    """A head is trained over a body that stands still: with the batch's statistics, or with those kept."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    module = module.double()
    with torch.no_grad():
        module[1].running_mean.uniform_(-1, 1)
    objective, heard = Objective(module, Task("regression", 2)), []
    batch = Batch(torch.randn(6, 3).double(), torch.randn(6, 2).double(), torch.full((6,), 1 / 6).double())
    params = objective.initial_params()
    head = {name: params[name] for name in params if name[0] in "34"}
    body = {name: params[name] for name in params if name[0] in "01"}
    listening = objective.hearing(objective.statistics, heard, frozen_by=frozen_by)
    slopes = listening.gradient(head, batch, fixed=body)
    assert [moments.layer.mean for moments in heard[0]] == ["4.running_mean"]
    module.train()
    module[1].train(frozen_by == "batch")
    objective.task.row_losses(module(batch.inputs), batch.targets).mean().backward()
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, module.get_parameter(name).grad, rtol=1e-6, atol=1e-8)


def test_normalisation_layers_that_are_not_trained_rest() -> None:
    """Only the head is trained, in all of a run: its body predicts and trains with what was kept."""
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    module[:2].requires_grad_(False)
    objective, heard = Objective(module, Task("regression", 2)), []
    weights = torch.full((6,), 1 / 6, dtype=torch.float64)
    batch = Batch(torch.randn(6, 3).double(), torch.randn(6, 2).double(), weights)
    slopes = objective.hearing(objective.statistics, heard).gradient(objective.initial_params(), batch)
    assert heard == [[]]
    objective.task.row_losses(module.eval()(batch.inputs), batch.targets).mean().backward()
    assert slopes.keys() == {"3.weight", "3.bias"}
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, module.get_parameter(name).grad)
