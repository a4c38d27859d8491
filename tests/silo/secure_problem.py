"""Silos with keys, whose uploads are summed securely."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idiolect.silo.coordinator import coordinate
from idiolect.silo.keys import init_keys, read_credentials, read_known_keys
from idiolect.silo.requests import Link
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from silo.problem import LENIENT, Direct, deployed, own_rows


def with_keys(folder: Path, silos: Sequence[str], **options: Any) -> dict[str, Silo]:
    """Silos that know each other by their keys."""
    keys = folder / "keys"
    if not keys.exists():
        init_keys(keys, "127.0.0.1", silos)
    return {
        name: Silo(
            name,
            own_rows(name),
            folder / "silos" / name,
            credentials=read_credentials(keys / name, name),
            **{"limits": LENIENT, **options},
        )
        for name in silos
    }


def serve(run: ServedRun, link: Link, folder: Path) -> None:
    coordinate(run, link, known=read_known_keys(folder / "keys" / "coordinator"))


def played(
    settings: dict[str, Any], folder: Path, silos: Sequence[str], secure: Any = True, **options: Any
) -> tuple[ServedRun, dict[str, Silo]]:
    """A whole run."""
    them = with_keys(folder, silos, **options)
    run = ServedRun.create(folder / "run", deployed(settings, folder, silos, secure=secure))
    serve(run, Direct(them), folder)
    return run, them
