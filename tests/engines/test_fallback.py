"""Models that cannot be stacked run client by client and say so; those that would be wrong are refused."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.test_equality import SIZES, assert_equal_runs, federation
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
from idiolect.methods.efl import EFL
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


def test_a_branch_on_data_runs_client_by_client_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    module = Branching()
    with caplog.at_level(logging.INFO, logger="idiolect"):
        actual = run(module, (6,), "vectorised")
    assert actual.engine.way == Way(1, is_recorded=False)  # type: ignore[attr-defined]
    assert len(caplog.records) == 1
    assert "Branching" in caplog.text
    assert "data-dependent control flow" in caplog.text
    assert len(actual.clients().alpha) == len(SIZES)
    assert_equal_runs(run(module, (6,), "sequential"), actual, 1e-12)


def test_a_model_that_cannot_be_stacked_has_fisher_information_row_by_row() -> None:
    torch.manual_seed(0)
    module = Branching()
    data = federation((6,), codes=False)
    expected, actual = (
        Simulation(EFL(local_steps=2), module, data, batch_size=4, dtype=torch.float64, engine=engine).play(2)
        for engine in ("sequential", "vectorised")
    )
    assert_equal_runs(expected, actual, 1e-12)


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


class Noisy(nn.Module):
    """Dropout that is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.linear(x), 0.1)


class Counting(nn.Module):
    """It remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.register_buffer("calls", torch.tensor(0.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x)


def converged_spectral_norm() -> nn.Module:
    """Its power iteration writes what is there already."""
    layer = nn.Linear(6, 4)
    nn.init.ones_(layer.weight)
    return nn.utils.parametrizations.spectral_norm(layer)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Noisy(), "draws noise"),
        (nn.Sequential(nn.Linear(6, 4), nn.RReLU()), "draws noise"),
        (Counting(), "changes its own 'calls'"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), "changes its own"),
        (converged_spectral_norm(), "changes its own"),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4)), "changes its inputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_forward_pass_with_side_effects_is_refused(module: nn.Module, reason: str) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(UserError, match=reason):
        Simulation(APFL(), module, federation((6,), codes=False))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_embedding_that_rescales_itself_is_refused() -> None:
    module = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(15, 4))
    with pytest.raises(UserError, match=r"changes its own '0\.weight'"):
        Simulation(APFL(), module, federation((5,), codes=True))
