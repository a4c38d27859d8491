"""Who says so: signatures by long-term keys that the parties exchanged before anything else.

ECDSA on P-384 with SHA-384, the kind of key that `idiolect silo init` makes. What is signed says what it is
for, so that no signature can be taken for one of another kind, or for one of the transport's.
"""

import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from idiolect.errors import UserError

_KIND = ec.ECDSA(hashes.SHA384())
_PROTOCOL = "idiolect secure sum 1"


def canonical(purpose: str, content: Mapping[str, Any]) -> bytes:
    """Plain data as the one text that stands for it."""
    return json.dumps([_PROTOCOL, purpose, content], sort_keys=True, separators=(",", ":")).encode()


class Identity:
    """A party's name and its private key."""

    def __init__(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        self.name = name
        self._key = key

    def sign(self, purpose: str, content: Mapping[str, Any]) -> bytes:
        """A signature of plain data."""
        signature: bytes = self._key.sign(canonical(purpose, content), _KIND)
        return signature


class KnownKeys:
    """The public keys of all parties, by name, as they were exchanged beforehand; the table may change."""

    def __init__(self, keys: Mapping[str, ec.EllipticCurvePublicKey]) -> None:
        self._keys = keys

    def require(self, name: str, purpose: str, content: Mapping[str, Any], signature: bytes) -> None:
        """Refuse what the party of this name did not sign."""
        key = self._keys.get(name)
        if key is None:
            raise UserError(
                f"the public key of {name!r} is not known here, or no longer good, so nothing is taken for "
                "its word"
            )
        try:
            key.verify(signature, canonical(purpose, content), _KIND)
        except InvalidSignature:
            raise UserError(f"{name!r} did not sign what is said to be its {purpose}") from None
