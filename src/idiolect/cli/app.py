"""The application that the commands join."""

import typer

from idiolect.cli.console import Commands

app = typer.Typer(
    name="idiolect",
    cls=Commands,
    help="Personalized federated learning: many clients learn together, each ends with its own model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
