"""One network, one method, one federation on two engines, and when their numbers are the same."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engines.modes import Mode
from engines.networks import Network, federation
from engines.test_equality import PLANS
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.engines.ways import stacking_obstacle
from idiolect.simulation import Simulation

ROUNDS = 2
EXACT = 1e-9  # relative, in float64, between computations that differ in the order of operations
SMALL = 1e-3  # tensors below this are as large as their rounding where their exact value is zero
# In float32 another order of sums may be unlucky where one was lucky: so much more than the error of one.
MORE_ROUNDING, FEW_ROUNDINGS = 20, 100

Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """What is computed, whichever engine does it."""

    network: Network
    method: Method
    sizes: tuple[int, ...] = (4, 3, 5)
    batch_size: int | None = 3
    plan: str = "full"
    dtype: torch.dtype = torch.float64

    def simulation(self) -> Simulation:
        """On the sequential engine."""
        return Simulation(
            self.method,
            self.network.build(),
            federation(self.network, self.sizes),
            plan=PLANS[self.plan],
            seed=self.network.seed,
            batch_size=self.batch_size,
            weight_decay=0.01,
            dtype=self.dtype,
            engine="sequential",
        )

    def expected(self) -> Numbers:
        """What the sequential engine gives."""
        return numbers(self.simulation().play(ROUNDS))

    def computed(self, mode: Mode, chunk: int | None) -> Numbers:
        """What another engine gives, if it has no reason to fall back on what it is compared with."""
        simulation = self.simulation()
        simulation.engine = engine = mode(simulation.engine.setting, chunk)
        doubts = [doubt.sentence for _ in range(ROUNDS) for doubt in simulation.advance().doubts]
        assert not doubts
        assert engine.records_all_steps or self.network.cannot_be_recorded
        return numbers(simulation)

    def obstacle(self) -> str | None:
        """Why the network cannot be run for many clients at once, if it cannot."""
        return stacking_obstacle(self.simulation().engine.setting)


def numbers(simulation: Simulation) -> Numbers:
    """All that a run leaves, by name."""
    return tree.to_named((simulation.server, simulation.clients(), simulation.predictors()))


def are_finite(run: Numbers) -> bool:
    """Whether a run did not overflow: from there on nothing can be compared."""
    return all(bool(leaf.isfinite().all()) for leaf in run.values())


def scale_of(leaf: Tensor) -> float:
    """The size of a tensor's largest number."""
    return max(float(leaf.double().abs().max()) if leaf.numel() else 0.0, SMALL)


def errors(run: Numbers, exact: Numbers) -> dict[str, float]:
    """How far each tensor is off, relative to its scale."""
    assert run.keys() == exact.keys()
    return {
        name: float((run[name].double() - leaf.double()).abs().max()) / scale_of(leaf)
        if leaf.numel()
        else 0.0
        for name, leaf in exact.items()
    }


def assert_agrees(trial: Trial, mode: Mode, chunk: int | None, expected: Numbers) -> None:
    """In float64 up to the order of sums; in float32 as near to float64 as the sequential engine, about."""
    computed = trial.computed(mode, chunk)
    assert {name: leaf.dtype for name, leaf in computed.items()} == {
        name: leaf.dtype for name, leaf in expected.items()
    }
    if trial.dtype == torch.float64:
        exact, allowed = expected, EXACT
    else:
        exact = replace(trial, dtype=torch.float64).expected()
        own = max(errors(expected, exact).values(), default=0.0)
        allowed = MORE_ROUNDING * own + FEW_ROUNDINGS * torch.finfo(trial.dtype).eps
    wrong = {name: f"{error:.2g}" for name, error in errors(computed, exact).items() if not error <= allowed}
    assert not wrong, f"off by more than {allowed:.2g}: {wrong}"
    assert math.isfinite(allowed)
