"""Recipes as pages that need nothing else: claims with their verdicts, figures to hover and zoom, numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.reports.browser import charts_html
from idiolect.reports.charts import Chart
from idiolect.reports.html import prose, render
from idiolect.reports.static import save_static
from idiolect.reproduction.figures import charts_of
from idiolect.reproduction.played import PlayedRecipe
from idiolect.reproduction.recipe import PAPERS
from idiolect.reproduction.record import Record
from idiolect.reproduction.words import MARKS, about, chosen, numbers, seen, verdict_words
from idiolect.store.files import write_bytes

SHOWN_AT_ONCE = 3  # comparisons of a claim


class Shown(NamedTuple):
    """A recipe that was played, and its figures."""

    record: Record
    charts: list[Chart]


def shown(played: PlayedRecipe, record: Record) -> Shown:
    """The figures of a recipe beside what was kept of it."""
    return Shown(record, charts_of(played))


def write_page(recipe: Shown, folder: Path) -> None:
    """Write a recipe's page, and its figures as files."""
    for old in (*folder.glob("*.svg"), *folder.glob("*.png")):  # of a recipe that was different
        old.unlink()
    save_static(recipe.charts, folder)
    write_bytes(
        folder / "index.html", _page(f"{recipe.record['item']}: {recipe.record['title']}", [recipe]).encode()
    )


def write_paper_page(paper: str, recipes: Sequence[Shown], path: Path) -> None:
    """Write one page with all recipes of a paper."""
    write_bytes(path, _page(PAPERS[paper], recipes).encode())


def _page(title: str, recipes: Sequence[Shown]) -> str:
    return render(
        "recipes.html",
        package="idiolect.reproduction",
        title=title,
        recipes=[_section(recipe, alone=len(recipes) == 1) for recipe in recipes],
    )


def _prose(markdown: str, *, alone: bool) -> str:
    """As HTML. It is written for a recipe's own folder, beside which those of other recipes are."""
    return prose(markdown if alone else markdown.replace("](../", "]("))


def _section(recipe: Shown, *, alone: bool) -> dict[str, Any]:
    record, name = recipe.record, recipe.record["name"]
    return {
        "record": record,
        "about": about(record),
        "verdicts": verdict_words(record),
        "claims": [_claim(claim) for claim in record["claims"]],
        "found": _prose(record["found"], alone=alone),
        "left_open": _prose(record["left_open"], alone=alone),
        "numbers": numbers(record),
        "chosen": chosen(record),
        "figures": charts_html(recipe.charts, prefix="" if alone else f"{name}-", headings=3),
    }


def _claim(claim: Mapping[str, Any]) -> dict[str, Any]:
    """A claim with its comparisons; many are folded away behind how many there are of each verdict."""
    verdicts = Counter(MARKS[one["verdict"]] for one in claim["compared"])
    many = ", ".join(f"{number} {mark}" for mark, number in verdicts.items())
    return {
        **claim,
        "mark": MARKS[claim["verdict"]],
        "seen": [seen(claim, one) for one in claim["compared"]],
        "comparisons": f"{verdicts.total()} comparisons: {many}" if verdicts.total() > SHOWN_AT_ONCE else "",
    }
