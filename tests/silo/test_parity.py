"""Silos behind the wire compute what one process computes: models, states and metrics."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from idiolect.core import tree
from idiolect.evaluation.metrics import evaluate
from idiolect.silo.coordinator import coordinate
from idiolect.silo.serving import ServeFolder
from silo.problem import (
    SILOS,
    Direct,
    assert_same,
    assert_same_metrics,
    config,
    deployed,
    silos_in,
    simulate,
)

CODEC = {"up": "ternary", "down": "ternary", "keep": 0.3}
METHODS = [
    {"name": "fedavg", "local_steps": {"epochs": 1}, "weighting": "samples"},
    {"name": "apfl", "local_steps": 3},
    {"name": "additive"},
    {"name": "efl", "keep": 0.25, "exclude_self": True},
    {"name": "pfedkm"},
    {"name": "perm", "local_steps": 2},
    {"name": "drfa"},
    {"name": "scaffold"},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method["name"]))
def test_a_deployment_equals_a_simulation(method: dict[str, object], tmp_path: Path) -> None:
    assert_deployment_equals_simulation(config(method), tmp_path)


def test_with_codecs_both_ways(tmp_path: Path) -> None:
    assert_deployment_equals_simulation(config({"name": "apfl", "local_steps": 3}, codec=CODEC), tmp_path)


def assert_deployment_equals_simulation(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = ServeFolder.create(tmp_path / "run", deployed(settings, tmp_path))
    silos = silos_in(tmp_path / "silos")
    metrics = coordinate(folder, Direct(silos))

    simulation = simulate(settings)
    expected, traffic = [evaluate(simulation)], []
    for round_number in range(1, 4):
        result = simulation.advance()
        traffic.append([round_number, int(result.down_bits.sum()), int(result.up_bits.sum())])
        if round_number in (2, 3):
            expected.append(evaluate(simulation))

    assert_same_metrics(metrics, pd.concat(expected))
    rounds = pd.read_csv(tmp_path / "run" / "rounds.csv")[["round", "down_bits", "up_bits"]]
    assert rounds.to_numpy().tolist() == [[0, 0, 0], *traffic]
    saved = folder.checkpoint()
    assert saved is not None
    assert_same(saved[1], simulation.server)
    for number, name in enumerate(SILOS):
        vault = silos[name]._vault(folder.run_name)
        assert_same(vault.latest(), tree.row(simulation.clients(), number))
        assert_same(vault.models()[0], simulation.predictor(number))


def test_a_silo_that_arrives_later_and_silos_that_are_not_always_asked(tmp_path: Path) -> None:
    """The newcomer starts from the server as it is at its arrival; its first state travels to it."""
    participation = {"count": 2, "work": 0.7, "clients": {"south": {"join": 2}}}
    settings = config({"name": "apfl", "local_steps": 3}, rounds=6, participation=participation)
    folder = ServeFolder.create(tmp_path / "run", deployed(settings, tmp_path))
    silos = silos_in(tmp_path / "silos")
    coordinate(folder, Direct(silos))
    simulation = simulate(settings).play(6)
    saved = folder.checkpoint()
    assert saved is not None
    assert_same(saved[1], simulation.server)
    states = simulation.clients()
    for number, name in enumerate(SILOS):
        assert_same(silos[name]._vault(folder.run_name).latest(), tree.row(states, number))
