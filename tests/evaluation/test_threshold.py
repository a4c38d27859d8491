"""Thresholds that are chosen on validation rows: none is better; the same in every engine and in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sk

import idiolect
from idiolect.errors import UserError
from idiolect.evaluation.metrics import evaluate
from idiolect.evaluation.threshold import CRITERIA, Criterion, best_threshold
from idiolect.runs.client_model import load_model
from idiolect.runs.lifecycle import reported_simulation
from idiolect.silo.serve_settings import serve_settings

SCORES: dict[str, Any] = {
    "accuracy": sk.accuracy_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "f1": sk.f1_score,
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("criterion", CRITERIA)
def test_no_other_threshold_is_better(criterion: Criterion, seed: int) -> None:
    draw = np.random.default_rng(seed)
    targets = (draw.random(37) < 0.2).astype(int)
    targets[:2] = 0, 1
    logits = np.round(draw.normal(1.1 * targets - 1.4, 1.0), 1)
    chosen = best_threshold(torch.as_tensor(logits), torch.as_tensor(targets), criterion)
    chances = 1 / (1 + np.exp(-logits))
    middles = (np.unique(chances)[1:] + np.unique(chances)[:-1]) / 2
    tried = [SCORES[criterion](targets, chances > t) for t in (1e-6, *middles, 1 - 1e-6)]
    assert SCORES[criterion](targets, chances > chosen) == pytest.approx(max(tried), abs=1e-12)


def test_of_equals_the_nearest_to_one_half_and_nothing_from_nothing() -> None:
    logits, targets = torch.tensor([-5.0, 5.0]), torch.tensor([0, 1])
    assert best_threshold(logits, targets, "accuracy") == 0.5
    assert best_threshold(logits * torch.nan, targets, "f1") == 0.5
    assert best_threshold(torch.tensor([80.0, 90.0]), targets, "f1") < 1


def table(seed: int = 3) -> pd.DataFrame:
    """Clients of different sizes and a class that is rare."""
    draw = np.random.default_rng(seed)
    frames = []
    for client, rows in (("a", 120), ("b", 60), ("c", 200), ("d", 40)):
        x = draw.normal(size=(rows, 3))
        late = x @ np.array([1.0, -0.6, 0.3]) + draw.logistic(size=rows) > 2.3
        frame = pd.DataFrame(x, columns=["x", "y", "z"])
        frames.append(frame.assign(site=client, late=np.where(late, "yes", "no")))
    return pd.concat(frames, ignore_index=True)


def settings(folder: Path, **further: Any) -> dict[str, Any]:
    table().to_csv(folder / "late.csv", index=False)
    data = {"name": str(folder / "late.csv"), "client": "site", "target": "late"}
    return {"data": data, "method": "apfl", "lr": 0.3, "rounds": 4, "evaluate_every": 2, **further}


@pytest.mark.parametrize("metric", ["f1", "auc"])
def test_the_exported_model_decides_as_the_table_says(metric: str, tmp_path: Path) -> None:
    evaluation = {"threshold": "validation", "metric": metric, "metrics": ["f1"]}
    run = idiolect.run(settings(tmp_path, evaluation=evaluation, out=str(tmp_path / "run")))
    summary, data = run.summary(), run.federation()
    numbers = summary["kinds"]["personal"]
    trained = reported_simulation(run)
    validation = data.validation
    logits = torch.cat(
        [
            trained.engine.setting.objective.predict(
                trained.predictor(client)["personal"], data.inputs[validation.of(client)]
            )[:, 0]
            for client in range(len(data))
        ]
    )
    criterion: Criterion = "f1" if metric == "f1" else "balanced_accuracy"
    chosen = best_threshold(logits, data.targets[validation.index], criterion)
    assert numbers["threshold"] == pytest.approx(chosen, rel=1e-6)
    assert abs(chosen - 0.5) > 0.05  # the class is rare: one half is not the best
    told = run.metrics().query(f"kind == 'personal' and part == 'test' and round == {numbers['round']}")
    values = told.set_index(["client", "metric"])["value"]
    for place, client in enumerate(data.names):
        model = load_model(idiolect.export(run, client=client, out=tmp_path / client))
        rows = data.test.of(place)
        truth, decided = data.targets[rows], model.decide(model.outputs(data.inputs[rows]))
        assert values[client, "accuracy"] == pytest.approx(sk.accuracy_score(truth, decided))
        if truth.any():
            assert values[client, "f1"] == pytest.approx(sk.f1_score(truth, decided))
        assert values[client, "threshold"] == model.task.threshold


def test_in_memory_and_for_newcomers(tmp_path: Path) -> None:
    options = settings(tmp_path, **{"evaluation.threshold": "validation"})
    result = idiolect.train(options.pop("method"), options.pop("data"), **options)
    threshold = result.summary.loc["personal", "threshold"]
    rows = result.simulation.federation.inputs[:30]
    chances = result.model("a")(rows)[:, 0].sigmoid()
    assert result.predict("a", rows) == ["yes" if chance > threshold else "no" for chance in chances]
    run = idiolect.run(settings(tmp_path, **{"evaluation.threshold": 0.2}, out=str(tmp_path / "fixed")))
    new = table(seed=8).assign(site=lambda frame: frame.site + "-new")
    newcomers = idiolect.personalize(run, data={"name": new}, out=str(tmp_path / "new"))
    assert newcomers.metrics.query("metric == 'threshold'")["value"].unique().tolist() == [0.2]
    assert load_model(tmp_path / "new" / "a-new").task.threshold == 0.2


def test_engines_choose_the_same(tmp_path: Path) -> None:
    tables = []
    for engine in ("vectorised", "sequential"):
        options = settings(tmp_path, engine=engine, dtype="float64", **{"evaluation.threshold": "validation"})
        result = idiolect.train(options.pop("method"), options.pop("data"), **options)
        tables.append(result.metrics)
    assert tables[0].drop(columns="value").equals(tables[1].drop(columns="value"))
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], rtol=1e-9)


def test_where_there_is_nothing_to_choose(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluation.threshold=validation is not possible: a multiclass"):
        idiolect.train("fedavg", "vowels", **{"evaluation.threshold": "validation"})
    with pytest.raises(UserError, match=r"evaluation.threshold=1 "):
        idiolect.train("fedavg", "vowels", **{"evaluation.threshold": 1})
    options = settings(tmp_path, **{"evaluation.threshold": "validation"})
    options["data"]["fractions"] = [0.7, 0.0, 0.3]
    with pytest.raises(UserError, match="no client has validation rows"):
        idiolect.train(options.pop("method"), options.pop("data"), **options)
    served = {"silos": ["a", "b"], "schema": {"target": "y"}, "method": {"name": "fedavg"}}
    with pytest.raises(UserError, match="silos show nobody theirs"):
        serve_settings({**served, "evaluation": {"threshold": 0.3}}, tmp_path)


def test_without_a_threshold_nothing_changes(tmp_path: Path) -> None:
    options = settings(tmp_path)
    result = idiolect.train(options.pop("method"), options.pop("data"), **options)
    assert "threshold" not in result.summary
    assert "threshold" not in set(evaluate(result.simulation).metric)
