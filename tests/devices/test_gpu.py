"""On a real GPU: the numbers are those of the CPU, and how fast they come. `make test-gpu`."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from idiolect.bench.subjects import BATCH_SIZE, Subject, subjects
from idiolect.codecs.choice import CodecConfig
from idiolect.core import rng, tree
from idiolect.core.device import find_device, is_here, wait_for
from idiolect.core.method import Method
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedavg import FedAvg
from idiolect.runs.checkpoint import load_checkpoint, save_checkpoint
from idiolect.simulation import Simulation
from idiolect.testing.problems import small_network, uneven_classification

DEVICE = next((name for name in ("cuda", "mps") if is_here(name)), "cpu")
TOLERANCE = 1e-4  # of the parameters' norm, in float32 after a few rounds; docs/engines.md says so

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu", reason="this machine has no GPU that torch can use"),
]


def distance(one: Simulation, other: Simulation) -> float:
    """How far the models of two runs are apart, in parts of their norm."""
    ours, theirs = (tree.flatten(simulation.predictors()).double() for simulation in (one, other))
    return float((ours - theirs).norm() / theirs.norm())


def pair(make: Callable[[str], Simulation]) -> tuple[Simulation, Simulation]:
    return make(DEVICE), make("cpu")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_gives_the_numbers_of_the_cpu(method: type[Method]) -> None:
    def make(device: str) -> Simulation:
        return Simulation(
            method(), small_network, uneven_classification(4), batch_size=4, device=device
        ).play(2)

    ours, theirs = pair(make)
    print(f"\n{method.name}: {distance(ours, theirs):.1e}")
    assert distance(ours, theirs) < TOLERANCE
    assert ours.engine.records_all_steps == theirs.engine.records_all_steps  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["ternary", "topk", "linear", "stochastic"])
def test_codecs_choose_the_same_entries(name: str) -> None:
    method = CodecConfig(up={"name": name}).wrap(FedAvg(local_steps=2))

    def make(device: str) -> Simulation:
        return Simulation(method, small_network, uneven_classification(4), batch_size=4, device=device).play(
            1
        )

    assert distance(*pair(make)) < 0.05  # an entry at the edge may be taken or not


def test_keys_are_the_same_integers() -> None:
    there, here = torch.arange(100_000, device=find_device(DEVICE)), torch.arange(100_000)
    for function in (rng.mix, lambda x: rng.fold(x, rng.key(3, "a")), lambda x: rng.below(x, 1000)):
        assert torch.equal(function(there).cpu(), function(here))
    permuted = rng.permute(there, torch.full_like(there, 100_000), torch.zeros_like(there))
    assert torch.equal(permuted.cpu().sort().values, here)
    assert (rng.uniform(there).cpu().double() - rng.uniform(here)).abs().max() < 2.0**-23


def test_a_run_goes_on_on_the_other_device(tmp_path: Path) -> None:
    def make(device: str) -> Simulation:
        return Simulation(Ditto(), small_network, uneven_classification(4), batch_size=4, device=device)

    whole = make("cpu").play(4)
    for first, second in ((DEVICE, "cpu"), ("cpu", DEVICE)):
        begun, gone_on = make(first).play(2), make(second)
        save_checkpoint(begun, tmp_path / first)
        load_checkpoint(gone_on, tmp_path / first / "round-000002")
        assert distance(gone_on.play(2), whole) < TOLERANCE


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "resnet18", "char_lstm", "transformer"])
def test_models_and_their_speed(name: str) -> None:
    subject = subjects(20, 4)[name]

    def make(device: str) -> Simulation:
        return _simulation(subject, APFL(local_steps=2), device)

    seconds = {}
    for device in (DEVICE, "cpu"):
        simulation = make(device).play(1)
        start = time.perf_counter()
        simulation.play(1)
        wait_for(find_device(device))
        seconds[device] = time.perf_counter() - start
    ours, theirs = (simulation.play(1) for simulation in pair(make))
    print(
        f"\n{name}: {distance(ours, theirs):.1e} apart; {seconds[DEVICE]:.3f} s a round on {DEVICE}, "
        f"{seconds['cpu']:.3f} s on the CPU; {ours.way}"
    )
    assert distance(ours, theirs) < TOLERANCE


def _simulation(subject: Subject, method: Method, device: str) -> Simulation:
    def model() -> nn.Module:
        return subject.model(subject.federation)

    return Simulation(method, model, subject.federation, batch_size=BATCH_SIZE, device=device)
