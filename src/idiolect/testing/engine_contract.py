"""The contract of an engine: it gives the numbers of the sequential one, whatever it does to be fast."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from idiolect.core import tree
from idiolect.core.exchange import ClientState, Epochs, Message, Site
from idiolect.core.method import Method
from idiolect.engines.engine import LocalEngine, Setting
from idiolect.engines.sequential import Sequential
from idiolect.methods.apfl import APFL
from idiolect.methods.drfa import DRFA
from idiolect.methods.efl import EFL
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.per_fedavg import PerFedAvg
from idiolect.methods.perm import PERM
from idiolect.methods.pfedkm import PFedKM
from idiolect.participation.sampling import Uniform
from idiolect.simulation import Simulation
from idiolect.testing.contract import (
    EQUAL,
    ROUNDS,
    Clause,
    PartialWork,
    everything,
    require_clauses,
    require_equal,
    simulate,
)
from idiolect.testing.problems import ZOO, small_network

BuildEngine = Callable[[Setting], LocalEngine]

# One for each thing that an engine has to do: sums, personal states, personal messages, several exchanges in
# a round, all rows, all uploads, codecs, adaptation.
METHODS: tuple[Method, ...] = (
    FedAvg(local_steps=Epochs(1)),
    APFL(local_steps=3),
    PFedKM(groups=2, local_steps=2),
    PERM(local_steps=2),
    DRFA(local_steps=3),
    EFL(local_steps=3),
    PerFedAvg(local_steps=2),
)


def check_engine(build: BuildEngine, methods: Iterable[Method] = METHODS) -> None:
    """Put an engine through its contract; raise `ContractError` naming each clause that it breaks.

    `build` makes the engine for a setting, as `lambda setting: Vectorised(setting)` does.
    """
    clauses: list[Clause] = []
    for method in methods:
        clauses += [
            (f"{method.name}: all clients", partial(_agrees, build, method, Uniform())),
            (f"{method.name}: partial work, lost replies", partial(_agrees, build, method, PartialWork())),
            (f"{method.name}: bits", partial(_counts_alike, build, method)),
        ]
    for name, model in ZOO.items():
        clauses.append(
            (f"fedavg on {name}", partial(_agrees, build, FedAvg(local_steps=2), Uniform(), model))
        )
    clauses.append(("clients are seen in the order in which they are asked for", partial(_in_order, build)))
    require_clauses(type(build(simulate(FedAvg()).engine.setting)).__name__, clauses)


def _simulation(
    build: BuildEngine, method: Method, plan: object, model: Callable[[], nn.Module] = small_network
) -> Simulation:
    simulation = simulate(method, plan=plan, model=model)
    simulation.engine = build(simulation.engine.setting)
    return simulation


def _agrees(
    build: BuildEngine, method: Method, plan: object, model: Callable[[], nn.Module] = small_network
) -> None:
    ours, theirs = (_simulation(b, method, plan, model).play(ROUNDS) for b in (build, Sequential))
    require_equal(everything(ours), everything(theirs), EQUAL)


def _counts_alike(build: BuildEngine, method: Method) -> None:
    ours, theirs = (_simulation(b, method, PartialWork()) for b in (build, Sequential))
    for _ in range(ROUNDS):
        mine, reference = ours.advance(), theirs.advance()
        require_equal((mine.down_parts, mine.up_parts), (reference.down_parts, reference.up_parts), 0.0)


def _in_order(build: BuildEngine) -> None:
    simulation = _simulation(build, FedAvg(local_steps=2), Uniform())
    ids = torch.tensor([3, 0, 4])

    def look(client: ClientState, brief: Message, site: Site) -> tree.Tree:
        return site.client_id

    seen = simulation.engine.survey(look, simulation.server, simulation.federation.train, ids, 0)
    if seen.tolist() != ids.tolist():
        raise AssertionError(f"asked for {ids.tolist()}, got {seen.tolist()}")
