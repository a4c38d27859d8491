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
    from idiolect.cli.results import print_comparison, print_run

    found = idiolect.show(folder)
    if isinstance(found, idiolect.Comparison):
        print_comparison(found, clients=clients, json=json)
    else:
        print_run(found, clients=clients, json=json)
