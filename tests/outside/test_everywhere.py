"""A method, data, a model, a codec, a metric and a plan of one's own go through every command."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.errors import UserError
from idiolect.runs import folder
from idiolect.runs.config import resolve
from idiolect.runs.settings import read_settings, write_settings
from idiolect.testing import check_codec, check_method
from runs.same_run import assert_same_run

FEDREP = "idiolect_outside.fedrep:FedRep"
BY_PATH = (
    f"method={FEDREP} method.local_steps=6 method.body_steps=5 "
    "data=idiolect_outside.data:blobs data.clients=5 model=idiolect_outside.models:two_layers model.width=3 "
    "codec.up=idiolect_outside.codecs:FixedPoint codec.up.fraction=10 "
    "evaluation.metrics=[idiolect_outside.metrics:brier] evaluation.metric=brier evaluation.every=2 "
    "participation.plan=idiolect_outside.plans:Nightly participation.plan.every=3 rounds=6"
)
BY_NAME = (
    "method=Own-Rep method.local_steps=6 method.body_steps=5 data=blobs data.clients=5 model=two-layers "
    "model.width=3 codec.up=fixed_point codec.up.fraction=10 evaluation.metrics=brier "
    "evaluation.metric=brier evaluation.every=2 participation.plan=nightly participation.plan.every=3 "
    "rounds=6"
)


def run(command: str) -> str:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def user(here: Path, outside: Path) -> Path:
    """A user who has the package, in a folder of its own."""
    return here


def test_a_run_by_import_paths_and_by_the_names_of_entry_points_is_one(user: Path) -> None:
    text = run(f"run {BY_PATH} out=path")
    assert "ownrep on blobs: test brier over 5 clients" in text
    run(f"run {BY_NAME} out=name")
    path, name = idiolect.RunFolder("path"), idiolect.RunFolder("name")
    pd.testing.assert_frame_equal(path.metrics(), name.metrics())
    pd.testing.assert_frame_equal(path.traffic(), name.traffic())
    assert path.config.method["name"] == FEDREP
    assert name.config.method["name"] == "ownrep"
    assert path.config.codec.up == {"name": "idiolect_outside.codecs:FixedPoint", "fraction": 10}
    metrics = path.metrics()
    assert metrics.metric.unique().tolist() == ["loss", "accuracy", "balanced_accuracy", "auc", "brier"]
    asked = path.traffic().query("direction == 'up'").groupby("round").client.unique()
    assert {r: clients.tolist() for r, clients in asked.items()} == {
        r: [f"site-{c}" for c in range(5) if c % 3 == (r - 1) % 3] for r in range(1, 7)
    }
    summary = path.summary()
    assert (summary["metric"], summary["higher_is_better"]) == ("brier", False)
    means = (
        metrics[(metrics.metric == "brier") & (metrics.part == "validation")].groupby("round")["value"].mean()
    )
    assert summary["kinds"]["personal"]["round"] == means.idxmin()
    assert summary["kinds"]["personal"]["worst"] == summary["kinds"]["personal"]["max"]


def test_what_comes_after_a_run(user: Path) -> None:
    """Show, report, export, predict, personalize."""
    run(f"run {BY_PATH} out=mine")
    assert json.loads(run("show mine --json"))["config"]["method"]["name"] == FEDREP
    assert "ownrep on blobs" in run("show mine")
    run("report mine --out page.html")
    page = Path("page.html").read_text()
    assert "ownrep personal" in page
    assert "Collins et al. 2021" in page
    run("export mine --client site-1 --out site-1")
    from idiolect_outside.data import frame

    frame(5, 8, seed=1).query("client == 'site-1'").to_csv("rows.csv", index=False)
    assert set(run("predict site-1 rows.csv").split()[1:]) <= {"yes", "no"}
    newcomers = frame(2, 12, seed=2).assign(client=lambda table: "new " + table.client)
    newcomers.to_csv("new.csv", index=False)
    given = pd.DataFrame(json.loads(run("personalize mine data=new.csv steps=3 out=models --json")))
    assert sorted(given.client.unique()) == ["new site-0", "new site-1"]
    assert "brier" in given.metric.unique()
    assert Path("models/new site-0/model.json").is_file()


def test_a_run_that_was_killed_is_continued_as_if_it_had_not_been(user: Path) -> None:
    settings = f"{BY_PATH} rounds=40 checkpoint.every=1 threads=1"
    run(f"run {settings} out=whole")
    killer = (
        "import os, sys\n"
        "import idiolect\n"
        "class Killer:\n"
        "    def played(self, round_number):\n"
        "        if round_number == 17: os._exit(9)\n"
        "    def evaluated(self, round_number, metrics): pass\n"
        "idiolect.run(*sys.argv[1:], watch=lambda config: [Killer()])\n"
    )
    arguments = [*settings.split(), "out=killed"]
    killed = subprocess.run([sys.executable, "-c", killer, *arguments], check=False)
    assert killed.returncode == 9
    run("resume killed")
    assert_same_run(Path("whole"), Path("killed"))


def test_a_comparison_calls_methods_by_their_own_names(user: Path) -> None:
    settings = "data=blobs data.clients=3 model=mlp model.hidden=[3] rounds=2 out=all"
    text = run(f"compare methods=local,fedavg,{FEDREP} ownrep.local_steps=4 lr=0.2 {settings} --json")
    rows = pd.DataFrame(json.loads(text)["rows"])
    assert list(dict.fromkeys(rows.method)) == ["local", "fedavg", "ownrep"]
    config = idiolect.RunFolder("all/ownrep-seed0").config
    assert (config.method["local_steps"], config.method["learning_rate"]["initial"]) == (4, 0.2)
    assert "ownrep personal" in run("show all")
    assert "ownrep personal" in Path("all/report.html").read_text()


NAMESAKE = """
from typing import ClassVar
from pydantic.dataclasses import dataclass
from idiolect.core import STRICT
from idiolect.methods.fedavg import FedAvg
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Other(FedAvg):
    name: ClassVar[str] = "ownrep"
"""


def test_two_methods_of_one_name_are_not_compared(user: Path) -> None:
    Path("my_namesake.py").write_text(NAMESAKE)
    sentence = (
        "ownrep and my_namesake:Other are different methods that are both called 'ownrep'; "
        "give one of the classes another name"
    )
    result = CliRunner().invoke(app, ["compare", "methods=ownrep,my_namesake:Other", "data=blobs"])
    assert (result.exit_code, sentence in result.output) == (2, True)
    result = CliRunner().invoke(app, ["compare", f"methods=ownrep,{FEDREP}", "data=blobs"])
    assert (result.exit_code, "names a method twice" in result.output) == (2, True)
    quick = "data=blobs model=mlp model.hidden=[3] rounds=1"
    run(f"run method=ownrep {quick} out=a")
    run(f"run method=my_namesake:Other {quick} out=b")
    result = CliRunner().invoke(app, ["report", "a", "b", "--out", "page.html"])
    assert (result.exit_code, "are different methods" in result.output) == (2, True)


def test_lists_show_what_is_installed(user: Path) -> None:
    assert "Collins et al. 2021" in run("methods")
    assert "body_steps" in run(f"methods {FEDREP}")
    assert json.loads(run("methods own-rep --json"))[0]["name"] == "ownrep"
    assert "Yes or no, for each client by a rule of its own." in run("datasets")
    assert [d["options"] for d in json.loads(run("datasets --json")) if d["name"] == "blobs"] == [
        ["clients", "rows", "seed"]
    ]
    assert "3 clients, binary" in run("data idiolect_outside.data:blobs clients=3")


def test_from_python(user: Path) -> None:
    fedrep = idiolect.method(FEDREP, lr=0.3, local_steps=6)
    federation = idiolect.load("idiolect_outside.data:blobs", seed=0, clients=3)
    from idiolect_outside.metrics import brier

    result = idiolect.train(
        fedrep, federation, "two-layers", rounds=2, evaluate_every=1, metrics=[brier], metric="brier"
    )
    assert "brier" in result.metrics.metric.unique()
    judged = result.metrics.query("metric == 'brier' and kind == 'personal' and part == 'test'")
    last = idiolect.train(fedrep, federation, "two-layers", rounds=2, metric="brier", choose="last")
    assert last.summary.loc["personal", "mean"] == pytest.approx(
        judged.query("round == 2")["value"].mean(), rel=1e-5
    )


def test_a_metric_that_is_an_object_cannot_be_kept_in_a_file(user: Path) -> None:
    from idiolect_outside.metrics import brier

    with pytest.raises(UserError, match=r"evaluation.metrics is given as an object, which no file can hold"):
        idiolect.run(method="fedavg", data="blobs", rounds=1, metrics=[brier], out="run")


def test_runs_that_are_reported_by_different_metrics_are_not_put_together(user: Path) -> None:
    for metric in ("loss", "accuracy"):
        run(f"run method=fedavg data=blobs rounds=1 metric={metric} out={metric}")
    with pytest.raises(UserError, match="the runs are reported by different metrics: loss and accuracy"):
        idiolect.report("loss", "accuracy", out="page.html")


@pytest.mark.parametrize("head", [(), ("*",)], ids=["last layer", "all"])
def test_the_method_keeps_the_contract(head: tuple[str, ...], outside: Path) -> None:
    check_method(idiolect.method("own-rep", lr=0.2, local_steps=6, head=head))


def test_the_codec_keeps_the_contract(outside: Path) -> None:
    check_codec(idiolect.codecs.by_name("fixed-point"))


def test_a_configuration_file_says_all_that_is_needed(user: Path) -> None:
    config = resolve(read_settings(BY_PATH.split()))
    Path("again.yaml").write_text(config.to_yaml())
    again = resolve(read_settings(["again.yaml"]))
    assert again == config
    assert again.participation.plan == {"name": "idiolect_outside.plans:Nightly", "every": 3}
    plain = {"codec": {"up": "ternary", "keep": 0.2}, "method": "fedavg", "data": "blobs"}
    Path("plain.yaml").write_text(write_settings(plain))
    assert resolve(read_settings(["plain.yaml"])).codec.up == "ternary"


def test_options_of_one_direction_come_before_those_of_both(user: Path) -> None:
    settings = "method=fedavg data=blobs codec.up=topk codec.up.keep=0.5 codec.down=ternary codec.keep=0.25"
    compressed = resolve(read_settings(settings.split())).codec.wrap(idiolect.method("fedavg"))
    assert (compressed.up.codec.keep, compressed.down.codec.keep) == (0.5, 0.25)
    changed = resolve(read_settings([*settings.split(), "codec.up=ternary"])).codec.wrap(compressed.method)
    assert changed.up.codec.keep == 0.25


REFUSED = {
    "method=idiolect_outside.fedrep:FedRap": ".fedrep has no FedRap (did you mean FedRep?)",
    f"method={FEDREP} method.body_step=1": "method.body_step is not a setting (did you mean",
    "method=fedavg codec.up=fixedpont": "codec.up='fixedpont' is not known (did you mean fixed-point?)",
    "method=fedavg codec.up=fixed-point codec.up.bit=3": "codec 'fixed-point' has no option 'bit'",
    "method=fedavg codec.up.fraction=3": "codec.up={'fraction': 3} is not possible: it must be a name, or {",
    "method=fedavg codec.up=fixed-point codec.keep=0.3": "codec.keep=0.3 has no effect: it is an option of",
    "method=fedavg participation.plan=nightly participation.rate=0.5": "rate has no effect beside plan",
    "method=fedavg participation.plan=nightli": "plan='nightli' is not known (did you mean nightly?)",
    "method=fedavg participation.plan=nightly participation.plan.evry=2": "has no option 'evry'",
    "method=fedavg evaluation.metrics=[brir]": "evaluation.metrics='brir' is not known (did you mean brier?)",
    "method=fedavg evaluation.metric=brir": "evaluation.metric='brir' is not known (did you mean brier?)",
    "method=fedavg evaluation.metric=rmse": "rmse is no metric of a binary task, whose metrics are loss",
    "method=fedavg evaluation.metrics=my_metrics:accuracy": "two metrics are called accuracy; rename one",
    "method=fedavg evaluation.metrics=my_metrics:each_row": "a tensor without axes, not one of shape",
    "method=fedavg evaluation.metrics=my_metrics:number": "without axes, not one of float",
    "method=fedavg evaluation.metrics=my_metrics:spaced": "its name 'my own' must be of letters",
}
METRICS = """
from idiolect.evaluation.metrics import metric
@metric(higher_is_better=True)
def accuracy(task, predictions, batch): return predictions.sum()
@metric(higher_is_better=True)
def each_row(task, predictions, batch): return predictions
@metric(higher_is_better=True)
def number(task, predictions, batch): return 0.5
@metric(higher_is_better=True, name="my own")
def spaced(task, predictions, batch): return predictions.sum()
"""


@pytest.mark.parametrize("settings", REFUSED)
def test_what_is_wrong_is_one_line(settings: str, user: Path) -> None:
    Path("my_metrics.py").write_text(METRICS)
    sys.modules.pop("my_metrics", None)
    result = CliRunner().invoke(app, f"run {settings} data=blobs rounds=1 out=refused".split())
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert REFUSED[settings] in result.output


def test_settings_are_checked_before_data_are_read(user: Path) -> None:
    for setting in ("metrics=brir", "participation.plan=nightli", "codec.up=fixedpont", "model=two-layer"):
        with pytest.raises(UserError, match="is not known"):
            resolve(read_settings(["method=fedavg", "data=nowhere.csv", setting]))


def test_a_metric_says_for_which_tasks_it_is(user: Path) -> None:
    result = CliRunner().invoke(app, ["run", "method=fedavg", "data=quadratics", "evaluation.metrics=brier"])
    assert (result.exit_code, "brier is no metric of a regression task" in result.output) == (2, True)


def test_a_metric_of_the_task_can_be_the_one_that_counts(user: Path) -> None:
    run("run method=fedavg data=blobs rounds=2 evaluation.metric=balanced-accuracy out=balanced")
    assert idiolect.RunFolder("balanced").summary()["metric"] == "balanced_accuracy"


def test_a_run_whose_module_is_gone_says_so(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my_passing.py").write_text(NAMESAKE)
    run("run method=my_passing:Other data=quadratics rounds=1 out=run")
    Path("my_passing.py").unlink()
    monkeypatch.delitem(sys.modules, "my_passing")
    folder._read_config.cache_clear()  # as in another process
    with pytest.raises(UserError, match="cannot be imported: there is no module my_passing"):
        _ = idiolect.RunFolder("run").config


def test_a_codec_of_ones_own_sends_what_it_says(outside: Path) -> None:
    codec = idiolect.codecs.by_name("fixed-point", fraction=3)
    vector = torch.tensor([0.123, -1.27])
    assert codec.decode(codec.encode(vector).payload, (2,), torch.float32).tolist() == [0.125, -1.25]
