"""Python's functions are the commands: the same words, the same numbers, the same mistakes."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.methods.fedavg import FedAvg
from idiolect.runs.config import resolve
from idiolect.runs.settings import read_settings

QUICK: dict[str, Any] = {"rounds": 2, "local_steps": 1, "engine": "sequential", "evaluate_every": 1}
WORDS = [f"{key}={value}" for key, value in QUICK.items()]

FUNCTIONS = {
    "methods": idiolect.list_methods,
    "datasets": idiolect.list_datasets,
    "data": idiolect.load,
    "run": idiolect.run,
    "compare": idiolect.compare,
    "tune": idiolect.tune,
    "resume": idiolect.resume,
    "show": idiolect.show,
    "report": idiolect.report,
    "reproduce": idiolect.reproduce,
    "export": idiolect.export,
    "predict": idiolect.predict,
    "personalize": idiolect.personalize,
    "bench": idiolect.benchmark,
    "serve": idiolect.serve,
    "join": idiolect.join,
    "silo init": idiolect.silo_init,
    "silo choose": idiolect.silo_choose,
    "silo audit": idiolect.silo_audit,
    "silo back": idiolect.silo_back,
    "silo add": idiolect.silo_add,
    "silo renew": idiolect.silo_renew,
    "silo revoke": idiolect.silo_revoke,
    "silo keys": idiolect.silo_keys,
    "silo health": idiolect.silo_health,
    "silo ledger": idiolect.silo_ledger,
}
# What only concerns what is printed, and second names: `predict --data` is TABLE, `--data-dir` a setting.
ONLY_ON_THE_COMMAND_LINE = {"json", "clients", "picture", "port", "help", "everything", "listed", "text"}
ALSO_CALLED = {("predict", "data"), ("run", "data_dir"), ("compare", "data_dir"), ("tune", "data_dir")}


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_every_command_is_a_function_with_the_words_of_its_options() -> None:
    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"silo {name}": command for name, command in commands.pop("silo").commands.items()}
    assert commands.keys() == FUNCTIONS.keys()
    for name, command in commands.items():
        function = FUNCTIONS[name]
        assert function.__name__ in idiolect.__all__
        words = set(inspect.signature(function).parameters)
        options = {p.name for p in command.params if p.param_type_name == "option"}
        said_otherwise = {option for called, option in ALSO_CALLED if called == name}
        assert options - ONLY_ON_THE_COMMAND_LINE - said_otherwise <= words, name


def test_all_public_names_are_there_and_no_others_are_made_up() -> None:
    assert set(idiolect.__all__) <= set(dir(idiolect))
    assert all(getattr(idiolect, name) is not None for name in idiolect.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = idiolect.trian  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sources",
    [
        ["method=apfl", "data=vowels", "data.fractions=[0.5, 0.25, 0.25]", "lr=0.25", "local_epochs=2"],
        [{"method": "apfl", "data": "vowels", "lr": 0.25, "local_epochs": 2},
         "data.fractions=[0.5, 0.25, 0.25]"],
        [{"method.name": "apfl", "method.lr": 0.25, "method.local_steps.epochs": 2}, "data=vowels",
         {"data.fractions": [0.5, 0.25, 0.25]}],
        [{"method": {"name": "apfl", "learning_rate": 0.25, "local_steps": {"epochs": 2}},
          "data": {"name": "vowels", "fractions": (0.5, 0.25, 0.25)}}],
    ],
    ids=["texts", "names", "dots", "dictionaries"],
)  # fmt: skip
def test_settings_can_be_said_in_many_ways_and_mean_the_same(sources: list[Any]) -> None:
    config = resolve(read_settings([*sources, {"model": "mlp", "model.hidden": [7], "choose": "last"}]))
    expected = resolve(
        {
            "method": {"name": "apfl", "learning_rate": 0.25, "local_steps": {"epochs": 2}},
            "data": {"name": "vowels", "fractions": [0.5, 0.25, 0.25]},
            "model": {"name": "mlp", "hidden": [7]},
            "evaluation": {"choose": "last"},
        }
    )
    assert config.to_yaml() == expected.to_yaml()


def test_a_file_is_read_before_what_comes_after_it(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("method: fedavg\ndata: vowels\nlr: 0.5\nrounds: 9\n")
    run = idiolect.run(tmp_path / "my.yaml", QUICK, out=tmp_path / "run")
    assert run.config.rounds == 2
    assert run.config.method["learning_rate"]["initial"] == 0.5


def test_a_run_in_python_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    said = json.loads(
        invoke("run", "method=apfl", "data=vowels", *WORDS, f"out={tmp_path / 'words'}", "--json")
    )
    run = idiolect.run(method="apfl", data="vowels", **QUICK, out=tmp_path / "names")
    theirs = idiolect.show(tmp_path / "words")
    assert isinstance(theirs, idiolect.RunFolder)
    assert run.config.plain() == theirs.config.plain() == said["config"]
    pd.testing.assert_frame_equal(run.metrics(), theirs.metrics())
    values = pd.DataFrame(said["clients"]).set_index("client")
    pd.testing.assert_frame_equal(run.client_values(), values, check_names=False)
    for kind, numbers in run.summary()["kinds"].items():
        assert values[kind].mean() == pytest.approx(numbers["mean"])


def test_objects_train_as_their_names_do() -> None:
    settings = {**QUICK, "dtype": "float64", "codec.up": "topk"}
    federation = idiolect.load("vowels", seed=0)
    names = idiolect.train("fedavg", "vowels", "linear", lr=0.3, **settings)
    del settings["local_steps"]
    objects = idiolect.train(
        idiolect.method("fedavg", learning_rate=0.3, local_steps=1),
        federation,
        idiolect.build_model("linear", federation),
        participation=idiolect.Participation(),
        **settings,
    )
    pd.testing.assert_frame_equal(names.metrics, objects.metrics)
    pd.testing.assert_frame_equal(names.traffic, objects.traffic)
    assert torch.equal(*(result.model("speaker-01").linear.weight for result in (names, objects)))


FEDERATION = idiolect.load("vowels", seed=0)
RUN: dict[str, Any] = {"method": "fedavg", "data": "vowels"}
FRAME = pd.DataFrame({"site": list("ab") * 10, "x": [i * i % 23 for i in range(20)], "y": list("uvuuv") * 4})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({**RUN, "method": FedAvg()}, "method is given as an object, which no file can hold"),
        ({**RUN, "data": FEDERATION}, "data is given as an object, which no file can hold"),
        ({**RUN, "model": torch.nn.Linear(10, 11)}, "model is given as an object, which no file can hold"),
        ({**RUN, "method": FedAvg(), "lr": 0.1}, "method.learning_rate is not possible beside a method"),
        ({**RUN, "data": FEDERATION, "data.fractions": [1, 0, 0]}, "data.fractions is not possible beside"),
        ({**RUN, "data": FRAME}, "data is given as an object, which no file can hold"),
        (
            {**RUN, "data": {"name": FRAME, "client": "site"}},
            "data is given as an object, which no file can hold",
        ),
        ({**RUN, "method": 3}, "method=3 is not possible: it must be a name"),
        ({**RUN, "engine": FedAvg()}, "is not possible: it must be a name"),
        ({**RUN, "codec": "topk"}, "codec=topk is not possible"),
        ({**RUN, "lrr": 0.1}, "lrr is not a setting"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_run_cannot_keep_is_refused_in_one_sentence(
    settings: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(idiolect.UserError, match=sentence) as caught:
        idiolect.run(settings)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_comparison_of_a_frame_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = {"name": FRAME, "client": "site", "target": "y"}
    with pytest.raises(idiolect.UserError, match="data is given as an object, which no file can hold"):
        idiolect.compare(methods=["local", "fedavg"], data=data, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_frame_is_loaded_and_trained_as_its_file(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    words = {"client": "site", "target": "y"}
    from_file = idiolect.load(tmp_path / "t.csv", **words)
    from_frame = idiolect.load(FRAME, seed=0, **words)
    assert torch.equal(from_file.inputs, from_frame.inputs)
    assert torch.equal(from_file.train.index, from_frame.train.index)
    results = [
        idiolect.train("fedavg", {"name": source, **words}, **QUICK) for source in (FRAME, tmp_path / "t.csv")
    ]
    dotted = {f"data.{name}": value for name, value in words.items()}
    results.append(idiolect.train("fedavg", FRAME, **QUICK, **dotted))
    for other in results[1:]:
        pd.testing.assert_frame_equal(results[0].metrics, other.metrics)
    with pytest.raises(idiolect.UserError, match="data 'frame' needs the option 'client'"):
        idiolect.train("fedavg", FRAME, **QUICK)


@pytest.mark.parametrize("setting", [{"out": "runs/mine"}, {"store": "disk"}, {"checkpoint.every": 2}])
def test_training_in_memory_has_no_settings_of_folders(setting: dict[str, Any]) -> None:
    with pytest.raises(idiolect.UserError, match="is not a setting of train, which writes no files"):
        idiolect.train("fedavg", FEDERATION, **setting)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> idiolect.Comparison:
    out = tmp_path_factory.mktemp("comparison") / "out"
    return idiolect.compare(QUICK, methods=["local", "fedavg"], data="vowels", seeds=2, out=out)


def test_a_comparison_gives_every_clients_values(comparison: idiolect.Comparison) -> None:
    """The mean over seeds for each client; their mean over clients is the table's."""
    values = comparison.client_values()
    assert list(values.columns) == ["local personal", "fedavg global", "fedavg localized"]
    seeds = [run.client_values()["global"] for run in comparison.runs if "fedavg" in run.path.name]
    pd.testing.assert_series_equal(values["fedavg global"], sum(seeds) / 2, check_names=False)
    assert values.mean().tolist() == pytest.approx(comparison.table["mean"].tolist())
    said = json.loads(invoke("show", comparison.path, "--json"))
    assert said["clients"][0]["client"] == "speaker-00"
    assert said["clients"][0]["local personal"] == values["local personal"].iloc[0]
    assert "speaker-07" in invoke("show", comparison.path, "--clients")
    assert "speaker-07" not in invoke("show", comparison.path)


def test_a_page_is_written_where_it_can_be(
    comparison: idiolect.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert comparison.page == comparison.path / "report.html"
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(idiolect.UserError, match="a report page needs matplotlib and jinja2"):
        idiolect.report(comparison, out=tmp_path / "page.html")
    out = tmp_path / "out"
    assert "no report page" in invoke("compare", "methods=local", "data=vowels", *WORDS, f"out={out}")
    assert idiolect.Comparison(out).page is None


def test_what_is_not_finished_is_not_shown(comparison: idiolect.Comparison, tmp_path: Path) -> None:
    class Stop(BaseException):
        """Ends a run, as a kill does."""

    class Stopping:
        def played(self, round_number: int) -> None:
            raise Stop

        def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
            pass

    with pytest.raises(Stop):
        idiolect.run(QUICK, **RUN, out=tmp_path / "run", watch=lambda config: [Stopping()])
    with pytest.raises(idiolect.UserError, match="is not finished"):
        idiolect.show(tmp_path / "run")
    assert idiolect.resume(tmp_path / "run").finished
    with pytest.raises(idiolect.UserError, match="is not the folder of a comparison"):
        idiolect.Comparison(tmp_path / "run")


def test_newcomers_say_whether_they_were_saved(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": list("abc") * 40, "x": [i * 7 % 120 for i in range(120)]})
    table = table.assign(y=lambda t: t.x % 11 < 4)
    table.to_csv(tmp_path / "old.csv", index=False)
    table.assign(site="d").to_csv(tmp_path / "new.csv", index=False)
    data = {"name": tmp_path / "old.csv", "client": "site", "target": "y"}
    run = idiolect.run(QUICK, method="fedavg", data=data, out=tmp_path / "run")
    said = invoke("personalize", run.path, f"data={tmp_path / 'new.csv'}")
    assert "nothing was saved; out=FOLDER keeps the models" in said
    models = tmp_path / "models"
    assert f"models: {models}" in invoke(
        "personalize", run.path, f"data={tmp_path / 'new.csv'}", f"out={models}"
    )
    newcomers = idiolect.personalize(run, data=table.assign(site="d"))
    assert newcomers.folder is None
    kept = idiolect.predict(models / "d", tmp_path / "new.csv")
    assert newcomers.predict("d", table) == kept.tolist()
    idiolect.predict(models / "d", table, out=tmp_path / "predictions.csv")
    assert pd.read_csv(tmp_path / "predictions.csv")["y"].astype(str).tolist() == kept.astype(str).tolist()


def test_the_data_commands_take_the_words_of_a_run() -> None:
    short = json.loads(invoke("data", "vowels", "fractions=[0.5,0.25,0.25]", "--json"))
    assert json.loads(invoke("data", "vowels", "data.fractions=[0.5,0.25,0.25]", "--json")) == short


def test_the_data_command_takes_what_a_run_takes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    FRAME.assign(z=1.5).to_csv(path, index=False)
    plain = ["client=site", "target=y", "ignore=z"]
    first = json.loads(invoke("data", path, *plain, "--json"))
    dotted = [f"data.{word}" for word in plain]
    file = tmp_path / "run.yaml"
    file.write_text(
        f"method: fedavg\nrounds: 3\ndata: {{name: {path}, client: site, target: y, ignore: [z]}}\n"
    )
    for words in (
        [path, *dotted],
        [f"data={path}", *dotted],
        [f"data={path}", *plain],
        [path, "client=site", "target=y", "ignore=[z]"],
        ["method=fedavg", "rounds=3", f"data={path}", *dotted],
        [file],
    ):
        assert json.loads(invoke("data", *words, "--json")) == first
    assert json.loads(invoke("data", file, "seed=3", "--json"))["clients"] == first["clients"]
    assert json.loads(invoke("data", file, "data.fractions=[1,0,0]", "--json"))["clients"] != first["clients"]


def test_notes_of_the_data_are_wherever_its_results_are(tmp_path: Path) -> None:
    frame = FRAME.assign(day=pd.date_range("2020-01-01", periods=20).astype(str))
    frame.to_csv(tmp_path / "t.csv", sep=";", index=False)
    words = [
        f"data={tmp_path / 't.csv'}",
        "data.client=site",
        "data.target=y",
        "rounds=1",
        "engine=sequential",
    ]
    notes = ["read with semicolons between columns", "column 'day' was left out: it holds dates"]
    run, comparison = tmp_path / "run", tmp_path / "comparison"
    shown = [
        invoke("data", *words),
        invoke("run", "method=fedavg", *words, f"out={run}"),
        invoke("show", run),
        invoke("compare", "methods=local,fedavg", *words, f"out={comparison}"),
        (run / "log.txt").read_text(),
        (comparison / "report.html").read_text().replace("&#39;", "'"),
        json.loads(invoke("show", run, "--json"))["data_notes"],
        json.loads(invoke("show", comparison, "--json"))["data_notes"],
    ]
    for text in shown:
        assert all(note in str(text) for note in notes), text
