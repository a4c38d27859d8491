"""What is kept of a recipe that was played: plain data, from which pages and the index are written."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.reproduction.plan import Plan
from idiolect.reproduction.played import Compared, Judged, PlayedRecipe
from idiolect.reproduction.recipe import PAPERS
from idiolect.reproduction.table import table_of
from idiolect.runs.folder import RunFolder, versions
from idiolect.store.files import read_json, write_json
from idiolect.strict_json import nan_for_null

FORMAT = "idiolect-recipe-1"
FILE = "result.json"

Record = Mapping[str, Any]


def record_of(played: PlayedRecipe) -> dict[str, Any]:
    """All that is told of a recipe."""
    plan, recipe = played.plan, played.recipe
    return {
        "format": FORMAT,
        "name": recipe.name,
        "paper": recipe.paper,
        "paper_title": PAPERS[recipe.paper],
        "item": recipe.item,
        "title": recipe.title,
        "size": plan.size_name,
        "changes": plan.size.changes,
        "left_open": recipe.left_open,
        "found": recipe.found,
        "data": _data_names(played),
        "seeds": list(plan.seeds),
        "command": command(plan),
        "made_with": {**versions(), "commit": commit()},
        "seconds": _seconds(played),
        "runs": plan.number_of_runs,
        "metric": played.metric,
        "claims": [_claim(judged) for judged in played.judge()],
        "table": table_of(played).to_dict("records") if played.recipe.lines else [],
        "chosen": [
            {"panel": panel, "line": line, **settings} for (panel, line), settings in played.chosen().items()
        ],
        "failures": played.failures,
    }


def command(plan: Plan) -> str:
    """What was typed, or could have been."""
    usual = tuple(range(plan.size.seeds)) == plan.seeds
    seeds = "" if usual else f" --seeds {','.join(map(str, plan.seeds))}"
    size = "" if plan.asked_size == "small" else f" --size {plan.asked_size}"
    return f"idiolect reproduce {plan.recipe.name}{size}{seeds}"


def commit() -> str | None:
    """The commit of the source tree that the package is run from, if it is one."""
    place = Path(__file__).resolve().parent.parent
    asked = subprocess.run(
        ["git", "-C", str(place), "log", "-1", "--format=%h", "--", "."],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def read_record(folder: Path) -> dict[str, Any] | None:
    """What was kept in a recipe's folder, if it was played."""
    file = folder / FILE
    return nan_for_null(read_json(file)) if file.is_file() else None


def write_record(folder: Path, record: Record) -> None:
    """Keep it."""
    write_json(folder / FILE, dict(record))


def counts(record: Record) -> dict[str, int]:
    """How many claims have each verdict."""
    verdicts = [claim["verdict"] for claim in record["claims"]]
    return {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}


def _claim(judged: Judged) -> dict[str, Any]:
    return {
        "says": judged.claim.says,
        "metric": judged.metric,
        "verdict": judged.verdict,
        "compared": [_compared(judged, compared) for compared in judged.compared],
    }


def _compared(judged: Judged, compared: Compared) -> dict[str, Any]:
    difference = None if compared.difference is None else compared.difference._asdict()
    return {
        "panel": compared.panel,
        "first": compared.first,
        "second": compared.second,
        "difference": difference,
        "verdict": compared.verdict,
        "why": compared.why,
    }


def _data_names(played: PlayedRecipe) -> list[str]:
    names = [run.config.data_name for runs in played.runs.values() for run in list(runs.values())[:1]]
    return list(dict.fromkeys(names))


def _seconds(played: PlayedRecipe) -> float:
    """Of training in all runs, those to choose by as well, one after the other."""
    folders = {config.folder for trials in played.plan.trials.values() for _, config in trials}
    folders |= {run.path for runs in played.runs.values() for run in runs.values()}
    finished = [folder for folder in folders if (folder / "summary.json").is_file()]
    return float(sum(RunFolder(folder).timing()["seconds"].max() for folder in finished))
