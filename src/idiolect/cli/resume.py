"""`idiolect resume`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import ProgressBar
from idiolect.cli.options import ClientsOption, JsonOption


def resume(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="folder of a run, a comparison or a tuning")],
    device: Annotated[
        str | None, typer.Option(help="another device to continue a run on: cpu, cuda, cuda:1, mps, auto")
    ] = None,
    clients: ClientsOption = False,
    json: JsonOption = False,
) -> None:
    """Continue a run, a comparison or a tuning that was stopped, bitwise as if it had not been.

    Example: idiolect resume runs/vowels-apfl
    """
    from idiolect.cli.results import print_results

    with ProgressBar() as bar:
        finished = idiolect.resume(folder, device=device, watch=bar.watch)
    print_results(finished, clients=clients, json=json)
