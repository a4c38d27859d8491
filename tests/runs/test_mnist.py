"""MNIST with two classes for each of 100 clients, as a comparison."""

import os
from pathlib import Path

import pytest

import idiolect
from idiolect.evaluation.summary import means

DATA = Path(os.environ.get("IDIOLECT_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="needs MNIST in IDIOLECT_DATA")
def test_personal_above_localized_above_global_for_three_seeds(tmp_path: Path) -> None:
    settings = ["data=mnist", f"data.data_dir={DATA}", "data.rows=20000", "data.clients=100", "rounds=20"]
    settings += [
        "methods=fedavg,apfl",
        "seeds=3",
        "lr=0.05",
        "evaluation.every=20",
        f"out={tmp_path / 'out'}",
    ]
    last = {}
    for run in idiolect.compare(*settings).runs:
        for kind in run.summary()["kinds"]:
            key = run.config.seed, run.config.method["name"], kind
            last[key] = means(run.metrics(), kind, "validation", "accuracy").iloc[-1]
    for seed in range(3):
        personal, localized = last[seed, "apfl", "personal"], last[seed, "fedavg", "localized"]
        assert personal > localized > last[seed, "fedavg", "global"], seed
