"""A model of one's own."""

import torch
from torch import Tensor, nn

from idiolect import Federation


class TwoLayers(nn.Module):
    """A body and the head `output`."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the head."""
        return self.output(torch.tanh(self.hidden(x)))


def two_layers(federation: Federation, width: int = 4) -> nn.Module:
    """As wide as one likes."""
    return TwoLayers(federation.inputs.shape[1], federation.task.outputs, width)
