"""Ray actors compute what one client at a time computes, also when a node is lost on the way."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import idiolect
from distributed.deployment import wait_for
from families import LIKE
from idiolect.codecs.choice import CodecConfig
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.engines import ray as engine_on_ray
from idiolect.engines.assembly import RayEngineChoice
from idiolect.engines.ray import RayEngine
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.participation import Participation
from idiolect.participation.sampling import Uniform
from idiolect.privacy.row_private import RowPrivate
from idiolect.privacy.settings import RowPrivacy, SiloPrivacy
from idiolect.privacy.silo_private import SiloPrivate
from idiolect.runs.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from idiolect.simulation import Simulation
from idiolect.testing.problems import ZOO, small_network, uneven_classification
from matrix.problem import options

pytestmark = pytest.mark.distributed

# The row of Ray in the matrix of methods and commands, and what is particular to some methods.
ONE_OF_EACH_FAMILY = [kind(**options(kind)) for kind in METHODS if kind.name not in LIKE]
PARTICULAR = [
    FedAvg(local_steps={"epochs": 1}, weighting="samples"),
    EFL(local_steps=2, keep=0.25, exclude_self=True),
    CodecConfig(up="topk", down="ternary").wrap(APFL(local_steps=3)),
]

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
STARTED: list[RayEngine] = []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, with room for one worker each."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray's workers are nicer than all others; on a busy machine they would be given up before they begin.
    hurried = {"worker_niceness": 0, "worker_register_timeout_seconds": 600}
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": hurried})
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Workers that the traceback of a failure keeps would hold the processors of all tests that follow."""
    yield
    for engine in STARTED:
        for block in engine.blocks:
            block.lost()
    STARTED.clear()


def simulate(
    method: Method,
    engine: Any,
    model: Callable[[], nn.Module] = small_network,
    batch_size: int | None = 4,
) -> Simulation:
    simulation = Simulation(
        method,
        model,
        uneven_classification(),
        plan=Uniform(rate=0.8),
        seed=3,
        batch_size=batch_size,
        dtype=torch.float64,
        engine=engine,
    )
    if isinstance(simulation.engine, RayEngine):
        STARTED.append(simulation.engine)
    return simulation


def assert_same(ours: Any, theirs: Any) -> None:
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def assert_same_run(ours: Simulation, theirs: Simulation) -> None:
    assert_same(ours.server, theirs.server)
    assert_same(ours.clients(), theirs.clients())
    assert_same(ours.predictors(), theirs.predictors())


def test_newcomers_do_not_wait_for_processors_that_the_workers_have(cluster: Any) -> None:
    """Both workers hold a processor, and there are no others."""
    ours, theirs = (
        simulate(APFL(local_steps=2), e).play(1) for e in (RayEngineChoice(workers=2), "sequential")
    )
    new = uneven_classification().subset([1, 3])
    assert_same(ours.newcomers(new, steps=3).predictors(), theirs.newcomers(new, steps=3).predictors())


@pytest.mark.parametrize("method", [*ONE_OF_EACH_FAMILY, *PARTICULAR], ids=lambda method: method.name)
def test_the_same_models_and_traffic_as_one_by_one(cluster: Any, method: Method) -> None:
    ours, theirs = simulate(method, RayEngineChoice(workers=2)), simulate(method, "sequential")
    for _ in range(3):
        a, b = ours.advance(), theirs.advance()
        assert torch.equal(a.up_bits, b.up_bits)
        assert torch.equal(a.down_bits, b.down_bits)
    assert_same_run(ours, theirs)


def test_who_waits_for_a_processor_says_so_and_goes_on_when_one_is_free(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_on_ray, "START_SECONDS", 0.5)
    method, both = APFL(local_steps=2), RayEngineChoice(workers=2)
    first, ours = simulate(method, both).play(1), simulate(method, both)
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, logger="idiolect.engines.ray"):
        played = pool.submit(ours.play, 2)
        wait_for(lambda: "waits for a free processor of the cluster" in caplog.text, 120, "what it waits for")
        assert not played.done()
        for block in first.engine.blocks:  # type: ignore[attr-defined]
            block.lost()
        played.result(timeout=300)
    assert_same_run(ours, simulate(method, "sequential").play(2))


def test_the_same_statistics_and_noise_as_one_by_one(cluster: Any) -> None:
    """Partial sums of workers are added, their counters are not."""
    model = ZOO["a network with batch norm and dropout"]
    method = APFL(local_steps=3)
    ours, theirs = (simulate(method, e, model).play(3) for e in (RayEngineChoice(workers=2), "sequential"))
    assert_same_run(ours, theirs)


def test_a_lost_node_changes_nothing(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    method = APFL(local_steps=2)
    ours, theirs = simulate(method, RayEngineChoice(workers=2)), simulate(method, "sequential")
    ours.play(2)
    (doomed,) = cluster.worker_nodes
    cluster.add_node(**NODE)  # where the lost worker's clients go
    with caplog.at_level(logging.WARNING, logger="idiolect.engines.ray"):
        cluster.remove_node(doomed, allow_graceful=False)
        ours.play(2)
    assert "is repeated elsewhere" in caplog.text
    assert_same_run(ours, theirs.play(4))


def test_newcomers_and_resumed_runs(cluster: Any, tmp_path: Path) -> None:
    """The driver's store changes between rounds: a client arrives in round 2, and a checkpoint is loaded."""
    arrival = Participation(clients={"client-1": {"join": 2}})

    def begin(engine: Any) -> Simulation:
        simulation = simulate(APFL(local_steps=2), engine)
        simulation.plan = arrival.bind(simulation.federation.names)
        return simulation

    before, after = begin(RayEngineChoice(workers=1)), begin(RayEngineChoice(workers=1))
    save_checkpoint(before.play(3), tmp_path)
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    load_checkpoint(after, checkpoint)
    theirs = begin("sequential").play(3)
    assert_same_run(before, theirs)
    assert_same_run(after.play(2), theirs.play(2))


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize(
    "inner", [FedAvg(local_steps=2), APFL(local_steps=2)], ids=lambda method: method.name
)
def test_private_gradients_are_those_of_one_by_one(
    cluster: Any, inner: Method, batch_size: int | None
) -> None:
    """Batches and noise follow from seed, client, round and call, wherever the client is."""
    method = RowPrivate(inner, RowPrivacy(noise=0.7, clip=0.4), batch_size, "of this run")
    ours, theirs = (
        simulate(method, engine, batch_size=batch_size).play(3)
        for engine in (RayEngineChoice(workers=2), "sequential")
    )
    assert_same_run(ours, theirs)


def test_a_private_sum_is_that_of_one_by_one(cluster: Any) -> None:
    """Partial sums are added, and get their noise once."""
    method = SiloPrivate(APFL(local_steps=2), SiloPrivacy(noise=0.7, clip=0.4), origin="of this run")
    ours, theirs = (simulate(method, e).play(3) for e in (RayEngineChoice(workers=2), "sequential"))
    assert_same_run(ours, theirs)


@pytest.mark.parametrize("unit", ["row", "silo"])
def test_a_private_run_is_counted_alike(cluster: Any, unit: str, tmp_path: Path) -> None:
    ours, theirs = (
        idiolect.run(
            method="apfl", data="vowels", model="linear", batch_size=6, rounds=2, local_steps=2,
            dtype="float64",
            engine=engine, out=str(tmp_path / name), privacy={"unit": unit, "epsilon": 3},
        )
        for name, engine in (("ray", {"name": "ray", "workers": 2}), ("here", "vectorised"))
    )  # fmt: skip
    assert ours.config.privacy == theirs.config.privacy
    pd.testing.assert_frame_equal(ours.privacy(), theirs.privacy())
    pd.testing.assert_frame_equal(ours.metrics(), theirs.metrics(), rtol=1e-9, atol=1e-12)
