"""Class weights in the training loss: against scikit-learn's, in files, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

import idiolect
from idiolect.core.task import Task
from idiolect.data.class_weights import with_class_weights
from idiolect.data.federation import Federation
from idiolect.data.tables import from_frame
from idiolect.errors import UserError
from idiolect.methods.fedavg import FedAvg
from idiolect.models import Linear
from idiolect.runs.client_model import load_model
from idiolect.simulation import Simulation

NAMES = {2: ["no", "yes"], 3: ["calm", "rain", "storm"]}


def table(classes: int, seed: int = 1) -> pd.DataFrame:
    """Three clients of different sizes; later classes are rarer."""
    draw = np.random.default_rng(seed)
    frames = []
    for client, rows in (("a", 90), ("b", 60), ("c", 150)):
        x = draw.normal(draw.normal(size=4), [1.0, 2.0, 0.5, 1.3], size=(rows, 4))
        scores = x @ draw.normal(size=(4, classes)) + draw.gumbel(size=(rows, classes))
        scores -= np.array([0.0, 2.0, 3.0])[:classes]
        frame = pd.DataFrame(x, columns=list("stuv"))
        frames.append(frame.assign(site=client, weather=np.array(NAMES[classes])[scores.argmax(1)]))
    return pd.concat(frames, ignore_index=True)


def federation(classes: int, weights: Any, **options: Any) -> Federation:
    return from_frame(
        table(classes), client="site", target="weather", seed=0, class_weights=weights, **options
    )


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "weights", ["balanced", {"yes": 5.0, "storm": 7.0, "calm": 0.5}], ids=["balanced", "given"]
)
def test_fedavg_with_one_full_step_ends_where_scikit_learn_does(classes: int, weights: Any) -> None:
    if weights != "balanced":
        weights = {name: weight for name, weight in weights.items() if name in NAMES[classes]}
    data = federation(classes, weights).to(torch.float64)
    decay, rows = 0.2, data.train.index
    inputs, targets = data.inputs[rows].numpy(), data.targets[rows].numpy()
    by_number = weights if weights == "balanced" else {NAMES[classes].index(n): w for n, w in weights.items()}
    theirs = LogisticRegression(
        C=1 / (decay * len(rows)), class_weight=by_number, fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(inputs, targets)
    simulation = Simulation(
        FedAvg(local_steps=1, learning_rate=0.8, weighting="samples"),
        Linear(inputs.shape[1], data.task.outputs, bias=False),
        data,
        weight_decay=decay,
        batch_size=None,
        dtype=torch.float64,
    ).play(120)
    (ours,) = simulation.predictor(0)["global"].values()
    np.testing.assert_allclose(ours.numpy(), theirs.coef_, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_balanced_is_scikit_learns_on_the_training_rows_of_all(classes: int) -> None:
    data = federation(classes, "balanced")
    targets = data.targets[data.train.index].numpy()
    wanted = compute_class_weight("balanced", classes=np.arange(classes), y=targets)
    np.testing.assert_allclose(data.task.class_weights, wanted, rtol=1e-12)
    assert any("weights of classes in the training loss" in note for note in data.notes)


@pytest.mark.parametrize("classes", [2, 3])
def test_recorded_steps_and_single_clients_agree(classes: int) -> None:
    data = federation(classes, "balanced").to(torch.float64)
    tables = []
    for engine in ("vectorised", "sequential"):
        method, model = FedAvg(local_steps=5, learning_rate=0.2), Linear(4, data.task.outputs)
        simulation = Simulation(method, model, data, dtype=torch.float64, engine=engine, batch_size=7)
        tables.append(simulation.play(4).evaluate()["value"].to_numpy())
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-9, atol=1e-12)


def test_weights_are_in_the_loss_and_in_nothing_else() -> None:
    plain, weighted = federation(3, None), federation(3, {"storm": 9})
    simulation = Simulation(FedAvg(), Linear(4, 3), plain)
    measures = idiolect.evaluation.metrics.measures_of(plain.task, ["log_loss", "f1"])
    one = simulation.evaluate(measures).set_index(["metric", "kind", "part", "client"])["value"]
    other = Simulation(FedAvg(), simulation.engine.setting.objective.module, weighted)
    two = other.evaluate(measures).set_index(["metric", "kind", "part", "client"])["value"]
    for name in ("accuracy", "balanced_accuracy", "log_loss", "f1"):
        pd.testing.assert_series_equal(one[name], two[name])
    assert (two["loss"] > one["loss"]).any()
    np.testing.assert_allclose(one["loss"], one["log_loss"], rtol=1e-6)


def test_a_run_keeps_them_and_an_exported_model_too(tmp_path: Path) -> None:
    """Without quotes YAML reads yes and no as true and false."""
    table(2).to_csv(tmp_path / "weather.csv", index=False)
    settings = [
        f"data={tmp_path / 'weather.csv'}",
        "data.client=site",
        "data.target=weather",
        "data.class_weights={yes: 5, no: 2}",
        "method=fedavg",
        "rounds=2",
        f"out={tmp_path / 'run'}",
    ]
    run = idiolect.run(*settings)
    assert idiolect.run(*settings).metrics().equals(run.metrics())  # the same run, which was there already
    assert run.federation().task == Task("binary", 1, class_weights=(2.0, 5.0))
    model = load_model(idiolect.export(run, client="b", out=tmp_path / "model"))
    assert model.task == run.federation().task


def test_any_data_set_can_be_weighted() -> None:
    data = idiolect.load("vowels", seed=0, class_weights={"hid": 2})
    assert sorted(data.task.class_weights) == [1.0] * 10 + [2.0]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"yse": 5}, ["'yse'", "did you mean yes", "no, yes"]),
        ({"yes": 0}, ["class_weights.yes=0", "above 0"]),
        ({"yes": "much"}, ["class_weights.yes=much", "above 0"]),
        ({"yes": True}, ["class_weights.yes=True", "above 0"]),
        ("even", ["class_weights=even", "balanced", "{no: 1, yes: 2}"]),
    ],
)
def test_what_cannot_be_a_weight_is_refused(weights: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        federation(2, weights)
    assert all(word in str(caught.value) for word in words)


def test_a_regression_has_no_classes() -> None:
    with pytest.raises(UserError, match="a regression has no classes"):
        with_class_weights(idiolect.load("quadratic-pair", seed=0), "balanced")
