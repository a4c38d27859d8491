"""Models that cannot be stacked run in processes, and say so; those that would be wrong are refused."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.test_equality import SIZES, assert_equal_runs, federation
from idiolect.engines.processes import Processes
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
from idiolect.simulation import Simulation


class Branching(nn.Module):
    """What it computes depends on the values of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else self.linear(2 * x)


class Recurrent(nn.Module):
    """torch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)
        self.output = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(x)[0][:, -1])


def run(module: nn.Module, shape: tuple[int, ...], engine: Any) -> Simulation:
    data = federation(shape, codes=False)
    return Simulation(
        APFL(local_steps=2), module, data, batch_size=4, dtype=torch.float64, engine=engine
    ).play(2)


def test_a_branch_on_data_runs_in_processes_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    module = Branching()
    with caplog.at_level(logging.INFO, logger="idiolect"):
        actual = run(module, (6,), "vectorised")
    assert isinstance(actual.engine, Processes)
    assert len(caplog.records) == 1
    assert "Branching" in caplog.text
    assert "data-dependent control flow" in caplog.text
    assert len(actual.clients().alpha) == len(SIZES)
    assert_equal_runs(run(module, (6,), "sequential"), actual, 1e-12)


def test_torchs_lstm_runs_whichever_way_it_can() -> None:
    torch.manual_seed(0)
    module = Recurrent()
    assert_equal_runs(run(module, (5, 2), "sequential"), run(module, (5, 2), "vectorised"), 1e-9)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(6), nn.InstanceNorm1d(6, track_running_stats=True), nn.Dropout(0.5)]
)
def test_layers_that_would_be_silently_wrong_are_refused_by_name(layer: nn.Module) -> None:
    module = nn.Sequential(layer, nn.Linear(6, 4))
    with pytest.raises(UserError, match=f"layer '0' is a {type(layer).__name__}"):
        Simulation(APFL(), module, federation((6,), codes=False))
