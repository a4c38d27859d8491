"""Rates of a run between silos follow from the schema, and silos agree to the numbers."""

from pathlib import Path

import torch

from idiolect.data.tables import from_frame
from idiolect.runs.smoothness import largest_eigenvalue
from idiolect.silo.coordinator import coordinate
from idiolect.silo.rates import decide_rates
from idiolect.silo.served_run import ServedRun
from idiolect.silo.vault import RunVault
from silo.problem import SILOS, Direct, config, deployed, silos_in, table

OPEN = {"name": "ditto", "learning_rate": "auto", "proximal": 0.5, "local_steps": 2}


def test_rates_are_below_what_all_rows_bear(tmp_path: Path) -> None:
    """1 / (L + λ) with L twice a bound of c λ_max(XᵀX / n) over all training rows; c = 1/4 for classes."""
    settings = deployed(config(OPEN, model={"name": "linear"}, weight_decay=0.0), tmp_path)
    schema = settings.agreed_schema.preprocessing
    decided = decide_rates(settings.config, schema, SILOS).config
    smoothness = 1 / decided.method["learning_rate"]["initial"] - 0.5
    rows = from_frame(table(), client="hospital", target="outcome", seed=5)
    inputs = torch.nn.functional.pad(rows.inputs[rows.train.index].double(), (0, 1), value=1.0)
    assert smoothness / 2 >= 0.25 * largest_eigenvalue(inputs) / len(inputs)
    assert abs(smoothness - 2 * 0.25 * (4 + 1)) < 1e-2  # four columns and the bias


def test_silos_agree_to_the_numbers(tmp_path: Path) -> None:
    settings = deployed(config(OPEN, rounds=2, model={"name": "linear"}), tmp_path)
    run = ServedRun.create(tmp_path / "served", settings)
    finished = coordinate(run, Direct(silos_in(tmp_path / "silos")))
    chosen = finished.config.method["learning_rate"]
    assert 0 < chosen["initial"] < 1
    for name in SILOS:
        agreement = RunVault(tmp_path / "silos" / name / run.name, frozenset()).agreement
        assert agreement is not None
        assert agreement["config"]["method"]["learning_rate"] == chosen
    assert "number of columns" in (finished.path / "log.txt").read_text()
    assert ServedRun(finished.path).settings.config.open_rates == []


def test_networks_keep_the_defaults_of_their_methods(tmp_path: Path) -> None:
    settings = deployed(config(OPEN), tmp_path)
    decision = decide_rates(settings.config, settings.agreed_schema.preprocessing, SILOS)
    assert decision.notes == ()
