"""Sums of squared gradients of rows, against one backward pass for each row."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from idiolect.core import tree
from idiolect.core.objective import Batch, Objective
from idiolect.core.task import Task
from idiolect.core.tree import Params
from idiolect.methods.efl.row_scores import _is_made_of_linear_layers, sum_of_squared_scores

ROWS, CLASSES = 21, 3


class Twice(nn.Module):
    """One layer that every row passes twice: its gradient is a sum of two outer products."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Two steps of a recurrent network."""
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Positions(nn.Module):
    """A layer that sees three positions of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(2, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the positions."""
        return self.outer(torch.tanh(self.inner(x.reshape(-1, 3, 2))).mean(1))


class BehindTheBack(nn.Module):
    """A layer whose weight is used outside of it too, which no look at the layers can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The inner layer, and its weight once more."""
        return self.outer(torch.tanh(self.inner(x)) @ self.inner.weight)


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, CLASSES)
    )


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, CLASSES)
    )


MODELS = {
    "linear": (lambda: nn.Linear(6, CLASSES), True),
    "perceptron": (perceptron, True),
    "convolution": (convolution, False),
    "layer used twice": (Twice, False),
    "layer on positions": (Positions, False),
    "weight used elsewhere": (BehindTheBack, False),
}


def problem(model: str, task: Task) -> tuple[Objective, Params, Batch]:
    torch.manual_seed(3)
    module = MODELS[model][0]().double()
    targets = (
        torch.randint(CLASSES, (ROWS,)) if task.is_classification else torch.randn(ROWS, CLASSES).double()
    )
    weights = torch.rand(ROWS).double()
    weights[4] = 0  # a row that only pads
    objective = Objective(module, task)
    return objective, objective.initial_params(), Batch(torch.randn(ROWS, 6).double(), targets, weights)


def one_row_after_the_other(objective: Objective, params: Params, rows: Batch) -> Params:
    """The definition, by ordinary automatic differentiation."""
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for x, y, weight in zip(rows.inputs, rows.targets, rows.weights, strict=True):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        output = functional_call(objective.module, leaves, (x[None],))
        objective.task.row_losses(output, y[None]).sum().backward()
        for name, leaf in leaves.items():
            total[name] += weight * leaf.grad**2
    return total


@pytest.mark.parametrize(
    "task", [Task("multiclass", CLASSES), Task("regression", CLASSES)], ids=lambda t: t.kind
)
@pytest.mark.parametrize("model", MODELS)
def test_equals_one_backward_pass_for_each_row(model: str, task: Task) -> None:
    objective, params, rows = problem(model, task)
    ours = tree.flatten(sum_of_squared_scores(objective, params, rows))
    theirs = tree.flatten(one_row_after_the_other(objective, params, rows))
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=0)


@pytest.mark.parametrize("model", MODELS)
def test_only_models_of_linear_layers_take_the_short_way(model: str) -> None:
    objective, _, rows = problem(model, Task("multiclass", CLASSES))
    assert _is_made_of_linear_layers(objective, rows.inputs.shape[1:]) == MODELS[model][1]


def test_stacked_clients_are_each_on_their_own() -> None:
    objective, params, rows = problem("perceptron", Task("multiclass", CLASSES))
    clients = [
        (tree.scale(params, factor), rows._replace(inputs=factor * rows.inputs))
        for factor in (1.0, 0.5, -2.0)
    ]
    stacked = vmap(lambda params, rows: sum_of_squared_scores(objective, params, rows))(
        *map(tree.stack, zip(*clients, strict=True))
    )
    for place, (own, own_rows) in enumerate(clients):
        alone = sum_of_squared_scores(objective, own, own_rows)
        assert torch.allclose(tree.flatten(tree.row(stacked, place)), tree.flatten(alone), rtol=1e-10)
