"""Commands that write pages and figures from finished runs, and the benchmark."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from idiolect.cli.app import app
from idiolect.cli.console import print_json


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="folders of runs or comparisons")],
    out: Annotated[str, typer.Option(help="the page to write")] = "runs/report.html",
) -> None:
    """Write a page with tables and figures from one or more runs.

    Example: idiolect report runs/demo --out demo.html
    """
    from idiolect.runs.comparison import open_runs

    for run in runs:
        for folder in open_runs(run):
            folder.summary()  # says which one is not finished, before anything is written
    typer.echo(write_report_page([Path(run) for run in runs], Path(out)))


@app.command()
def bench(
    full: Annotated[
        bool, typer.Option("--full", help="every method, and many clients: half an hour")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON for programs")] = False,
) -> None:
    """Measure speed against a plain loop over clients, in one run on this machine: three minutes.

    Example: idiolect bench --json
    """
    from idiolect.bench import render, run_bench

    result = run_bench(full=full)
    if json:
        print_json(result)
    else:
        Console().print(render(result))


def write_report_page(folders: Sequence[Path], page: Path) -> str:
    """Write the page and say where it is, or why there is none."""
    if any(find_spec(name) is None for name in ("matplotlib", "jinja2")):
        return "no report page: it needs pip install 'idiolect[report]'"
    from idiolect.reports import write_report

    write_report(folders, page)
    return f"report: {page}"
