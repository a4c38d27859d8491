"""What users get wrong: one line that says what would be right, exit code 2, and nothing on disk harmed."""

import hashlib
import json
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from idiolect.cli import app

QUICK = "method=fedavg data=vowels rounds=2 engine=sequential method.local_steps=1 checkpoint.every=1"


def invoke(command: str):
    return CliRunner().invoke(app, shlex.split(command))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def refused(result, *fragments: str) -> None:
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    for fragment in fragments:
        assert fragment in lines[0], (fragment, lines[0])
    assert "Traceback" not in result.output


# The settings after `idiolect run`, and what the message must hold: field, value, what would be right.
RUN = [
    ("methd=apfl data=vowels", "methd is not a setting", "did you mean method"),
    ("method=apfel data=vowels", "'apfel'", "apfl"),
    ("data=vowels", "method is missing", "method=NAME"),
    ("method=apfl", "data is missing", "data=NAME"),
    ("method=3 data=vowels", "method=3", "must be a name"),
    ("method=apfl data=vowels method.mixng=0.5", "method.mixng is not a setting", "did you mean mixing"),
    ("method=apfl data=vowels method.mixing=2", "method.mixing=2", "less than or equal to 1", "'adaptive'"),
    ("method=apfl data=vowels method.mixing=adaptiv", "method.mixing=adaptiv", "'adaptive'"),
    (
        "method=apfl data=vowels method.mixing=adaptive method.average_offset=1",
        "average_offset needs mixing to be a number",
    ),
    ("method=fedavg data=vowels method.weighting=best", "method.weighting=best", "'uniform'"),
    ("method=fedavg data=vowels lr=-0.1", "method.learning_rate=-0.1", "greater than or equal to 0"),
    ("method=fedavg data=vowels lr=fast", "method.learning_rate=fast", "a number"),
    ("method=fedavg data=vowels lr='{initial: 1}'", "method.learning_rate={", "a name"),
    ("method=fedavg data=vowels lr='{name: slow}'", "method.learning_rate=slow", "'per_round'"),
    ("method=fedavg data=vowels method.local_steps=0", "method.local_steps=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels local_epochs=0", "method.local_steps=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels rounds=ten", "rounds=ten", "a whole number"),
    ("method=fedavg data=vowels rounds=0", "rounds=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels rounds=2.5", "rounds=2.5", "a whole number"),
    ("method=fedavg data=vowels rounds=true", "rounds=True", "a whole number"),
    ("method=fedavg data=vowels rounds=", "'rounds=' has no value", "rounds=VALUE"),
    ("method=fedavg data=vowels =5", "'=5' is not a setting", "rounds=50"),
    ("method=fedavg data=vowels rounds=[1", "'rounds=[1'", "cannot be read"),
    ("method=fedavg data=vowels seed=-1", "seed=-1", "greater than or equal to 0"),
    ("method=fedavg data=vowels batch_size=0", "batch_size=0", "greater than or equal to 1", "'all'"),
    ("method=fedavg data=vowels weight_decay=-1", "weight_decay=-1", "greater than or equal to 0"),
    ("method=fedavg data=vowels weight_decay=inf", "weight_decay=inf", "finite"),
    ("method=fedavg data=vowels dtype=float16", "dtype=float16", "'float32' or 'float64'"),
    ("method=fedavg data=vowels engine=gpu", "engine=gpu", "'vectorised'"),
    (
        "method=fedavg data=vowels engine.optimise=maybe",
        "engine.optimise=maybe",
        "a valid boolean",
    ),
    ("method=fedavg data=vowels engine.workers=3", "engine.workers", "is not a setting"),
    ("method=fedavg data=vowels threads=0", "threads=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels evaluation.every=0", "evaluation.every=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels evaluation.evry=5", "evaluation.evry is not", "did you mean every?"),
    ("method=fedavg data=vowels evaluation=5", "evaluation=5", "evaluation.every=..."),
    ("method=fedavg data=vowels evaluation.choose=test", "evaluation.choose=test", "'validation' or 'last'"),
    ("method=fedavg data=vowels checkpoint.every=x", "checkpoint.every=x", "a whole number"),
    ("method=fedavg data=vowels participation.rate=1.5", "participation.rate=1.5", "less than or equal to 1"),
    ("method=fedavg data=vowels participation.rat=1", "participation.rat is not", "did you mean rate"),
    ("method=fedavg data=vowels participation.clients.nobody.join=3", "'nobody'"),
    ("method=fedavg data=vowels trackers=wandb", "trackers=wandb", "'tensorboard'"),
    ("method=fedavg data=vowels model=lineer", "'lineer'", "did you mean linear"),
    ("method=fedavg data=vowels model=mlp model.hiden=[3]", "model.hiden is not", "did you mean hidden?"),
    ("method=fedavg data=vowels model=mlp model.hidden=many", "model.hidden=many", "a list"),
    ("method=fedavg data=vowels model=mlp model.hidden=[0]", "hidden=(0,)", "at least 1"),
    ("method=fedavg data=vowels model=cnn", "model cnn needs images"),
    ("method=fedavg data=vowels model=no.such:thing", "'no.such:thing' cannot be imported"),
    ("method=fedavg data=vowel", "'vowel'", "did you mean vowels?"),
    ("method=fedavg data=vowels data.fraction=[1,0,0]", "'fraction'", "did you mean fractions?"),
    ("method=fedavg data=vowels data.fractions=[0.5,0.1,0.1]", "fractions=(0.5, 0.1, 0.1)", "sum to 1"),
    ("method=fedavg data=missing.csv data.client=c data.target=t", "there is no file", "missing.csv"),
    ("method=fedavg data=good.csv data.target=outcome", "needs the option 'client'"),
    ("method=fedavg data=good.csv data.client=hospitl data.target=outcome", "'hospitl'", "hospital"),
    ("method=fedavg data=good.csv data.client=hospital data.target=outcom", "'outcom'", "outcome"),
    ("method=fedavg data=good.csv data.client=hospital data.target=outcome data.task=both", "task='both'"),
    (
        "method=fedavg data=empty.csv data.client=hospital data.target=outcome",
        "empty.csv' cannot be read: it is empty",
    ),
    ("method=fedavg data=header.csv data.client=hospital data.target=outcome", "header.csv' has no rows"),
    ("method=fedavg data=garbage.parquet data.client=c data.target=t", "garbage.parquet' cannot be read"),
    ("method=fedavg data=garbage.csv data.client=c data.target=t", "garbage.csv' cannot be read"),
    ("method=fedavg data=missing-values.csv data.client=hospital data.target=outcome", "1 missing", "impute"),
    (
        "method=fedavg data=infinite.csv data.client=hospital data.target=outcome",
        "'age' is infinite in line 3",
    ),
    ("method=fedavg data=one-class.csv data.client=hospital data.target=outcome", "only one class, 'no'"),
    (
        "method=fedavg data=small-client.csv data.client=hospital data.target=outcome",
        "'c' has 1 rows",
        "drop",
    ),
    ("method=fedavg data=same-names data.target=outcome", "two files for the client 'a'"),
    ("method=fedavg data=no-data data.target=outcome", "no-data' holds no data that is known"),
    ("missing.yaml", "'missing.yaml'", "key=value"),
    ("broken.yaml", "'broken.yaml' cannot be read as YAML"),
    ("list.yaml", "'list.yaml' must hold settings by name"),
    ("typo.yaml", "roundz is not a setting", "did you mean rounds"),
    (f"{QUICK} out=no-data", "no-data' exists and is not empty"),
    (f"{QUICK} out=good.csv", "good.csv' exists and is not empty"),
    (f"{QUICK} out=good.csv/run", "good.csv"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Users' files, good and bad."""
    monkeypatch.chdir(tmp_path)
    good = pd.DataFrame(
        {
            "hospital": ["a", "b"] * 10,
            "age": [7 * i % 31 for i in range(20)],
            "outcome": ["yes", "no", "no", "yes"] * 5,
        }
    )
    good.to_csv("good.csv", index=False)
    Path("empty.csv").write_text("")
    good[:0].to_csv("header.csv", index=False)
    Path("garbage.parquet").write_bytes(b"PAR1 no")
    Path("garbage.csv").write_bytes(bytes(range(256)))
    good.assign(age=[None, *range(19)]).to_csv("missing-values.csv", index=False)
    good.assign(age=[1.0, float("inf"), *range(18)]).to_csv("infinite.csv", index=False)
    good.assign(outcome="no").to_csv("one-class.csv", index=False)
    pd.concat([good, good[:1].assign(hospital="c")]).to_csv("small-client.csv", index=False)
    Path("same-names").mkdir()
    good.drop(columns="hospital").to_csv("same-names/a.csv", index=False)
    good.drop(columns="hospital").to_parquet("same-names/a.parquet")
    Path("no-data").mkdir()
    Path("no-data/notes.txt").write_text("mine")
    Path("broken.yaml").write_text("rounds: [1\nseed: {")
    Path("list.yaml").write_text("- rounds\n- seed\n")
    Path("typo.yaml").write_text("method: fedavg\ndata: vowels\nroundz: 3\n")
    return tmp_path


@pytest.mark.parametrize(("settings", "fragments"), [(case[0], case[1:]) for case in RUN])
def test_run_refuses(settings: str, fragments: tuple[str, ...], folder: Path) -> None:
    before = contents(folder)
    refused(invoke(f"run {settings}"), *fragments)
    assert contents(folder) == before


COMPARE = [
    ("data=vowels", "methods is missing", "methods=local,fedavg,apfl"),
    ("methods=local,apfel data=vowels", "'apfel'", "apfl"),
    ("methods=local,local data=vowels", "names a method twice"),
    ("methods=local,fedavg data=vowels method=apfl", "methods=local,fedavg,apfl"),
    ("methods=local,fedavg data=vowels seeds=0", "seeds=0", "seeds=5"),
    ("methods=local,fedavg data=vowels seeds=some", "seeds=some", "seeds=5"),
    ("methods=local,fedavg data=vowels fedavg=3", "fedavg=3", "fedavg.local_steps=5"),
    ("methods=local,fedavg data=vowels method.mixing=0.5", "method.mixing is not a setting of any"),
    ("methods=local,fedavg data=vowels fedavg.mixing=0.5", "method.mixing is not a setting"),
    ("methods=local,fedavg data=vowels out=no-data", "no-data' exists and is not a comparison"),
]


@pytest.mark.parametrize(("settings", "fragments"), [(case[0], case[1:]) for case in COMPARE])
def test_compare_refuses(settings: str, fragments: tuple[str, ...], folder: Path) -> None:
    before = contents(folder)
    refused(invoke(f"compare {settings}"), *fragments)
    assert contents(folder) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and an exported model."""
    place = tmp_path_factory.mktemp("finished")
    assert invoke(f"run {QUICK} out={place}/run").exit_code == 0
    assert invoke(f"export {place}/run --client speaker-03 --out {place}/model").exit_code == 0
    return place


def unfinish(run: Path) -> None:
    """As if the process had been killed after the last checkpoint."""
    (run / "summary.json").unlink()
    (run / "parts").mkdir()


def checkpoint_file(run: Path, name: str) -> Path:
    (found,) = (run / "checkpoints").glob(f"round-*/{name}")
    return found


def cut_server_short(place: Path) -> None:
    unfinish(place / "run")
    file = checkpoint_file(place / "run", "server.safetensors")
    file.write_bytes(file.read_bytes()[:50])


def lose_clients(place: Path) -> None:
    unfinish(place / "run")
    checkpoint_file(place / "run", "clients.safetensors").unlink()


def cut_state_short(place: Path) -> None:
    unfinish(place / "run")
    checkpoint_file(place / "run", "state.json").write_text('{"round": 1')


def break_config(place: Path) -> None:
    unfinish(place / "run")
    (place / "run" / "config.yaml").write_text("method: {name: fedavg, local_steps: -4}\ndata: vowels\n")


def change_data(place: Path) -> None:
    unfinish(place / "run")
    facts = json.loads((place / "run" / "run.json").read_text())
    (place / "run" / "run.json").write_text(json.dumps({**facts, "data_sha256": "0"}))


def cut_model_short(place: Path) -> None:
    file = place / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def break_card(place: Path) -> None:
    (place / "model" / "model.json").write_text('{"format": "idiolect-model-1"')


def cut_metrics_short(place: Path) -> None:
    file = place / "run" / "metrics.parquet"
    file.write_bytes(file.read_bytes()[:100])


def nothing(place: Path) -> None:
    pass


RUN_FOLDERS: list[tuple[Callable[[Path], None], str, tuple[str, ...]]] = [
    (nothing, "resume nowhere", ("there is no run folder 'nowhere'",)),
    (nothing, "resume model", ("'model' is not a run folder",)),
    (nothing, "show model", ("'model' is not a run folder",)),
    (nothing, "report model", ("'model' is not a run folder",)),
    (
        cut_server_short,
        "resume run",
        ("server.safetensors is not the file that was saved", "remove that folder"),
    ),
    (lose_clients, "resume run", ("clients.safetensors is not the file that was saved",)),
    (cut_state_short, "resume run", ("state.json' is damaged",)),
    (break_config, "resume run", ("method.local_steps=-4", "greater than or equal to 1")),
    (change_data, "resume run", ("the data 'vowels' changed since the run 'run' began",)),
    (change_data, "show run", ("the run 'run' is not finished", "idiolect resume run")),
    (change_data, "export run --client speaker-03 --out new", ("is not finished",)),
    (cut_metrics_short, f"compare methods=fedavg {QUICK.split(' ', 1)[1]} out=run", ("is not a comparison",)),
    (nothing, f"run {QUICK} seed=1 out=run", ("holds another run",)),
    (nothing, "export run --client speaker-33 --out new", ("'speaker-33'", "did you mean speaker-")),
    (nothing, "export run --client speaker-03 --out model", ("'model' exists already",)),
    (nothing, "export run --client speaker-03 --kind group --out new", ("kind=group", "global, localized")),
    (nothing, "predict run table.csv", ("'run' is not an exported model",)),
    (nothing, "predict model table.csv", ("there is no file 'table.csv'",)),
    (nothing, "predict model wrong.csv", ("there is no column 'f0'",)),
    (cut_model_short, "predict model right.csv", ("model.safetensors' is damaged",)),
    (break_card, "predict model right.csv", ("model.json' is damaged",)),
]


@pytest.mark.parametrize(("harm", "command", "fragments"), RUN_FOLDERS)
def test_damaged_and_foreign_folders_are_refused(
    harm: Callable[[Path], None],
    command: str,
    fragments: tuple[str, ...],
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    features = json.loads(Path("model/model.json").read_text())["preprocessing"]["columns"]
    pd.DataFrame({column["name"]: [0.5] for column in features}).to_csv("right.csv", index=False)
    Path("wrong.csv").write_text("a,b\n1,2\n")
    harm(tmp_path)
    before = contents(tmp_path)
    refused(invoke(command), *fragments)
    assert contents(tmp_path) == before


def test_a_one_class_client_is_told_and_trained(folder: Path) -> None:
    table = pd.read_csv("good.csv")
    table.loc[table.hospital == "b", "outcome"] = "no"
    table.to_csv("one-class-client.csv", index=False)
    shown = invoke("data one-class-client.csv client=hospital target=outcome")
    assert shown.exit_code == 0
    assert "note: " in shown.stdout
    assert "'b'" in shown.stdout
    settings = "data=one-class-client.csv data.client=hospital data.target=outcome"
    assert invoke(f"run method=fedavg {settings} rounds=1 engine=sequential out=run").exit_code == 0


def test_a_full_disk_is_one_sentence_and_the_run_can_go_on(tmp_path: Path) -> None:
    """The limit on file sizes makes writes fail as a full disk does, in a real process."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "idiolect.cli", "run", *QUICK.split(), "model=mlp", f"out={run}"]

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    full = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files_only, check=False)
    assert full.returncode == 2, full.stderr
    (line,) = full.stderr.strip().splitlines()
    assert "no space is left" in line
    assert "intact" in line
    assert not list(tmp_path.rglob(".writing-*"))
    assert invoke(f"run {QUICK} model=mlp out={run}").exit_code == 0
