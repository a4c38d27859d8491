"""The command line: `idiolect methods | datasets | data | run | compare | resume | show | ...`."""

from idiolect.cli import looking, reporting, running, using  # noqa: F401  (they add their commands)
from idiolect.cli.app import app
from idiolect.silo.commands import register

register(app)


def main() -> None:
    """Entry point of the `idiolect` command."""
    app()
