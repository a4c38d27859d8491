"""The protocol's bytes in the header of a message, and what is refused on the way back."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from idiolect.errors import UserError
from idiolect.secure.messages import Advert

_MOST = 4096  # characters of one text: the longest is a box with two shares


def written(content: Mapping[str, bytes]) -> dict[str, str]:
    """Bytes by name, as texts."""
    return {name: write(value) for name, value in content.items()}


def read_all(header: Mapping[str, Any], key: str) -> dict[str, bytes]:
    """The inverse, from a header."""
    return {name: read(text) for name, text in table(header, key).items()}


def write(content: bytes) -> str:
    """Bytes as a text."""
    return base64.b64encode(content).decode()


def read(text: Any) -> bytes:
    """The inverse."""
    try:
        if isinstance(text, str) and len(text) <= _MOST:
            return base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    raise UserError("a message of a secure sum cannot be read: a text in it does not stand for bytes")


def table(header: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of a header, by name."""
    content = header.get(key)
    if not isinstance(content, dict):
        raise UserError(f"a message of a secure sum cannot be read: it has no {key}")
    return content


def write_advert(advert: Advert) -> dict[str, str]:
    """An advert as texts."""
    return written(advert._asdict())


def read_advert(header: Mapping[str, Any], key: str) -> Advert:
    """The inverse, from a header."""
    content = read_all(header, key)
    if content.keys() != set(Advert._fields):
        raise UserError("a message of a secure sum cannot be read: keys are missing")
    return Advert(**content)
