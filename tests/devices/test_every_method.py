"""Every method of the catalogue on a device that is not the CPU, as far as that can be seen without one."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from devices.pretended import CrossingError, Pretended, is_on, pretended, simulated
from idiolect.bench.suite import _with_local_steps
from idiolect.core import tree
from idiolect.core.device import to_device, to_host
from idiolect.core.method import Method
from idiolect.data.federation import Federation, Rows
from idiolect.engines.assembly import EngineName
from idiolect.engines.compiler import warrant
from idiolect.engines.ways import Way
from idiolect.evaluation.metric import loss
from idiolect.evaluation.metrics import Measures
from idiolect.methods.catalogue import METHODS
from idiolect.methods.ditto import Ditto
from idiolect.testing.problems import small_network, uneven_classification

# A recorded step is compared with the plain one, so that both are computed.
AT_ONCE, ALONE = Way(2, is_recorded=True), Way(1, is_recorded=True)
PATHS: dict[str, tuple[Pretended, EngineName, Way | None]] = {
    "cuda, one by one": ("cuda", "sequential", None),
    "cuda, at once and recorded": ("cuda", "vectorised", AT_ONCE),
    "meta, one by one and recorded": ("meta", "vectorised", ALONE),
    "meta, at once and recorded": ("meta", "vectorised", AT_ONCE),
}
SHORTER = {"fedala": {"start_passes": 10}}  # as many as it looks at


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_run_is_on_its_device_and_the_server_on_the_cpu(
    method: type[Method], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two rounds, because some methods do in the second what they do not in the first."""
    device, engine, way = PATHS[path]
    # Steps are compared, but values are none: a measure of what rounding explains has nothing to tell.
    monkeypatch.setattr(warrant, "ROUNDINGS", math.inf)
    with pretended(device, monkeypatch) as where:
        simulation = simulated(
            replace(_with_local_steps(method, 2), **SHORTER.get(method.name, {})),
            small_network,
            _without_test_rows(uneven_classification(2)),
            where,
            engine=engine,
            way=way,
        ).play(2)
        setting = simulation.engine.setting
        metrics = simulation.evaluate(Measures((loss,), loss))
        assert is_on(device, [setting.objective.initial_params(), setting.batches.inputs])
        assert is_on(
            "cpu", [simulation.server, simulation.clients(), simulation.predictors(torch.tensor([1]))]
        )
        if tree.leaves(setting.store.states):
            assert is_on(device, setting.store.states)
    assert set(metrics.kind) == set(method.kinds)
    assert way is None or simulation.engine.records_all_steps


def _without_test_rows(federation: Federation) -> Federation:
    """So that models are looked at once, on the validation rows."""
    nobody = Rows.of_clients([torch.empty(0, dtype=torch.int64)] * len(federation))
    return replace(federation, test=nobody)


def test_recorded_steps_are_measured_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two ways to compute a step differ, what rounding explains is measured there."""
    with pretended("cuda", monkeypatch) as where:
        method = Ditto(local_steps=2)
        simulation = simulated(method, small_network, uneven_classification(3), where, way=AT_ONCE).play(2)
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
        simulation = simulated(
            fedavg.FedAvg(local_steps=1), small_network, uneven_classification(2), where, engine="sequential"
        )
        with pytest.raises(CrossingError, match="names no device"):
            simulation.play(1)
        made[0] = {"device": where}
        simulation.play(1)
