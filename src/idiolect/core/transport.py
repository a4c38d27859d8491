"""How the messages of an exchange travel between machines, and what they cost.

In one process messages are handed over as they are. Between machines they travel as `send_down` and `send_up`
make them, as trees of tensors too; what is received must be the message, bit for bit. A transport has no
state: what it must know of a client or the server is in their states, and what a sender keeps only so as to
send less is in its journals.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState

Bits = dict[str, Tensor]  # part of a message -> int64[m]: its size on the wire for each of m clients
Journals = Mapping[str, Any]  # field of a message -> what was sent of it before
Scope = Literal["per_tensor", "flat"]  # compress each tensor, or all of a message as one vector


@dataclass(frozen=True)
class OwnCodec:
    """A codec that is part of a method: changes of models pass through it both ways, with error feedback."""

    name: str
    options: Mapping[str, float]
    scope: Scope
    predicts_with: Literal["held", "server"]  # the model as clients hold it, or with what they were not told


@dataclass(frozen=True)
class Transport:
    """Messages of one exchange as they are: every tensor at its own width."""

    exchange: Exchange

    def journals(self, server: ServerState, before: Journals) -> Journals:
        """What the sender keeps of past messages so as to send less; nothing at first and after a restart."""
        return before

    def send_down(self, server: ServerState, down: Message, client_id: Tensor, journals: Journals) -> Message:
        """One client's message as it travels."""
        return down

    def receive_down(self, sent: Message, client: ClientState) -> Message:
        """The inverse of `send_down`, at a client in the state from which it will begin."""
        return sent

    def send_up(self, upload: Message) -> Message:
        """One client's upload as it travels."""
        return upload

    def receive_up(self, sent: Message, like: Message) -> Message:
        """The inverse of `send_up`; `like` is an upload of the same structure, shapes and types."""
        return sent

    def down_bits(self, server: ServerState, down: Message, ids: Tensor) -> Bits:
        """What `down` costs on the wire for each id, by part."""
        return plain_bits(down, len(ids), stacked=self.exchange.personal_down)

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """What each of the stacked uploads costs on the wire, by part."""
        return plain_bits(uploads, len(ids), stacked=True)


def plain_bits(message: Message, clients: int, *, stacked: bool) -> Bits:
    """The size of one client's message for each of them, by the message's fields."""
    one = tree.row(message, 0) if stacked else message
    fields = one._asdict() if hasattr(one, "_asdict") else {"message": one}
    sizes = {name: tree.count_bits(part) for name, part in fields.items()}
    return {name: torch.full((clients,), size) for name, size in sizes.items() if size}
