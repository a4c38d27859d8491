"""Models that cannot be stacked run client by client and say so; those that would be wrong are refused."""

import logging
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.blocks import Function
from engines.test_equality import SIZES, assert_equal_runs, federation
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
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


class Centred(nn.Module):
    """Batch normalisation by hand: what it makes of a row depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        nn.init.zeros_(self.linear.weight)  # at first nothing is to be seen of it

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


class Summing(nn.Module):
    """What it makes of a row depends on those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).cumsum(0)


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("kind", [Centred, Summing, Branching])
def test_a_model_that_mixes_rows_sees_none_that_only_pad(
    kind: type[nn.Module], batch_size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    module, data = kind(), federation((6,), codes=False)
    expected, actual = (
        Simulation(
            APFL(local_steps=2), module, data, batch_size=batch_size, dtype=torch.float64, engine=engine
        ).play(2)
        for engine in ("sequential", "vectorised")
    )
    assert_equal_runs(expected, actual, 1e-12)
    values = [torch.tensor(evaluate(run)["value"].to_numpy()) for run in (actual, expected)]
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)
    (message,) = caplog.messages
    assert "cannot be run for many clients at once" in message
    assert kind is Branching or "depends on the rows beside it" in message


def test_why_clients_run_one_at_a_time_is_said_when_they_run(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(APFL(local_steps=2), Branching(), federation((6,), codes=False))
    evaluate(simulation)
    assert not caplog.messages
    simulation.play(2)
    assert len(caplog.messages) == 1


class Locked(nn.Module):
    """It holds something that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 2, 3)
        self.linear = nn.Linear(8, 4)
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.linear(self.convolution(x[:, None]).flatten(1))


def test_a_model_that_cannot_be_copied_runs_in_one_thread() -> None:
    torch.manual_seed(0)
    module = Locked()
    assert_equal_runs(run(module, (6,), "sequential"), run(module, (6,), "vectorised"), 1e-9)


class Slope(nn.Module):
    """It follows the slope of an energy, which it takes by plain autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.output = nn.Linear(6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(torch.tanh(self.energy(at)).sum(), at, create_graph=True)
        return self.output(x - slope)


def test_a_model_that_takes_gradients_itself_can_be_evaluated() -> None:
    torch.manual_seed(0)
    module = Slope()
    expected, actual = (run(module, (6,), engine) for engine in ("sequential", "vectorised"))
    assert_equal_runs(expected, actual, 1e-9)
    assert evaluate(actual)["value"].notna().all()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    "layer", [nn.Bilinear(6, 6, 4), nn.LSTM(6, 4, batch_first=True)], ids=["bilinear", "lstm"]
)
def test_torch_does_not_warn_of_what_it_does_row_by_row(layer: nn.Module, engine: Any) -> None:
    """EFL takes the gradient of each row, for many rows at once."""

    def forward(x: Tensor, layer: nn.Module) -> Tensor:
        return layer(x, x) if isinstance(layer, nn.Bilinear) else layer(x)[0]

    data = federation((6,), codes=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulation = Simulation(EFL(local_steps=2), Function(forward, layer), data, engine=engine)
        evaluate(simulation.play(2))


def test_torchs_lstm_runs_whichever_way_it_can() -> None:
    torch.manual_seed(0)
    module = Recurrent()
    assert_equal_runs(run(module, (5, 2), "sequential"), run(module, (5, 2), "vectorised"), 1e-9)


def test_a_layer_that_depends_on_the_rows_beside_is_refused_by_name() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 4))
    with pytest.raises(UserError, match="layer '0' is a BatchNorm1d that keeps no statistics"):
        Simulation(APFL(), module, federation((6,), codes=False))


class Noisy(nn.Module):
    """Dropout that is no layer, and goes on when the model predicts."""

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


class ComplexBuffer(nn.Module):
    """Phases as complex numbers, of which another precision would keep the real parts alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.register_buffer("phases", torch.polar(torch.ones(6), torch.arange(6.0)))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((x * self.phases).imag)


class ComplexParameter(nn.Module):
    """A layer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).abs()


class NothingToTrain(nn.Linear):
    """A layer with a parameter that has no entries."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.none = nn.Parameter(torch.zeros(0, 3))


class PairsOnly(nn.Module):
    """Normalisation over the batch, which one row alone does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(nn.functional.batch_norm(x, None, None, training=True))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Linear(6, 4))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ComplexBuffer(), "the model's 'phases' is complex"),
        (ComplexParameter(), "the model's 'weight' is complex"),
        (nn.Sequential(nn.LazyLinear(4)), r"the model's '0\.weight' has no shape yet"),
        (NothingToTrain(), r"the model's 'none' has the shape \(0, 3\) and so no entry"),
        (scripted(), "compiled by torch.jit"),
        (PairsOnly(), r"cannot be trained on inputs \(1, 6\)"),
    ],
    ids=["complex buffer", "complex parameter", "lazy", "no entries", "scripted", "one row"],
)
def test_what_no_client_can_train_is_refused_in_a_sentence(module: nn.Module, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Simulation(APFL(), module, federation((6,), codes=False), batch_size=1)


def test_an_embedding_that_rescales_itself_is_refused() -> None:
    module = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(15, 4))
    with pytest.raises(UserError, match=r"changes its own '0\.weight'"):
        Simulation(APFL(), module, federation((5,), codes=True))
