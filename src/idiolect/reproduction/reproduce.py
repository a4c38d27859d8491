"""Recipes from their names to their pages.

OUT/runs/               the runs of all recipes, each in a folder that follows from its configuration
OUT/RECIPE/result.json  numbers, verdicts, what was chosen
OUT/RECIPE/table.csv    the numbers as a table
OUT/RECIPE/*.svg, .png  the figures, if the extra `report` is installed
OUT/RECIPE/index.html   the page, if the extra `report` is installed
OUT/PAPER.html          all recipes of a paper on one page, where several were played
OUT/README.md           all verdicts
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.errors import UserError
from idiolect.reports import can_write_reports
from idiolect.reproduction.index import figures_of, write_index
from idiolect.reproduction.plan import Plan, plans_of
from idiolect.reproduction.play import Told, play_plans
from idiolect.reproduction.played import PlayedRecipe
from idiolect.reproduction.recipe import SIZES, Recipe, SizeName, find_recipe, recipe_names
from idiolect.reproduction.record import read_record, record_of, write_record
from idiolect.reproduction.references import refuse_unknown_names
from idiolect.reproduction.words import verdict_words
from idiolect.runs.config import RunConfig
from idiolect.store.files import clear_write_errors, write_bytes

OUT = Path("runs/reproduce")


class Reproduction:
    """What came of some recipes."""

    def __init__(
        self, records: list[dict[str, Any]], failures: dict[str, str], missing: dict[str, str], out: Path
    ) -> None:
        self.records = records
        self.failures = failures  # by the name of the run's folder
        self.missing = missing  # by the name of a recipe: why nothing is said of it
        self.out = out

    @property
    def claims(self) -> pd.DataFrame:
        """A row for each claim: recipe, says, verdict."""
        rows = [
            (record["name"], claim["says"], claim["verdict"])
            for record in self.records
            for claim in record["claims"]
        ]
        return pd.DataFrame(rows, columns=["recipe", "says", "verdict"])


def reproduce_recipes(
    names: Sequence[str],
    *,
    size: str = "small",
    seeds: Sequence[int] | None = None,
    out: Path = OUT,
    jobs: int | None = None,
    budget: float | None = None,
    told: Told = lambda recipe, done, total: None,
) -> Reproduction:
    """Play what is missing of some recipes, or of all if none is named, and write what came of them."""
    recipes = [find_recipe(name) for name in names or recipe_names()]
    plans = plans_of(recipes, _size(size), seeds, out)
    for plan in plans:
        _refuse_wrong_settings(plan)
        refuse_unknown_names(plan)
    with clear_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    failures, late = play_plans(plans, told, jobs=jobs, budget=budget)
    missing = {plan.recipe.name: why for plan in plans if (why := _why_missing(plan, late))}
    if failures and len(missing) == len(plans):
        first = next(iter(failures.values()))
        raise UserError(f"nothing could be played of {', '.join(missing)}; the first run says: {first}")
    kept = [_keep(plan) for plan in plans if plan.recipe.name not in missing]
    if can_write_reports():
        _write_pages(kept, out)
    write_index(out)
    return Reproduction([record for _, record in kept], failures, missing, out)


def _why_missing(plan: Plan, late: bool) -> str | None:
    """Why nothing can be said of a recipe; what failed in part is said of the rest."""
    if late and not _is_played(plan):
        return "the budget was spent; the same command goes on"
    if (why := plan.why_undecided()) is not None:
        return why
    finished = any((run.config.folder / "summary.json").is_file() for run in plan.runs())
    return None if finished or not plan.places else "none of its runs finished"


def publish_results(out: Path, folder: Path) -> None:
    """Copy the papers' pages, and every recipe's tables and figures, to where they are read; no runs."""
    files = [file for form in ("*.html", "*.md", "*/README.md", "*/table.csv") for file in out.glob(form)]
    files += [figure for place in out.iterdir() if place.is_dir() for figure in figures_of(place)]
    for file in files:
        target = folder / file.relative_to(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, file.read_bytes())


def list_recipes(*, size: str = "small", out: str | Path = OUT) -> pd.DataFrame:
    """All recipes: what each is, how long it takes, how far it is here, and what came of it."""
    rows = []
    for plan in plans_of([find_recipe(name) for name in recipe_names()], _size(size), None, Path(out)):
        recipe, record = plan.recipe, read_record(plan.root / plan.recipe.name)
        rows.append(
            {
                "recipe": recipe.name,
                "paper": recipe.paper,
                "item": recipe.item,
                "title": recipe.title,
                "data": ", ".join(_data_of(recipe)),
                "size": plan.size_name,
                "runs": plan.number_of_runs,
                "minutes": plan.size.minutes,
                "state": _state(plan, record),
                "verdicts": "" if record is None else verdict_words(record),
            }
        )
    return pd.DataFrame(rows)


def _size(size: str) -> SizeName:
    for known in SIZES:
        if size == known:
            return known
    raise UserError(f"size={size} is not possible: it must be {' or '.join(SIZES)}")


def _refuse_wrong_settings(plan: Plan) -> None:
    """Say what is wrong with a recipe's settings before anything is played."""
    for place in plan.places:
        for point in plan.recipe.tune.of(place.line) or [{}]:
            plan.config_of(place, plan.seeds[0], point)


def _keep(plan: Plan) -> tuple[PlayedRecipe, dict[str, Any]]:
    played = PlayedRecipe(plan)
    record = record_of(played)
    folder = plan.root / plan.recipe.name
    folder.mkdir(exist_ok=True)
    write_record(folder, record)
    write_bytes(folder / "table.csv", pd.DataFrame(record["table"]).to_csv(index=False).encode())
    return played, record


def _write_pages(kept: Sequence[tuple[PlayedRecipe, dict[str, Any]]], out: Path) -> None:
    """A page for each recipe, and one for each paper of which there are several."""
    from idiolect.reproduction.page import shown, write_page, write_paper_page

    recipes = [shown(played, record) for played, record in kept]
    by_paper: dict[str, list[Any]] = {}
    for recipe in recipes:
        write_page(recipe, out / recipe.record["name"])
        by_paper.setdefault(recipe.record["paper"], []).append(recipe)
    for paper, own in by_paper.items():
        if len(own) > 1:
            write_paper_page(paper, own, out / f"{paper}.html")


def _is_played(plan: Plan) -> bool:
    """Whether all its runs are finished."""
    if not all((config.folder / "summary.json").is_file() for config in _trials(plan)):
        return False
    return all((run.config.folder / "summary.json").is_file() for run in plan.runs())


def _trials(plan: Plan) -> list[RunConfig]:
    return [config for tried in plan.trials.values() for _, config in tried]


def _state(plan: Plan, record: dict[str, Any] | None) -> str:
    if record is not None and record["size"] == plan.size_name:
        return "done"
    first = _trials(plan) or [run.config for run in plan.runs()]
    return "begun" if any((config.folder / "run.json").is_file() for config in first) else "not begun"


def _data_of(recipe: Recipe) -> list[str]:
    """The data sets of a recipe's panels."""
    names = []
    for part in (recipe.settings, *recipe.panels.values()):
        data = part.get("data", {})
        names.append(data if isinstance(data, str) else data.get("name"))
    return [name for name in dict.fromkeys(names) if name]
