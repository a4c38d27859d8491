"""Encoded messages: changes as codecs write them, models as the changes that a client missed."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from idiolect.codecs.feedback import Channel
from idiolect.core.around import ExchangeAround
from idiolect.core.exchange import Exchange, Message
from idiolect.core.transport import Bits, Journals, Transport

# Those of `idiolect.codecs.compressed`.
Server = Any
Client = Any


@dataclass(frozen=True)
class EncodedTransport(Transport):
    """Changes of models through channels; the rest as the method's own transport has it."""

    exchange: ExchangeAround
    rest: Transport
    up: Channel
    down: Channel

    @property
    def changes(self) -> dict[str, str]:
        """Fields of the upload that are encoded, and the fields of the downlink that they change."""
        return sources_of(self.exchange.inner)

    def journals(self, server: Server, before: Journals) -> Journals:
        """The changes of each field that clients hold."""
        broadcasts = server.broadcasts.items()
        return {name: sent.noted(before.get(name), self.down) for name, sent in broadcasts}

    def send_down(self, server: Server, down: Message, client_id: Tensor, journals: Journals) -> Message:
        """Fields that clients hold as the changes that this one missed, or dense; the rest as it is."""
        broadcasts = server.broadcasts.items()
        return down._replace(**{name: sent.told(journals[name], client_id) for name, sent in broadcasts})

    def receive_down(self, sent: Message, client: Client) -> Message:
        """The fields from the copies that are held."""
        held = client.held.items()
        return sent._replace(**{name: self.down.follow(getattr(sent, name), model) for name, model in held})

    def send_up(self, upload: Message) -> Message:
        """Changes of models encoded; the rest as it is."""
        return upload._replace(**{field: self.up.encode(getattr(upload, field)) for field in self.changes})

    def receive_up(self, sent: Message, like: Message) -> Message:
        """Changes of models decoded."""
        return sent._replace(
            **{field: self.up.decode(getattr(sent, field), getattr(like, field)) for field in self.changes}
        )

    def down_bits(self, server: Server, down: Message, ids: Tensor) -> Bits:
        """What was missed of the compressed fields, or all of them where that is shorter; the rest as is."""
        caught_up = {name: sent.catch_up_bits(ids) for name, sent in server.broadcasts.items()}
        return self.rest.down_bits(server.inner, down, ids) | caught_up

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """The encoded fields; the rest as it is."""
        encoded = {field: self.up.bits(getattr(uploads, field)) for field in self.changes}
        return self.rest.up_bits(uploads, ids) | encoded


def sources_of(exchange: Exchange) -> dict[str, str]:
    """Fields of the upload that are, or contain, the change of a field of the downlink."""
    return {**exchange.relative_to, **exchange.changes_of}
