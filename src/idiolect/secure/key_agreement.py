"""Secrets that two parties share (X25519, HKDF), and boxes that only the other one can open (AES-GCM)."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from idiolect.errors import UserError

SECRET_BYTES = 32
_NONCE_BYTES = 12


class KeyPair:
    """A private key for one sum and its public half."""

    def __init__(self, private: bytes | None = None) -> None:
        self._private = (
            X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        )

    @property
    def public(self) -> bytes:
        """What others are told."""
        return self._private.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        """What others get in shares only."""
        return self._private.private_bytes_raw()

    def agree(self, public: bytes, purpose: bytes) -> bytes:
        """The secret that the owner of the other public key can compute too, for one purpose."""
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # of another length, or one of the few points that give no secret
            raise UserError(f"a public key cannot be used: {error}") from error
        return HKDF(hashes.SHA256(), SECRET_BYTES, salt=None, info=purpose).derive(secret)


def require_usable(public: bytes) -> None:
    """Refuse a public key with which nobody could share a secret."""
    KeyPair().agree(public, purpose=b"")


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """A box: its content is hidden, and neither it nor what it is about can be changed."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes:
    """The content of a box."""
    try:
        return AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], about)
    except (InvalidTag, ValueError):
        raise UserError("a sealed message was altered, or is for somebody else") from None
