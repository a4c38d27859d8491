"""Models of rows of numbers: linear maps, and hidden layers between them."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.models.fitting import flat_size, one_input


class Linear(nn.Module):
    """One linear map of the flattened input, zero at the start: logistic or linear regression."""

    takes_rows_alone = True  # gradients of single rows can be had faster (`privacy/linear_rows.py`)

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, ...] -> [rows, outputs]."""
        return self.linear(x.flatten(1))


class Perceptron(nn.Module):
    """Hidden layers with ReLU on the flattened input."""

    takes_rows_alone = True

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [inputs, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, ...] -> [rows, outputs]."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.output(x)


class ElementwiseProduct(nn.Module):
    """w ⊙ x with one parameter, zero at the start; makes quadratics of regression rows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, size] -> [rows, size]."""
        return self.weight * x


def linear(federation: Federation, *, bias: bool = True) -> nn.Module:
    """Logistic (multinomial, binary) or linear regression, zero at the start."""
    return Linear(flat_size(federation, "linear"), federation.task.outputs, bias)


def mlp(federation: Federation, *, hidden: Sequence[int] = (200, 200)) -> nn.Module:
    """Hidden layers with ReLU; two of 200 as in the APFL paper."""
    if not all(size >= 1 for size in hidden):
        raise UserError(f"hidden={tuple(hidden)} must hold layer sizes of at least 1")
    return Perceptron(flat_size(federation, "mlp"), federation.task.outputs, hidden)


def dnn(federation: Federation, *, hidden: int = 128) -> nn.Module:
    """One hidden layer of 128 with ReLU, as in the pFedKM paper."""
    return mlp(federation, hidden=(hidden,))


def quadratic(federation: Federation) -> nn.Module:
    """The elementwise product for the quadratics data."""
    if one_input(federation, "quadratic").shape != federation.targets.shape:
        raise UserError("model quadratic needs inputs and targets of one shape: use it with data=quadratics")
    return ElementwiseProduct(federation.inputs.shape[1])
