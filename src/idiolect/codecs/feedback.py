"""Error feedback: what a codec leaves out of one message is added to the next.

    sender:    Δ = R + change;  send C(Δ);  R <- Δ - C(Δ)          so that  Σ sent + R = Σ changes

A broadcast is the server's side of it: one model that all clients hold and that only compressed changes
move. A client that missed some of them gets all of these, or the dense model where that is shorter.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from idiolect.codecs.codec import Codec, require_compressible
from idiolect.codecs.journal import Journal, Missed, fingerprint
from idiolect.codecs.streams import decode_tree, write_tree
from idiolect.core import rng, tree
from idiolect.core.cohort import Population
from idiolect.core.device import to_host
from idiolect.core.transport import Scope, plain_bits
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError

T = TypeVar("T")
NOT_HELD = torch.iinfo(torch.int64).min // 2  # the account of a client that does not hold any model yet
_SPARE_BYTES = 32  # that the message of a tensor may have more than the tensor itself


@dataclass(frozen=True)
class Channel:
    """A codec as it acts on messages: tensor by tensor, or on all of a message as one vector.

    Without a codec, messages pass as they are and nothing is left out: the residual is the empty tuple.
    """

    codec: Codec | None
    scope: Scope = "per_tensor"

    def no_residual(self, message: Tree) -> Tree:
        """R before the first message; `message` gives the shapes."""
        return () if self.codec is None else tree.zeros_like(message)

    def send(self, residual: Tree, change: T, key: Tensor) -> tuple[T, Tree]:
        """C(R + change) and the new R. Pure torch: it works for one client under `vmap`."""
        if self.codec is None:
            return change, residual
        wanted = tree.add(change, residual)
        sent = self._compress(wanted, key)
        return sent, tree.subtract(wanted, sent)

    def bits(self, sent: Tree) -> Tensor:
        """The bits of each of the stacked messages that `send` made, int64[m]; counted on the CPU."""
        if self.codec is None:
            return plain_bits(sent, len(tree.leaves(sent)[0]), stacked=True)["message"]
        vectors = [leaf.reshape(leaf.shape[0], -1) for leaf in tree.leaves(to_host(sent))]
        if self.scope == "flat":
            vectors = [torch.cat(vectors, dim=1)]
        for rows in vectors:
            require_compressible(rows)
        return torch.stack([self.codec.compressed_bits(rows) for rows in vectors]).sum(0)

    def encode(self, sent: Tree) -> Tree:
        """What `send` made, as it travels: one stream of bytes, uint8; without a codec as it is."""
        if self.codec is None:
            return sent
        for leaf in tree.leaves(sent):
            require_compressible(leaf.reshape(1, -1))
        payload = write_tree(self.codec, sent, self.scope).payload
        return torch.frombuffer(bytearray(payload), dtype=torch.uint8)

    def decode(self, encoded: Tree, like: T) -> T:
        """The inverse of `encode`, bit for bit; `like` has the structure, the shapes and the types."""
        if self.codec is None:
            _require_alike(encoded, like)
            return encoded
        if not (isinstance(encoded, Tensor) and encoded.dtype == torch.uint8 and encoded.ndim == 1):
            raise UserError("a message has something else where an encoded part is expected")
        most = tree.count_bits(like) // 8 + _SPARE_BYTES * len(tree.leaves(like))
        if len(encoded) > most:
            raise UserError(
                f"an encoded part of {len(encoded)} bytes is longer than the {most} it can have at most"
            )
        return decode_tree(self.codec, encoded.numpy().tobytes(), like, self.scope)

    def follow(self, told: Missed | Params, held: Params) -> Params:
        """The sender's model from what `Broadcast.told` said, and the copy that the receiver holds."""
        if not isinstance(told, Missed):
            _require_alike(told, held)
            return told
        model = held
        for payload in told.since(held):
            model = tree.add(model, self.decode(payload, model))
        if fingerprint(model) != told.models[-1]:
            raise UserError("a message's changes do not lead to the model that they say")
        return model

    def _compress(self, message: T, key: Tensor) -> T:
        if self.scope == "flat":
            return tree.unflatten(self._vector(tree.flatten(message), key, 0), message)
        leaves = iter(range(len(tree.leaves(message))))
        return tree.map_tree(lambda leaf: self._vector(leaf, key, next(leaves)), message)

    def _vector(self, tensor: Tensor, key: Tensor, index: int) -> Tensor:
        assert self.codec is not None
        keys = rng.fold(key, index).reshape(1)
        return self.codec.operator(tensor.reshape(1, -1), keys).reshape(tensor.shape)


def _require_alike(message: Tree, like: Tree) -> None:
    """Refuse a part of a message that is of another structure, shape or type."""
    if _shapes(message) != _shapes(like):
        raise UserError("a message has a part of another structure, shape or type than the method has")


def _shapes(message: Tree) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in tree.to_named(message).items()}


class Broadcast(NamedTuple):
    """A model that all clients hold, and the account of who still has to be told what."""

    model: Params
    total: Tensor  # int64: the bits of all changes so far
    heard: Tensor  # int64[clients]: that sum when each was last known to hold the model
    change: Params  # the last change, as it was sent

    @classmethod
    def begin(cls, model: Params, population: Population) -> "Broadcast":
        """The founding clients hold the initial model; who comes later holds nothing."""
        heard = torch.where(population.present, 0, NOT_HELD)
        return cls(model, torch.tensor(0), heard, tree.zeros_like(model))

    def moved(self, sent: Params, channel: Channel) -> "Broadcast":
        """After one more change, as a channel sends it."""
        bits = int(channel.bits(tree.stack([sent])))
        return self._replace(model=tree.add(self.model, sent), total=self.total + bits, change=sent)

    def confirmed(self, ids: Tensor) -> "Broadcast":
        """After clients replied: they hold the model as it is now, before the next change."""
        return self._replace(heard=self.heard.index_fill(0, ids, int(self.total)))

    def catch_up_bits(self, ids: Tensor) -> Tensor:
        """What each has to be told: all changes that it missed, or the dense model if that is shorter."""
        return (self.total - self.heard[ids]).clamp(max=tree.count_bits(self.model))

    def noted(self, journal: Journal | None, channel: Channel) -> Journal:
        """The sender's journal up to the model as it is; a new one if it lacks more than the last change."""
        total = int(self.total)
        if journal is not None and journal.total == total:
            return journal
        bits = int(channel.bits(tree.stack([self.change])))
        if journal is None or channel.codec is None or journal.total + bits != total:
            return Journal.begin(self.model, total)
        return journal.added(channel.encode(self.change), bits, self.model)

    def told(self, journal: Journal, client: Tensor) -> Tree:
        """What one client is sent: what it `Missed`, or the model; `Channel.follow` is the client's side."""
        missed = journal.missed(int(self.total - self.heard[client]))
        return self.model if missed is None else missed
