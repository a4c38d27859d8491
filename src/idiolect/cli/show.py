"""`idiolect show`."""

from typing import Annotated

import typer

import idiolect
from idiolect.cli.options import ClientsOption, JsonOption


def show(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="folder of a run, a comparison or a tuning")],
    clients: ClientsOption = False,
    json: JsonOption = False,
) -> None:
    """Show the results of a finished run, comparison or tuning.

    Example: idiolect show runs/demo
    """
    from idiolect.cli.results import print_results

    print_results(idiolect.show(folder), clients=clients, json=json)
