"""Masks from seeds: ChaCha20's key stream as integers modulo 2^64.

A participant adds a mask of its own, and for each pair (u, v) u adds what v subtracts; u is the one whose
name comes first. In the sum over all of them the masks of pairs vanish.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from idiolect.secure.fixed_point import Residues

_NONCE = bytes(16)  # each seed makes one mask


def mask(seed: bytes, length: int) -> Residues:
    """The mask of a seed."""
    stream = Cipher(ChaCha20(seed, _NONCE), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


def add_pair_mask(to: Residues, seed: bytes, own: str, other: str) -> None:
    """Add in place what `own` adds for its pair with `other`."""
    if own < other:
        to += mask(seed, len(to))
    else:
        to -= mask(seed, len(to))
