"""Every method goes through every command: rows and columns are the lists of both.

A new method is in it by being in the catalogue. A new command of the command line has to be given a row here,
or to be named among those that have nothing to do with methods. Ray's row is in tests/distributed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from typer.main import get_command

import idiolect
from families import BY_FAMILY, each_family, of_family
from idiolect.cli import app
from idiolect.core import Neighbours, tree
from idiolect.core.method import Method
from idiolect.methods.catalogue import METHODS
from idiolect.runs import decisions
from idiolect.runs.client_model import load_model
from idiolect.runs.comparison import tabulate
from idiolect.runs.lifecycle import reported_simulation
from idiolect.silo.offline import personal_model
from matrix.problem import GUEST, NEWCOMERS, SITES, Guest, Runs, asked_once, invoke, options, outputs, table
from reports.reading import tables
from runs.same_run import assert_same_run
from silo.parity import assert_deployment_equals_simulation
from silo.problem import SILOS, config

# By docs/codecs.md: uploads that are no changes of a model; downlinks that are personal or go twice a round.
WITHOUT_CODECS = {
    "local", "efl", "ifca", "perm", "perm-two-stage", "heterofl", "fedrolex", "federated-dropout",
    "fedproto", "fedfomo",
}  # fmt: skip
WITHOUT_CODEC_DOWN = {
    "pfedkm", "drfa", "agnostic-apfl", "fedgate", "fedpac", "fedamp", "heur-fedamp", "fedala",
}  # fmt: skip
ON_A_PAGE = 4  # methods on a page: it takes longer for many than for few and few again

Check = Callable[[type[Method], Runs, tuple[str, ...]], None]


def run(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """The default engine gives the numbers of the one that is the specification.

    So does, up to its rounding to single precision, a codec that sends every entry.
    """
    finished = runs.of(kind)
    assert finished.summary()["judged_by"] == kind.judged_by
    assert not finished.summary()["diverged"]
    expected = finished.metrics()
    assert set(expected.client) == set(SITES)
    assert set(expected.kind) == set(kind.kinds)
    if codec:
        sent_whole = [f"{setting.partition('=')[0]}=topk" for setting in codec]
        again = runs.of(kind, *sent_whole, "codec.keep=1.0")
        pd.testing.assert_frame_equal(again.metrics(), expected, rtol=1e-5, atol=1e-7)
    else:
        again = runs.of(kind, "engine=vectorised")
        pd.testing.assert_frame_equal(again.metrics(), expected, rtol=1e-9, atol=1e-12)
        pd.testing.assert_frame_equal(again.traffic(), finished.traffic())


def run_with_newcomers(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """Who is left out gets what `personalize` gives to somebody from outside.

    A method without an exchange for newcomers leaves them as they arrive.
    """
    finished = runs.of(kind, *codec, "newcomers.clients=[south]")
    assert set(finished.metrics().client) == set(SITES) - {"south"}
    met = finished.newcomers().set_index(["kind", "part", "metric"])
    assert set(met.client) == {"south"}
    assert set(met.index.get_level_values("kind")) == {*kind.kinds, "alone"}
    assert np.isfinite(met["value"]).all()
    before, after = (met[met.stage == stage]["value"] for stage in ("before", "after"))
    outside = idiolect.personalize(finished, data=table(["south"])).metrics
    expected = outside.set_index(["kind", "part", "metric"])["value"]
    assert np.allclose(after[expected.index], expected, rtol=1e-9, atol=1e-12)
    simulation = reported_simulation(finished)
    method, server = simulation.method.newcomer(simulation.server)
    assert bool(method.exchanges(server)) == any(after[expected.index] != before[expected.index])


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


class Killer:
    """Ends a run after its third round was evaluated and before it is saved; the second was."""

    def played(self, round_number: int) -> None:
        pass

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        if round_number == 3:
            raise Killed


def resume(store: str) -> Check:
    def check(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
        """A killed run ends as an undisturbed one, bit for bit."""
        folder = runs.new_name()
        settings = [*runs.settings(kind, *codec), f"store={store}", f"out={folder}"]
        with pytest.raises(Killed):
            idiolect.run(*settings, watch=lambda config: [Killer()])
        invoke("resume", folder)
        assert_same_run(folder, runs.of(kind, *codec).path)

    return check


def export_folder(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """Every kind of model of a client, as it is in the state that the run reports."""
    finished = runs.of(kind, *codec)
    predictors = reported_simulation(finished).predictor(SITES.index("north"))
    for name in kind.kinds:
        folder = runs.new_name()
        invoke("export", finished.path, "--client", "north", "--kind", name, "--out", folder)
        exported = tree.to_named(dict(load_model(folder).module.named_parameters()))
        predictor = predictors[name]
        if isinstance(predictor, Neighbours):  # stored rows are no parameters
            predictor = {f"model.{part}": value for part, value in predictor.params.items()}
        expected = tree.to_named(predictor)
        assert exported.keys() == expected.keys()
        assert all(torch.equal(exported[part], expected[part]) for part in expected)


def export_each_kind(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """Each kind of model at the round that is reported for it: it has the number that the table has."""
    finished = runs.of(kind, *codec, "evaluation.every=1", "evaluation.choose=validation", "rounds=6")
    summary, values = finished.summary(), finished.client_values()
    federation = finished.federation()
    rows = federation.test.of(SITES.index("north"))
    for name in kind.kinds:
        folder = runs.new_name()
        invoke("export", finished.path, "--client", "north", "--kind", name, "--out", folder)
        assert json.loads((folder / "model.json").read_text())["round"] == summary["kinds"][name]["round"]
        model = load_model(folder)
        decided = model.decide(model.outputs(federation.inputs[rows]))
        hits = (decided == federation.targets[rows]).double()
        assert float(hits.mean()) == pytest.approx(values.loc["north", name], abs=1e-12)
        at_round = finished.metrics()["round"] == summary["kinds"][name]["round"]
        reported = finished.metrics()[at_round].set_index(["client", "kind", "part", "metric"])["value"]
        loss = reported["north", name, "test", "loss"]
        with torch.no_grad():
            outputs = load_model(folder).module(federation.inputs[rows].double())
            found = torch.nn.functional.cross_entropy(outputs, federation.targets[rows])
        assert float(found) == pytest.approx(loss, rel=1e-9)
    kept = {int(path.name.removeprefix("round-")) for path in (finished.path / "chosen").iterdir()}
    assert kept == {summary["kinds"][name]["round"] for name in kind.kinds}


def exported_outputs(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The scaled rows of one client, and what its model makes of them."""
    simulation = reported_simulation(runs.of(kind, *codec))
    preprocessing = simulation.federation.preprocessing
    assert preprocessing is not None
    inputs = preprocessing.transform(table(["south"])).double().numpy()
    predictor = simulation.predictor(SITES.index("south"))[kind.judged_by]
    return inputs, outputs(predictor, inputs)  # type: ignore[arg-type]


def probabilities(outputs: np.ndarray) -> np.ndarray:
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def export_pt2(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """A program for PyTorch takes the table's rows and gives the model's probabilities."""
    _, expected = exported_outputs(kind, runs, codec)
    target = runs.new_name(".pt2")
    invoke("export", runs.of(kind, *codec).path, "--client", "south", "--to", target)
    rows = table(["south"]).drop(columns=["site", "outcome"]).to_numpy()
    answers = torch.export.load(target).module()(torch.tensor(rows))
    assert np.allclose(answers["probabilities"].detach().numpy(), probabilities(expected), rtol=1e-9)
    assert answers["prediction"].tolist() == expected.argmax(1).tolist()


def export_onnx(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """So does one for ONNX."""
    _, expected = exported_outputs(kind, runs, codec)
    target = runs.new_name(".onnx")
    invoke("export", runs.of(kind, *codec).path, "--client", "south", "--to", target)
    rows = table(["south"]).drop(columns=["site", "outcome"])
    columns = {name: rows[name].to_numpy() for name in rows}
    classes, given = onnxruntime.InferenceSession(target).run(["prediction", "probabilities"], columns)
    assert np.allclose(given, probabilities(expected), rtol=1e-9)
    assert classes.tolist() == np.array(["better", "same", "worse"])[expected.argmax(1)].tolist()


def predict(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """The class with the largest output, for each row of a table."""
    _, expected = exported_outputs(kind, runs, codec)
    folder, rows = runs.new_name(), runs.new_name(".csv")
    invoke("export", runs.of(kind, *codec).path, "--client", "south", "--out", folder)
    table(["south"]).drop(columns=["site", "outcome"]).to_csv(rows, index=False)
    classes = np.array(["better", "same", "worse"])
    assert invoke("predict", folder, rows).split() == ["outcome", *classes[expected.argmax(1)]]


def personalized(
    kind: type[Method], runs: Runs, codec: tuple[str, ...], newcomers: Sequence[str], *settings: str
) -> Guest:
    """What `idiolect personalize` says of the guest among some newcomers, and the parameters of its model."""
    name = "-".join([kind.name, *codec, *newcomers, *settings])
    rows, out = runs.folder / f"{name}.csv", runs.folder / f"{name}-models"
    if name not in runs.guests:
        table(newcomers).to_csv(rows, index=False)
        run = runs.of(kind, *codec).path
        said = json.loads(invoke("personalize", run, f"data={rows}", f"out={out}", *settings, "--json"))
        assert {line["client"] for line in said} == set(newcomers)
        metrics = {
            f"{line['kind']} {line['part']} {line['metric']}": [line["value"]]
            for line in said
            if line["client"] == GUEST
        }
        parameters = load_model(out / GUEST).module.named_parameters()
        runs.guests[name] = metrics | {part: value.reshape(-1).tolist() for part, value in parameters}
    return runs.guests[name]


def assert_same_guest(ours: Guest, theirs: Guest) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert np.allclose(ours[name], value, rtol=1e-9, atol=1e-12), name


FEWER, AS_MANY = ["bay", GUEST], NEWCOMERS[-len(SITES) :]


def personalize(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """A newcomer's model does not depend on who else is new, nor on its place among them."""
    fewer = personalized(kind, runs, codec, FEWER)
    assert np.isfinite(np.concatenate(list(fewer.values()))).all()
    for newcomers in (AS_MANY, NEWCOMERS):
        assert_same_guest(personalized(kind, runs, codec, newcomers), fewer)


def personalize_with_steps(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """As many steps as a round has are what a newcomer takes anyway; more lead further."""
    usual = personalized(kind, runs, codec, FEWER)
    of_a_round = options(kind).get("local_steps", 1)
    assert_same_guest(personalized(kind, runs, codec, FEWER, f"steps={of_a_round}"), usual)
    longer = personalized(kind, runs, codec, FEWER, "steps=7")
    assert np.isfinite(np.concatenate(list(longer.values()))).all()
    simulation = reported_simulation(runs.of(kind, *codec))
    method, server = simulation.method.newcomer(simulation.server)
    assert bool(method.exchanges(server)) == any(longer[name] != usual[name] for name in usual)


def show(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """The reported numbers, for programs and for people."""
    finished = runs.of(kind, *codec)
    said = json.loads(invoke("show", finished.path, "--json"))
    last = finished.metrics().query(f"round == 3 and part == 'test' and metric == {said['metric']!r}")
    for name in kind.kinds:
        assert said["kinds"][name]["mean"] == pytest.approx(last[last.kind == name]["value"].mean())
        assert name in invoke("show", finished.path)


def compare(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """A table of runs has a row for each model of a method, with that run's numbers."""
    finished = runs.of(kind, *codec)
    rows = tabulate([finished]).set_index("kind")
    assert list(rows.index) == list(finished.summary()["kinds"])
    for name, numbers in finished.summary()["kinds"].items():
        assert rows.loc[name, "mean"] == pytest.approx(numbers["mean"])


def with_some(kind: type[Method]) -> tuple[int, Sequence[type[Method]]]:
    """A method among a few that are computed together, and the number of the first."""
    ordered = sorted(BY_FAMILY, key=lambda each: each.name not in SOME)
    first = ordered.index(kind) // ON_A_PAGE * ON_A_PAGE
    return first, ordered[first : first + ON_A_PAGE]


def tune(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """Some methods at a time: the first trial is the run, the choice is no worse, and can be run."""
    first, some = with_some(kind)
    folder = runs.folder / f"tuning-{first}"
    if not folder.exists():
        words = [word for word in runs.settings(kind) if not word.startswith("method")]
        words += [f"{one.name}.{name}={value}" for one in some for name, value in options(one).items()]
        methods = ",".join(one.name for one in some)
        invoke("tune", f"methods={methods}", *words, "trials=2", f"out={folder}")
    row = idiolect.Tuning(folder).table.set_index("method").loc[kind.name]
    untouched = runs.of(kind).summary()["kinds"][kind.judged_by]["validation"]
    assert row["default"] == pytest.approx(untouched, rel=1e-12)
    assert row.tuned >= row["default"]
    chosen = idiolect.run(folder / f"best-{kind.name}.yaml", out=runs.new_name()).summary()
    assert chosen["kinds"][kind.judged_by]["validation"] == pytest.approx(row.tuned, rel=1e-12)


def report(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """Pages of some methods each; every model of a method has a row with the run's number."""
    first, some = with_some(kind)
    page = runs.folder / f"report-{first}.html"
    if not page.exists():
        invoke("report", *(runs.of(other).path for other in some), "--out", page)
    means = {row[0]: row[1] for row in tables(page.read_text())["models"]}
    for name, numbers in runs.of(kind).summary()["kinds"].items():
        assert means[f"{kind.name} {name}"] == f"{100 * numbers['mean']:.1f} %"


def serve(kind: type[Method], runs: Runs, codec: tuple[str, ...]) -> None:
    """Silos without a network compute what one process computes, and have their models offline."""
    sections = (
        {"codec": dict(setting.removeprefix("codec.").split("=") for setting in codec)} if codec else {}
    )
    folder = runs.new_name()
    folder.mkdir()
    settings = config({"name": kind.name, **options(kind)}, rounds=2, **sections)
    assert_deployment_equals_simulation(settings, folder)
    for silo in SILOS:
        for name in kind.kinds:
            model = personal_model(folder / "silos" / silo, name).module
            assert all(parameter.isfinite().all() for parameter in model.parameters())


# The first word is the command of the command line.
COMMANDS: dict[str, Check] = {
    "run": run,
    "run with newcomers": run_with_newcomers,
    "resume from memory": resume("memory"),
    "resume from disk": resume("disk"),
    "export a folder": export_folder,
    "export each kind": export_each_kind,
    "export a program": export_pt2,
    "predict": predict,
    "personalize": personalize,
    "personalize with steps": personalize_with_steps,
    "show": show,
    "compare": compare,
    "tune": tune,
    "report": report,
    "serve": serve,
}
# Left out with codecs: what sees only an exported model or finished tables, what plays as a run does; and one
# of the stores suffices.
SAME_WITH_CODECS = {
    "run with newcomers",
    "predict",
    "show",
    "compare",
    "tune",
    "report",
    "export a program",
    "export each kind",
    "resume from memory",
}
WITHOUT_METHODS = {"methods", "datasets", "data", "bench", "silo", "reproduce"}
AT_THE_OTHER_END = {"join"}  # of serve
# In `make test-slow`: a second a method, and tests/silo has the wire with codecs.
WITH_CODECS = [
    pytest.param(name, marks=pytest.mark.slow if name == "serve" else ())
    for name in COMMANDS
    if name not in SAME_WITH_CODECS
]


def codecs_of(kind: type[Method]) -> tuple[str, ...]:
    """The codecs that a method can have."""
    if kind.name in WITHOUT_CODECS:
        return ()
    return ("codec.up=topk",) + (() if kind.name in WITHOUT_CODEC_DOWN else ("codec.down=ternary",))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "find_rate", asked_once(decisions.find_rate))
        yield Runs(tmp_path_factory.mktemp("matrix"))


# In `make test-slow` but for some methods: tunings and pages see settings and tables, which all methods have.
OFTEN_WITH_SOME = {"tune", "report"}
SOME = {"fedavg", "apfl", "additive", "efl", "pfedkm", "perm", "fedper", "knn-per"}


def marks_of(kind: type[Method], command: str) -> Any:
    """Whether a cell is looked at in `make test-slow` only."""
    if command in OFTEN_WITH_SOME and kind.name not in SOME:
        return pytest.mark.slow
    if command == "resume from disk" and codecs_of(kind):  # which is looked at with these
        return pytest.mark.slow
    return of_family(kind.name)


CELLS = [
    pytest.param(kind, command, marks=marks_of(kind, command), id=f"{kind.name}-{command}")
    for kind in BY_FAMILY
    for command in COMMANDS
]
COMPRESSIBLE = tuple(kind for kind in BY_FAMILY if codecs_of(kind))


@pytest.mark.parametrize(("kind", "command"), CELLS)
def test_every_method_goes_through_every_command(kind: type[Method], command: str, runs: Runs) -> None:
    COMMANDS[command](kind, runs, ())


@pytest.mark.parametrize("command", WITH_CODECS)
@each_family("kind", methods=COMPRESSIBLE)
def test_every_command_goes_with_codecs(kind: type[Method], command: str, runs: Runs) -> None:
    COMMANDS[command](kind, runs, codecs_of(kind))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind.name == "fedavg" else pytest.mark.slow) for kind in METHODS],
    ids=[kind.name for kind in METHODS],
)
def test_every_methods_models_are_exported_to_onnx(kind: type[Method], runs: Runs) -> None:
    export_onnx(kind, runs, ())


@pytest.mark.parametrize(
    ("name", "codec"),
    [(name, direction) for name in sorted(WITHOUT_CODECS) for direction in ("up", "down")]
    + [(name, "down") for name in sorted(WITHOUT_CODEC_DOWN)],
)
def test_a_codec_that_a_method_cannot_have_is_refused_in_one_sentence(
    name: str, codec: str, runs: Runs
) -> None:
    kind = next(kind for kind in METHODS if kind.name == name)
    said = invoke(
        "run", *runs.settings(kind, f"codec.{codec}=ternary"), f"out={runs.new_name()}", mistake=True
    )
    assert said.startswith("error: codec")
    assert f"cannot be used with method={name}" in said
    assert said.count("\n") == 1


def test_every_command_of_the_command_line_has_a_row() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    rows = {name.split()[0] for name in COMMANDS}
    assert known == rows | WITHOUT_METHODS | AT_THE_OTHER_END
