"""What the contracts share: clauses that are tried one by one, and the small runs that they look at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.cohort import Cohort
from idiolect.core.tree import Tree
from idiolect.data.federation import Federation
from idiolect.participation.sampling import Uniform
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import small_network, uneven_classification

ROUNDS = 4
EQUAL = 1e-9  # relative, in float64, between computations that differ in the order of operations

Clause = tuple[str, Callable[[], None]]  # what is to hold, and a trial that raises where it does not


class ContractError(AssertionError):
    """A contract is broken; the message has one line for each broken clause."""


def require_clauses(name: str, clauses: Sequence[Clause]) -> None:
    """Try all clauses; raise `ContractError` naming each that is broken."""
    broken = [f"{title}: {problem}" for title, clause in clauses if (problem := _problem_of(clause))]
    if broken:
        raise ContractError(f"{name} breaks its contract\n" + "\n".join(broken))


def _problem_of(clause: Callable[[], None]) -> str:
    try:
        clause()
    except Exception as error:  # what is broken may fail in any way; the report names the clause
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


@dataclass(frozen=True)
class PartialWork:
    """Everybody is asked; client i completes a share of the work that depends on i and the round."""

    joins: Mapping[int, int] | None = None  # client -> the round in which it arrives

    def cohort(self, seed: int, round_number: int, sizes: Tensor) -> Cohort:
        """All present clients, the last reply of every other round lost."""
        plan = Uniform().cohort(seed, round_number, sizes)
        ids = self.present(round_number, len(sizes)).nonzero()[:, 0]
        work = ((ids + round_number) % 3 + 1).double() / 3
        replied = (ids < len(sizes) - 1) | (torch.tensor(round_number) % 2 == 0)
        population = type(plan.population)(sizes, self.present(round_number, len(sizes)))
        return Cohort(ids, work, replied, torch.ones(len(ids), dtype=torch.float64), population)

    def present(self, round_number: int, clients: int) -> Tensor:
        """Everybody but those who arrive later."""
        joins = self.joins or {}
        return torch.tensor([joins.get(c, 0) <= round_number for c in range(clients)])


def simulate(
    method: Any,
    engine: EngineName = "sequential",
    plan: Any = None,
    model: Callable[[], nn.Module] = small_network,
    federation: Callable[[], Federation] = uneven_classification,
    **options: Any,
) -> Simulation:
    """The method on an uneven classification problem in float64."""
    settings: dict[str, Any] = {"batch_size": 5, "weight_decay": 0.01, "seed": 3} | options
    return Simulation(
        method,
        model,
        federation(),
        plan=plan,
        engine=engine,
        dtype=torch.float64,
        **settings,
    )


def require_equal(ours: Tree, theirs: Tree, tolerance: float) -> None:
    """Two trees must have the same fields, and values that differ by rounding at most."""
    a, b = tree.to_named(ours), tree.to_named(theirs)
    if a.keys() != b.keys():
        raise AssertionError(f"the fields differ: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        scale = max(float(b[name].double().abs().max()) if b[name].numel() else 0.0, 1.0)
        apart = float((a[name].double() - b[name].double()).abs().max()) if b[name].numel() else 0.0
        if not apart <= tolerance * scale:
            raise AssertionError(f"{name} differs by {apart:.3g}")


def everything(simulation: Simulation) -> Tree:
    """All that a run has come to: states and models."""
    return (simulation.server, simulation.clients(), simulation.predictors())


def through_bytes(state: Tree) -> Tree:
    """The same, as it comes out of a file or off a wire."""
    named = {name: value.detach().clone().contiguous() for name, value in tree.to_named(state).items()}
    return tree.from_named(load(save(named)), state)
