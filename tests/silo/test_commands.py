"""Keys, commands and off-line use: what they make, and what they refuse in one sentence."""

import io
import json
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.runs.settings import read_settings, write_settings
from idiolect.silo.coordinator import coordinate
from idiolect.silo.offline import find_run
from idiolect.silo.serve_settings import serve_settings
from idiolect.silo.served_run import ServedRun
from silo.problem import SILOS, Direct, config, deployed, own_rows, silos_in, simulate


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_keys_are_made_for_everybody_and_secrets_are_secret(tmp_path: Path) -> None:
    code, text = run("silo", "init", "a", "b", "--host", "fl.example.org", "--out", str(tmp_path / "keys"))
    assert code == 0
    assert "idiolect join --server fl.example.org:9092 --name a --keys a --data my.csv" in text
    assert f"idiolect serve my.yaml --keys {tmp_path / 'keys'}/coordinator" in text
    for secret in ("authority.key", "coordinator/server.key", "a/silo.key", "b/silo.key"):
        mode = (tmp_path / "keys" / secret).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / "keys" / "a" / "server.key").exists()
    code, text = run("silo", "init", "a", "--host", "x", "--out", str(tmp_path / "keys"))
    assert (code, "never overwritten" in text) == (2, True)


JOIN = ("join", "--name", "west", "--data", "x.csv")
REFUSED = [
    (("silo", "init", "../a", "--host", "x"), "silo '../a' is not possible"),
    ((*JOIN, "--server", "fl.example.org:9092"), "--keys is missing"),
    ((*JOIN, "--server", "fl.example.org:9092", "--insecure"), "--insecure works on loopback only"),
    ((*JOIN, "--server", "fl.example.org", "--keys", "k"), "is not an address; give it as host:port"),
    ((*JOIN, "--server", "fl.example.org:99999", "--keys", "k"), "is not an address; give it as host:port"),
    ((*JOIN, "--server", "fl.example.org:0", "--keys", "k"), "is not an address; give it as host:port"),
    ((*JOIN, "--server", "127.0.0.1:1", "--insecure", "--keys", "k"), "exclude each other"),
    ((*JOIN, "--server", "127.0.0.1:1", "--insecure"), "there is no file 'x.csv'"),
    (("serve", "--keys", "k"), "give a YAML file"),
    (("serve", "my.yaml", "--keys", "k"), "'my.yaml' is neither a setting"),
    (("serve", "my.yaml", "--insecure"), "--insecure works on loopback only, not on 0.0.0.0"),
    (("serve", "--keys", "k", "--resume", "nowhere"), "is not the folder of an `idiolect serve` run"),
    (("predict", "--state", "nowhere", "--data", "x.csv"), "holds no run of this silo"),
    (("predict", "--state", "nowhere", "x.csv"), "give either MODEL, an exported folder, or --state"),
    (("predict", "--data", "x.csv"), "give either MODEL, an exported folder, or --state"),
    (("predict", "model", "x.csv", "--data", "x.csv"), "give one table, as TABLE or with --data"),
    (("predict", "--state", "nowhere"), "give one table, as TABLE or with --data"),
    (("predict", "model", "x.csv", "--kind", "global"), "--kind global goes with --state"),
    (("export", "--to", "m.pt2"), "give either RUN, the folder of a run, or --state"),
    (("export", "run", "--state", "nowhere", "--to", "m.pt2"), "give either RUN, the folder of a run, or"),
    (("export", "--state", "nowhere", "--out", "m"), "--state goes with --to model.pt2 or --to model.onnx"),
    (("export", "--state", "nowhere", "--to", "m.pt2"), "holds no run of this silo"),
    (("export", "--state", "nowhere", "--to", "m.pkl"), "--to m.pkl must end in .pt2 or .onnx"),
    (("export", "run", "--to", "m.pt2"), "--client is missing"),
    (("export", "run", "--client", "a"), "give either --out, a folder, or --to"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=lambda value: str(value)[-40:])
def test_mistakes_are_told_in_one_line(arguments: tuple[str, ...], sentence: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert sentence in " ".join(text.split())
    assert len(text.strip().splitlines()) == 1


SCHEMA = {"columns": {"age": {"mean": 1.0, "scale": 2.0}, "ward": {"categories": ["a", "b"]}}, "target": "y"}
BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"data": "vowels"}, "data is not a setting of `idiolect serve`"),
    ({"silos": ["a"]}, "give two or more different names"),
    ({"silos": ["a", "a"]}, "give two or more different names"),
    ({"schema": "nowhere.json"}, "schema=nowhere.json is not a file"),
    ({"schema": {"columns": {}}}, "schema must have columns and target"),
    ({"schema": {**SCHEMA, "colour": 1}}, "schema.colour is not a setting"),
    ({"schema": {**SCHEMA, "columns": {"age": {"men": 1}}}}, "schema.columns.age="),
    ({"minimum_replies": 4}, "minimum_replies=4 is not possible: it must be from 1 to 2"),
    ({"minimum_replies": True}, "minimum_replies=True is not possible: it must be from 1 to 2"),
    ({"silos": [["a"], ["b"]]}, "give two or more different names"),
    ({"silos": ["../a", "b"]}, "silo '../a' is not possible: use letters"),
    ({"silos": ["a\x1b", "b"]}, "is not possible: use letters"),
    ({"silos": ["coordinator", "b"]}, "silo 'coordinator' is not possible: a file or folder of ours"),
    ({"answer_seconds": "soon"}, "answer_seconds=soon is not possible: it must be a number above 0"),
    ({"answer_seconds": float("nan")}, "answer_seconds=nan is not possible: it must be a number above 0"),
    ({"patience_seconds": -1}, "patience_seconds=-1 is not possible: it must be a number from 0 on"),
    ({"most_megabytes": None}, "most_megabytes=None is not possible: it must be a number above 0"),
    ({"schema": {**SCHEMA, "columns": {}}}, "schema.columns={} is not possible: give one or more"),
    ({"schema": {**SCHEMA, "columns": {"age": {"mean": "x"}}}}, "schema.columns.age.mean=x is not possible"),
    ({"schema": {**SCHEMA, "columns": {"age": {"scale": 0}}}}, "schema.columns.age.scale=0 is not possible"),
    ({"schema": {**SCHEMA, "columns": {"ward": {"categories": "ab"}}}}, "it must be a list, as"),
    ({"schema": {**SCHEMA, "columns": {"ward": {"categories": []}}}}, "give one or more different ones"),
    ({"schema": {**SCHEMA, "target_scale": 0}}, "schema.target_scale=0 is not possible"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_SETTINGS, ids=lambda value: str(value)[:30])
def test_settings_of_a_coordinator_are_checked(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    good = {"method": {"name": "fedavg"}, "silos": ["a", "b"], "schema": SCHEMA}
    assert serve_settings(good, tmp_path).silos == ("a", "b")
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        serve_settings({**good, **changes}, tmp_path)


def test_a_schema_can_be_written_by_hand(tmp_path: Path) -> None:
    settings = serve_settings({"method": {"name": "fedavg"}, "silos": ["a", "b"], "schema": SCHEMA}, tmp_path)
    frame = pd.DataFrame({"age": [3.0, 1.0, 5.0], "ward": ["b", "a", "b"], "y": [0.5, 1.5, -1.0]})
    federation = settings.schema.read(frame, "b", 1, 2)
    assert federation.inputs.tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [2.0, 0.0, 1.0]]
    assert federation.train.sizes.tolist() == [0, 1]
    assert federation.task.kind == "regression"


def test_a_silo_predicts_and_exports_off_line(tmp_path: Path) -> None:
    """The file gives what the simulation's model of the same client gives."""
    settings = config({"name": "apfl", "local_steps": 2}, rounds=2)
    folder = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    coordinate(folder, Direct(silos_in(tmp_path / "state")))
    frame = own_rows("south").drop(columns="outcome")
    frame.to_csv(tmp_path / "new.csv", index=False)
    state = str(tmp_path / "state" / "south")
    code, text = run("predict", "--state", state, "--data", str(tmp_path / "new.csv"))
    assert code == 0

    simulation = simulate(settings).play(2)
    preprocessing = simulation.federation.preprocessing
    assert preprocessing is not None
    inputs = preprocessing.transform(frame).double()
    model = simulation.predictor(SILOS.index("south"))["personal"]
    outputs = simulation.engine.setting.objective.predict(model, inputs)
    expected = [preprocessing.class_names[c] for c in outputs.argmax(-1).tolist()]
    assert text.split() == ["outcome", *expected]

    probabilities = outputs.detach().softmax(-1)
    code, text = run("predict", "--state", state, "--data", str(tmp_path / "new.csv"), "--proba")
    assert code == 0
    given = pd.read_csv(io.StringIO(text))
    assert tuple(given) == preprocessing.class_names
    np.testing.assert_allclose(given, probabilities, rtol=1e-9)

    for name in ("model.pt2", "model.onnx"):
        code, _ = run("export", "--state", state, "--to", str(tmp_path / name))
        assert code == 0
    files = {"card.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=files).module()
    card = json.loads(files["card.json"])
    assert (card["client"], card["clients"], card["kind"], card["round"]) == ("south", 3, "personal", 2)
    assert [each["column"] for each in card["inputs"]] == ["age", "dose", "pressure", "ward"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows in (1, len(inputs)):
        some = frame[:rows]
        answers = program(torch.tensor(some.assign(ward=some.ward == "b").to_numpy(np.float64)))
        np.testing.assert_allclose(answers["probabilities"].detach(), probabilities[:rows], rtol=1e-9)
        columns = {name: some[name].to_numpy(object if name == "ward" else np.float64) for name in some}
        classes, onnx_probabilities = session.run(["prediction", "probabilities"], columns)
        assert classes.tolist() == expected[:rows]
        np.testing.assert_allclose(onnx_probabilities, probabilities[:rows], rtol=1e-9)

    vault = find_run(Path(state))
    vault.keep_models(tree.map_tree(lambda tensor: tensor * torch.nan, vault.models()[0]), 2)
    for command in (("predict", "--data", tmp_path / "new.csv"), ("export", "--to", tmp_path / "nan.onnx")):
        code, text = run(command[0], "--state", state, *map(str, command[1:]))
        assert code == 2
        assert "the model of client 'south' is of no use" in text


@pytest.fixture
def loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's place is taken by silos in this process; a silo is interrupted as soon as it has joined."""

    @contextmanager
    def direct_link(*_: object) -> Iterator[Direct]:
        yield Direct(silos_in(tmp_path / "state"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for name, content in (
        ("superlink", {"flower_link": direct_link}),
        ("supernode", {"run_silo": interrupted}),
    ):
        monkeypatch.setitem(sys.modules, f"idiolect.silo.{name}", SimpleNamespace(**content))
    monkeypatch.setattr("idiolect.silo.deployment._require_flower", lambda: None)


@pytest.mark.usefixtures("loopback")
def test_a_run_is_served_in_python_as_by_the_command(tmp_path: Path) -> None:
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=2)
    agreed = deployed(settings, tmp_path)
    words = {**settings, "silos": list(agreed.silos), "schema": "schema.json"}
    (tmp_path / "my.yaml").write_text(write_settings(words))
    here = {"insecure": True, "listen": "127.0.0.1:9092"}
    served = idiolect.serve(tmp_path / "my.yaml", rounds=1, out=tmp_path / "python", **here)
    assert served.finished
    assert served.config.rounds == 1
    assert "finished after round 1" in (tmp_path / "python" / "log.txt").read_text()
    assert (tmp_path / "python" / "report.html").is_file()
    assert idiolect.serve(resume=tmp_path / "python", **here).path == served.path  # is finished already
    arguments = ["serve", str(tmp_path / "my.yaml"), "rounds=1", "--out", str(tmp_path / "words")]
    code, text = run(*arguments, "--insecure", "--listen", here["listen"])
    assert (code, f"run: {tmp_path / 'words'}" in text) == (0, True)
    ours, theirs = (pd.read_parquet(tmp_path / name / "metrics.parquet") for name in ("python", "words"))
    pd.testing.assert_frame_equal(ours, theirs)
    with pytest.raises(UserError, match="--resume takes the settings of the run"):
        idiolect.serve(resume=tmp_path / "python", rounds=3, **here)


@pytest.mark.usefixtures("loopback")
def test_a_silo_joins_until_it_is_interrupted(tmp_path: Path) -> None:
    own_rows("west").to_csv(tmp_path / "my.csv", index=False)
    where = {"server": "127.0.0.1:9092", "name": "west", "state": str(tmp_path / "kept")}
    with pytest.raises(KeyboardInterrupt):
        idiolect.join(data=tmp_path / "my.csv", ignore=["ward"], insecure=True, **where)
    options = [word for name, value in where.items() for word in (f"--{name}", value)]
    code, text = run("join", *options, "--data", str(tmp_path / "my.csv"), "--ignore", "ward", "--insecure")
    assert (code, "west has left" in text) == (0, True)
    assert (tmp_path / "kept" / "west" / "log.txt").is_file()
    with pytest.raises(UserError, match="town"):
        idiolect.join(data=tmp_path / "my.csv", ignore=["town"], insecure=True, **where)


@pytest.mark.usefixtures("loopback")
def test_a_silo_says_how_it_read_its_table_or_asks(tmp_path: Path) -> None:
    own_rows("west").to_csv(tmp_path / "my.csv", index=False, sep=";", decimal=",")
    where = {"server": "127.0.0.1:9092", "name": "west", "state": str(tmp_path / "kept"), "insecure": True}
    with pytest.raises(KeyboardInterrupt):
        idiolect.join(data=tmp_path / "my.csv", **where)
    log = (tmp_path / "kept" / "west" / "log.txt").read_text()
    assert "data: the file was read with semicolons between columns, with decimal commas" in log
    (tmp_path / "odd.csv").write_text("age;outcome\n" + "1,234;a\n2,345;b\n" * 8)
    with pytest.raises(UserError, match=r"--decimal point for 1234, or --decimal comma for 1\.234"):
        idiolect.join(data=tmp_path / "odd.csv", **where)
    with pytest.raises(KeyboardInterrupt):
        idiolect.join(data=tmp_path / "odd.csv", decimal="comma", **where)
    with pytest.raises(KeyboardInterrupt):  # a column that is left out is not asked about
        idiolect.join(data=tmp_path / "odd.csv", ignore=["age"], **where)


def test_the_yaml_of_a_coordinator_is_that_of_a_run(tmp_path: Path) -> None:
    """`idiolect serve` reads the same sections as `idiolect run`, with silos and schema in place of data."""
    (tmp_path / "my.yaml").write_text(
        write_settings({"method": "apfl", "silos": ["a", "b"], "schema": SCHEMA, "rounds": 7, "lr": 0.3})
    )
    settings = serve_settings(read_settings([tmp_path / "my.yaml", "rounds=9"]), tmp_path)
    assert settings.config.rounds == 9
    assert settings.config.method["learning_rate"] == {"name": "constant", "initial": 0.3}
