"""`idiolect bench`."""

from typing import Annotated

import typer
from rich.console import Console

import idiolect
from idiolect.cli.console import print_json
from idiolect.cli.options import JsonOption
from idiolect.runs.settings import read_settings
from idiolect.runs.signatures import require_known


def bench(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[device=cuda]", help="where both sides compute")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="every method, and many clients: half an hour")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure speed against a plain loop over clients, in one run on this machine: three minutes.

    Example: idiolect bench --json
    """
    from idiolect.bench.display import render

    measured = idiolect.benchmark(full=full, device=_device(settings or []))
    if json:
        print_json(measured)
    else:
        Console().print(render(measured))


def _device(settings: list[str]) -> str:
    chosen = read_settings(settings)
    for name in chosen:
        require_known(name, ["device"], "")
    return str(chosen.get("device", "cpu"))
