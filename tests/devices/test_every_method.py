"""Every method of the catalogue on a device that is not the CPU, as far as that can be seen without one."""

import pytest
import torch
from torch import Tensor

from devices.pretended import CrossingError, Pretended, is_on, pretended
from families import each_family
from idiolect.bench.suite import _with_local_steps
from idiolect.core import tree
from idiolect.core.device import to_device, to_host
from idiolect.core.method import Method
from idiolect.engines.assembly import HereEngine
from idiolect.methods.catalogue import METHODS
from idiolect.simulation import Simulation
from idiolect.testing.problems import small_network, uneven_classification

SEQUENTIAL, PLAIN, RECORDED = HereEngine("sequential"), HereEngine(optimise=False), HereEngine()
PATHS: dict[str, tuple[Pretended, HereEngine]] = {
    "cuda, one by one": ("cuda", SEQUENTIAL),
    "cuda, at once": ("cuda", PLAIN),
    "meta, one by one": ("meta", SEQUENTIAL),
    "meta, at once and recorded": ("meta", RECORDED),
}


@pytest.mark.parametrize("path", PATHS)
@each_family("method")
def test_a_run_is_on_its_device_and_the_server_on_the_cpu(
    method: type[Method], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, engine = PATHS[path]
    with pretended(device, monkeypatch) as where:
        simulation = Simulation(
            _with_local_steps(method, 2),
            small_network,
            uneven_classification(2),
            engine=engine,
            batch_size=4,
            device=where,
        ).play(1)
        metrics = simulation.evaluate()
        setting = simulation.engine.setting
        assert is_on(device, [setting.objective.initial_params(), setting.batches.inputs])
        assert is_on(
            "cpu", [simulation.server, simulation.clients(), simulation.predictors(torch.tensor([1]))]
        )
        if tree.leaves(setting.store.states):
            assert is_on(device, setting.store.states)
    assert set(metrics.kind) == set(method.kinds)
    if engine is RECORDED:
        assert simulation.engine.records_all_steps


def test_recorded_steps_on_tensors_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended("cuda", monkeypatch) as where:
        method = next(method for method in METHODS if method.name == "ditto")
        simulation = Simulation(
            method(local_steps=2), small_network, uneven_classification(3), batch_size=4, device=where
        ).play(2)
        assert simulation.engine.records_all_steps


# What the tests above would find.


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_tensors_of_two_devices_do_not_meet(device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(device, monkeypatch) as where:
        ours = to_device(torch.arange(3.0), where)
        assert (2 * ours).device.type == device
        with pytest.raises(CrossingError, match="on cpu and"):
            ours + torch.arange(3.0)
        with pytest.raises(CrossingError, match="on cpu and"):
            ours[torch.tensor([0, 1])]
        with pytest.raises(CrossingError, match="not by to_device"):
            torch.arange(3.0).to(where)
        with pytest.raises(CrossingError, match="not by to_host"):
            ours.cpu()
        assert is_on("cpu", to_host(ours))


@pytest.mark.parametrize("device", ["cuda", "meta"])
@pytest.mark.parametrize("ask", [Tensor.item, bool, int, Tensor.nonzero, Tensor.tolist])
def test_nobody_is_told_a_value(device: Pretended, ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(device, monkeypatch) as where, pytest.raises((RuntimeError, CrossingError)):
        ask(to_device(torch.tensor([3.0]), where)[0])


def test_a_tensor_in_the_client_half_names_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from idiolect.methods import fedavg

    made: list[dict[str, torch.device]] = [{}]

    def step(self, work, client, down, batches, site):
        torch.zeros(3, **made[0])
        return work

    step.__code__ = step.__code__.replace(co_filename="/src/idiolect/methods/fedavg.py")
    monkeypatch.setattr(fedavg.FedAvg, "step", step)
    with pretended("meta", monkeypatch) as where:
        simulation = Simulation(
            fedavg.FedAvg(local_steps=1),
            small_network,
            uneven_classification(2),
            engine="sequential",
            batch_size=4,
            device=where,
        )
        with pytest.raises(CrossingError, match="names no device"):
            simulation.play(1)
        made[0] = {"device": where}
        simulation.play(1)
