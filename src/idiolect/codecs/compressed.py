"""Compression around a method: the same method, with changes of models sent through codecs.

    up:     client i sends C(R_i + (w_i - ŵ)) and keeps what was left out as R_i
    down:   the server holds w, all clients hold ŵ; after a round it sends C(w - ŵ), which moves ŵ

Here ŵ is the model as clients hold it, and R = w - ŵ is the server's residual: what it has not yet told. The
server takes client i's upload for w plus what i sent, so that nothing is ever lost: with w the sum of
everything received, ŵ + R = w always, and Σ sent + R_i = Σ (w_i - ŵ) for each client.

Where uploads are changes already (`changes_of`) the server absorbs them into R instead of w, which moves both
alike, and R is what is sent next: as a difference of two models R would have their rounding, and with it
entries that are equal, of which ternary messages are full, would no longer be.

A method takes part through what its exchanges declare (`relative_to`, `changes_of`); fields of messages that
are not changes of a model travel as they are. How they travel is in `idiolect.codecs.transport`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idiolect.codecs.feedback import Broadcast, Channel
from idiolect.codecs.transport import EncodedTransport, sources_of
from idiolect.core import rng, tree
from idiolect.core.around import ExchangeAround, MethodAround, innermost
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import ClientState, Exchange, Info, Message, ServerState, Site, Work
from idiolect.core.method import Method
from idiolect.core.observed import StepAverage
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError


class Server(NamedTuple):
    """The method's server, and for each field that goes down compressed: ŵ, and who holds it."""

    inner: ServerState
    broadcasts: dict[str, Broadcast]
    untold: dict[str, Params]  # R, of the fields whose changes are uploaded
    key: Tensor
    changes: Tensor  # how often the server has sent changes


class Client(NamedTuple):
    """The method's client, what was left out of its uploads, and its copies of the fields that go down."""

    inner: ClientState
    residuals: dict[str, Tree]
    held: dict[str, Params]


@dataclass(frozen=True)
class Compressed(MethodAround):
    """A method whose changes of models pass through channels; see the module's text."""

    method: Method
    up: Channel
    down: Channel
    predicts_with: Literal["held", "server"] = "server"  # ŵ, or w with what clients have not been told yet

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """All founding clients hold the fields that go down."""
        inner = self.method.server_init(params, population, key)
        exchanges = self.method.exchanges(inner)
        self._refuse_what_makes_no_sense(exchanges, inner)
        broadcasts, untold = {}, {}
        if self.down.codec is not None:
            message = _one_down(exchanges[0], inner)
            sources = sources_of(exchanges[0]).values()
            broadcasts = {name: Broadcast.begin(getattr(message, name), population) for name in sources}
            changed = [name for name in exchanges[0].changes_of.values() if name in inner._fields]
            untold = {name: tree.zeros_like(broadcasts[name].model) for name in changed}
        return Server(inner, broadcasts, untold, rng.fold(key, rng.key(0, "codec")), torch.tensor(0))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Nothing has been left out yet."""
        residuals = {}
        for exchange in self.method.exchanges(server.inner):
            like = _one_down(exchange, server.inner)
            for field, source in sources_of(exchange).items():
                residuals[_account(exchange, field)] = self.up.no_residual(getattr(like, source))
        held = {name: broadcast.model for name, broadcast in server.broadcasts.items()}
        return Client(self.method.client_init(server.inner, client_id), residuals, held)

    def around(self, exchange: Exchange) -> "CompressedExchange":
        """The exchange, through the channels."""
        return CompressedExchange(exchange, self.up, self.down)

    def brief(self, server: Server, ids: Tensor) -> Message:
        """The method's; its models as clients hold them, or with what these have not been told yet."""
        brief = self.method.brief(server.inner, ids)
        if self.predicts_with == "server":
            return brief
        return brief._replace(**_models(server.broadcasts, brief, len(ids) if self.personal_brief else None))

    def step_average(self) -> StepAverage | None:
        """The method's, whose clients are inside of these."""
        average = self.method.step_average()
        return average and average.inside(lambda client: client.inner)

    def transport(self, exchange: Exchange) -> EncodedTransport:
        """What codecs make of the messages, as they are counted."""
        assert isinstance(exchange, CompressedExchange)
        return EncodedTransport(
            exchange, self.method.transport(exchange.inner), exchange.up, exchange.down_channel
        )

    def _refuse_what_makes_no_sense(self, exchanges: Sequence[Exchange], inner: ServerState) -> None:
        changes = [
            getattr(_one_down(exchange, inner), source)
            for exchange in exchanges
            for source in sources_of(exchange).values()
        ]
        if not all(tree.leaves(change) for change in changes or [()]):
            raise UserError(
                f"codec cannot be used with method={self.name}: none of its uploads is the change of a model "
                "that the server sent; leave out codec.up and codec.down"
            )
        if self.down.codec is None:
            return
        if len(exchanges) > 1:
            raise UserError(
                f"codec.down cannot be used with method={self.name}: a round has {len(exchanges)} exchanges, "
                "and a compressed downlink needs a model that moves once in a round; leave out codec.down"
            )
        only = exchanges[0]
        if only.personal_down and not set(sources_of(only).values()) <= only.common_fields:
            raise UserError(
                f"codec.down cannot be used with method={self.name}: each client gets a message of its own, "
                "and a compressed downlink needs a model that all clients hold; leave out codec.down"
            )


@dataclass(frozen=True)
class CompressedExchange(ExchangeAround):
    """An exchange whose changes of models pass through channels."""

    inner: Exchange
    up: Channel
    down_channel: Channel

    def down(self, server: Server, ids: Tensor) -> Message:
        """The exchange's message, with the fields as the clients will hold them."""
        message = self.inner.down(server.inner, ids)
        return message._replace(
            **_models(server.broadcasts, message, len(ids) if self.personal_down else None)
        )

    def finish(self, work: Work, client: Client, down: Message, site: Site) -> tuple[Client, Message]:
        """Send what the codec makes of each change and of what was left out before."""
        inner, upload = self.inner.finish(work, client.inner, down, site)
        residuals, sent = dict(client.residuals), {}
        for index, (field, source) in enumerate(sources_of(self.inner).items()):
            change = getattr(upload, field)
            if field in self.inner.relative_to:
                change = tree.subtract(change, getattr(down, source))
            account = _account(self.inner, field)
            key = rng.fold(site.key, rng.key(0, "codec", index))
            sent[field], residuals[account] = self.up.send(client.residuals[account], change, key)
        held = {name: getattr(down, name) for name in client.held}
        return Client(inner, residuals, held), upload._replace(**sent)

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """Let the exchange absorb its own models plus what was sent; then tell the clients of the change."""
        replies = self._with_models(server, replies, cohort)
        inner, info = self.inner.absorb(server.inner._replace(**server.untold), replies, cohort)
        if not server.broadcasts:
            return server._replace(inner=inner), info
        message = _one_down(self.inner, inner)
        broadcasts, untold, info = {}, {}, dict(info)
        for index, (name, broadcast) in enumerate(server.broadcasts.items()):
            change = getattr(message, name)
            if name not in server.untold:
                change = tree.subtract(change, broadcast.model)
            key = rng.fold(server.key, server.changes, index)
            sent, rest = self.down_channel.send(tree.zeros_like(change), change, key)
            broadcasts[name] = broadcast.confirmed(cohort.ids).moved(sent, self.down_channel)
            info[f"untold_{name}"] = tree.squared_norm(rest).sqrt()
            if name in server.untold:
                untold[name] = rest
                inner = inner._replace(**{name: tree.add(broadcasts[name].model, rest)})
        return Server(inner, broadcasts, untold, server.key, server.changes + 1), info

    def _with_models(self, server: Server, replies: Message, cohort: Cohort) -> Message:
        """Replies in the exchange's own terms: for `relative_to` fields, its model plus what was sent."""
        if not self.inner.relative_to:
            return replies
        message = self.inner.down(server.inner, cohort.ids)
        weights = self.weights(server, cohort)

        def whole(field: str, source: str) -> Tree:
            base = getattr(message, source)
            if not self.personal_down:
                base = tree.repeat(base, len(cohort))
            return tree.add(
                getattr(replies, field), base if weights is None else tree.weighted_sum(base, weights)
            )

        relative = self.inner.relative_to.items()
        return replies._replace(**{field: whole(field, source) for field, source in relative})


def _one_down(exchange: Exchange, server: ServerState) -> Message:
    """One client's message."""
    message = exchange.down(server, torch.tensor([0]))
    return tree.row(message, 0) if exchange.personal_down else message


def _models(broadcasts: dict[str, Broadcast], message: Message, clients: int | None) -> dict[str, Params]:
    """The fields of a message that clients hold, as they hold them: one for all, or for each of some."""
    held = {name: broadcast.model for name, broadcast in broadcasts.items() if hasattr(message, name)}
    return held if clients is None else tree.repeat(held, clients)


def _account(exchange: Exchange, field: str) -> str:
    """The name under which a client keeps what was left out of a field."""
    return f"{type(innermost(exchange)).__name__}.{field}"
