"""The benchmark compares like with like, and has the keys that it promises."""

import json

import pytest
import torch
from torch import nn

from idiolect import models
from idiolect.bench import benchmark, render
from idiolect.bench.display import TARGETS
from idiolect.bench.measurement import interleaved_seconds, ratio
from idiolect.bench.plain_loop import PlainLoop
from idiolect.bench.subjects import noise, uneven_steps
from idiolect.bench.suite import simulate, work_of_a_round
from idiolect.data.federation import Federation
from idiolect.methods.apfl import APFL
from idiolect.methods.fedavg import FedAvg
from idiolect.simulation import Simulation
from idiolect.strict_json import to_json


def small(federation: Federation) -> nn.Module:
    return models.mlp(federation, hidden=(4,))


def test_the_plain_loop_is_fedavg() -> None:
    """With all rows in each batch their order does not matter, so both compute the same model."""
    data = noise((5,), [6, 6, 6])
    module = small(data)
    ours = Simulation(FedAvg(local_steps=4), module, data, batch_size=6)
    plain = PlainLoop(module, data, batch_size=6, local_steps=[4, 4, 4], rate=0.1)
    for _ in range(2):
        plain.advance()
        ours.advance()
    for name, parameter in plain.module.named_parameters():
        torch.testing.assert_close(parameter.detach(), ours.server.w[name], rtol=1e-4, atol=1e-6)


def test_uneven_clients_do_as_much_work_in_all_and_differ_by_much() -> None:
    steps = uneven_steps(100, 20)
    assert sum(steps) == pytest.approx(2000, rel=0.01)
    assert min(steps) <= 2
    assert max(steps) >= 100


def test_work_is_counted() -> None:
    """A row of a 5-4-10 perceptron: its 60 weights forward, 60 backward, and 40 back to the hidden units."""
    data = noise((5,), [6, 6])
    fedavg, apfl = (
        work_of_a_round(simulate(method(local_steps=3), small, data)) for method in (FedAvg, APFL)
    )
    assert fedavg.gradients == 3
    gradients, mean = 2 * 3 * 6 * 2 * (60 + 60 + 40), 2 * 2 * (60 + 14)
    assert fedavg.operations == gradients + mean
    assert apfl.gradients == 6
    assert apfl.operations == 2 * gradients + mean


def test_contenders_take_turns() -> None:
    order: list[str] = []
    seconds = interleaved_seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert [len(times) for times in seconds.values()] == [2, 2]


def test_a_ratio_is_of_neighbours() -> None:
    """A machine that gets ten times slower half way does not change it."""
    assert ratio([2.0, 20.0, 20.0], [1.0, 10.0, 10.0]) == 2.0


@pytest.mark.slow
def test_all_keys_are_there() -> None:
    result = json.loads(to_json(benchmark(full=True, clients=4, local_steps=2, repeats=1, scaling=(2, 4))))
    for key in TARGETS:
        assert result[key] > 0
    assert all(row["least"] <= row["speed_up"] <= row["most"] for row in result["seconds"].values())
    assert all(0 < row["checking_share"] < 1 for row in result["compiler"].values())
    assert all(row["recording_in_rounds"] > 0 for row in result["compiler"].values())
    render(result)
    assert all(row["speed_up"] > 0 for row in result["uneven_clients"].values())
    assert [row["clients"] for row in result["scaling"]] == [2, 4]
    assert result["costs_of_little_work"].keys() == {"one_local_step", "quarter_of_the_clients"}
    for costs in (result["method_costs"], result["method_costs_cnn"]):
        assert costs["apfl"]["gradients"] == 4
