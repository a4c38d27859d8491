"""`idiolect report`."""

from typing import Annotated

import typer

import idiolect


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="folders of runs or comparisons, or of one tuning"),
    ],
    out: Annotated[str, typer.Option(help="the page to write")] = "runs/report.html",
) -> None:
    """Write a page from one or more runs: figures to choose and zoom in, tables to sort, data to download.

    Example: idiolect report runs/demo --out demo.html
    """
    typer.echo(f"report: {idiolect.report(*runs, out=out)}")
