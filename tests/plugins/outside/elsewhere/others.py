"""Data, a model, a codec, a metric and a plan."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from idiolect.codecs import Codec
from idiolect.codecs.bits import BitReader, Bits
from idiolect.codecs.codec import constant_bits, read_floats, write_floats
from idiolect.core import Batch, Cohort, Task
from idiolect.data.federation import Federation
from idiolect.data.tables import from_frame
from idiolect.evaluation.metrics import mean_over_rows, metric
from idiolect.participation import Uniform


def frame(clients: int, rows: int, seed: int) -> pd.DataFrame:
    """Clients whose classes lie apart in directions of their own."""
    random = np.random.default_rng(seed)
    tables = []
    for number in range(clients):
        x, direction = random.normal(size=(rows, 3)), random.normal(size=3)
        labels = np.where(x @ direction > 0, "yes", "no")
        tables.append(pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=labels, client=f"site-{number}"))
    return pd.concat(tables, ignore_index=True)


def blobs(clients: int = 4, *, rows: int = 30, seed: int) -> Federation:
    """Yes or no, for each client by a rule of its own."""
    return from_frame(frame(clients, rows, seed), client="client", target="y", seed=seed)


class TwoLayers(nn.Module):
    """A body and the head `output`."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(x)))


def two_layers(federation: Federation, width: int = 4) -> nn.Module:
    return TwoLayers(federation.inputs.shape[1], federation.task.outputs, width)


@dataclass(frozen=True)
class Rounded(Codec):
    """Numbers with some decimal places, as float32."""

    digits: int = 2

    def operator(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        return torch.round(rows, decimals=self.digits).to(torch.float32).to(rows.dtype)

    def count_bits(self, compressed: Tensor) -> Tensor:
        return constant_bits(32 * compressed.shape[1], compressed)

    def write(self, compressed: Tensor) -> Bits:
        return write_floats(compressed.to(torch.float32))

    def read(self, reader: BitReader, size: int, dtype: torch.dtype) -> Tensor:
        return read_floats(reader, size, torch.float32).to(dtype)


@metric(higher_is_better=False, applies_to=lambda task: task.kind == "binary")
def brier(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean squared error of the predicted probability."""
    return mean_over_rows((predictions[..., 0].sigmoid() - batch.targets).square(), batch)


@metric(higher_is_better=True, applies_to=lambda task: task.kind == "multiclass")
def sure(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean probability of the predicted class."""
    return mean_over_rows(predictions.softmax(-1).amax(-1), batch)


@dataclass(frozen=True)
class Nightly:
    """Each client in one of every so many rounds, by turns."""

    names: tuple[str, ...]
    every: int = 2

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        everybody = Uniform().cohort(seed, round_number, sizes)
        return everybody.select(everybody.ids % self.every == round_number % self.every)

    def present(self, round_number: int, clients: int) -> Tensor:
        return torch.ones(len(self.names), dtype=torch.bool)
