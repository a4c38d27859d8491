"""A model that all clients hold, as it travels: the encoded changes that a client missed.

Sender and receiver name a model by its fingerprint, a hash of its bits. A receiver finds its own copy among
the models that a message starts from or passes through, and applies the changes from there: so one whose
reply was lost, and which therefore holds a newer model than the sender can know, skips what it has already.
"""

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.tree import Params
from idiolect.errors import UserError


class Missed(NamedTuple):
    """The changes from one model to another, encoded."""

    payloads: Tensor  # uint8[bytes]: end to end, the oldest first
    sizes: Tensor  # int64[changes]: the bytes of each
    models: Tensor  # int64[changes + 1]: fingerprints of the models before, between and after the changes

    def since(self, model: Params) -> list[Tensor]:
        """The payloads of the changes that a copy of the model lacks; an unknown copy is refused."""
        self._require_whole()
        found = (self.models == fingerprint(model)).nonzero()
        if not len(found):
            raise UserError(
                "the copy of the shared model that is kept here is none that the sender knows of; was the "
                "state folder replaced by an older one? Remove the run's folder to start anew"
            )
        changes = torch.split(self.payloads, self.sizes.tolist()) if len(self.sizes) else ()
        return list(changes[int(found[-1]) :])

    def _require_whole(self) -> None:
        kinds = ((self.payloads, torch.uint8), (self.sizes, torch.int64), (self.models, torch.int64))
        if not all(
            isinstance(part, Tensor) and part.dtype == dtype and part.ndim == 1 for part, dtype in kinds
        ):
            raise UserError(
                "a message's changes do not fit: they are bytes, their sizes and fingerprints of models"
            )
        possible = ((self.sizes >= 0) & (self.sizes <= len(self.payloads))).all()
        if not possible or self.sizes.sum() != len(self.payloads):
            raise UserError(
                f"a message's changes do not fit: their sizes are {self.sizes.tolist()[:8]} and there are "
                f"{len(self.payloads)} bytes"
            )
        if len(self.models) != len(self.sizes) + 1:
            raise UserError(
                f"a message's changes do not fit: {len(self.sizes)} changes lead through "
                f"{len(self.sizes) + 1} models, not {len(self.models)}"
            )


class Journal(NamedTuple):
    """The last changes of a model, as a sender keeps them for those who missed some; the oldest first.

    It is no part of a method's state: a sender that lost it begins a new one and sends the whole model once.
    """

    payloads: Tensor  # uint8[bytes]: end to end
    bits: Tensor  # int64[changes]: the length of each, without the filling of its last byte
    models: Tensor  # int64[changes + 1]: fingerprints of the models before, between and after the changes
    total: int  # the bits of all changes of the model so far, also of those that are not here

    @classmethod
    def begin(cls, model: Params, total: int) -> "Journal":
        """No change is known."""
        nothing = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, dtype=torch.uint8), nothing, fingerprint(model).reshape(1), total)

    def added(self, payload: Tensor, bits: int, model: Params) -> "Journal":
        """With the change that led to a model; those go that together are longer than the model itself."""
        longer = Journal(
            torch.cat([self.payloads, payload]),
            torch.cat([self.bits, torch.tensor([bits])]),
            torch.cat([self.models, fingerprint(model).reshape(1)]),
            self.total + bits,
        )
        return longer._last(int((longer._lengths() <= tree.count_bits(model)).sum()))

    def missed(self, behind: int) -> Missed | None:
        """The last changes, `behind` bits of them; None where they are not all here."""
        lengths = torch.cat([torch.tensor([0]), self._lengths()])
        found = (lengths == behind).nonzero()
        if not len(found):
            return None
        last = self._last(int(found[0]))
        return Missed(last.payloads, _bytes(last.bits), last.models)

    def _lengths(self) -> Tensor:
        """The bits of the last change, of the last two, and so on."""
        return self.bits.flip(0).cumsum(0)

    def _last(self, count: int) -> "Journal":
        first = len(self.bits) - count
        dropped = int(_bytes(self.bits[:first]).sum())
        return Journal(self.payloads[dropped:], self.bits[first:], self.models[first:], self.total)


def fingerprint(model: Params) -> Tensor:
    """A hash of a model's bits, int64."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in tree.leaves(model):
        digest.update(leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return torch.tensor(int.from_bytes(digest.digest(), "little", signed=True))


def _bytes(bits: Tensor) -> Tensor:
    """The bytes that streams of some bits fill."""
    return (bits + 7) // 8
