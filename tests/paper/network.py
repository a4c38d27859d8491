"""A network of two layers on five uneven clients, also in plain NumPy: for methods on parts of a model."""

from typing import Any

import numpy as np
import torch
from torch import nn

from idiolect.core import Method, Params
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines.batches import Batches
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing import uneven_classification

Arrays = dict[str, np.ndarray]

FEATURES, UNITS, CLASSES = 4, 5, 3
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
SEED, BATCH, WEIGHT_DECAY, RATE = 5, 4, 0.02, 0.3
PLAN = Uniform(rate=0.6)
DATA = uneven_classification()
SIZES = DATA.train.sizes.numpy()
CLIENTS = range(len(SIZES))
_BATCHES = Batches(DATA, SEED, BATCH)


def network() -> nn.Module:
    """One hidden layer, different in every entry."""
    generator = torch.Generator().manual_seed(8)
    module = nn.Sequential(nn.Linear(FEATURES, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def regression(x: torch.Tensor, y: torch.Tensor) -> Federation:
    """Clients with some rows each, [clients, rows, features] and [clients, rows]."""
    clients, rows = y.shape
    owned = Rows.of_clients(list(torch.arange(clients * rows).split(rows)))
    names = tuple(f"client-{c}" for c in range(clients))
    task = Task("regression", 1)
    return Federation(x.flatten(0, 1), y.reshape(-1, 1), task, names, owned, owned, owned)


START: Arrays = {name: p.detach().numpy() for name, p in network().named_parameters()}


def simulate(method: Method, engine: EngineName = "sequential", **options: Any) -> Simulation:
    """The method on it; three of the five clients take part in a round."""
    settings: dict[str, Any] = {
        "plan": PLAN,
        "batch_size": BATCH,
        "weight_decay": WEIGHT_DECAY,
        "seed": SEED,
        "dtype": torch.float64,
    }
    return Simulation(method, network(), DATA, engine=engine, **(settings | options))


def asked(round_number: int) -> list[int]:
    """Who takes part in a round."""
    return PLAN.cohort(SEED, round_number, DATA.train.sizes).ids.tolist()


def batch(client: int, round_number: int, call: int) -> np.ndarray:
    """The rows of a client's c-th gradient call in a round."""
    size = int(_BATCHES.batch_sizes[client])
    return _BATCHES.draw(torch.tensor(client), round_number, torch.tensor(call), size).numpy()


def gradient(w: Arrays, rows: np.ndarray) -> Arrays:
    """Of the mean cross entropy of some rows plus the l2 term."""
    x, y = DATA.inputs.numpy()[rows], DATA.targets.numpy()[rows]
    features = np.tanh(x @ w["0.weight"].T + w["0.bias"])
    logits = features @ w["2.weight"].T + w["2.bias"]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    errors = odds / odds.sum(1, keepdims=True)
    errors[np.arange(len(rows)), y] -= 1
    errors /= len(rows)
    inner = (errors @ w["2.weight"]) * (1 - features**2)
    slopes = {
        "0.weight": inner.T @ x,
        "0.bias": inner.sum(0),
        "2.weight": errors.T @ features,
        "2.bias": errors.sum(0),
    }
    return {name: slopes[name] + WEIGHT_DECAY * w[name] for name in w}


def descend(w: Arrays, names: tuple[str, ...], rows: np.ndarray, rate: float = RATE) -> Arrays:
    """One step on the named tensors; the others are the same arrays as before."""
    slopes = gradient(w, rows)
    return {name: w[name] - rate * slopes[name] if name in names else w[name] for name in w}


def average(models: list[Arrays], names: tuple[str, ...], weights: np.ndarray | None = None) -> Arrays:
    """Σ a_i w_i of some tensors."""
    return {name: np.average([w[name] for w in models], axis=0, weights=weights) for name in names}


def stacked(models: list[Arrays]) -> Arrays:
    """One array for each name, a row for each model."""
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    """Parameters agree by name, relative to the largest entry."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        expected = np.asarray(theirs[name])
        assert np.asarray(value).shape == expected.shape, name
        assert np.abs(np.asarray(value) - expected).max() <= tolerance * np.abs(expected).max(), name


def same(ours: Params, theirs: Params) -> bool:
    """Bit for bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def assert_same(ours: Params, theirs: Params, engine: EngineName) -> None:
    """Grade E0: bit for bit one client at a time, to rounding where recorded steps are fused."""
    if engine == "vectorised":
        assert_close(ours, theirs, 1e-12)
    else:
        assert same(ours, theirs)


def part(params: Params, names: tuple[str, ...]) -> Params:
    """Some of the tensors."""
    return {name: params[name] for name in names}
