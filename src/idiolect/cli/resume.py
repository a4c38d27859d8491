"""`idiolect resume`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.console import ProgressBar
from idiolect.cli.options import ClientsOption, JsonOption


def resume(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a run or a comparison")],
    clients: ClientsOption = False,
    json: JsonOption = False,
) -> None:
    """Continue a run or a comparison that was stopped, bitwise as if it had not been.

    Example: idiolect resume runs/vowels-apfl
    """
    from idiolect.cli.results import print_results

    with ProgressBar() as bar:
        finished = idiolect.resume(folder, watch=bar.watch)
    print_results(finished, clients=clients, json=json)
