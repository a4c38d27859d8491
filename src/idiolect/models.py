"""Models by name, for the data that they are to fit.

All work under `torch.func.functional_call`, `grad` and `vmap`, so that every client can have parameters of
its own in one batched call. Initial parameters are a pure function of (seed, model).
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import rng
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.plugins import Catalogue, call, kind_of


class Linear(nn.Module):
    """One linear map of the flattened input, zero at the start: logistic or linear regression."""

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


class Convolutional(nn.Module):
    """Two 5x5 convolutions, each with ReLU and 2x2 max-pooling, then one hidden layer."""

    def __init__(self, shape: Sequence[int], outputs: int, filters: tuple[int, int], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.first = nn.Conv2d(channels, filters[0], kernel_size=5)
        self.second = nn.Conv2d(filters[0], filters[1], kernel_size=5)
        left = ((height - 4) // 2 - 4) // 2, ((width - 4) // 2 - 4) // 2
        self.hidden = nn.Linear(filters[1] * left[0] * left[1], hidden)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, channels, height, width] -> [rows, outputs]."""
        for convolution in (self.first, self.second):
            x = nn.functional.max_pool2d(torch.relu(convolution(x)), 2)
        return self.output(torch.relu(self.hidden(x.flatten(1))))


class CharLSTM(nn.Module):
    """The next character after a sequence: embedding, LSTM layers, linear read-out of the last state.

    The LSTM's own equations in tensor operations, because `nn.LSTM` has no batching rule for `vmap`:
    (i, f, g, o) = W x + U h + b;  c = σ(f) c + σ(i) tanh(g);  h = σ(o) tanh(c).
    """

    def __init__(self, characters: int, outputs: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(characters, embedding))
        self.input_maps = nn.ModuleList(
            nn.Linear(embedding if layer == 0 else hidden, 4 * hidden) for layer in range(layers)
        )
        self.state_maps = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))
        self.output = nn.Linear(hidden, outputs)
        bound = 1 / math.sqrt(hidden)
        for maps in (self.input_maps, self.state_maps):
            for parameter in maps.parameters():
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, codes: Tensor) -> Tensor:
        """int64[rows, length] -> [rows, outputs]."""
        sequence = nn.functional.embedding(codes, self.embedding)
        for input_map, state_map in zip(self.input_maps, self.state_maps, strict=True):
            sequence = self._layer(input_map(sequence), state_map)
        return self.output(sequence[:, -1])

    @staticmethod
    def _layer(driven: Tensor, state_map: nn.Module) -> Tensor:
        """All states of one layer, from W x + b at every position [rows, length, 4 hidden]."""
        state = cell = torch.zeros_like(driven[:, 0, : driven.shape[-1] // 4])
        states = []
        for drive in driven.unbind(1):  # the derivative of an index would fill a whole sequence each time
            i, f, g, o = (drive + state_map(state)).chunk(4, dim=-1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


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
    return Linear(_flat_size(federation), federation.task.outputs, bias)


def mlp(federation: Federation, *, hidden: Sequence[int] = (200, 200)) -> nn.Module:
    """Hidden layers with ReLU; two of 200 as in the APFL paper."""
    if not all(size >= 1 for size in hidden):
        raise UserError(f"hidden={tuple(hidden)} must hold layer sizes of at least 1")
    return Perceptron(_flat_size(federation), federation.task.outputs, hidden)


def dnn(federation: Federation, *, hidden: int = 128) -> nn.Module:
    """One hidden layer of 128 with ReLU, as in the pFedKM paper."""
    return mlp(federation, hidden=(hidden,))


def cnn(federation: Federation, *, filters: tuple[int, int] = (20, 50), hidden: int = 512) -> nn.Module:
    """Two 5x5 convolutions (20 and 50 filters) with 2x2 max-pooling and a hidden layer of 512: APFL's."""
    shape = tuple(federation.inputs.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise UserError(
            f"model cnn needs images [channels, height, width] of at least 16 x 16, not rows of shape {shape}"
        )
    if len(filters) != 2 or min(*filters, hidden) < 1:
        raise UserError(f"filters={tuple(filters)} must be two counts and hidden={hidden} one, at least 1")
    return Convolutional(shape, federation.task.outputs, filters, hidden)


def char_lstm(federation: Federation, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Embedding of 8 and two LSTM layers of 256, as in the EFL paper; can be vmapped."""
    if federation.inputs.is_floating_point() or federation.inputs.ndim != 2:
        raise UserError(
            "model char-lstm needs sequences of character codes, such as those of data=shakespeare"
        )
    if min(embedding, hidden, layers) < 1:
        raise UserError(f"embedding={embedding}, hidden={hidden} and layers={layers} must be at least 1")
    outputs = federation.task.outputs
    characters = max(outputs, int(federation.inputs.max()) + 1)
    return CharLSTM(characters, outputs, embedding, hidden, layers)


def quadratic(federation: Federation) -> nn.Module:
    """The elementwise product for the quadratics data."""
    if federation.inputs.shape != federation.targets.shape:
        raise UserError("model quadratic needs inputs and targets of one shape: use it with data=quadratics")
    return ElementwiseProduct(federation.inputs.shape[1])


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "dnn": dnn,
    "cnn": cnn,
    "char-lstm": char_lstm,
    "quadratic": quadratic,
}


CATALOGUE: Catalogue[Callable[..., nn.Module]] = Catalogue(
    word="model",
    several="models",
    group="idiolect.models",
    own="your own as package.module:factory",
    flaw=lambda found: None if callable(found) else f"it must be a factory or a class, not {kind_of(found)}",
    built_in=MODELS,
)


def build_model(name: str, federation: Federation, *, seed: int = 0, **options: Any) -> nn.Module:
    """A model by name, or the user's own, by import path `package.module:factory` or an entry point.

    A user's factory is called with the federation and the options if it has a parameter `federation`,
    otherwise with the options alone (a subclass of nn.Module is such a factory).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.generator_seed(rng.key(seed, "model")))
        return _make(name, federation, options)


def outline_model(name: str, federation: Federation, **options: Any) -> nn.Module:
    """A model without its numbers, on the device `meta`: to look at its size before it takes memory."""
    with torch.device("meta"):
        return _make(name, federation, options)


def _make(name: str, federation: Federation, options: dict[str, Any]) -> nn.Module:
    model = call(CATALOGUE.find(name), options, f"model {name!r}", federation=federation)
    if not isinstance(model, nn.Module):
        raise UserError(f"model={name!r} gave {kind_of(model)}, not a torch.nn.Module")
    return model


def _flat_size(federation: Federation) -> int:
    if not federation.inputs.is_floating_point():
        raise UserError("sequences of character codes need the model char-lstm or one of your own")
    return federation.inputs[0].numel()
