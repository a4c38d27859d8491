"""PERM's synthetic and MNIST studies, scaled down (experiments 004, figures 1 and 6)."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect.data.sources.images import mnist
from idiolect.data.synthetic import opposed_signs
from idiolect.evaluation.metrics import evaluate
from idiolect.methods.local import Local
from idiolect.methods.perm import PERM, PERMTwoStage
from idiolect.models import build_model
from idiolect.simulation import Simulation

CLIENTS = 50


def mixing(simulation: Simulation) -> Tensor:
    return simulation.server.mixing.rows(0, CLIENTS, CLIENTS)


def accuracy_of(simulation: Simulation) -> float:
    table = evaluate(simulation)
    chosen = table["metric"].eq("accuracy") & table["kind"].eq("personal") & table["part"].eq("test")
    return float(table[chosen]["value"].mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_opposed_signs_perm_finds_its_half_and_is_at_least_as_good_as_local_training(seed):
    """G3 with 40 samples for each client and no bias, 100 rounds of 20 steps, automatic λ."""
    data = opposed_signs(seed=seed, samples=40)

    def run(method: Any) -> Simulation:
        model = build_model("linear", data, bias=False)
        return Simulation(method, model, data, seed=seed, batch_size=20).play(100)

    perm, local = run(PERM(local_steps=20)), run(Local(local_steps=20))
    assert data.groups is not None
    same_half = data.groups[:, None] == data.groups
    assert float((mixing(perm) * same_half).sum(1).min()) > 0.99
    assert accuracy_of(perm) >= accuracy_of(local)


@pytest.fixture(scope="module")
def data_dir() -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("IDIOLECT_DATA", beside))
    if not (folder / "mnist").is_dir():
        pytest.skip("MNIST is not at hand; set IDIOLECT_DATA to a folder with mnist/ in it")
    return folder


@pytest.mark.slow
def test_on_mnist_weights_are_blocks_for_one_class_each_and_diffuse_for_equal_clients(data_dir):
    """Figure 6, with the automatic λ."""

    def matrix(partition: Any) -> tuple[Tensor, Tensor]:
        data = mnist(seed=1, data_dir=data_dir, clients=CLIENTS, partition=partition, per_client=1, rows=5000)
        method = PERMTwoStage(global_rounds=3, local_steps=5)
        model = build_model("mlp", data, hidden=(32,))
        found = mixing(Simulation(method, model, data, batch_size=20).play(4))
        digits = [int(data.targets[data.train.of(c)].mode().values) for c in range(CLIENTS)]
        return found, torch.tensor(digits)

    blocks, digits = matrix("classes")
    same = digits[:, None] == digits
    assert (blocks[~same] == 0).all()
    assert float((1 / blocks.square().sum(1)).max()) <= 5.01  # 50 clients, 10 classes: blocks of 5
    assert float((1 / blocks.square().sum(1)).mean()) > 4
    diffuse, _ = matrix("iid")
    assert float((1 / diffuse.square().sum(1)).mean()) > 45
    assert float(torch.special.entr(diffuse).sum(1).mean()) > 3.8  # log 50 = 3.91
