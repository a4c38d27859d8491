"""`idiolect serve`."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import idiolect
from idiolect.cli.console import INTERRUPTED, log_to_screen
from idiolect.cli.options import InsecureOption, KeysOption

if TYPE_CHECKING:
    from idiolect.silo.monitor import View


def serve(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml] KEY=VALUE...", help="what to run; the last wins"),
    ] = None,
    keys: KeysOption = None,
    listen: Annotated[str, typer.Option(help="the address that silos reach")] = "0.0.0.0:9092",
    out: Annotated[str, typer.Option(help="the run's folder")] = "runs/served",
    resume: Annotated[str | None, typer.Option(help="continue the run in this folder")] = None,
    from_round: Annotated[
        int | None, typer.Option("--from", help="with --resume: go back to this round first")
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Coordinate a run between silos; they join with `idiolect join`.

    Example: idiolect serve my.yaml --keys keys/coordinator
    """
    from idiolect.silo.processes import Terminated, end_properly_when_terminated

    end_properly_when_terminated()
    try:
        folder = idiolect.serve(
            *(settings or ()),
            keys=keys,
            listen=listen,
            out=out,
            resume=resume,
            from_round=from_round,
            insecure=insecure,
            views=_screen(),
        )
    except KeyboardInterrupt as interrupt:
        asked = isinstance(interrupt, Terminated)
        what = "ended" if asked else "interrupted"
        typer.echo(f"{what}; continue with `idiolect serve --resume {resume or out}`", err=True)
        raise typer.Exit(0 if asked else INTERRUPTED) from interrupt
    typer.echo(f"run: {folder.path}")


@contextmanager
def _screen() -> Iterator["list[View]"]:
    """Where people look: plain lines, or where there is a terminal a picture under them."""
    from idiolect.silo.terminal import ConsoleHandler, TerminalView

    if not sys.stdout.isatty():
        with log_to_screen(logging.StreamHandler()):
            yield []
        return
    console = Console()
    terminal = TerminalView(console)
    with log_to_screen(ConsoleHandler(console)), terminal.on_screen():
        yield [terminal]
