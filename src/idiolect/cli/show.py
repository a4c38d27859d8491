"""`idiolect show`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.options import ClientsOption, JsonOption


def show(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="the folder of a run or a comparison")],
    clients: ClientsOption = False,
    json: JsonOption = False,
) -> None:
    """Show the results of a finished run or comparison.

    Example: idiolect show runs/demo
    """
    from idiolect.cli.results import print_results

    print_results(idiolect.show(folder), clients=clients, json=json)
