"""`idiolect reproduce`."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TaskID

import idiolect
from idiolect.cli.console import ROUNDS_LEFT, print_json, print_table
from idiolect.cli.options import JsonOption
from idiolect.errors import UserError
from idiolect.quantities import duration

if TYPE_CHECKING:
    from idiolect.reproduction.reproduce import Reproduction

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE...]", help="recipes by name, or YAML files of the same form"),
]


def reproduce(
    recipes: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="all recipes")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="show all recipes, how far they are, and their verdicts")
    ] = False,
    text: Annotated[bool, typer.Option("--text", help="print a recipe's YAML, to copy and change")] = False,
    size: Annotated[str, typer.Option(help="small, or paper: the paper's own setting")] = "small",
    seeds: Annotated[str | None, typer.Option(help="how many, or which: 5, or 3,4,5")] = None,
    budget: Annotated[str | None, typer.Option(help="time after which no run begins: 20m, 2h")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="processes at once; otherwise as many as processors")
    ] = None,
    out: Annotated[str, typer.Option(help="a folder for runs, pages and verdicts")] = "runs/reproduce",
    publish: Annotated[
        str | None, typer.Option(help="copy pages, tables and figures, but no runs, to this folder")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Play the papers' experiments and say which of their claims hold.

    Example: idiolect reproduce additive-fig1b perm-fig1

    What was played before is not played again; what was interrupted goes on. If a run failed, the exit code
    is 1.
    """
    if listed:
        _print_list(idiolect.list_recipes(size=size, out=out), json=json)
        return
    if not recipes and not everything:
        raise UserError("give recipes, as apfl-table2, or --all; `idiolect reproduce --list` shows them")
    if recipes and everything:
        raise UserError("give either recipes or --all")
    if text and everything:
        raise UserError("--text prints recipes that are named, as `idiolect reproduce apfl-table2 --text`")
    if text:
        from idiolect.reproduction.recipe import recipe_text

        typer.echo("\n".join(recipe_text(name) for name in recipes or ()), nl=False)
        return
    with _Progress() as progress:
        found = idiolect.reproduce(
            *(recipes or ()),
            size=size,
            seeds=seeds,
            budget=budget,
            jobs=jobs,
            out=out,
            publish=publish,
            told=progress.told,
        )
    if json:
        print_json(found.records)
    else:
        _print_claims(found)
    for folder, reason in found.failures.items():
        typer.echo(f"failed: {folder}: {reason}", err=True)
    for name, reason in found.missing.items():
        typer.echo(f"not played: {name}: {reason}", err=True)
    if found.failures:  # a script that goes on with the numbers must notice
        raise typer.Exit(1)


def _print_claims(found: "Reproduction") -> None:
    rows = [[name, says, verdict] for name, says, verdict in found.claims.itertuples(index=False)]
    if rows:
        print_table("What the papers claim", ["recipe", "claim", "verdict"], rows)
    typer.echo(f"numbers, figures and pages: {found.out / 'README.md'}")


class _Progress:
    """All runs of all recipes: a bar with the time that is left, or for a log a line for each recipe."""

    def __init__(self) -> None:
        self.bar = Bar(*ROUNDS_LEFT, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self.task: TaskID | None = None
        self.recipe = ""
        self.began: tuple[float, int] | None = None  # when the first run was told of, and how many were done

    def __enter__(self) -> "_Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def told(self, recipe: str, done: int, total: int) -> None:
        """Move the bar."""
        if self.began is None:
            self.began = time.monotonic(), done
        if self.bar.disable and recipe != self.recipe:
            typer.echo(f"{recipe}: {done} of {total} runs are done{self._left(done, total)}", err=True)
        self.recipe = recipe
        if self.task is None:
            self.task = self.bar.add_task(recipe, total=total)
        self.bar.update(self.task, completed=done, total=total, description=recipe)

    def _left(self, done: int, total: int) -> str:
        """How long the other runs will take, if they take as long as those that were done since the first."""
        assert self.began is not None
        since, first = self.began
        if done == first:
            return ""
        return f", about {duration((time.monotonic() - since) / (done - first) * (total - done))} left"


def _print_list(table: pd.DataFrame, *, json: bool) -> None:
    if json:
        print_json(table.to_dict("records"))
        return
    rows = [
        [
            row["recipe"],
            f"{row['item']}: {row['title']}",
            row["data"],
            row["size"],
            "–" if pd.isna(row["minutes"]) else duration(60 * float(row["minutes"])),
            row["state"],
            row["verdicts"],
        ]
        for row in table.to_dict("records")
    ]
    print_table(
        "Recipes", ["recipe", "what it is", "data", "size", "about, on 2 cores", "state", "verdicts"], rows
    )
