"""Silos behind the wire compute what one process computes: models, states and metrics."""

from pathlib import Path

import pytest

from idiolect.core import tree
from idiolect.silo.coordinator import coordinate
from idiolect.silo.served_run import ServedRun
from silo.parity import assert_deployment_equals_simulation
from silo.problem import SILOS, Direct, assert_same, config, deployed, last_saved, silos_in, simulate

CODEC = {"up": "ternary", "down": "ternary", "keep": 0.3}
METHODS = [
    {"name": "fedavg", "local_steps": {"epochs": 1}, "weighting": "samples"},
    {"name": "apfl", "local_steps": 3},
    {"name": "additive", "output": "average"},
    {"name": "efl", "keep": 0.25, "exclude_self": True},
    {"name": "pfedkm"},
    {"name": "perm", "local_steps": 2},
    {"name": "drfa"},
    {"name": "scaffold"},
    {"name": "fedamp"},
    {"name": "fedfomo", "candidates": 1},
    {"name": "knn-per", "neighbours": 3, "store_share": 0.7},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method["name"]))
def test_a_deployment_equals_a_simulation(method: dict[str, object], tmp_path: Path) -> None:
    assert_deployment_equals_simulation(config(method), tmp_path)


def test_with_codecs_both_ways(tmp_path: Path) -> None:
    assert_deployment_equals_simulation(config({"name": "apfl", "local_steps": 3}, codec=CODEC), tmp_path)


def test_a_silo_that_arrives_later_and_silos_that_are_not_always_asked(tmp_path: Path) -> None:
    """The arrival starts from the server as it is then; its first state travels to it."""
    participation = {"count": 2, "work": 0.7, "clients": {"south": {"join": 2}}}
    settings = config({"name": "apfl", "local_steps": 3}, rounds=6, participation=participation)
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    silos = silos_in(tmp_path / "silos")
    coordinate(served, Direct(silos))
    simulation = simulate(settings).play(6)
    saved = last_saved(served)
    assert_same(saved.server, simulation.server)
    states = simulation.clients()
    for number, name in enumerate(SILOS):
        assert_same(silos[name]._vault(served.name).latest(), tree.row(states, number))
