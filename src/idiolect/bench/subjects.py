"""What is measured: federations of noise, whose values do not matter here, and models of every kind."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from idiolect import models
from idiolect.core.parts import last_module
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows

BATCH_SIZE = 20
CHARACTERS = 80  # different ones, and as many in a row
VALIDATION_SHARE = 0.2  # of a client's rows; some methods look at them in a round

ModelFactory = Callable[[Federation], nn.Module]


def noise(shape: tuple[int, ...], sizes: Sequence[int]) -> Federation:
    """Clients with random rows of ten classes."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(sizes), *shape, generator=generator)
    targets = torch.randint(10, (sum(sizes),), generator=generator)
    return _federation(inputs, targets, Task("multiclass", 10), sizes)


def characters(length: int, sizes: Sequence[int]) -> Federation:
    """Clients with random characters, and one that comes next."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(CHARACTERS, (sum(sizes), length), generator=generator)
    targets = torch.randint(CHARACTERS, (sum(sizes),), generator=generator)
    return _federation(inputs, targets, Task("next-character", CHARACTERS), sizes)


def _federation(inputs: Tensor, targets: Tensor, task: Task, sizes: Sequence[int]) -> Federation:
    rows = torch.arange(sum(sizes)).split(list(sizes))
    owned = Rows.of_clients(list(rows))
    some = Rows.of_clients([own[: math.ceil(VALIDATION_SHARE * len(own))] for own in rows])
    names = tuple(str(client) for client in range(len(sizes)))
    return Federation(inputs, targets, task, names, owned, some, owned)


def uneven_steps(clients: int, mean: int) -> list[int]:
    """Steps of an epoch where clients differ as in practice: most have little data, a few have most of it."""
    shares = torch.randn(clients, generator=torch.Generator().manual_seed(0)).exp()
    return (shares / shares.mean() * mean).round().clamp_min(1).int().tolist()


def small_cnn(federation: Federation) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64 filters."""
    return models.cnn(federation, filters=(32, 64))


def with_batch_norm(model: ModelFactory) -> ModelFactory:
    """The same model with batch normalisation after every layer but the last."""

    def normalised(federation: Federation) -> nn.Module:
        module = model(federation)
        layers = {
            name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
        }
        layers.pop(last_module(module))
        for name, layer in layers.items():
            norm = (
                nn.BatchNorm1d(layer.out_features)
                if isinstance(layer, nn.Linear)
                else nn.BatchNorm2d(layer.out_channels)
            )
            module.set_submodule(name, nn.Sequential(layer, norm))
        return module

    return normalised


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norm, added to what comes in."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(4, after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, before, height, width] -> [rows, after, height / stride, width / stride]."""
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A small residual network with group norm: three blocks of 16, 32 and 64 channels."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)
        )
        self.output = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, 3, height, width] -> [rows, outputs]."""
        return self.output(self.blocks(self.stem(x)).mean((2, 3)))


def resnet18(federation: Federation) -> nn.Module:
    """ResNet-18 with group norm, a quarter as wide as usual."""
    return models.resnet(federation, depth=18, width=16, norm="group")


class Transformer(nn.Module):
    """Two encoder layers of width 64 with four heads; the last position predicts."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(64, outputs)

    def forward(self, codes: Tensor) -> Tensor:
        """int64[rows, length] -> [rows, outputs]."""
        return self.output(self.encoder(self.embedding(codes))[:, -1])


class Subject(NamedTuple):
    """A model with its data, and the local steps of each client in a round."""

    model: ModelFactory
    federation: Federation
    local_steps: int


def subjects(clients: int, local_steps: int) -> dict[str, Subject]:
    """One model of every kind. Those that take long have a tenth of the clients and fewer steps."""
    few, steps, fewest = max(2, clients // 10), max(1, local_steps // 4), max(1, local_steps // 10)
    flat = noise((784,), [local_steps * BATCH_SIZE] * clients)
    images = noise((3, 32, 32), [steps * BATCH_SIZE] * few)
    return {
        "linear": Subject(models.linear, flat, local_steps),
        "mlp": Subject(models.mlp, flat, local_steps),
        "cnn": Subject(small_cnn, images, steps),
        "resnet": Subject(lambda federation: ResNet(federation.task.outputs), images, steps),
        "resnet18": Subject(resnet18, images, steps),
        "char_lstm": Subject(models.char_lstm, characters(CHARACTERS, [fewest * BATCH_SIZE] * few), fewest),
        "transformer": Subject(
            lambda federation: Transformer(federation.task.outputs),
            characters(20, [steps * BATCH_SIZE] * (2 * few)),
            steps,
        ),
    }
