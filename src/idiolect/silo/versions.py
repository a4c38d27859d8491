"""Both sides compute the same only if they are the same program."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from idiolect.errors import UserError

VERSION = version("idiolect")


def require_same_version(header: Mapping[str, Any], here: str, there: str) -> None:
    """Refuse another version than ours, naming both."""
    other = header.get("version", "an unknown version")
    if other != VERSION:
        raise UserError(f"{here} has Idiolect {VERSION} and {there} {other}: install the same on both sides")
