"""The benchmark compares like with like, and has the keys that it promises."""

import json
from functools import partial

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from idiolect import models
from idiolect.bench import benchmark, render
from idiolect.bench.display import TARGETS
from idiolect.bench.measurement import interleaved_seconds, ratio
from idiolect.bench.plain_loop import PlainLoop
from idiolect.bench.subjects import noise, small_cnn, uneven_steps, with_batch_norm
from idiolect.bench.suite import FIRST_ROUNDS, simulate, work_of_a_round
from idiolect.cli.app import app
from idiolect.data.federation import Federation
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.fedala import FedALA
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.personal_parts import FedBN
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


def test_a_method_is_measured_when_it_has_done_what_it_does_once() -> None:
    """FedALA takes many passes over 16 of 20 rows, by ten, in the second round, and later one."""
    learning, later = (
        work_of_a_round(simulate(FedALA(local_steps=3), small, noise((5,), [20, 20])).play(rounds))
        for rounds in (1, FIRST_ROUNDS)
    )
    assert later.gradients == 3 + 2
    assert learning.gradients > 3 + 10 * 2


def test_a_fifth_of_the_rows_are_for_validation() -> None:
    data = noise((5,), [10, 3])
    assert data.validation.sizes.tolist() == [2, 1]
    assert data.train.sizes.tolist() == [10, 3]


def test_batch_norm_follows_every_layer_but_the_last() -> None:
    flat, images = noise((5,), [6, 6]), noise((3, 32, 32), [2])
    perceptron, cnn = with_batch_norm(small)(flat), with_batch_norm(small_cnn)(images)
    assert [type(layer).__name__ for layer in perceptron.modules() if not list(layer.children())] == [
        "Linear", "BatchNorm1d", "Linear",
    ]  # fmt: skip
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in cnn.modules()) == 2
    assert cnn(images.inputs).shape == (2, 10)
    models = simulate(FedBN(local_steps=1), with_batch_norm(small), flat).play(1).predictors()["personal"]
    differ = {name for name, (one, other) in models.items() if not torch.equal(one, other)}
    assert "hidden.0.1.running_mean" in differ
    assert "hidden.0.0.weight" not in differ


# What is asked for


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark takes a second."""
    monkeypatch.setattr("idiolect.benchmark", partial(benchmark, clients=2, local_steps=1, repeats=1))


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


@pytest.mark.usefixtures("little")
def test_what_is_named_is_measured_and_nothing_else() -> None:
    found = json.loads(invoke("costs_of_little_work", "--json").stdout)
    assert found.keys() == {"costs_of_little_work", "setting"}
    shown = invoke("apfl_mlp_over_fedavg").stdout
    assert "at most 2.3" in shown
    assert "fedavg_mlp" not in shown.replace("apfl_mlp_over_fedavg", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["method_cost"], "method_cost is nothing that is measured (did you mean method_costs"),
        (["scaling", "--full"], "--full measures everything; leave it out to measure scaling alone"),
        (["device=cuda:7"], "device=cuda:7 is not available: this machine"),
        (["device=gpu"], "device=gpu is not possible: it must be cpu, cuda"),
        (["devise=cpu"], "devise is not a setting (did you mean device?)"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = invoke(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


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
        assert costs.keys() == {method.name for method in METHODS}
        assert all(row["over_fedavg"] > 0 and row["arithmetic"] > 0 for row in costs.values())
        assert costs["apfl"]["gradients"] == 4
