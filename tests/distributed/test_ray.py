"""Ray actors compute what one client at a time computes, also when a node is lost on the way."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from families import LIKE
from idiolect.codecs.choice import CodecConfig
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.engines.assembly import RayEngineChoice
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.participation import Participation
from idiolect.participation.sampling import Uniform
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

MEMORY = 80 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, with room for one worker each."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def simulate(method: Method, engine: Any, model: Callable[[], nn.Module] = small_network) -> Simulation:
    return Simulation(
        method,
        model,
        uneven_classification(),
        plan=Uniform(rate=0.8),
        seed=3,
        batch_size=4,
        dtype=torch.float64,
        engine=engine,
    )


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
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)  # where the lost worker's clients go
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
