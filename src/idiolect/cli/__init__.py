"""The command line: each file is the command of its name, which calls the function of its name and prints."""

from idiolect.cli.app import app


def main() -> None:
    """Entry point of the `idiolect` command."""
    app()
