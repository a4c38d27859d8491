"""A silo's own randomness, where it must be nobody else's.

Batches and noise are a pure function of a seed everywhere, and the coordinator knows the run's. In a private
run it could then take the noise off again, and would know which rows were drawn. So a silo draws from a
secret of its own, which it makes when it agrees to the run and which never leaves its folder.

Of the secret, the message of an exchange and the state that it meets follows a secret of this exchange. The
same message gets the same answer, bit for bit: fresh noise in repetitions could be averaged away. Another
message, or the same in another state, gets noise of its own: of two answers with the same noise the
difference would have none.

Numbers are ChaCha20's key stream, with a key (HMAC-SHA256) for each secret and key of `core/rng.py`. Whoever
knows some of them, as of a part of an upload that can be told beforehand, learns nothing of the others.
"""

import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idiolect.core import rng
from idiolect.engines.engine import Setting
from idiolect.errors import UserError
from idiolect.store.files import write_bytes

FILE = "secret"
_BYTES = 32


@dataclass(frozen=True)
class OwnRandomness:
    """A secret, and those that follow from it."""

    secret: bytes

    @classmethod
    def kept_in(cls, folder: Path) -> "OwnRandomness":
        """That of a run, from its folder; it is made when it is first asked for."""
        path = folder / FILE
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_bytes(path, secrets.token_bytes(_BYTES), mode=0o600)
        secret = path.read_bytes()
        if len(secret) != _BYTES:
            raise UserError(f"{str(path)!r} is damaged: it must have {_BYTES} bytes; start a new run")
        return cls(secret)

    def of(self, purpose: str) -> "OwnRandomness":
        """What is drawn for one purpose and says nothing of any other."""
        return OwnRandomness(hmac.digest(self.secret, purpose.encode(), "sha256"))

    @property
    def seed(self) -> int:
        """A seed of keys, which nobody can choose so that two of them are the same."""
        return int.from_bytes(self.of("seed").secret[:8]) >> 1

    def numbers(self, keys: Tensor, count: int) -> Tensor:
        """A source for `rng.drawn_from`: random integers, so many for each key."""
        from idiolect.secure.masks import mask  # it needs an extra

        streams = [mask(self.of(f"key {key}").secret, count) for key in keys.reshape(-1).tolist()]
        integers = np.array(streams, dtype=np.uint64).view(np.int64)
        return torch.from_numpy(integers).reshape(*keys.shape, count)

    @contextmanager
    def used_in(self, setting: Setting) -> Iterator[None]:
        """Whatever the clients of a setting draw in the block is drawn from here."""
        public = setting.seed
        setting.draw_by(self.seed)
        try:
            with rng.drawn_from(self.numbers):
                yield
        finally:
            setting.draw_by(public)
