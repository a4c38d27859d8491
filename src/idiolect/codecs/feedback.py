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
from idiolect.codecs.trees import Scope
from idiolect.core import rng, tree
from idiolect.core.method import Population, plain_bits
from idiolect.core.tree import Params, Tree

T = TypeVar("T")
NOT_HELD = torch.iinfo(torch.int64).min // 2  # the account of a client that does not hold any model yet


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
        """The bits of each of the stacked messages that `send` made, int64[m]."""
        if self.codec is None:
            return plain_bits(sent, len(tree.leaves(sent)[0]), stacked=True)["message"]
        vectors = [leaf.reshape(leaf.shape[0], -1) for leaf in tree.leaves(sent)]
        if self.scope == "flat":
            vectors = [torch.cat(vectors, dim=1)]
        for rows in vectors:
            require_compressible(rows)
        return torch.stack([self.codec.compressed_bits(rows) for rows in vectors]).sum(0)

    def _compress(self, message: T, key: Tensor) -> T:
        if self.scope == "flat":
            return tree.unflatten(self._vector(tree.flatten(message), key, 0), message)
        leaves = iter(range(len(tree.leaves(message))))
        return tree.map_tree(lambda leaf: self._vector(leaf, key, next(leaves)), message)

    def _vector(self, tensor: Tensor, key: Tensor, index: int) -> Tensor:
        assert self.codec is not None
        keys = rng.fold(key, index).reshape(1)
        return self.codec.operator(tensor.reshape(1, -1), keys).reshape(tensor.shape)


class Broadcast(NamedTuple):
    """A model that all clients hold, and the account of who still has to be told what."""

    model: Params
    total: Tensor  # int64: the bits of all changes so far
    heard: Tensor  # int64[clients]: that sum when each was last known to hold the model

    @classmethod
    def begin(cls, model: Params, population: Population) -> "Broadcast":
        """The founding clients hold the initial model; who comes later holds nothing."""
        heard = torch.where(population.present, 0, NOT_HELD)
        return cls(model, torch.tensor(0), heard)

    def moved(self, sent: Params, channel: Channel) -> "Broadcast":
        """After one more change, as a channel sends it."""
        bits = int(channel.bits(tree.stack([sent])))
        return self._replace(model=tree.add(self.model, sent), total=self.total + bits)

    def confirmed(self, ids: Tensor) -> "Broadcast":
        """After clients replied: they hold the model as it is now, before the next change."""
        return self._replace(heard=self.heard.index_fill(0, ids, int(self.total)))

    def catch_up_bits(self, ids: Tensor) -> Tensor:
        """What each has to be told: all changes that it missed, or the dense model if that is shorter."""
        return (self.total - self.heard[ids]).clamp(max=tree.count_bits(self.model))
