"""What commands share: errors as one line, tables, progress on terminals, the log on the screen."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from idiolect.errors import UserError
from idiolect.silo.plain_text import OneLineFormatter
from idiolect.strict_json import to_json

if TYPE_CHECKING:
    from idiolect.runs.config import RunConfig

USER_MISTAKE = 2
INTERRUPTED = 130
ROUNDS_LEFT = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(compact=True),
)


class Commands(TyperGroup):
    """A user's mistake is one line and exit code 2; an interrupt is 130; anything else is a bug."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(USER_MISTAKE) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted; what was saved can be continued with `idiolect resume`", err=True)
            raise typer.Exit(INTERRUPTED) from error


def print_json(content: Any) -> None:
    """For programs: JSON on standard output."""
    typer.echo(to_json(content))


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """For people; numbers are on the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@contextmanager
def log_to_screen(handler: logging.Handler) -> Iterator[None]:
    """Show the lines of the log as long as the block lasts."""
    handler.setFormatter(OneLineFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("idiolect")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class ProgressBar:
    """Rounds played, with an estimate of the time left; silent where nobody looks."""

    def __init__(self) -> None:
        self.progress = Progress(*ROUNDS_LEFT, console=Console(stderr=True), disable=not sys.stderr.isatty())

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watch(self, config: "RunConfig") -> "list[RoundBar]":
        """A bar for one run."""
        description = f"{config.method_name} seed {config.seed}"
        return [RoundBar(self.progress, self.progress.add_task(description, total=config.rounds))]


class RoundBar:
    """Moves one bar."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self.progress = progress
        self.task = task

    def played(self, round_number: int) -> None:
        """Move the bar."""
        self.progress.update(self.task, completed=round_number)

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        """Nothing to show."""
