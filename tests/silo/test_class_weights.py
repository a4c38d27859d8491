"""Class weights between silos: agreed in the schema, and what one process computes with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from idiolect.data.tables import from_frame
from idiolect.errors import UserError
from idiolect.runs.config import resolve
from idiolect.runs.setup import build_simulation
from idiolect.silo.coordinator import coordinate
from idiolect.silo.schema import Schema
from idiolect.silo.serve_settings import serve_settings
from idiolect.silo.served_run import ServedRun
from silo.parity import assert_same_metrics
from silo.problem import SILOS, Direct, assert_same, config, last_saved, silos_in, table

WEIGHTS = {"worse": 6, "better": 0.5}


def served(folder: Path, weights: Any, **options: Any) -> ServedRun:
    settings = {**config({"name": "apfl", "local_steps": 3}), **options}
    schema = {"target": "outcome", "class_weights": weights}
    return ServedRun.create(
        folder / "run", serve_settings({**settings, "silos": list(SILOS), "schema": schema}, folder)
    )


def test_silos_weigh_classes_as_one_process_does(tmp_path: Path) -> None:
    metrics = {"every": 2, "metrics": ["recall:each", "auc", "log_loss"], "metric": "recall:worse"}
    run = served(tmp_path, WEIGHTS, evaluation=metrics)
    told = coordinate(run, Direct(silos_in(tmp_path / "silos"))).metrics()
    data = from_frame(table(), client="hospital", target="outcome", seed=5, class_weights=WEIGHTS)
    settings = {**config({"name": "apfl", "local_steps": 3}), "evaluation": metrics}
    resolved = resolve({**settings, "data": {"name": "silos"}, "engine": {"name": "sequential"}})
    simulation = build_simulation(resolved, data)
    measures = resolved.evaluation.measures(data)
    simulation.play(3)
    assert_same(last_saved(run).server, simulation.server)
    # Of a class of which it has no rows a silo tells nothing, and one process that there is no number.
    assert_same_metrics(told[told["round"] == 3], simulation.evaluate(measures).dropna())
    assert run.folder.summary()["metric"] == "recall:worse"
    assert set(told.metric) >= {"recall:better", "recall:same", "recall:worse", "auc", "log_loss"}


def test_the_agreement_is_plain_and_checked() -> None:
    data = from_frame(table(), client="hospital", target="outcome", seed=5)
    assert data.preprocessing is not None
    schema = Schema(data.preprocessing, class_weights=(0.5, 1.0, 6.0))
    plain = json.loads(json.dumps(schema.plain()))
    assert Schema.from_plain(plain) == schema
    for wrong in ([1.0, 2.0], [1.0, 2.0, -1.0], [1.0, 2.0, float("nan")]):
        with pytest.raises(UserError, match="do not fit the agreed classes"):
            Schema.from_plain({**plain, "class_weights": wrong})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"target": "outcome", "class_weights": "balanced"}, "silos do not tell how often"),
        (
            {"target": "y", "columns": {"a": {}}, "classes": ["no", "yes"], "class_weights": {"yse": 2}},
            "did you mean yes",
        ),
        ({"target": "y", "columns": {"a": {}}, "class_weights": {"yes": 2}}, "a regression has no classes"),
    ],
)
def test_what_silos_cannot_agree_on(schema: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = {**config({"name": "fedavg"}), "silos": list(SILOS), "schema": schema}
    with pytest.raises(UserError, match=words):
        serve_settings(settings, tmp_path)
