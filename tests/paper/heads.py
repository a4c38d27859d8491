"""A body and a head on five uneven clients, in plain torch and float64: for methods that look into a model.

Nothing here is of the library but the rows: models are dictionaries, gradients are autograd's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.core import Method, tree
from idiolect.engines.batches import Batches
from idiolect.participation.sampling import Plan, Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing import uneven_classification

Model = dict[str, Tensor]
Loss = Callable[[Model], Tensor]

ENGINES: tuple[EngineName, ...] = ("sequential", "vectorised")
UNITS, CLASSES = 5, 3
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
ALL = BODY + HEAD
SEED, BATCH, WEIGHT_DECAY = 5, 4, 0.02
PLAN = Uniform(rate=0.6)
DATA = uneven_classification()  # classes 0 and 1 are missing at one client each
SIZES = DATA.train.sizes
CLIENTS = range(len(SIZES))


def network() -> nn.Module:
    """One hidden layer, different in every entry."""
    generator = torch.Generator().manual_seed(8)
    module = nn.Sequential(nn.Linear(4, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


START: Model = {name: p.detach() for name, p in network().named_parameters()}


def simulate(method: Method, engine: EngineName = "sequential", **options: Any) -> Simulation:
    """The method on it; three of the five clients take part in a round."""
    settings: dict[str, Any] = {
        "plan": PLAN, "batch_size": BATCH, "weight_decay": WEIGHT_DECAY, "seed": SEED, "dtype": torch.float64,
    }  # fmt: skip
    return Simulation(method, network(), options.pop("data", DATA), engine=engine, **(settings | options))


def asked(round_number: int, plan: Plan = PLAN) -> list[int]:
    """Who takes part in a round."""
    return plan.cohort(SEED, round_number, SIZES).ids.tolist()


def batch(client: int, round_number: int, call: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a client's c-th gradient call in a round."""
    batches = Batches(DATA, SEED, BATCH)
    size = int(batches.batch_sizes[client])
    rows = batches.draw(torch.tensor(client), round_number, torch.tensor(call), size)
    return DATA.inputs[rows], DATA.targets[rows]


def rows_of(client: int) -> tuple[Tensor, Tensor]:
    """All training rows of a client."""
    rows = DATA.train.of(client)
    return DATA.inputs[rows], DATA.targets[rows]


def counts_of(client: int) -> Tensor:
    """Its rows of each class."""
    return rows_of(client)[1].bincount(minlength=CLASSES).double()


def features(w: Model, x: Tensor) -> Tensor:
    """What enters the head."""
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def outputs(w: Model, x: Tensor) -> Tensor:
    """The logits."""
    return features(w, x) @ w["2.weight"].T + w["2.bias"]


def cross_entropy(w: Model, x: Tensor, y: Tensor) -> Tensor:
    """The mean over rows."""
    return F.cross_entropy(outputs(w, x), y)


def descend(w: Model, loss: Loss, names: Sequence[str], rate: float) -> Model:
    """One step on the named tensors along a loss and its l2 term; the others keep their bits."""
    at = {name: value.clone().requires_grad_(name in names) for name, value in w.items()}
    slopes = dict(zip(names, torch.autograd.grad(loss(at), [at[name] for name in names]), strict=True))
    return {
        name: value - rate * (slopes[name] + WEIGHT_DECAY * value) if name in names else value
        for name, value in w.items()
    }


def average(models: Sequence[Model], weights: Tensor, names: Sequence[str] = ALL) -> Model:
    """Σ a_i w_i, with weights that need not sum to one."""
    shares = weights.double() / weights.sum()
    return {
        name: sum((a * w[name] for a, w in zip(shares, models, strict=True)), start=torch.zeros(()))
        for name in names
    }


def stacked(models: Sequence[Model]) -> Model:
    """One tensor for each name, a row for each model."""
    return tree.stack(list(models))


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    """Trees agree by name, relative to the largest entry."""
    one, other = tree.to_named(ours), tree.to_named(theirs)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.shape == other[name].shape, name
        assert float((value - other[name]).abs().max()) <= tolerance * float(other[name].abs().max()), name


def same(ours: Any, theirs: Any) -> bool:
    """Bit for bit."""
    one, other = tree.to_named(ours), tree.to_named(theirs)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in other)


def assert_same(ours: Any, theirs: Any, engine: EngineName) -> None:
    """Grade E0: bit for bit one client at a time, to rounding where recorded steps are fused."""
    if engine == "vectorised":
        assert_close(ours, theirs, 1e-12)
    else:
        assert same(ours, theirs)
