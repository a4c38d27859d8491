"""What silence, absence, arrival and departure do to the states of every method."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from families import each_family
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.tree import Tree
from idiolect.methods.afl import AFL
from idiolect.methods.agnostic_apfl import AgnosticAPFL
from idiolect.methods.drfa import DRFA
from idiolect.methods.fedbabu import FedBABU
from idiolect.participation import ClientEntry, Participation
from idiolect.simulation import EngineName, Simulation
from idiolect.testing.problems import small_network, uneven_classification

CLIENTS = 12
FEDERATION = uneven_classification(clients=CLIENTS)
SETTINGS: dict[str, Any] = {"batch_size": 5, "seed": 1, "dtype": torch.float64}
EVERY_METHOD = each_family("method")


def simulate(
    method: type[Method], participation: Participation | None = None, engine: EngineName = "sequential"
) -> Simulation:
    takes_steps = "local_steps" in {field.name for field in fields(method)} and method is not AFL
    plan = (participation or Participation()).bind(FEDERATION.names)
    instance = method(local_steps=2) if takes_steps else method()
    return Simulation(instance, small_network, FEDERATION, plan=plan, engine=engine, **SETTINGS)


def is_same(a: Tree, b: Tree) -> bool:
    ours, theirs = tree.to_named(a), tree.to_named(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def all_finite(a: Tree) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in tree.leaves(a))


def through_bytes(state: Tree) -> Tree:
    named = {name: leaf.contiguous().clone() for name, leaf in tree.to_named(state).items()}
    return tree.from_named(load(save(named)), state)


def server_models(simulation: Simulation) -> Tree:
    """All that the server knows but counters."""
    state = tree.to_named(simulation.server)
    return {name: leaf.clone() for name, leaf in state.items() if leaf.is_floating_point()}


@EVERY_METHOD
def test_a_round_in_which_nobody_answers_leaves_the_server_as_it_was(method):
    simulation = simulate(method).play(2)
    before = server_models(simulation)
    simulation.plan = Participation(lost_replies=1.0).bind(FEDERATION.names)
    result = simulation.advance()
    assert is_same(server_models(simulation), before)
    assert int(result.up_bits.sum()) == 0
    simulation.plan = Participation(inactive=1.0).bind(FEDERATION.names)
    result = simulation.advance()
    assert is_same(server_models(simulation), before)
    assert int(result.down_bits.sum()) == 0


@EVERY_METHOD
def test_a_client_that_was_never_heard_from_is_as_on_its_first_day(method):
    silent = Participation(clients={"client-4": ClientEntry(work=0.0)})
    simulation = simulate(method, silent)
    before = tree.row(simulation.clients(), 4)
    simulation.play(4)
    assert is_same(tree.row(simulation.clients(), 4), before)
    assert all_finite(simulation.predictor(4))


@EVERY_METHOD
def test_a_client_that_returns_finds_its_state_and_goes_on(method):
    simulation = simulate(method).play(2)
    before = tree.row(simulation.clients(), 4)
    simulation.plan = Participation(clients={"client-4": ClientEntry(work=0.0)}).bind(FEDERATION.names)
    simulation.play(6)
    assert is_same(tree.row(simulation.clients(), 4), before)
    simulation.plan = Participation().bind(FEDERATION.names)
    play_until_changed(simulation, before)
    assert all_finite((simulation.server, simulation.clients()))


def play_until_changed(simulation: Simulation, before: Tree) -> int:
    """Play until client 4 has worked; PERM's and FedBABU's have no state, and DRFA asks whom it likes."""
    waits = bool(tree.leaves(before)) and not isinstance(simulation.method, DRFA | AgnosticAPFL | FedBABU)
    for rounds in range(1, 4):
        simulation.advance()
        if not is_same(tree.row(simulation.clients(), 4), before):
            return rounds
    assert not waits, "client 4 did not change"
    return rounds


class SilentFour:
    """Everybody takes part; client 4's reply is lost, or the client does nothing."""

    def __init__(self, *, works: bool) -> None:
        self.works = works
        self.inner = Participation().bind(FEDERATION.names)

    def cohort(self, seed: int, round_number: int, sizes: torch.Tensor) -> Any:
        cohort = self.inner.cohort(seed, round_number, sizes)
        if self.works:
            return replace(cohort, replied=cohort.ids != 4)
        return replace(cohort, work=(cohort.ids != 4).double())

    def present(self, round_number: int, clients: int) -> torch.Tensor:
        return self.inner.present(round_number, clients)


@EVERY_METHOD
def test_a_lost_reply_changes_the_client_and_not_the_server(method):
    """To the server, a client whose reply was lost is a client that did nothing."""
    lost, idle = (simulate(method).play(2) for _ in range(2))
    before = tree.row(lost.clients(), 4)
    lost.plan, idle.plan = SilentFour(works=True), SilentFour(works=False)
    rounds = play_until_changed(lost, before)
    idle.play(rounds)
    assert is_same(tree.row(idle.clients(), 4), before)
    ours, theirs = tree.to_named(lost.server), tree.to_named(idle.server)
    for name in ours:
        # Equal up to the order of sums: the cohorts have different numbers of clients.
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-12)


def rough_weather(rounds: int) -> Participation:
    """Random stragglers, 10 % lost replies, five arrivals and five departures."""
    arrivals = {f"client-{k}": ClientEntry(join=rounds * (k + 1) // 8) for k in range(5)}
    departures = {f"client-{k}": ClientEntry(leave=rounds * (k - 3) // 8) for k in range(5, 10)}
    return Participation(
        rate=0.6, work="uniform", lost_replies=0.1, inactive=0.05, clients=arrivals | departures
    )


def play_through(method: type[Method], rounds: int, engine: EngineName) -> None:
    """To the end without an error, and from the middle again as if nothing had happened."""
    simulation = simulate(method, rough_weather(rounds), engine).play(rounds // 2)
    server, clients, known = (
        through_bytes(simulation.server),
        through_bytes(simulation.clients()),
        simulation.engine.setting.store.known(torch.arange(CLIENTS)),
    )
    simulation.play(rounds - rounds // 2)
    assert all_finite((simulation.server, simulation.clients(), simulation.predictors()))
    resumed = simulate(method, rough_weather(rounds), engine)
    resumed.server, resumed.round = server, rounds // 2
    resumed.engine.setting.store.put(known.nonzero()[:, 0], tree.select(clients, known))
    resumed.play(rounds - rounds // 2)
    assert is_same(resumed.server, simulation.server)
    assert is_same(resumed.clients(), simulation.clients())


@EVERY_METHOD
def test_every_method_survives_rough_weather_and_resumes_in_the_middle(method):
    play_through(method, 16, "sequential")


@pytest.mark.slow
@EVERY_METHOD
def test_every_method_survives_200_rounds_of_rough_weather(method):
    play_through(method, 200, "vectorised")
