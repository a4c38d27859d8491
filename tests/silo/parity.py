"""Silos without a network beside one process that has all of the table."""

from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core import tree
from idiolect.evaluation.metrics import evaluate
from idiolect.silo.coordinator import coordinate
from idiolect.silo.served_run import ServedRun
from silo.problem import (
    SILOS,
    Direct,
    assert_same,
    assert_same_metrics,
    deployed,
    last_saved,
    silos_in,
    simulate,
)


def assert_deployment_equals_simulation(settings: dict[str, Any], tmp_path: Path, **options: Any) -> None:
    """Metrics, traffic, states and the models that silos keep."""
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    silos = silos_in(tmp_path / "silos", **options)
    metrics = coordinate(served, Direct(silos)).metrics()

    simulation = simulate(settings)
    measures = served.settings.config.evaluation.measures(simulation.federation)
    expected, traffic = [evaluate(simulation, measures)], []
    rounds, every = settings["rounds"], settings["evaluation"]["every"]
    for round_number in range(1, rounds + 1):
        result = simulation.advance()
        traffic.append([round_number, int(result.down_bits.sum()), int(result.up_bits.sum())])
        if round_number == rounds or round_number % every == 0:
            expected.append(evaluate(simulation, measures))

    assert_same_metrics(metrics, pd.concat(expected))
    counted = served.folder.rounds()[["round", "down_bits", "up_bits"]]
    assert counted.to_numpy().tolist() == [[0, 0, 0], *traffic]
    saved = last_saved(served)
    assert_same(saved.server, simulation.server)
    for number, name in enumerate(SILOS):
        vault = silos[name]._vault(served.name)
        assert_same(vault.latest(), tree.row(simulation.clients(), number))
        assert_same(vault.models()[0], simulation.predictor(number))
