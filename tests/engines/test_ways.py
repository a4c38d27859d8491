"""Which way a model is computed is a rule, and no way, and no number of threads, changes the numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.test_equality import assert_equal_runs, federation, problem
from idiolect import models
from idiolect.core import tree
from idiolect.core.objective import Objective
from idiolect.core.task import Task
from idiolect.engines.threads import ClientThreads
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import Way, choose_way, cost_of_a_gradient
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.ifca import IFCA
from idiolect.simulation import Simulation
from idiolect.store.disk import DiskStore


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", [APFL(local_steps=3), IFCA(local_steps=2)], ids=lambda m: m.name)
@pytest.mark.parametrize("is_recorded", [True, False])
def test_client_by_client_the_number_of_threads_changes_no_bit(
    method: Any, is_recorded: bool, threads: Any, tmp_path: Path
) -> None:
    data, module = problem("cnn")
    runs = []
    for count in (1, 3):
        threads(count)
        store = DiskStore(len(data), tmp_path / str(count))
        simulation = Simulation(method, module, data, batch_size=4, store=store)
        simulation.engine = Vectorised(simulation.engine.setting, Way(1, is_recorded))
        runs.append(simulation.play(3))
        assert torch.get_num_threads() == count
    one, several = ((run.server, run.clients(), run.predictors()) for run in runs)
    for a, b in zip(tree.leaves(one), tree.leaves(several), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("way", [Way(1, False), Way(1, True), Way(3, False), Way(3, True)], ids=str)
def test_every_way_gives_the_numbers_of_the_sequential_engine(way: Way) -> None:
    data, module = problem("mlp")

    def run(engine: Any) -> Simulation:
        return Simulation(APFL(local_steps=3), module, data, batch_size=4, dtype=torch.float64, engine=engine)

    actual = run("vectorised")
    actual.engine = Vectorised(actual.engine.setting, way)
    assert_equal_runs(run("sequential").play(2), actual.play(2), 1e-9)


def setting_of(module: nn.Module, shape: tuple[int, ...], *, codes: bool) -> Any:
    return Simulation(FedAvg(), module, federation(shape, codes=codes), batch_size=4).engine.setting


def test_small_operations_are_stacked_and_large_ones_are_not() -> None:
    small = setting_of(models.Perceptron(6, 4, (8,)), (6,), codes=False)
    assert choose_way(small) == Way(256, is_recorded=True)
    large = setting_of(models.Perceptron(1500, 4, (1500,)), (1500,), codes=False)
    assert choose_way(large) == Way(1, is_recorded=True)


def test_many_busy_calls_of_one_client_are_not_recorded() -> None:
    """A deep network with convolutions has little overhead to save."""
    blocks = [nn.Sequential(nn.Conv1d(2, 2, 1), nn.GroupNorm(1, 2), nn.ReLU()) for _ in range(20)]
    module = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(10, 4))
    way = choose_way(setting_of(module, (2, 5), codes=False))
    assert way == Way(1, is_recorded=False)
    assert "does not pay" in way.reason


def test_convolutions_are_not_stacked() -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4))
    assert choose_way(setting_of(module, (2, 5), codes=False)) == Way(1, is_recorded=True)


@pytest.mark.parametrize(("hidden", "clients"), [(8, 256), (700, 1)])
def test_a_long_recurrence_is_not_recorded(hidden: int, clients: int) -> None:
    module = models.GRU(3, 4, hidden, layers=1, codes=5)
    assert choose_way(setting_of(module, (80,), codes=True)) == Way(clients, is_recorded=False)


@pytest.mark.parametrize(("length", "way"), [(80, Way(1, False)), (8, Way(256, True))])
def test_where_torch_has_a_kernel_for_one_client_a_stack_must_be_recorded(length: int, way: Way) -> None:
    module = models.CharLSTM(5, 4, embedding=3, hidden=8, layers=1)
    chosen = choose_way(setting_of(module, (length,), codes=True))
    assert chosen == way
    assert ("own kernel" in chosen.reason) == (way.clients == 1)


def test_the_cost_of_a_gradient_is_counted() -> None:
    """A linear layer of 6 x 4 on 4 rows: its output, and the gradient of its weights, 2 * 4 * 6 * 4 each."""
    cost = cost_of_a_gradient(setting_of(nn.Linear(6, 4), (6,), codes=False))
    assert cost.arithmetic == 2 * (2 * 4 * 6 * 4)
    assert 10 < cost.calls < 40


def test_an_error_in_a_thread_reaches_the_caller(threads: Any) -> None:
    threads(2)

    def work(objective: Objective, task: int) -> int:
        if task == 3:
            raise ValueError(f"task {task}")
        return task

    pool = ClientThreads(Objective(nn.Linear(2, 2), Task("regression", 2)))
    with pytest.raises(ValueError, match="task 3"):
        list(pool.map(work, range(9)))
    assert torch.get_num_threads() == 2
    assert list(pool.map(work, [5, 4])) == [5, 4]


class Remembering(nn.Module):
    """It keeps what it computed last, which cannot be copied while it has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.kept: Any = self.linear(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_a_module_that_cannot_be_copied_runs_all_the_same(threads: Any) -> None:
    threads(2)
    torch.manual_seed(0)
    module = Remembering()
    data = federation((6,), codes=False)
    simulation = Simulation(FedAvg(local_steps=2), module, data, batch_size=4)
    simulation.engine = Vectorised(simulation.engine.setting, Way(1, is_recorded=False))
    expected = Simulation(FedAvg(local_steps=2), module, data, batch_size=4, engine="sequential")
    assert_equal_runs(expected.play(2), simulation.play(2), 1e-5)
