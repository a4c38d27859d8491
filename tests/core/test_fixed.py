"""The fixed part of a model: what is in it, and that nobody but its module has it."""

import pytest
import torch
from torch import nn

from idiolect.core.fixed import fingerprint, fixed_params, put_weights, trained_params, training_only
from idiolect.core.objective import Batch, Objective
from idiolect.core.parts import names_by_rule
from idiolect.core.task import Task
from idiolect.errors import UserError


class Tied(nn.Module):
    """An embedding that is also the output's weight, and a layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.layer = nn.Linear(3, 3)
        self.again = self.layer
        self.output = nn.Linear(3, 5)
        self.output.weight = self.embedding.weight

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.output(self.again(torch.tanh(self.layer(self.embedding(codes)))).mean(1))


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("part", "trained"),
    [
        ("head", ["2.weight", "2.bias"]),
        ("body", ["0.weight", "0.bias"]),
        (("*.bias",), ["0.bias", "2.bias"]),
        (("0.*", "2.weight"), ["0.weight", "0.bias", "2.weight"]),
    ],
)
def test_everything_but_a_part_is_fixed(part, trained):
    model = chain()
    own = training_only(model, part)
    assert list(trained_params(own)) == trained
    assert set(fixed_params(own)) == {n for n, _ in model.named_parameters()} - set(trained)
    assert all(p.requires_grad for p in model.parameters())


def test_what_the_users_module_froze_stays_fixed():
    model = chain()
    model[0].weight.requires_grad_(False)
    assert list(trained_params(training_only(model, ("0.*",)))) == ["0.bias"]
    assert names_by_rule("body", model) == ("0.bias",)
    with pytest.raises(UserError, match="nothing to train"):
        trained_params(training_only(model, ("0.weight",)))


@pytest.mark.parametrize(
    ("part", "trained"),
    [
        (("output.weight",), ["embedding.weight"]),
        (("again.*",), ["layer.weight", "layer.bias"]),
        (("output.bias",), ["output.bias"]),
    ],
)
def test_a_shared_parameter_is_trained_if_one_of_its_names_is_meant(part, trained):
    own = training_only(Tied(), part)
    assert list(trained_params(own)) == trained
    objective = Objective(own, Task("multiclass", 5))
    codes = torch.tensor([[0, 3, 4], [1, 1, 2]])
    params = objective.initial_params()
    assert torch.equal(objective.predict(params, codes), own(codes))
    moved = {name: value + 0.1 for name, value in params.items()}
    with torch.no_grad():
        expected = training_only(own, part)
        for name, value in moved.items():
            expected.get_parameter(name).copy_(value)
    assert torch.allclose(objective.predict(moved, codes), expected(codes))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (("3.*",), "pattern '3.\\*', which matches no parameter"),
        ("adapter", "train=adapter is not possible: the model Sequential has no such part"),
        ("norm", "train=norm is not possible"),
    ],
)
def test_a_part_that_is_not_there_is_refused(part, message):
    with pytest.raises(UserError, match=message):
        training_only(chain(), part)


def test_a_fixed_head_is_no_part_of_a_method():
    with pytest.raises(UserError, match=r"the head of the model, 2.weight, 2.bias, is fixed"):
        names_by_rule("head", training_only(chain(), "body"))


def test_a_model_of_which_nothing_is_trained_is_refused():
    model = chain().requires_grad_(False)
    with pytest.raises(UserError, match="Sequential has nothing to train"):
        Objective(model, Task("multiclass", 2))


def test_weights_of_another_model_of_the_kind():
    one, other = training_only(chain(), "head"), training_only(chain(), "head")
    put_weights(one, fixed_params(other))
    assert fingerprint(fixed_params(one)) == fingerprint(fixed_params(other))
    assert not torch.equal(one[2].weight, other[2].weight)
    with pytest.raises(UserError, match=r"lacks its parameter '0.weight'"):
        put_weights(one, {})
    with pytest.raises(UserError, match=r"'2.weight' of the shape \(1,\) is no part"):
        put_weights(one, {**fixed_params(other), "2.weight": torch.zeros(1)})


def test_a_fingerprint_is_of_names_shapes_types_and_bits():
    base = {"a": torch.zeros(2, 3), "b": torch.ones(2)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(2)},
        {"a": torch.zeros(2, 3), "c": torch.ones(2)},
        {"a": -torch.zeros(2, 3), "b": torch.ones(2)},
        {"a": torch.zeros(2, 3), "b": torch.ones(2, dtype=torch.float64)},
    ]
    assert len({fingerprint(each) for each in [base, *others]}) == 5
    assert fingerprint(base) == fingerprint({"b": torch.ones(2), "a": torch.zeros(2, 3)})


def normalising() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_a_fixed_normalisation_layer_normalises_with_what_it_remembers_and_remembers_nothing_new():
    model = normalising()
    with torch.no_grad():
        model[1].running_mean += 0.7
    fixed = training_only(model, "head")
    assert set(fixed_params(fixed)) == {
        *(f"0.{name}" for name in ("weight", "bias")),
        *(f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    }
    objective = Objective(fixed, Task("multiclass", 2))
    assert not objective.statistics
    assert Objective(model, Task("multiclass", 2)).statistics
    params = objective.initial_params()
    batch = Batch(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), torch.full((5,), 0.2))
    loss = nn.functional.cross_entropy(fixed.eval()(batch.inputs), batch.targets)
    expected = torch.autograd.grad(loss, list(fixed[3].parameters()))
    found = objective.gradient(params, batch)
    for name, value in zip(("3.weight", "3.bias"), expected, strict=True):
        assert torch.allclose(found[name], value, atol=1e-6)
    assert int(fixed[1].num_batches_tracked) == 0
