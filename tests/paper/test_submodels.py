"""Sub-model FedAvg: HeteroFL, FedRolex and federated dropout. Spec 6.13 and section 8."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.data.quadratics import quadratics
from idiolect.engines.batches import Batches
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.submodels import FederatedDropout, FedRolex, HeteroFL
from idiolect.models import build_model
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation
from idiolect.testing.problems import small_network, uneven_classification
from paper.problems import ENGINES, close

HIDDEN, INPUTS, CLASSES = 5, 4, 3
NEARLY_WHOLE = 1 - 1e-12  # keeps every unit, but goes through the masks


def simulate(method: Any, engine: str, plan: Uniform | None = None) -> Simulation:
    return Simulation(
        method,
        small_network,
        uneven_classification(),
        plan=plan or Uniform(rate=0.6),
        batch_size=4,
        seed=5,
        dtype=torch.float64,
        engine=engine,  # type: ignore[arg-type]
    )


def equal(ours: Any, theirs: Any) -> bool:
    pairs = zip(tree.leaves(ours), tree.leaves(theirs), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "weighting"), [(HeteroFL, "samples"), (FedRolex, "uniform"), (FederatedDropout, "uniform")]
)
def test_submodels_of_capacity_one_are_fedavg(engine, kind, weighting):
    options: dict[str, Any] = {"learning_rate": 0.3, "local_steps": 3, "weighting": weighting}
    theirs = simulate(FedAvg(**options), engine).play(3).predictors()
    assert equal(simulate(kind(capacities=(1.0,), **options), engine).play(3).predictors(), theirs)
    masked = simulate(kind(capacities=(NEARLY_WHOLE,), **options), engine).play(3).predictors()
    if engine == "sequential":
        assert equal(masked, theirs)
    else:  # FedAvg's recorded step is one fused operation, that of a masked gradient is not
        pairs = zip(tree.leaves(masked), tree.leaves(theirs), strict=True)
        assert all(close(a, b, 1e-12) for a, b in pairs)


@pytest.mark.parametrize("engine", ENGINES)
def test_rolling_frozen_at_zero_is_static(engine):
    options: dict[str, Any] = {"capacities": (1.0, 0.6, 0.2), "local_steps": 3}
    static = simulate(HeteroFL(**options), engine).play(4)
    frozen = simulate(FedRolex(roll=0, **options), engine).play(4)
    moving = simulate(FedRolex(**options), engine).play(4)
    assert equal(frozen.predictors(), static.predictors())
    assert not equal(moving.predictors(), static.predictors())


def kept_units(selection: str, ratio: float, round_number: int, client: int) -> np.ndarray:
    count = int(np.floor(ratio * HIDDEN + 1e-9))
    if selection == "static":
        units = range(count)
    elif selection == "rolling":
        units = [(round_number + u) % HIDDEN for u in range(count)]
    else:  # the draw itself is data: a keyed permutation for each client, round and layer
        key = rng.fold(rng.key(5, "server"), round_number, client, 0)
        place = rng.ranks(key, HIDDEN)
        units = (place < count).nonzero()[:, 0].tolist()
    mask = np.zeros(HIDDEN, dtype=bool)
    mask[list(units)] = True
    return mask


def numpy_gradient(w: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Mean cross entropy of a tanh network with one hidden layer, by hand."""
    W1, b1, W2, b2 = w
    h = np.tanh(x @ W1.T + b1)
    logits = h @ W2.T + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ W2) * (1 - h * h)
    return [back.T @ x, back.sum(0), p.T @ h, p.sum(0)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "selection"), [(HeteroFL, "static"), (FedRolex, "rolling"), (FederatedDropout, "random")]
)
def test_submodel_training_equals_its_transcription(engine, kind, selection):
    capacities, rate, steps, rounds = (0.6, 0.4, 0.2), 0.3, 3, 5
    ours = simulate(kind(capacities=capacities, learning_rate=rate, local_steps=steps), engine)
    federation = ours.federation
    batches = Batches(federation, 5, 4)
    x, y = federation.inputs.numpy(), federation.targets.numpy()
    w = [p.numpy() for p in ours.server.w.values()]
    everybody_held_everything = True
    for r in range(rounds):
        asked = Uniform(rate=0.6).cohort(5, r, federation.train.sizes).ids.tolist()
        sums, counts = [np.zeros_like(p) for p in w], [np.zeros_like(p) for p in w]
        for c in asked:
            m = kept_units(selection, capacities[c % 3], r, c)
            masks = [np.outer(m, np.ones(INPUTS)), m * 1.0, np.outer(np.ones(CLASSES), m), np.ones(CLASSES)]
            local = [mask * p for mask, p in zip(masks, w, strict=True)]
            size = int(batches.batch_sizes[c])
            for k in range(steps):
                rows = batches.draw(torch.tensor(c), r, torch.tensor(k), size).numpy()
                gradient = numpy_gradient(local, x[rows], y[rows])
                local = [p - rate * mask * g for p, mask, g in zip(local, masks, gradient, strict=True)]
            sums = [s + p for s, p in zip(sums, local, strict=True)]
            counts = [n + mask for n, mask in zip(counts, masks, strict=True)]
        everybody_held_everything &= all((n > 0).all() for n in counts)
        w = [np.where(n > 0, s / np.maximum(n, 1), p) for p, s, n in zip(w, sums, counts, strict=True)]
    ours.play(rounds)
    assert not everybody_held_everything  # so that "unchanged if nobody did" is seen
    for mine, theirs in zip(ours.server.w.values(), w, strict=True):
        assert close(mine.numpy(), theirs)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_is_sent_and_sends_only_what_it_holds(engine):
    ours = simulate(HeteroFL(capacities=(1.0, 0.4)), engine, Uniform())
    result = ours.advance()

    def bits(units: int) -> int:
        return 64 * (units * INPUTS + units + CLASSES * units + CLASSES)

    expected = torch.tensor([bits(5), bits(2), bits(5), bits(2), bits(5)])
    assert torch.equal(result.up_bits, expected)
    assert torch.equal(result.down_parts["w"], expected)
    assert torch.equal(result.down_bits, expected + HIDDEN)  # and one bit for each unit
    held: Tensor = ours.clients().w["0.bias"]
    assert (held[1::2, 2:] == 0).all()
    assert (held[1::2, :2] != 0).all()


def test_a_model_without_layers_is_refused_unless_everybody_holds_it_whole():
    data = quadratics(seed=1, clients=3)
    with pytest.raises(UserError, match="sub-models need a chain"):
        Simulation(HeteroFL(), build_model("quadratic", data), data)
    Simulation(HeteroFL(capacities=(1.0,)), build_model("quadratic", data), data).play(1)
