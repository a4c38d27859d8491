"""What users get wrong: one line that says what would be right, exit code 2, and nothing on disk harmed.

docs/bad-inputs.md has them all. `WRITE_PAGE=1 python -m pytest tests/cli/test_bad_inputs.py` writes it anew.
"""

import hashlib
import json
import os
import re
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

import idiolect
from idiolect.cli import app
from idiolect.errors import UserError
from idiolect.runs.settings import read_settings

QUICK = "method=fedavg data=vowels rounds=2 engine=sequential method.local_steps=1 checkpoint.every=1"


def invoke(command: str):
    return CliRunner().invoke(app, shlex.split(command))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


PAGE = Path(__file__).parents[2] / "docs" / "bad-inputs.md"


def told(command: str, line: str, folder: Path) -> None:
    """The page says what is told of this command; or it is written there."""
    answer = line.removeprefix("error: ").replace(f"{folder}/", "")
    typed, answer = (text.replace("|", "\\|") for text in (command, answer))
    row = f"| `{typed}` | {answer} |"
    page = PAGE.read_text(encoding="utf-8")
    if "WRITE_PAGE" in os.environ:
        start = row.partition("` | ")[0] + "` | "
        others = [other for other in page.splitlines() if not other.startswith(start)]
        PAGE.write_text("\n".join([*others, row, ""]), encoding="utf-8")
    else:
        assert row in page.splitlines(), row


def refused(result, *fragments: str) -> str:
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    for fragment in fragments:
        assert fragment in lines[0], (fragment, lines[0])
    assert "Traceback" not in result.output
    return lines[0]


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
    ("method=fedavg data=vowels privacy=row", "privacy=row", "privacy.unit=row"),
    ("method=fedavg data=vowels privacy.epsilon=3", "privacy.unit is missing", "row or silo"),
    ("method=fedavg data=vowels privacy.unit=row", "privacy.epsilon=3", "privacy.noise=1.1"),
    ("method=fedavg data=vowels privacy.unit=row privacy.epsilon=-1", "privacy.epsilon=-1", "greater than 0"),
    (
        "method=fedavg data=vowels privacy.unit=silo privacy.noise=1 robust=median",
        "privacy.unit=silo",
        "robust",
    ),
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
    ("method=fedavg data=vowels statistics=mean", "statistics=mean", "'average', 'pooled' or 'silo'"),
    ("method=fedavg data=vowels statistics=silo", "statistics=silo has no meaning", "leave it out"),
    ("method=fedavg data=vowels dtype=float16", "dtype=float16", "'float32' or 'float64'"),
    ("method=fedavg data=vowels engine=gpu", "engine=gpu", "'vectorised'"),
    (
        "method=fedavg data=vowels engine.optimise=maybe",
        "engine.optimise=maybe",
        "a valid boolean",
    ),
    ("method=fedavg data=vowels engine.workers=3", "engine.workers", "is not a setting"),
    ("method=fedavg data=vowels newcomers=3", "newcomers=3", "newcomers.clients=..."),
    ("method=fedavg data=vowels newcomers.clients=0", "newcomers.clients=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels newcomers.clients=15", "newcomers.clients=15", "nobody of 15 clients"),
    ("method=fedavg data=vowels newcomers.clients=1.5", "newcomers.clients=1.5", "less than 1"),
    (
        "method=fedavg data=vowels newcomers.clients=speaker-03,speaker-3",
        "newcomers.clients=speaker-03,speaker-3",
        "there is no client 'speaker-3'",
        "did you mean",
    ),
    (
        "method=fedavg data=vowels newcomers.clients=2 newcomers.steps=0",
        "newcomers.steps=0",
        "greater than or equal to 1",
    ),
    ("method=fedavg data=vowels data.left_out=speaker-03", "data.left_out", "newcomers.clients"),
    ("method=fedavg data=vowels evaluation.train=perhaps", "evaluation.train=perhaps", "a valid boolean"),
    ("method=fedavg data=vowels device=gpu", "device=gpu", "cuda", "mps or auto"),
    ("method=fedavg data=vowels threads=0", "threads=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels evaluation.every=0", "evaluation.every=0", "greater than or equal to 1"),
    ("method=fedavg data=vowels evaluation.evry=5", "evaluation.evry is not", "did you mean every?"),
    ("method=fedavg data=vowels evaluation=5", "evaluation=5", "evaluation.every=..."),
    ("method=fedavg data=vowels evaluation.choose=test", "evaluation.choose=test", "'validation' or 'last'"),
    ("method=fedavg data=vowels checkpoint.every=x", "checkpoint.every=x", "a whole number"),
    ("method=fedavg data=vowels participation.rate=1.5", "participation.rate=1.5", "less than or equal to 1"),
    (
        "method=fedavg data=quadratic-line participation.work=classes",
        "participation.work=classes",
        "classification",
    ),
    (
        "method=fedavg data=vowels participation.work='{law: classes, share: 2}'",
        "participation.work=",
        "less than or equal to 1",
    ),
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
    ("method=fedavg good.csv", "'good.csv' is a table", "data=good.csv"),
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
    told(f"run {settings}", refused(invoke(f"run {settings}"), *fragments), folder)
    assert contents(folder) == before


COMPARE = [
    ("data=vowels", "methods is missing", "methods=local,fedavg,apfl"),
    ("methods=local,apfel data=vowels", "'apfel'", "apfl"),
    ("methods=local,local data=vowels", "names a method twice"),
    ("methods=local,fedavg data=vowels method=apfl", "methods=local,fedavg,apfl"),
    ("methods=local,fedavg data=vowels seeds=0", "seeds=0", "seeds=5"),
    ("methods=local,fedavg data=vowels seeds=some", "seeds=some", "seeds=5"),
    ("methods=local,fedavg data=vowels seeds=4,7,4", "seeds=4,7,4", "played twice"),
    ("methods=local,fedavg data=vowels fedavg=3", "fedavg=3", "fedavg.local_steps=5"),
    ("methods=local,fedavg data=vowels method.mixing=0.5", "method.mixing is not a setting of any"),
    ("methods=local,fedavg data=vowels fedavg.mixing=0.5", "method.mixing is not a setting"),
    ("methods=local,fedavg data=vowels out=no-data", "no-data' exists and is not a comparison"),
]


@pytest.mark.parametrize(("settings", "fragments"), [(case[0], case[1:]) for case in COMPARE])
def test_compare_refuses(settings: str, fragments: tuple[str, ...], folder: Path) -> None:
    before = contents(folder)
    told(f"compare {settings}", refused(invoke(f"compare {settings}"), *fragments), folder)
    assert contents(folder) == before


TUNE = [
    ("methods=local data=vowels", "budget is missing", "budget=20m", "trials=30"),
    ("methods=local data=vowels budget=5", "budget=5 is not possible", "with its unit"),
    ("methods=local data=vowels budget=0m", "budget=0m is not possible"),
    ("methods=local data=vowels budget=soon", "budget=soon is not possible"),
    ("methods=local data=vowels budget=-20m", "budget=-20m is not possible"),
    ("methods=local data=vowels trials=-1", "trials=-1", "at least 1"),
    ("methods=local data=vowels trials=many", "trials=many", "a whole number"),
    ("methods=local data=vowels budget=1m trials=3", "budget and trials are both given"),
    ("data=vowels budget=1m", "methods is missing"),
    ("methods=local,apfel data=vowels budget=1m", "'apfel'", "apfl"),
    ("methods=local data=vowels budget=1m seeds=3", "seeds is not a setting of tune", "seed=1"),
    ("methods=local data=vowels budget=1m rouns=3", "rouns is not a setting", "did you mean rounds"),
    ("methods=local data=vowels budget=1m data.fractions=[0.8,0,0.2]", "nobody has validation rows"),
    ("methods=local data=vowels budget=1m local.mixing=0.5", "method.mixing is not a setting"),
    ("methods=local data=vowels budget=1m out=no-data", "no-data' exists and is not a tuning"),
    ("methods=local data=vowels budget=1m out=good.csv", "good.csv' exists and is not a tuning"),
]


@pytest.mark.parametrize(("settings", "fragments"), [(case[0], case[1:]) for case in TUNE])
def test_tune_refuses(settings: str, fragments: tuple[str, ...], folder: Path) -> None:
    before = contents(folder)
    told(f"tune {settings}", refused(invoke(f"tune {settings}"), *fragments), folder)
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
    line = refused(invoke(command), *fragments)
    if harm is nothing:  # the others depend on what was done to the files, which a table cannot show
        told(command, line, tmp_path)
    assert contents(tmp_path) == before


def rows(count: int = 12) -> pd.DataFrame:
    """A good table, in which nothing counts rows."""
    numbers = [7 * i % 31 + 0.5 for i in range(count)]
    return pd.DataFrame(
        {
            "site": ["a", "b"] * (count // 2),
            "x": numbers,
            "w": ["u", "v", "v"] * (count // 3),
            "y": numbers[::-1],
        }
    )


def put(column: str, row: int, value: object) -> pd.DataFrame:
    """The good table with another value in one place."""
    frame = rows().astype({column: object})
    frame.loc[row, column] = value
    return frame


PLAIN = rows().to_csv(index=False)
ODD = {f"column {i}": [i] * 12 for i in range(20)}
# Tables: the file's content, the settings after `idiolect data FILE client=site target=y`, and the answer.
TABLES: dict[str, tuple[bytes | str | pd.DataFrame, str, tuple[str, ...]]] = {
    "unknown.csv": (
        put("x", 4, "unknown"),
        "",
        ("'x'", "line 6", "'unknown'", "data.missing_values=unknown"),
    ),
    "dash.csv": (put("x", 0, "-"), "", ("'x'", "line 2", "data.missing_values=-")),
    "two-words.csv": (put("x", 0, "not known"), "", ("'data.missing_values=[\"not known\"]'",)),
    "target-text.csv": (put("y", 2, "n.a."), "", ("the target 'y'", "line 4", "data.missing_values=n.a.")),
    "question.csv": (put("x", 3, "?"), "", ("'x' has 1 missing values", "line 5", "data.missing=impute")),
    "na.csv": (
        put("y", 3, "NA"),
        "",
        ("the target 'y' has 1 missing values", "line 5", "data.missing=impute"),
    ),
    "no-target.csv": (rows().assign(y=None), "", ("the target 'y' has no values",)),
    "no-client.csv": (put("site", 5, None), "", ("client column 'site' has 1 missing", "line 7")),
    "alike.csv": (put("site", 5, "A"), "", ("'a' and 'A' are too alike",)),
    "infinite-text.csv": (put("x", 5, "inf"), "", ("'x' is infinite in line 7",)),
    "doubt.csv": (
        rows().assign(x=["1,234", "2,345", "3,456"] * 4, y=list("uvv") * 4).to_csv(index=False, sep=";"),
        "",
        ("'1,234'", "data.decimal=point for 1234", "data.decimal=comma for 1.234"),
    ),
    "doubt-point.csv": (
        rows().assign(x=["1.234", "2.345", "3.456"] * 4, y=list("uvv") * 4).to_csv(index=False, sep=";"),
        "",
        ("'1.234'", "data.decimal=comma for 1234"),
    ),
    "both-marks.csv": (
        rows().assign(x=["1,5", "2,5", "3,5"] * 4).to_csv(index=False, sep=";"),
        "",
        ("'x' holds '1,5', with a decimal comma", "'y' ", "data.decimal=comma"),
    ),
    "two-separators.csv": (
        "site,x\ty,z\na,1\t2,3\nb,4\t5,6\n",
        "",
        ("comma and by tab", "data.separator=tab"),
    ),
    "percent.csv": (
        rows().assign(x=[f"{i * i}.5%" for i in range(12)]),
        "",
        ("'0.5%'", "write the numbers alone"),
    ),
    "ragged.csv": (PLAIN + "a,1.5\n", "", ("line 14 has 2 fields and the header has 4",)),
    "long.csv": (
        PLAIN.replace("\n", ",9\n").replace("y,9", "y"),
        "",
        ("every line has 5 fields", "header has 4"),
    ),
    "quotes.csv": (PLAIN + 'a,1.5,"u,2.5\n', "", ("quotes", "line 14")),
    "twice.csv": (PLAIN.replace("site,x,w,y", "site,y,w,y"), "", ("column 'y' twice",)),
    "spaces.csv": ("\n \n\n", "", ("it is empty",)),
    "binary.csv": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "", ("no text in UTF-8, UTF-16 or Latin-1",)),
    "not-gzip.csv.gz": (b"site,x,y\n", "", ("not-gzip.csv.gz' cannot be read",)),
    "latin.csv": (PLAIN.replace("u", "ü").encode("latin-1"), "encoding=utf-8", ("no text in utf-8",)),
    "encoding.csv": (PLAIN, "encoding=klingon", ("data.encoding='klingon'", "utf-8, utf-16, latin-1")),
    "separator.csv": (PLAIN, "separator=colon", ("data.separator='colon'", "comma, semicolon, tab, bar")),
    "decimal.csv": (PLAIN, "decimal=dot", ("data.decimal='dot'", "point, comma")),
    "sheet.xlsx": (b"PK", "", ("sheet.xlsx' must end in .csv",)),
    "row-numbers.csv": (
        rows()[["site", "y"]].assign(t=range(12)),
        "",
        ("'t' was left out: it counts the rows", "data.keep=t"),
    ),
    "names.csv": (
        rows()[["site", "y"]].assign(name=[f"p{i}" for i in range(12)]),
        "",
        ("12 different texts in 12 rows", "data.keep=name"),
    ),
    "days.csv": (
        rows()[["site", "y"]].assign(day=pd.date_range("2020-02-25", periods=12).astype(str)),
        "",
        ("'day' was left out: it holds dates", "data.keep=day"),
    ),
    "date-target.csv": (
        rows().assign(y=pd.date_range("2020-02-25", periods=12).astype(str)),
        "",
        ("the target 'y' holds dates",),
    ),
    "name-target.csv": (
        rows(24).assign(y=[f"n{i}" for i in range(24)]),
        "",
        ("24 different texts in 24 rows", "data.target", "data.task=classification"),
    ),
    "text-target.csv": (rows().assign(y=list("uvv") * 4), "task=regression", ("regression needs numbers",)),
    "fractions.csv": (PLAIN, "task=classification", ("numbers with fractions", "data.task=regression")),
    "many-values.csv": (
        rows(600).assign(w=[f"w{i % 150}" for i in range(600)]),
        "",
        ("too many for a category", "data.ignore=w"),
    ),
    "tiny.csv": (PLAIN + "c,1,u,2\n", "", ("client 'c' has 1 rows", "data.too_few=drop")),
    "minimum.csv": (PLAIN, "minimum_rows=7", ("client 'a' has 6 rows", "data.minimum_rows")),
    "shares.csv": (PLAIN, "fractions=[0.5,0.5]", ("fractions=[0.5, 0.5]", "too few entries")),
    "ignored.csv": (PLAIN, "ignore=x,z", ("no column to ignore 'z'", "site, x, w, y")),
    "all-ignored.csv": (PLAIN, "ignore=[x,w]", ("no feature columns",)),
    "kept.csv": (PLAIN, "keep=z", ("no column to keep 'z'",)),
    "coded.csv": (PLAIN, "categories=xx", ("no category column 'xx'", "did you mean x")),
    "missing-word.csv": (PLAIN, "missing=guess", ("missing='guess'", "'indicate'")),
    "too-few-word.csv": (PLAIN, "too_few=maybe", ("too_few='maybe'", "'drop'")),
    "option.csv": (PLAIN, "seperator=comma", ("no option 'seperator'", "did you mean separator")),
    "wide.csv": (rows().assign(**ODD), "ignore=colum", ("no column to ignore 'colum'", "...")),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, settings, fragments = TABLES[name]
    monkeypatch.chdir(tmp_path)
    if isinstance(content, pd.DataFrame):
        content = content.to_csv(index=False)
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    command = f"data {name} client=site target=y {settings}".strip()
    line = refused(invoke(command), *fragments)
    told(command, line, tmp_path)
    for hint in re.findall(r"data\.[a-z_]+=[\w.,-]+[\w-]|'data\.[^']+'", line):
        (typed,) = shlex.split(hint)
        read_settings([typed])  # every hint can be typed as it stands
    with pytest.raises(UserError):  # the same in Python
        idiolect.load(
            name,
            **{
                "client": "site",
                "target": "y",
                **read_settings([f"data.{setting}" for setting in settings.split()]).get("data", {}),
            },
        )


def test_the_page_has_a_hundred_commands_and_no_others() -> None:
    from silo.test_key_cycle import REFUSED as OF_KEYS  # these import from here
    from silo.test_ledger import REFUSED as OF_LEDGERS

    given = {f"run {case[0]}" for case in RUN} | {f"compare {case[0]}" for case in COMPARE}
    given |= {f"tune {case[0]}" for case in TUNE}
    given |= {command for harm, command, _ in RUN_FOLDERS if harm is nothing}
    given |= {f"data {name} client=site target=y {case[1]}".strip() for name, case in TABLES.items()}
    given |= {" ".join(("silo", *arguments, "--keys keys")) for arguments, _ in OF_KEYS}
    given |= {command for command, _ in OF_LEDGERS}
    found = [
        line[3:].partition("` | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| `")
    ]
    assert {command.replace("\\|", "|") for command in found} == given
    assert len(found) == len(given) >= 100


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
