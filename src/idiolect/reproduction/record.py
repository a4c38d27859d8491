"""What is kept of a recipe that was played: plain data, from which pages and the index are written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.reproduction.plan import Plan
from idiolect.reproduction.played import Compared, Judged, PlayedRecipe
from idiolect.reproduction.recipe import PAPERS
from idiolect.reproduction.table import table_of
from idiolect.runs.folder import RunFolder
from idiolect.runs.provenance import versions
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
        "made_with": _made_with(played),
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


def _made_with(played: PlayedRecipe) -> dict[str, str]:
    """What computed the runs, which may be older than this page; several versions are all named."""
    runs = [RunFolder(folder).facts()["versions"] for folder in _finished(played)] or [versions()]
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: ", ".join(sorted({run[name] for run in runs if name in run})) for name in names}


def _seconds(played: PlayedRecipe) -> float:
    """Of training in all runs, one after the other."""
    return float(sum(RunFolder(folder).timing()["seconds"].max() for folder in _finished(played)))


def _finished(played: PlayedRecipe) -> list[Path]:
    """The folders of all finished runs, those to choose by as well."""
    folders = {config.folder for trials in played.plan.trials.values() for _, config in trials}
    folders |= {run.path for runs in played.runs.values() for run in runs.values()}
    return [folder for folder in folders if (folder / "summary.json").is_file()]
