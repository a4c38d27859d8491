"""`idiolect bench`."""

from typing import Annotated

import typer
from rich.console import Console

import idiolect
from idiolect.cli.console import print_json
from idiolect.cli.options import JsonOption


def bench(
    full: Annotated[
        bool, typer.Option("--full", help="every method, and many clients: half an hour")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure speed against a plain loop over clients, in one run on this machine: three minutes.

    Example: idiolect bench --json
    """
    from idiolect.bench.display import render

    measured = idiolect.benchmark(full=full)
    if json:
        print_json(measured)
    else:
        Console().print(render(measured))
