"""Metrics on training rows: what they are of, and that nothing else changes by them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

import idiolect
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.silo.serve_settings import serve_settings
from runs.same_run import assert_same_run

QUICK = ("method=apfl", "data=vowels", "rounds=3", "method.local_steps=2", "evaluation.every=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return idiolect.run(*QUICK, "evaluation.train=true", out=tmp_path_factory.mktemp("runs") / "run")


def test_they_are_of_the_rows_that_a_client_trains_with(run: RunFolder) -> None:
    """Against scikit-learn, at the reported round of the kind that the method is judged by."""
    simulation = reported_simulation(run)
    federation = simulation.federation
    table = run.metrics().query(f"round == {simulation.round} and part == 'train' and kind == 'personal'")
    values = table.set_index(["client", "metric"])["value"]
    for place in (0, 11):
        rows, name = federation.train.of(place), federation.names[place]
        model = simulation.predictor(place)["personal"]
        outputs = simulation.engine.setting.objective.predict(model, federation.inputs[rows])
        chances, targets = torch.softmax(outputs.double(), 1).numpy(), federation.targets[rows].numpy()
        chances /= chances.sum(1, keepdims=True)
        labels = np.arange(chances.shape[1])
        assert values[name, "loss"] == pytest.approx(log_loss(targets, chances, labels=labels), rel=1e-5)
        assert values[name, "accuracy"] == pytest.approx(accuracy_score(targets, chances.argmax(1)))


def test_nothing_else_changes(run: RunFolder, tmp_path: Path) -> None:
    """What is chosen and reported, bits, and the metrics of other rows."""
    without = idiolect.run(*QUICK, out=tmp_path / "run")
    metrics = run.metrics()
    assert set(without.metrics().part) == {"validation", "test"}
    assert metrics.groupby("part").size().nunique() == 1
    others = metrics[metrics.part != "train"].reset_index(drop=True)
    pd.testing.assert_frame_equal(others, without.metrics(), check_exact=True)
    assert run.summary() == without.summary()
    for table in ("rounds", "traffic", "diagnostics", "predictions"):
        assert (run.path / f"{table}.parquet").read_bytes() == (
            without.path / f"{table}.parquet"
        ).read_bytes(), table


def test_nothing_is_chosen_by_training_rows_where_there_are_no_others(tmp_path: Path) -> None:
    run = idiolect.run(*QUICK, "evaluation.train=true", "data.fractions=[1,0,0]", out=tmp_path / "run")
    assert set(run.metrics().part) == {"train"}
    summary = run.summary()
    assert (summary["part"], summary["kinds"]["personal"]["round"]) == ("validation", 3)
    assert np.isnan(summary["kinds"]["personal"]["mean"])
    assert not summary["diverged"]


class Killed(BaseException):
    """Nothing catches it."""


class Killer:
    def played(self, round_number: int) -> None:
        if round_number == 2:
            raise Killed

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        pass


def test_a_run_that_was_killed_ends_with_the_same_table(run: RunFolder, tmp_path: Path) -> None:
    settings = {"out": tmp_path / "run", "checkpoint.every": 1}
    with pytest.raises(Killed):
        idiolect.run(*QUICK, "evaluation.train=true", watch=lambda config: [Killer()], **settings)
    idiolect.resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", run.path)


def test_in_memory_and_one_by_one_it_is_the_same_table(run: RunFolder) -> None:
    trained = idiolect.train(
        "apfl", "vowels", rounds=3, local_steps=2, evaluation={"every": 2, "train": True}
    )
    pd.testing.assert_frame_equal(trained.metrics, run.metrics(), check_exact=True)
    settings = {"local_steps": 2, "evaluation": {"every": 2, "train": True}, "engine": "sequential"}
    alone = idiolect.train("apfl", "vowels", rounds=3, **settings)
    pd.testing.assert_frame_equal(alone.metrics, run.metrics(), rtol=1e-4, atol=1e-5)


def test_a_card_tells_of_rows_that_nobody_trained_with(run: RunFolder, tmp_path: Path) -> None:
    idiolect.export(run, kind="global", out=tmp_path / "model")
    assert "| train |" not in (tmp_path / "model" / "model-card.md").read_text()


def test_silos_are_not_asked_for_them() -> None:
    with pytest.raises(UserError, match="is not a setting of `idiolect serve`: silos tell"):
        serve_settings(
            {
                "silos": ["a", "b"],
                "schema": {"target": "y"},
                "method": {"name": "fedavg"},
                "evaluation": {"train": True},
            },
            Path(),
        )
