"""What surrounds the steps of a run on a device: stores, codecs, metrics, newcomers, checkpoints, models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from devices.pretended import DEVICES, Pretended, is_on, pretended, simulated
from idiolect.codecs import NAMES
from idiolect.codecs.choice import CodecConfig
from idiolect.codecs.sparse import SparseTernary, _LargestEntries, sorted_out
from idiolect.core import device as devices
from idiolect.core import rng, tree
from idiolect.core.device import find_device, to_device
from idiolect.core.method import Method
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines.chunks import most_at_once
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.evaluation.metrics import BUILT_IN, measures_of
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.ditto import Ditto
from idiolect.methods.efl.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.runs.checkpoint import load_checkpoint, save_checkpoint
from idiolect.simulation import Simulation
from idiolect.store.disk import DiskStore
from idiolect.testing.problems import ZOO, small_network, uneven_classification

each_device = pytest.mark.parametrize("device", DEVICES)


def simulate(
    where: Any, method: Method | None = None, model: Any = small_network, **options: Any
) -> Simulation:
    method = method or Ditto(local_steps=1)
    federation = options.pop("federation", None) or uneven_classification(3)
    return simulated(method, model, federation, where, **options)


# States


@each_device
def test_states_that_do_not_fit_stay_in_host_memory(
    device: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended(device, monkeypatch) as where:
        simulation = simulate(where)
        monkeypatch.setattr("idiolect.store.memory.has_room", lambda device, size: device == devices.CPU)
        simulation.play(2)
        assert is_on("cpu", simulation.engine.setting.store.states)
        assert is_on(device, simulation.engine.setting.states(torch.tensor([0, 2])))


@each_device
def test_rows_that_do_not_fit_are_moved_batch_by_batch(
    device: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idiolect.engines.batches.has_room", lambda device, size: device == devices.CPU)
    with pretended(device, monkeypatch) as where:
        simulation = simulate(where).play(1)
        batches = simulation.engine.setting.batches
        assert is_on("cpu", batches.inputs)
        assert is_on(device, batches.gather(torch.tensor([0, 1]), to_device(torch.ones(2), where)))
        assert len(simulation.evaluate())


@each_device
def test_states_on_disk(device: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(device, monkeypatch) as where:
        simulation = simulate(where, store=DiskStore(3, tmp_path)).play(2)
        assert is_on(device, simulation.engine.setting.states(torch.tensor([0, 2])))
        assert len(simulation.evaluate())


@each_device
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_checkpoint_of_a_device_is_one_of_the_cpu(
    device: Pretended, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store() -> DiskStore | None:
        return DiskStore(3, tmp_path / "states") if on_disk else None

    with pretended(device, monkeypatch) as where:
        before = simulate(where, store=store()).play(1)
        save_checkpoint(before, tmp_path / "checkpoints")
    monkeypatch.undo()
    checkpoint = tmp_path / "checkpoints" / "round-000001"
    after = simulate("cpu", store=store())
    load_checkpoint(after, checkpoint)
    assert after.round == 1
    assert is_on("cpu", [after.server, after.clients()])
    after.play(1)
    with pretended(device, monkeypatch) as where:
        back = simulate(where, store=store())
        load_checkpoint(back, checkpoint)
        assert is_on(device, back.engine.setting.states(torch.arange(3)))
        back.play(1)


# Codecs


@each_device
@pytest.mark.parametrize("codec", NAMES)
def test_codecs(codec: str, device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    method = CodecConfig(up={"name": codec}, down={"name": codec}).wrap(FedAvg(local_steps=1))
    with pretended(device, monkeypatch) as where:
        simulation = simulate(where, method).play(2)
        residuals = simulation.engine.setting.states(torch.arange(3)).residuals
        assert is_on(device, residuals)


def test_the_largest_entries_are_the_same_ones_on_a_device() -> None:
    """There they are found by sorting, here by partitions; also where magnitudes are equal."""
    for place, dtype in enumerate([torch.float32, torch.float64]):
        rows = (rng.uniform(rng.key(place, "rows"), 5, 40) * 12).floor().to(dtype)
        rows[3] = 0
        for count in (1, 7, 39, 40):
            mean, chosen = sorted_out(rows, count)
            expected_mean, expected = _LargestEntries.apply(rows, count)
            assert torch.equal(chosen, expected)
            torch.testing.assert_close(mean, expected_mean, rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert SparseTernary(0.1).compress(torch.tensor([1.0, -3.0, 2.0])).tolist() == [0.0, -3.0, 0.0]


# Evaluation


def _federation_of(task: Task) -> Federation:
    source = uneven_classification(3)
    targets = source.inputs[:, : task.outputs] if task.kind == "regression" else source.targets % task.classes
    return Federation(
        source.inputs, targets, task, source.names, source.train, source.validation, source.test
    )


@each_device
@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_every_metric(kind: Any, device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {"binary": 1, "multiclass": 3, "regression": 2}[kind]
    weights = {"binary": (1.0, 2.0), "multiclass": (1.0, 2.0, 0.5), "regression": ()}[kind]
    federation = _federation_of(Task(kind, outputs, weights))
    metrics = [metric.name for metric in BUILT_IN if metric.applies_to(federation.task)]
    measures = measures_of(federation.task, metrics)
    with pretended(device, monkeypatch) as where:
        model = nn.Linear(4, outputs)
        # One by one: class weights are made in the loss, and torch.func.grad takes no meta tensor that is.
        way = Way(1, is_recorded=False)
        simulation = simulate(where, FedAvg(local_steps=1), model, federation=federation, way=way)
        found = simulation.play(1).evaluate(measures)
    assert set(found.metric) == set(metrics)
    assert found.value.dtype == "float64"


# Methods with other options, newcomers, models


@each_device
@pytest.mark.parametrize("kind", ["empirical", "sampled", "exact"])
@pytest.mark.parametrize("task", [Task("multiclass", 3), Task("regression", 2)], ids=lambda task: task.kind)
def test_fisher_information(
    kind: Any, task: Task, device: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended(device, monkeypatch) as where:
        method = EFL(local_steps=1, fisher=kind, fisher_rows=5)
        model = lambda: small_network(4, task.outputs)  # noqa: E731
        simulate(where, method, model, federation=_federation_of(task), engine="sequential").play(2)


@each_device
@pytest.mark.parametrize("method", [APFL(local_steps=2), PerFedAvg(local_steps=2)], ids=lambda m: m.name)
def test_newcomers(method: Method, device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(device, monkeypatch) as where:
        trained = simulate(where, method).play(1)
        met = trained.newcomers(trained.federation.subset([1, 2]))
        assert met.engine.setting.device.type == device
        assert len(met.evaluate())
        assert is_on("cpu", met.predictors())


@each_device
@pytest.mark.parametrize("model", ZOO)
def test_models(model: str, device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    if "uses a layer twice" in model:
        device = "meta"  # torch cannot put fake parameters into a module that is there twice
    with pretended(device, monkeypatch) as where:
        simulation = simulate(where, FedAvg(local_steps=2), ZOO[model], way=None).play(2)
        assert simulation.engine.setting.objective.device.type == device
        assert len(simulation.evaluate())


@pytest.mark.parametrize("name", ["fedbn", "ditto", "apfl", "per-fedavg"])
def test_statistics_of_normalisation_and_noise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = next(method for method in METHODS if method.name == name)
    with pretended("meta", monkeypatch) as where:
        model = ZOO["a network with batch norm and dropout"]
        for path in ({"engine": "sequential"}, {"way": Way(3, is_recorded=True)}):
            simulation = simulate(where, method(local_steps=1), model, **path).play(2)
            assert is_on("cpu", simulation.server)
            assert len(simulation.evaluate())


class _Forgetful(nn.Module):
    """Keeps a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.shift = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.shift


def test_a_model_that_leaves_a_tensor_behind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate("cpu", FedAvg(), _Forgetful())

    monkeypatch.setattr("devices.pretended.CrossingError", RuntimeError)  # torch's own, of a GPU
    with (
        pretended("meta", monkeypatch) as where,
        pytest.raises(UserError, match="the model _Forgetful cannot be trained on"),
    ):
        simulate(where, FedAvg(), _Forgetful())


# Ways and devices


def test_on_a_device_a_trial_decides_and_memory_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended("cuda", monkeypatch) as where:
        simulation = simulate(where, way=None)
        assert simulation.way is not None
        assert "in a trial on cuda:0" in simulation.way.reason
        for seconds, clients in (([1.0, 2.0], 1024), ([2.0, 1.0], 1)):
            taken = iter(seconds)
            monkeypatch.setattr("idiolect.engines.ways.least_seconds", lambda *_, taken=taken: next(taken))
            assert simulate(where, way=None).way == Way(clients, is_recorded=True)
        module, model_bytes = nn.Linear(1000, 1000, bias=False), 4_000_000
        monkeypatch.setattr("idiolect.engines.chunks.free_bytes", lambda device: 4 * 10 * 10 * model_bytes)
        assert most_at_once(module, 2 * model_bytes, where) == 10
        assert most_at_once(module, 10**12, where) == 1


def test_a_device_that_is_not_here_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1", "mps"):
        with pytest.raises(UserError, match=f"device={name} is not available"):
            find_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("auto") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="the last GPU of this machine is cuda:1"):
        find_device("cuda:2")


def test_apples_gpu_has_no_float64() -> None:
    with pytest.raises(UserError, match="dtype=float64 is not possible with device=mps"):
        devices.refuse_precision(torch.device("mps"), torch.float64)
    devices.refuse_precision(torch.device("mps"), torch.float32)


# Keys


@each_device
def test_keys_of_names_and_numbers_join_those_of_clients(
    device: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended(device, monkeypatch) as where:
        ids = to_device(torch.arange(3), where)
        key = rng.fold(rng.key(5, "a purpose", ids, 7), rng.key(0, "another"), 3)
        assert is_on(device, [key, rng.uniform(key, 4), rng.below(key, 10), rng.permutation(key[0], 5)])


def test_a_key_does_not_depend_on_where_its_parts_are() -> None:
    """The number that stands in for a tensor of another device is the tensor."""
    ids = torch.arange(4)
    state = rng.key(5, "a purpose")
    mixed = rng.mix(ids)
    assert torch.equal(rng.fold(state, ids), rng.mix(mixed ^ int(state)))
    assert torch.equal(rng.fold(mixed, state), rng.mix(mixed ^ int(rng.mix(state))))


def test_numbers_of_apples_gpu_are_the_same_in_float32() -> None:
    bits = rng.mix(rng.key(1, "x", torch.arange(1000)))
    wide = (bits >> 11 & (1 << 53) - 1).double() * 2.0**-53
    narrow = (bits >> 40 & (1 << 24) - 1).float() * 2.0**-24
    assert (wide - narrow.double()).abs().max() < 2.0**-24


def test_rows_of_unequal_clients_one_of_which_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source = uneven_classification(3)
    train = Rows.of_clients([source.train.of(0)[:1], source.train.of(1)[:5], source.train.of(2)])
    federation = Federation(
        source.inputs, source.targets, source.task, source.names, train, source.validation, source.test
    )
    with pretended("meta", monkeypatch) as where:
        assert tree.leaves(simulate(where, federation=federation).play(2).server)
