"""Models of images [channels, height, width]: convolutional networks, plain and residual."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.models.fitting import image_shape, require_counts

Norm = Literal["group", "batch"]

GROUPED_CHANNELS = 8  # in each group of a group normalisation, where the width is a multiple of it


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
            x = F.max_pool2d(torch.relu(convolution(x)), 2)
        return self.output(torch.relu(self.hidden(x.flatten(1))))


class LeNet(nn.Module):
    """LeNet-5 as it is written today: with ReLU, max-pooling and a linear output.

    Images below 32 x 32, the size that it was made for, are padded by two pixels at each side.
    """

    def __init__(self, shape: Sequence[int], outputs: int) -> None:
        super().__init__()
        channels, height, width = shape
        padding = 2 if min(height, width) < 32 else 0
        self.first = nn.Conv2d(channels, 6, kernel_size=5, padding=padding)
        self.second = nn.Conv2d(6, 16, kernel_size=5)
        left = [((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width)]
        self.hidden = nn.ModuleList([nn.Linear(16 * math.prod(left), 120), nn.Linear(120, 84)])
        self.output = nn.Linear(84, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, channels, height, width] -> [rows, outputs]."""
        for convolution in (self.first, self.second):
            x = F.max_pool2d(torch.relu(convolution(x)), 2)
        x = x.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.output(x)


class ResidualBlock(nn.Module):
    """relu(x + F(x)), where F is two 3x3 convolutions with normalisations; x is projected to F's shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = _normalisation(norm, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = _normalisation(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, _normalisation(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, inputs, height, width] -> [rows, outputs, height / stride, width / stride]."""
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.shortcut(x) + self.second_norm(self.second(y)))


class ResNet(nn.Module):
    """A residual network for small images: a 3x3 convolution, four stages of blocks, the mean over pixels.

    Each stage after the first halves the image and doubles the channels.
    """

    def __init__(self, channels: int, outputs: int, width: int, blocks: Sequence[int], norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.first_norm = _normalisation(norm, width)
        self.stages = nn.ModuleList()
        before = width
        for stage, count in enumerate(blocks):
            after = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (count - 1)
            inputs = [before] + [after] * (count - 1)
            made = [ResidualBlock(i, after, s, norm) for i, s in zip(inputs, strides, strict=True)]
            self.stages.append(nn.Sequential(*made))
            before = after
        self.output = nn.Linear(before, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, channels, height, width] -> [rows, outputs]."""
        x = torch.relu(self.first_norm(self.first(x)))
        for stage in self.stages:
            x = stage(x)
        return self.output(x.mean((-2, -1)))


def _normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(channels // math.gcd(channels, GROUPED_CHANNELS), channels)


def cnn(federation: Federation, *, filters: tuple[int, int] = (20, 50), hidden: int = 512) -> nn.Module:
    """Two 5x5 convolutions (20 and 50 filters) with 2x2 max-pooling and a hidden layer of 512: APFL's."""
    return _convolutional(federation, "cnn", filters, hidden)


def cnn4(federation: Federation, *, filters: tuple[int, int] = (32, 64), hidden: int = 512) -> nn.Module:
    """The same with 32 and 64 filters: the four layers of PFLlib's comparisons, which go back to FedAvg's."""
    return _convolutional(federation, "cnn4", filters, hidden)


def lenet(federation: Federation) -> nn.Module:
    """LeNet-5: two 5x5 convolutions (6 and 16 filters), hidden layers of 120 and 84."""
    return LeNet(image_shape(federation, "lenet", 12), federation.task.outputs)


def resnet(
    federation: Federation, *, depth: Literal[10, 18, 34] = 18, width: int = 64, norm: Norm = "group"
) -> nn.Module:
    """A residual network with 10, 18 or 34 layers; `width`: channels of the first stage."""
    blocks = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
    if depth not in blocks or norm not in ("group", "batch"):
        raise UserError(f"depth={depth} must be 10, 18 or 34, and norm={norm} group or batch")
    require_counts(width=width)
    channels, _, _ = image_shape(federation, "resnet", 8)
    return ResNet(channels, federation.task.outputs, width, blocks[depth], norm)


def _convolutional(federation: Federation, name: str, filters: tuple[int, int], hidden: int) -> nn.Module:
    shape = image_shape(federation, name, 16)
    if len(filters) != 2 or min(*filters, hidden) < 1:
        raise UserError(f"filters={tuple(filters)} must be two counts and hidden={hidden} one, at least 1")
    return Convolutional(shape, federation.task.outputs, filters, hidden)
