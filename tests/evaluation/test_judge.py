"""By what a task is judged where nobody says: made federations in which classes are rare, or are not."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect
from idiolect.core.task import Task
from idiolect.data.federation import Federation
from idiolect.data.tables import from_frame
from idiolect.engines.local_view import stand_in
from idiolect.evaluation.judge import default_metric


def table(counts: list[list[int]]) -> pd.DataFrame:
    """For each client how many rows of each class it has."""
    draw = np.random.default_rng(0)
    frames = []
    for client, of_class in enumerate(counts):
        classes = np.repeat([f"class {c}" for c in range(len(of_class))], of_class)
        inputs = draw.normal(size=len(classes)) + (classes == "class 1")
        frames.append(pd.DataFrame({"x": inputs, "site": f"s{client}", "sort": classes}))
    return pd.concat(frames, ignore_index=True)


def federation(counts: list[list[int]], seed: int = 0) -> Federation:
    return from_frame(table(counts), client="site", target="sort", seed=seed)


@pytest.mark.parametrize(
    ("counts", "metric", "words"),
    [
        # 2 classes: below 20 % and not
        ([[80, 20], [40, 10]], "accuracy", []),
        ([[81, 19], [40, 10]], "auc", ["'class 1' has 19.3 %"]),
        ([[5, 95], [30, 70]], "auc", ["'class 0' has 17.5 %"]),
        # auc needs both classes among validation rows: one row in five is one
        ([[95, 5], [20, 0]], "auc", ["class 1"]),
        ([[96, 4], [20, 0]], "balanced_accuracy", ["class 1", "2 of 2 clients have too few"]),
        ([[60, 20], [90, 2], [90, 2]], "balanced_accuracy", ["2 of 3 clients have too few"]),
        # 3 classes: more than 60 % and not
        ([[62, 20, 18], [10, 5, 5]], "accuracy", []),
        ([[62, 20, 18], [11, 5, 4]], "balanced_accuracy", ["'class 0' has 60.8 %"]),
    ],
)
def test_rare_classes_and_large_ones(counts: list[list[int]], metric: str, words: list[str]) -> None:
    found = {default_metric(federation(counts, seed)) for seed in range(5)}
    assert len(found) == 1  # whatever the split: the seeds of a comparison are judged alike
    name, reason = found.pop()
    assert name == metric
    assert all(word in reason for word in words)
    assert bool(reason) == bool(words)


def test_without_classes_or_without_rows_the_usual_one() -> None:
    assert default_metric(idiolect.load("quadratic-pair", seed=0)) == ("rmse", "")
    rare = federation([[99, 1]])
    assert rare.preprocessing is not None
    sizes = pd.DataFrame(9, index=["a", "b"], columns=["train", "validation", "test"])
    assert default_metric(stand_in(rare.preprocessing, sizes)) == ("accuracy", "")


def test_the_reason_is_with_the_run_and_in_memory(tmp_path: Path) -> None:
    table([[90, 10], [70, 12], [55, 5]]).to_csv(tmp_path / "rare.csv", index=False)
    data = {"name": str(tmp_path / "rare.csv"), "client": "site", "target": "sort"}
    common = {"data": data, "rounds": 2, "seeds": 2, "out": str(tmp_path / "both")}
    comparison = idiolect.compare(common, methods="local,fedavg")
    for run in comparison.runs:
        summary = run.summary()
        assert summary["metric"] == "auc"
        assert "'class 1' has 11.2 %" in summary["metric_reason"]
        # What is reported is the round that is best by it on validation rows.
        kind = summary["judged_by"]
        told = run.metrics().query("metric == 'auc' and part == 'validation' and kind == @kind")
        best = told.groupby("round")["value"].mean().idxmax()
        assert summary["kinds"][kind]["round"] == best
    assert comparison.page is not None
    assert "Judged by auc: the class &#39;class 1&#39; has 11.2 %" in comparison.page.read_text()
    result = idiolect.train("fedavg", data, rounds=1)
    assert (result.metric, "11.2 %" in result.metric_reason) == ("auc", True)
    asked = idiolect.train("fedavg", data, rounds=1, metric="accuracy")
    assert (asked.metric, asked.metric_reason) == ("accuracy", "")


def test_rare_ones_of_next_characters_are_usual() -> None:
    task = Task("next-character", 3)
    rows = federation([[90, 5, 5]])
    characters = Federation(
        rows.inputs, rows.targets, task, rows.names, rows.train, rows.validation, rows.test
    )
    assert default_metric(characters) == ("accuracy", "")
    assert torch.bincount(rows.targets).tolist() == [90, 5, 5]
