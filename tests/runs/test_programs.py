"""A model as one file takes rows of the table, also where there is no Idiolect, and answers as the run's."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

import idiolect
from idiolect.core.objective import Mixture, Predictor
from idiolect.core.task import Task
from idiolect.errors import UserError
from idiolect.runs.config import resolve
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import reported_simulation
from idiolect.runs.model_card import bare_card
from idiolect.runs.personal_model import PersonalModel
from idiolect.runs.programs import export_program, write_program

FILES = ("model.pt2", "model.onnx")
ROWS = (1, 2, 7, 400)  # the file takes any number of rows; it was made with two
CLIENT = "south"


def table(rows: int, seed: int, **more: Any) -> pd.DataFrame:
    """Numbers of very different sizes, categories of very different frequency, and holes in both."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "site": random.choice(["north", "south", "west"], rows),
            "age": random.normal(50, 12, rows),
            "ward": random.choice(["a ward", "b", "ü"], rows, p=[0.2, 0.7, 0.1]),
            "income": random.lognormal(11, 1, rows),
            "smokes": random.choice([True, False], rows),
        }
    )
    score = (
        (frame.age - 50) / 12 + 2.0 * (frame.ward == "a ward") - frame.smokes + random.normal(0, 0.5, rows)
    )
    frame["price"] = 90_000 + 7_000 * score
    frame["outcome"] = np.array(["better", "same", "worse"])[np.digitize(score, [-0.5, 1.0])]
    frame["event"] = np.where(score > 0.3, "yes", "no")
    for column in ("age", "ward", "income"):
        frame.loc[random.random(rows) < 0.15, column] = np.nan
    return frame.assign(**more)


@dataclass
class Case:
    """A finished run, and new rows, in which there are categories that it never saw."""

    run: RunFolder
    target: str
    dtype: str

    @property
    def rows(self) -> pd.DataFrame:
        frame = table(max(ROWS), seed=8).drop(columns=["site", "price", "outcome", "event"])
        return frame.assign(ward=frame.ward.where(np.arange(len(frame)) % 9 > 0, "never seen"))

    @property
    def tolerance(self) -> dict[str, float]:
        return {"rtol": 1e-5, "atol": 1e-6} if self.dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}


CASES = {
    "mixture of outputs": ("outcome", "float32", ["method=apfl", "method.mixture_of=outputs"]),
    "binary, missing values indicated": (
        "event",
        "float64",
        ["method=ditto", "model=mlp", "model.hidden=[5]", "data.missing=indicate"],
    ),
    "regression": ("price", "float64", ["method=apfl", "method.mixture_of=outputs", "lr=0.05"]),
    "regression, single": ("price", "float32", ["method=fedavg", "model=mlp", "model.hidden=[5]", "lr=0.05"]),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Runs by name, each made once."""
    place, made = tmp_path_factory.mktemp("programs"), dict[str, Case]()

    def case(name: str) -> Case:
        if name not in made:
            target, dtype, settings = CASES[name]
            others = [other for other in ("price", "outcome", "event") if other != target]
            table(240, seed=3).drop(columns=others).to_csv(place / f"{target}.csv", index=False)
            common = [
                f"data={place / f'{target}.csv'}",
                "data.client=site",
                f"data.target={target}",
                "rounds=3",
            ]
            common += ["data.missing=impute", "engine=sequential", "evaluation.every=1", f"dtype={dtype}"]
            made[name] = Case(idiolect.run(*common, *settings, out=place / name), target, dtype)
        return made[name]

    return case


def expected_outputs(case: Case) -> np.ndarray:
    """By pandas and NumPy: imputed, scaled, encoded, and through the layers of the run's own model."""
    simulation = reported_simulation(case.run)
    data = pd.read_csv(case.run.config.data["name"])
    fitted = simulation.federation.preprocessing
    assert fitted is not None
    blocks = []
    for column in fitted.columns:
        values = case.rows[column.name]
        if column.kind == "number":
            blocks.append(((values.fillna(column.mean) - column.mean) / column.scale).to_numpy()[:, None])
        else:
            commonest = str(data[column.name].mode()[0])
            texts = values.astype(object).where(values.notna(), commonest).astype(str)
            blocks.append(np.stack([texts == category for category in column.categories], 1).astype(float))
        if column.indicator:
            blocks.append(values.isna().to_numpy(float)[:, None])
    assert any(column.indicator for column in fitted.columns) == (fitted.missing == "indicate")
    inputs = np.concatenate(blocks, 1).astype(np.float32).astype(case.dtype)
    number = simulation.federation.names.index(CLIENT)
    kinds: Any = simulation.predictor(number)
    return outputs_of(kinds[simulation.method.judged_by], inputs).astype(np.float64)


def outputs_of(predictor: Predictor, x: np.ndarray) -> np.ndarray:
    """A linear model, one hidden layer, or a mixture of such."""
    if isinstance(predictor, Mixture):
        pairs = zip(predictor.weights, predictor.members, strict=True)
        return np.sum([float(weight) * outputs_of(member, x) for weight, member in pairs], axis=0)
    *hidden, weight, bias = [each.numpy() for each in predictor.values()]
    if hidden:
        x = np.maximum(x @ hidden[0].T + hidden[1], 0)
    return np.asarray(x @ weight.T + bias)


def expected_answers(case: Case) -> tuple[np.ndarray, np.ndarray | None]:
    """Class names or numbers, and the classes' probabilities."""
    outputs = expected_outputs(case)
    data = pd.read_csv(case.run.config.data["name"])
    if case.target == "price":
        fitted = reported_simulation(case.run).federation.preprocessing
        assert fitted is not None
        # Not all rows train: the target's mean is near the table's, and its scale too.
        assert fitted.target_mean == pytest.approx(data.price.mean(), rel=0.02)
        return outputs[:, 0] * fitted.target_scale + fitted.target_mean, None
    classes = np.sort(data[case.target].unique().astype(str))
    if case.target == "event":
        outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
    return classes[outputs.argmax(1)], softmax(outputs, axis=1)


def answer(file: Path, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """What others do with the file and the rows of a table."""
    if file.suffix == ".onnx":
        session = onnxruntime.InferenceSession(file)
        given = {
            each.name: frame[each.name].fillna("").astype(str).to_numpy(object)
            if each.type == "tensor(string)"
            else frame[each.name].to_numpy(np.float64)
            for each in session.get_inputs()
        }
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, given), strict=True))
    card, program = load_pt2(file)
    columns = [numbers_of(frame[each["column"]], each) for each in card["inputs"]]
    answers = {name: each.detach().numpy() for name, each in program(torch.stack(columns, 1)).items()}
    if card["classes"]:
        answers["prediction"] = np.array([*card["classes"], ""], dtype=object)[answers["prediction"]]
    return answers


def load_pt2(file: Path) -> tuple[dict[str, Any], Callable[[Tensor], dict[str, Tensor]]]:
    files = {"card.json": ""}
    program = torch.export.load(file, extra_files=files).module()
    return json.loads(files["card.json"]), program


def numbers_of(values: pd.Series, column: dict[str, Any]) -> Tensor:
    if column["kind"] == "number":
        return torch.tensor(values.to_numpy(np.float64))
    places = {category: place for place, category in enumerate(column["categories"])}
    return torch.tensor([np.nan if pd.isna(v) else places.get(str(v), 1000) for v in values]).double()


@pytest.mark.parametrize("name", list(CASES))
def test_rows_of_the_table_get_the_answers_of_the_runs_model(
    name: str, cases: Callable[[str], Case], tmp_path: Path
) -> None:
    """Missing values, unseen categories, classes and units: in Python, PyTorch and ONNX the same."""
    case = cases(name)
    predictions, probabilities = expected_answers(case)
    model = idiolect.load_model(idiolect.export(case.run, client=CLIENT, out=tmp_path / "folder"))
    answers = {"here": {"prediction": model.predict(case.rows).to_numpy()}}
    if probabilities is not None:
        answers["here"]["probabilities"] = model.predict_proba(case.rows).to_numpy()
    for file in FILES:
        export_program(case.run, CLIENT, tmp_path / file)
        answers[file] = answer(tmp_path / file, case.rows)
    for given in answers.values():
        assert given.keys() == {"prediction"} | ({"probabilities"} if probabilities is not None else set())
        if probabilities is None:
            np.testing.assert_allclose(given["prediction"], predictions, rtol=case.tolerance["rtol"])
        else:
            assert given["prediction"].tolist() == predictions.tolist()
            assert len(set(predictions)) > 1
            np.testing.assert_allclose(given["probabilities"], probabilities, **case.tolerance)
    for file in FILES:
        for rows in ROWS[:-1]:
            some, of_all = answer(tmp_path / file, case.rows[:rows]), answers[file]
            if probabilities is None:
                np.testing.assert_allclose(some["prediction"], of_all["prediction"][:rows], rtol=1e-6)
            else:
                assert some["prediction"].tolist() == of_all["prediction"][:rows].tolist()


WITHOUT_IDIOLECT = """
import csv, json, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ImportError(name)

sys.meta_path.insert(0, Nowhere())
for name in {absent}:
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(name + " is here")
rows = list(csv.DictReader(open(sys.argv[2], encoding="utf-8")))
"""
IN_PYTORCH = """
import torch
files = {"card.json": ""}
program = torch.export.load(sys.argv[1], extra_files=files).module()
card = json.loads(files["card.json"])

def number(row, column):
    text = row[column["column"]]
    if text == "":
        return float("nan")
    if column["kind"] == "number":
        return float(text)
    return column["categories"].index(text) if text in column["categories"] else -1

given = [[number(row, column) for column in card["inputs"]] for row in rows]
answers = program(torch.tensor(given, dtype=torch.float64))
print(json.dumps([card["classes"][place] for place in answers["prediction"].tolist()]))
print(json.dumps(answers["probabilities"].tolist()))
"""
IN_ONNX = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
given = {}
for column in session.get_inputs():
    texts = [row[column.name] for row in rows]
    if column.type == "tensor(double)":
        given[column.name] = numpy.array([float(text or "nan") for text in texts])
    else:
        given[column.name] = numpy.array(texts, dtype=object)
prediction, probabilities = session.run(["prediction", "probabilities"], given)
print(json.dumps(prediction.tolist()))
print(json.dumps(probabilities.tolist()))
"""


@pytest.mark.parametrize(
    ("file", "absent", "program"),
    [
        ("model.pt2", ["idiolect"], IN_PYTORCH),
        ("model.onnx", ["idiolect", "torch", "onnx", "pandas"], IN_ONNX),
    ],
)
def test_a_process_without_idiolect_answers_a_csv_file(
    file: str, absent: list[str], program: str, cases: Callable[[str], Case], tmp_path: Path
) -> None:
    case = cases("mixture of outputs")
    export_program(case.run, CLIENT, tmp_path / file)
    case.rows.to_csv(tmp_path / "new.csv", index=False)
    script = WITHOUT_IDIOLECT.replace("{absent}", repr(absent)) + program
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, tmp_path / file, tmp_path / "new.csv"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    classes, probabilities = map(json.loads, done.stdout.splitlines())
    predictions, expected = expected_answers(case)
    assert classes == predictions.tolist()
    np.testing.assert_allclose(probabilities, expected, **case.tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize("file", FILES)
def test_a_row_that_the_model_would_refuse_has_no_answer(file: str, tmp_path: Path) -> None:
    """Where missing values are refused, and where a number is infinite; other rows are not touched."""
    frame = table(120, seed=1).dropna().drop(columns=["price", "event"])
    frame.to_csv(tmp_path / "whole.csv", index=False)
    settings = [f"data={tmp_path}/whole.csv", "data.client=site", "data.target=outcome", "rounds=1"]
    run = idiolect.run("method=local", *settings, "engine=sequential", out=tmp_path / "run")
    export_program(run, CLIENT, tmp_path / file)
    rows = frame.drop(columns=["site", "outcome"])[:5].reset_index(drop=True)
    whole = answer(tmp_path / file, rows)
    holes = rows.assign(age=rows.age.where(rows.index != 1), ward=rows.ward.where(rows.index != 2))
    holes.loc[3, "income"] = np.inf
    given = answer(tmp_path / file, holes)
    assert given["prediction"].tolist() == [whole["prediction"][0], "", "", "", whole["prediction"][4]]
    np.testing.assert_array_equal(given["probabilities"][[0, 4]], whole["probabilities"][[0, 4]])
    assert np.isnan(given["probabilities"][1:4]).all()


def test_columns_may_have_the_names_of_what_is_inside(tmp_path: Path) -> None:
    names = {"age": "prediction", "ward": "model/inputs", "income": "probabilities", "smokes": "a b=c"}
    frame = table(120, seed=2).dropna().drop(columns=["price", "event"]).rename(columns=names)
    frame.to_csv(tmp_path / "odd.csv", index=False)
    settings = [f"data={tmp_path}/odd.csv", "data.client=site", "data.target=outcome", "rounds=1"]
    run = idiolect.run("method=local", *settings, "engine=sequential", out=tmp_path / "run")
    expected = idiolect.load_model(idiolect.export(run, client=CLIENT, out=tmp_path / "folder")).predict(
        frame
    )
    given = answer(export_program(run, CLIENT, tmp_path / "model.onnx"), frame)
    assert given.keys() == {"prediction_", "probabilities_"}
    assert given["prediction_"].tolist() == expected.tolist()


@pytest.mark.parametrize("file", FILES)
def test_images_and_characters_too(file: str, tmp_path: Path) -> None:
    """Rows of any shape and type, where there is no table: outputs, and the answers beside them."""
    image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    characters = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(4 * 5, 11))
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(7, 1, 6, 6, generator=generator)
    texts = torch.randint(11, (7, 5), generator=generator)
    animals = np.array(["cat", "dog", "owl"])
    config = resolve({"method": {"name": "local"}, "data": {"name": "vowels"}})
    for module, inputs, task, names, folder in (
        (image, images, Task("multiclass", 3), tuple(animals), "image"),
        (characters, texts, Task("next-character", 11), (), "characters"),
        (image, images, Task("regression", 3), (), "numbers"),
    ):
        (tmp_path / folder).mkdir()
        model = PersonalModel(module.eval(), task, names, None)
        written = write_program(
            model, inputs[0], bare_card(model, config, "a", "personal", 1), tmp_path / folder / file
        )
        for rows in (1, 2, 7):
            with torch.no_grad():
                expected = module(inputs[:rows]).numpy()
            given = tensor_answers(written, inputs[:rows])
            np.testing.assert_allclose(given["outputs"], expected, rtol=1e-5, atol=1e-6)
            if task.kind == "regression":
                np.testing.assert_allclose(given["prediction"], expected, rtol=1e-5, atol=1e-6)
                continue
            classes = expected.argmax(1)
            named = animals[classes] if names and file == "model.onnx" else classes
            assert given["prediction"].tolist() == named.tolist()
            np.testing.assert_allclose(given["probabilities"], softmax(expected, axis=1), rtol=1e-5)


def tensor_answers(file: Path, inputs: Tensor) -> dict[str, np.ndarray]:
    if file.suffix == ".pt2":
        return {name: each.detach().numpy() for name, each in load_pt2(file)[1](inputs).items()}
    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": inputs.numpy()}), strict=True))


def test_the_card_is_beside_the_file_and_in_it(cases: Callable[[str], Case], tmp_path: Path) -> None:
    run = cases("binary, missing values indicated").run
    for file in FILES:
        export_program(run, CLIENT, tmp_path / file)
    assert {file.name for file in tmp_path.iterdir()} == {*FILES, *(f"{file}.card.md" for file in FILES)}
    inside = {prop.key: prop.value for prop in onnx.load(tmp_path / "model.onnx").metadata_props}
    card, _ = load_pt2(tmp_path / "model.pt2")
    assert json.loads(inside["card"]) == card
    assert [each["column"] for each in card["inputs"]] == ["age", "ward", "income", "smokes"]
    assert card["inputs"][1]["categories"] == ["a ward", "b", "ü"]
    assert (card["client"], card["kind"], card["classes"]) == (CLIENT, "personal", ["no", "yes"])
    assert (tmp_path / "model.pt2.card.md").read_text().startswith(f"# Model of client {CLIENT}\n")


def test_a_file_that_cannot_be_is_refused_before_anything_is_computed(
    cases: Callable[[str], Case], tmp_path: Path
) -> None:
    run = cases("binary, missing values indicated").run
    with pytest.raises(UserError, match=r"model.pkl must end in \.pt2 or \.onnx"):
        export_program(run, CLIENT, tmp_path / "model.pkl")
    with pytest.raises(UserError, match=r"there is no folder '.*nowhere'; make it first"):
        export_program(run, CLIENT, tmp_path / "nowhere" / "model.onnx")
    for name in ("model.pt2", "other.onnx.card.md"):
        (tmp_path / name).write_bytes(b"mine")
        with pytest.raises(UserError, match=f"{name} exists already"):
            export_program(run, CLIENT, tmp_path / name.removesuffix(".card.md"))
        assert (tmp_path / name).read_bytes() == b"mine"
