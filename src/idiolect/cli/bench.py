"""`idiolect bench`."""

from typing import Annotated

import typer
from rich.console import Console

import idiolect
from idiolect.cli.console import print_json
from idiolect.cli.options import JsonOption
from idiolect.runs.settings import read_settings
from idiolect.runs.signatures import check_arguments

# Chosen in other words, or by programs alone.
NO_SETTINGS = ("keys", "full", "clients", "local_steps", "repeats", "scaling")


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]... [device=cuda]",
            help="measure these alone; where both sides of speed-ups compute",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="every method, and many clients: half an hour")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure speed against a plain loop over clients, in one run on this machine: three minutes.

    Example: idiolect bench method_costs --json
    """
    from idiolect.bench.display import render

    words = what or []
    settings = read_settings([word for word in words if "=" in word])
    options = check_arguments(idiolect.benchmark, settings, "", given=NO_SETTINGS)
    measured = idiolect.benchmark([word for word in words if "=" not in word], full=full, **options)
    if json:
        print_json(measured)
    else:
        Console().print(render(measured))
