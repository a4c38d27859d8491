"""Small asymmetric problems, each also in plain NumPy, so that a transcription of a paper needs no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from idiolect.core.method import Method
from idiolect.core.tree import Params
from idiolect.data.federation import Federation
from idiolect.data.quadratics import quadratics
from idiolect.engines.batches import Batches
from idiolect.models import build_model
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import uneven_classification

ENGINES: tuple[EngineName, ...] = ("sequential", "vectorised")


@dataclass(frozen=True)
class Softmax:
    """Softmax regression on five uneven clients; in NumPy a model is one vector: weights, then biases."""

    participation: float = 0.6
    batch_size: int | None = 4
    weight_decay: float = 0.02
    seed: int = 5
    features: int = 4
    classes: int = 3

    @cached_property
    def federation(self) -> Federation:
        return uneven_classification(features=self.features, classes=self.classes)

    @cached_property
    def _module(self) -> nn.Module:
        generator = torch.Generator().manual_seed(8)
        module = nn.Linear(self.features, self.classes, dtype=torch.float64)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
        return module

    @property
    def clients(self) -> int:
        return len(self.federation)

    @property
    def sizes(self) -> np.ndarray:
        return self.federation.train.sizes.numpy()

    def simulate(self, method: Method, engine: EngineName, **options: Any) -> Simulation:
        settings: dict[str, Any] = {
            "plan": Uniform(rate=self.participation),
            "batch_size": self.batch_size,
            "weight_decay": self.weight_decay,
            "seed": self.seed,
            "dtype": torch.float64,
            "engine": engine,
        }
        return Simulation(method, self._module, self.federation, **(settings | options))

    def start(self) -> np.ndarray:
        """The initial model."""
        return vector({name: p.detach() for name, p in self._module.named_parameters()})

    def asked(self, round_number: int) -> list[int]:
        """Who takes part in a round."""
        plan = Uniform(rate=self.participation)
        return plan.cohort(self.seed, round_number, self.federation.train.sizes).ids.tolist()

    def batch(self, client: int, round_number: int, call: int) -> np.ndarray:
        """The rows of a client's c-th gradient call in a round."""
        batches = Batches(self.federation, self.seed, self.batch_size)
        size = int(batches.batch_sizes[client])
        return batches.draw(torch.tensor(client), round_number, torch.tensor(call), size).numpy()

    def rows(self, client: int) -> np.ndarray:
        """All training rows of a client."""
        return self.federation.train.of(client).numpy()

    def loss(self, w: np.ndarray, rows: np.ndarray) -> float:
        """The mean cross entropy of some rows plus the l2 term."""
        probabilities, y = self._probabilities(w, rows)
        own = probabilities[np.arange(len(rows)), y]
        return float(-np.log(own).mean() + 0.5 * self.weight_decay * w @ w)

    def gradient(self, w: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Its gradient."""
        probabilities, y = self._probabilities(w, rows)
        errors = probabilities.copy()
        errors[np.arange(len(rows)), y] -= 1
        errors /= len(rows)
        x = self.federation.inputs.numpy()[rows]
        return np.concatenate([(errors.T @ x).ravel(), errors.sum(0)]) + self.weight_decay * w

    def _probabilities(self, w: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.federation.inputs.numpy()[rows], self.federation.targets.numpy()[rows]
        split = self.features * self.classes
        logits = x @ w[:split].reshape(self.classes, self.features).T + w[split:]
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return odds / odds.sum(1, keepdims=True), y


def vector(params: Params) -> np.ndarray:
    """A model, or a stack of models, as NumPy vectors: weights first, then biases if there are any."""
    parts = [params[name] for name in ("weight", "bias") if name in params]
    whole = 2 if "bias" in params else 1  # axes of one model's weight
    stacked = parts[0].ndim - whole
    flat = [p.reshape(*p.shape[:stacked], -1).detach().numpy() for p in parts]
    return np.concatenate(flat, axis=-1)


def on_quadratics(
    method: Method, engine: EngineName, federation: Federation | None = None, **options: Any
) -> Simulation:
    """A method on noisy random quadratics (or on others that are given), from zero, in float64."""
    data = federation or quadratics(seed=3, clients=4, dimensions=3, noise=0.5, rows=6, double=True)
    settings: dict[str, Any] = {"batch_size": 2, "seed": 7, "dtype": torch.float64, "engine": engine}
    return Simulation(method, build_model("quadratic", data), data, **(settings | options))


def identical_clients(clients: int = 3, rows: int = 7) -> Federation:
    """A classification problem that all clients share row for row."""
    one = uneven_classification(clients=1 + rows).subset([rows])
    return one.subset([0] * clients)


def finite_difference(
    function: Callable[[np.ndarray], float], at: np.ndarray, width: float = 1e-5
) -> np.ndarray:
    """The gradient of a function by central differences."""
    basis = np.eye(len(at)) * width
    return np.array([(function(at + e) - function(at - e)) / (2 * width) for e in basis])


def close(ours: Any, theirs: Any, relative: float = 1e-9) -> bool:
    """Whether two arrays agree relative to the size of the second."""
    a, b = np.asarray(ours), np.asarray(theirs)
    return a.shape == b.shape and bool(np.abs(a - b).max() <= relative * max(np.abs(b).max(), 1e-300))


def identical(ours: Params, theirs: Params, engine: EngineName) -> bool:
    """Equality of grade E0: bitwise one client at a time, to rounding where recorded steps are fused."""
    if engine == "vectorised":
        return close(vector(ours), vector(theirs), 1e-12)
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def of_method(state: Any) -> Any:
    """A method's own state, also where something stands around the method."""
    while hasattr(state, "inner"):
        state = state.inner
    return state
