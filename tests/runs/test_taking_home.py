"""Models to take home: their card, probabilities, everybody's model, and models that are refused."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import expit, softmax
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.core.task import Task
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.store.files import read_tensors, write_tensors

QUICK = ["engine=sequential", "evaluation.every=1", "rounds=3"]


def invoke(*arguments: object, mistake: bool = False) -> str:
    """What a command says; of a user's mistake, its one sentence."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == (2 if mistake else 0), (result.output, repr(result.exception))
    return result.stderr if mistake else result.stdout


def patients(rows: int = 150) -> pd.DataFrame:
    random = np.random.default_rng(6)
    frame = pd.DataFrame({"site": random.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2])})
    frame["age"] = random.normal(40, 9, rows)
    frame["ward"] = random.choice(["left|right", "up"], rows)
    frame["ill"] = np.where(frame.age + random.normal(0, 4, rows) > 43, "yes", "no")
    return frame


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A binary task, with a codec."""
    place = tmp_path_factory.mktemp("home")
    patients().to_csv(place / "patients.csv", index=False)
    settings = [f"data={place}/patients.csv", "data.client=site", "data.target=ill", "codec.up=ternary"]
    return idiolect.run("method=fedavg", *settings, *QUICK, "seed=4", out=place / "run")


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("numbers")
    patients().drop(columns="ill").to_csv(place / "ages.csv", index=False)
    settings = [f"data={place}/ages.csv", "data.client=site", "data.target=age", "lr=0.01"]
    return idiolect.run("method=local", *settings, *QUICK, out=place / "run")


def card_of(exported: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((exported / "model.json").read_text())["card"]
    return card


@pytest.mark.parametrize("kind", ["global", "localized"])
def test_the_card_has_the_numbers_of_the_run(run: RunFolder, kind: str, tmp_path: Path) -> None:
    """Metrics of that client and kind, rows, and what crossed, as the run's tables have them."""
    card = card_of(idiolect.export(run, client="b", kind=kind, out=tmp_path / "model"))
    metrics = run.metrics()
    told = metrics[(metrics.client == "b") & (metrics.kind == kind) & (metrics["round"] == card["round"])]
    expected = {(row.part, row.metric): row.value for row in told.itertuples()}
    assert {(m["part"], m["metric"]) for m in card["metrics"]} == expected.keys()
    assert {metric for _, metric in expected} >= {"loss", "accuracy", "balanced_accuracy"}
    rows = run.clients().loc["b"].to_dict()
    assert card["rows"] == rows
    for each in card["metrics"]:
        assert each["value"] == pytest.approx(expected[each["part"], each["metric"]], rel=1e-6)
        low, high = each["interval"]
        assert low <= each["value"] <= high
        assert each["rows"] == rows[each["part"]]
        if each["metric"] == "accuracy":
            wilson = stats.binomtest(round(each["value"] * each["rows"]), each["rows"])
            assert (low, high) == pytest.approx(wilson.proportion_ci(0.95, method="wilson"), abs=1e-6)
    traffic = run.traffic()
    bits = traffic[traffic.client == "b"].groupby(["direction", "part"])["bits"].sum().to_dict()
    assert {(sent["direction"], sent["part"]): sent["bits"] for sent in card["shared"]} == bits
    assert {"up", "down"} <= {direction for direction, _ in bits}
    assert (card["data"], card["clients"], card["target"]) == ("patients.csv", 3, "ill")
    assert card["settings"]["method"]["name"] == "fedavg"
    assert (card["settings"]["seed"], card["settings"]["codec"]["up"]) == (4, "ternary")
    assert card["versions"] == run.facts()["versions"]


def test_the_card_can_be_read(run: RunFolder, tmp_path: Path) -> None:
    exported = idiolect.export(run, client="b", out=tmp_path / "model")
    page = (exported / "model-card.md").read_text()
    assert page.startswith("# Model of client b\n")
    rows = run.clients().loc["b"]
    for said in (
        "The localized model of fedavg after round",
        "It predicts ill for rows like those of b; for others' rows nothing is known of it.",
        f"Of this client {rows.train} rows trained it",
        "| ward | category | left\\|right, up |",
        "It gives one of the classes no, yes, and their probabilities.",
        "| seed | 4 |",
        "up: ternary",
        "| from this client | ",
    ):
        assert said in page, said


def test_everybodys_model_needs_no_client(run: RunFolder, tmp_path: Path) -> None:
    invoke("export", run.path, "--kind", "global", "--out", tmp_path / "model")
    invoke("export", run.path, "--kind", "global", "--client", "c", "--out", tmp_path / "of-c")
    ours, theirs = (read_tensors(tmp_path / name / "model.safetensors") for name in ("model", "of-c"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    card = card_of(tmp_path / "model")
    assert card["client"] is None
    assert card["rows"] == run.clients().sum().to_dict()
    reported = run.summary()["kinds"]["global"]
    (tested,) = [m for m in card["metrics"] if (m["part"], m["metric"]) == ("test", "accuracy")]
    assert tested["value"] == pytest.approx(reported["mean"], abs=1e-12)
    said = invoke("export", run.path, "--out", tmp_path / "other", mistake=True)
    assert "--client is missing: whose model of the run; or --kind global, for everybody's" in said


def test_newcomers_models_have_a_card_too(run: RunFolder, tmp_path: Path) -> None:
    table = patients(60).assign(site="d")
    newcomers = idiolect.personalize(run, data=table, steps=2, out=tmp_path / "models")
    card = card_of(tmp_path / "models" / "d")
    values = newcomers.metrics
    for each in card["metrics"]:
        same = values[(values.part == each["part"]) & (values.metric == each["metric"])].set_index("kind")
        assert each["value"] == pytest.approx(float(same.value["localized"]), rel=1e-6)
    assert card["shared"] is None


def test_probabilities_are_the_logistic_function_of_the_output(run: RunFolder, tmp_path: Path) -> None:
    """The same on the command line, in Python, in a file; of new rows, with a column for each class."""
    rows = patients(40).drop(columns=["ill", "site"])
    rows.to_csv(tmp_path / "new.csv", index=False)
    exported = idiolect.export(run, client="a", out=tmp_path / "model")
    model = idiolect.load_model(exported)
    assert model.preprocessing is not None
    inputs = model.preprocessing.transform(rows).double().numpy()
    parameters = read_tensors(exported / "model.safetensors")
    weight, bias = (parameters[f"linear.{name}"].double().numpy() for name in ("weight", "bias"))
    yes = expit((inputs @ weight.T + bias)[:, 0])
    invoke("predict", exported, tmp_path / "new.csv", "--proba", "--out", tmp_path / "out.csv")
    for given in (
        model.predict_proba(rows),
        idiolect.predict(exported, rows, proba=True),
        pd.read_csv(io.StringIO(invoke("predict", exported, tmp_path / "new.csv", "--proba"))),
        pd.read_csv(tmp_path / "out.csv"),
    ):
        assert isinstance(given, pd.DataFrame)
        assert given.columns.tolist() == ["no", "yes"]
        np.testing.assert_allclose(given, np.stack([1 - yes, yes], 1), atol=1e-6)
    assert (model.predict(rows) == np.where(yes > 0.5, "yes", "no")).all()
    assert model.predict_proba(rows.set_index(rows.index + 7)).index.tolist() == list(range(7, 47))


def test_probabilities_in_memory_of_tensors_and_mixtures() -> None:
    federation = idiolect.load("vowels", seed=0)
    apfl = idiolect.method("apfl", mixture_of="outputs", local_steps=3)
    result = idiolect.train(apfl, federation, rounds=2, evaluate_every=2)
    inputs = federation.inputs[:9]
    with torch.no_grad():
        outputs = result.model("speaker-03")(inputs).double().numpy()
    given = result.predict_proba("speaker-03", inputs)
    assert tuple(given.columns) == federation.class_names
    np.testing.assert_allclose(given, softmax(outputs, axis=1), rtol=1e-9)
    assert given.idxmax(axis=1).tolist() == result.predict("speaker-03", inputs)


@pytest.mark.parametrize("outputs", [[[0.0]], [[700.0]], [[-800.0]]])
def test_a_binary_task_has_two_probabilities_that_never_overflow(outputs: list[list[float]]) -> None:
    given = Task("binary", 1).probabilities(torch.tensor(outputs)).numpy()
    np.testing.assert_allclose(given[:, 1], expit(np.array(outputs))[:, 0], rtol=1e-12)
    np.testing.assert_allclose(given.sum(1), 1.0, rtol=1e-15)


def test_numbers_have_no_probabilities(regression: RunFolder, tmp_path: Path) -> None:
    exported = idiolect.export(regression, client="a", out=tmp_path / "model")
    patients().to_csv(tmp_path / "rows.csv", index=False)
    assert invoke("predict", exported, tmp_path / "rows.csv", "--proba", mistake=True) == (
        "error: --proba is not possible: this model is a regression of 'age', which has no classes; "
        "leave it out\n"
    )
    with pytest.raises(UserError, match="is a regression of 'age'"):
        idiolect.load_model(exported).predict_proba(patients())


def test_numbers_in_memory_are_in_the_targets_own_units(regression: RunFolder) -> None:
    """Of tensors too: ages of about 40, not standardised ones."""
    simulation = reported_simulation(regression)
    result = idiolect.train(
        "local", simulation.federation, rounds=1, lr=0.01, evaluate_every=1, engine="sequential"
    )
    given = result.predict("a", simulation.federation.inputs[:50])
    assert np.mean(given) == pytest.approx(40, abs=5)


def broken(exported: Path, value: float) -> Path:
    """A model one of whose numbers is not finite."""
    tensors = read_tensors(exported / "model.safetensors")
    name = max(tensors)
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-1] = value
    write_tensors(exported / "model.safetensors", tensors)
    return exported


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_not_read(run: RunFolder, value: float, tmp_path: Path) -> None:
    exported = broken(idiolect.export(run, client="a", out=tmp_path / "model"), value)
    patients().to_csv(tmp_path / "rows.csv", index=False)
    said = invoke("predict", exported, tmp_path / "rows.csv", mistake=True)
    assert "is not finite, so its training diverged" in said
    assert said.count("\n") == 1


def test_a_client_that_diverged_gets_no_model(tmp_path: Path) -> None:
    """With steps that are far too long."""
    frame = patients().drop(columns="ill").assign(price=lambda f: 2 * f.age)
    frame.to_csv(tmp_path / "prices.csv", index=False)
    settings = [f"data={tmp_path}/prices.csv", "data.client=site", "data.target=price", "lr=1e4"]
    settings += ["method=local", "rounds=30", "evaluation.choose=last", "engine=sequential"]
    finished = idiolect.run(*settings, out=tmp_path / "run")
    for options in (["--out", tmp_path / "m"], ["--to", tmp_path / "m.pt2"], ["--to", tmp_path / "m.onnx"]):
        said = invoke("export", finished.path, "--client", "b", *options, mistake=True)
        assert "the model of client 'b' is of no use" in said
        assert said.count("\n") == 1
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(("m", ".writing"))]
    federation = reported_simulation(finished).federation
    result = idiolect.train("local", federation, rounds=30, lr=1e4, choose="last", engine="sequential")
    for use in (
        lambda: result.model("b"),
        lambda: result.predict("b", frame),
        lambda: result.predict("b", federation.inputs),
    ):
        with pytest.raises(UserError, match="the model of client 'b' is of no use"):
            use()
