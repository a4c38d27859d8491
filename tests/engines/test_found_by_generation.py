"""What generated networks found, each as the smallest network that showed it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from engines.agreement import Trial, assert_agrees
from engines.blocks import Function
from engines.modes import modes
from engines.networks import Network, Piece
from engines.test_equality import assert_equal_runs, federation
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.drfa import DRFA
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation


def assert_modes_agree(block: str, chunk: int, *, way: str = "plain", first_is_linear: bool = True) -> None:
    """One block below a linear output, on the vectorised engine in all its modes."""
    trial = Trial(Network((Piece(block, way),), first_is_linear=first_is_linear), FedAvg(local_steps=2))
    expected = trial.expected()
    for mode in modes().values():
        assert_agrees(trial, mode, chunk, expected)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("kind", ["features", "sequences", "images", "volumes"])
def test_group_norm_whose_backward_writes_in_place(kind: str, chunk: int) -> None:
    """Equal operations on memory that was written to between them are not equal."""
    assert_modes_agree(f"{kind}: GroupNorm", chunk)


def test_maximum_whose_backward_writes_in_place() -> None:
    """It masks the incoming gradient, which another branch reads too."""
    assert_modes_agree("features: clamped", 3)


@pytest.mark.parametrize("first_is_linear", [True, False])
@pytest.mark.parametrize(
    "block", ["features: write_through_a_view", "features: written_through_transposition"]
)
def test_sums_of_a_tensor_before_and_after_a_write_through_a_view(block: str, first_is_linear: bool) -> None:
    assert_modes_agree(block, 3, first_is_linear=first_is_linear)


@pytest.mark.parametrize("block", ["sequences: determinant", "sequences: inverse"])
@pytest.mark.parametrize("way", ["plain", "residual"])
def test_views_of_what_was_fused_in_another_layout(block: str, way: str) -> None:
    """A recorded view counts on the strides that were there when it was recorded."""
    assert_modes_agree(block, 1, way=way)


class Recurrent(nn.Module):
    """A recurrent layer below a linear output."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.layer = layer(2, 3, batch_first=True)
        self.output = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, length, 2] -> [rows, 4]."""
        return self.output(self.layer(x)[0][:, -1])


@pytest.mark.parametrize("method", [FedAvg(local_steps=2), DRFA(local_steps=2)], ids=["fedavg", "drfa"])
@pytest.mark.parametrize("layer", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_are_also_looked_at_without_a_gradient(layer: type[nn.Module], method: Any) -> None:
    """Without one torch takes kernels that cannot be batched: evaluation and losses are such looks."""
    torch.manual_seed(0)
    module, data = Recurrent(layer), federation((5, 2), codes=False)
    expected, actual = (
        Simulation(method, module, data, batch_size=4, dtype=torch.float64, engine=engine).play(2)
        for engine in ("sequential", "vectorised")
    )
    assert_equal_runs(expected, actual, 1e-9)
    values = [torch.tensor(evaluate(run)["value"].to_numpy()) for run in (actual, expected)]
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)


def functional_dropout(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_noise_that_no_seed_controls_is_refused(engine: Any) -> None:
    module = nn.Sequential(Function(functional_dropout), nn.Linear(6, 4))
    with pytest.raises(UserError, match="noise"):
        Simulation(FedAvg(), module, federation((6,), codes=False), engine=engine)


def test_fractional_pooling_is_refused_because_it_is_random() -> None:
    module = nn.Sequential(nn.FractionalMaxPool2d(2, output_size=3), nn.Flatten(), nn.Linear(18, 4))
    with pytest.raises(UserError, match="noise"):
        Simulation(FedAvg(), module, federation((2, 6, 6), codes=False))


def test_an_embedding_that_renormalises_its_parameters_is_refused() -> None:
    """Its forward pass writes into the parameters: into the server's, where nobody has a copy."""
    module = nn.Sequential(nn.Embedding(4, 3, max_norm=1.0), nn.Flatten(), nn.Linear(15, 4))
    with pytest.raises(UserError, match=r"changes its own '0\.weight'"):
        Simulation(FedAvg(), module, federation((5,), codes=True))


def test_a_layer_that_remembers_something_from_call_to_call_is_refused() -> None:
    """The power iteration of spectral norm is a buffer: what it holds would depend on who came before."""
    module = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 4))
    with pytest.raises(UserError, match=r"changes its own '0\.parametrizations"):
        Simulation(FedAvg(), module, federation((6,), codes=False))


class Counting(nn.Module):
    """A linear map that grows with the number of calls, of which no tensor tells."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(6, 4)
        nn.init.zeros_(self.output.weight)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """[rows, 6] -> [rows, 4]."""
        self.calls += self.training
        return self.output(x) * (1 + 0.01 * self.calls)


def test_a_model_that_counts_its_calls_is_refused() -> None:
    """Engines make different numbers of them, and gave different numbers in silence."""
    with pytest.raises(UserError, match="other outputs when it is called once more"):
        Simulation(FedAvg(), Counting(), federation((6,), codes=False))


@pytest.mark.parametrize("outputs", [lambda x: {"logits": x}, lambda x: (x, x)], ids=["dict", "tuple"])
def test_a_model_that_gives_no_tensor_is_told_what_to_give(outputs: Any) -> None:
    module = nn.Sequential(nn.Linear(6, 4), Function(outputs))
    with pytest.raises(UserError, match="has to give one tensor of outputs"):
        Simulation(FedAvg(), module, federation((6,), codes=False))


def test_codes_that_came_as_real_numbers_are_told_how_to_come() -> None:
    module = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(15, 4))
    with pytest.raises(UserError, match=r"a dict or a tuple of arrays: `\(codes,\)`"):
        Simulation(FedAvg(), module, federation((5,), codes=False))


def test_a_layer_that_torch_func_cannot_differentiate_is_run_client_by_client() -> None:
    module = nn.Sequential(nn.Conv2d(2, 2, 1), nn.CrossMapLRN2d(3), nn.Flatten(), nn.Linear(72, 4))
    data = federation((2, 6, 6), codes=False)
    expected, actual = (
        Simulation(FedAvg(local_steps=2), module, data, dtype=torch.float64, engine=engine).play(2)
        for engine in ("sequential", "vectorised")
    )
    assert actual.engine.way == Way(1, is_recorded=False)  # type: ignore[attr-defined]
    assert_equal_runs(expected, actual, 1e-12)


def test_rows_of_codes_are_weighed_in_the_precision_of_the_run() -> None:
    """A third in float32 is not a third: 1e-8 in a run that promises float64."""
    module = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(15, 4))
    simulation = Simulation(
        FedAvg(), module, federation((5,), codes=True), dtype=torch.float64, engine="sequential"
    )
    weights = simulation.engine.setting.batches.weights(torch.arange(7), 3)
    assert weights.dtype == torch.float64


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_layer_at_two_places_is_left_as_it_was(engine: Any) -> None:
    """torch's functional_call puts a client's parameters, not the module's own, back at the second place."""
    layer = nn.Linear(6, 6)
    module = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 4))
    weight = layer.weight
    Simulation(FedAvg(local_steps=2), module, federation((6,), codes=False), engine=engine).play(1)
    assert layer.weight is weight


@pytest.mark.parametrize("block", ["orthogonal_by_exponential", "orthogonal_by_cayley", "symmetric_weight"])
def test_a_layer_that_is_given_a_parameter_can_be_counted(block: str) -> None:
    """Whoever counts operations may not hang hooks on what modules are given."""
    trial = Trial(Network((Piece(f"features: {block}"),)), FedAvg(local_steps=2))
    Vectorised(trial.simulation().engine.setting)


@pytest.mark.parametrize("block", ["images: BatchNorm_between", "images: InstanceNorm_tracked"])
def test_the_weights_of_a_client_alone_are_one_for_each_row(block: str) -> None:
    """With an axis of clients left, its rows were counted as one: n / (n - 1) of a variance was wrong."""
    assert_modes_agree(block, 1)
