"""`idiolect report`."""

from typing import Annotated

import typer

import idiolect


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="folders of runs or comparisons")],
    out: Annotated[str, typer.Option(help="the page to write")] = "runs/report.html",
) -> None:
    """Write a page with tables and figures from one or more runs.

    Example: idiolect report runs/demo --out demo.html
    """
    typer.echo(f"report: {idiolect.report(*runs, out=out)}")
