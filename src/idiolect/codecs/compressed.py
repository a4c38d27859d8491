"""Compression around a method: the same method, with changes of models sent through codecs.

    up:     client i sends C(R_i + (w_i - ŵ)) and keeps what was left out as R_i
    down:   the server holds w, all clients hold ŵ; after a round it sends C(w - ŵ), which moves ŵ

Here ŵ is the model as clients hold it, and w - ŵ is the server's residual: what it has not yet told. The
server takes client i's upload for w plus what i sent, so that nothing is ever lost: with w the sum of
everything received, ŵ + residual = w always, and Σ sent + R_i = Σ (w_i - ŵ) for each client.

A method takes part through what its exchanges declare (`relative_to`, `changes_of`); fields of messages that
are not changes of a model travel as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.codecs.feedback import Broadcast, Channel
from idiolect.core import rng, tree
from idiolect.core.method import (
    Bits,
    ClientState,
    Cohort,
    Exchange,
    Info,
    Journals,
    Message,
    Method,
    Population,
    PredictorKind,
    ServerState,
    Site,
    Work,
)
from idiolect.core.objective import Batch, Predictor
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError


class Server(NamedTuple):
    """The method's server, and for each field that goes down compressed: ŵ, and who holds it."""

    inner: ServerState
    broadcasts: dict[str, Broadcast]
    key: Tensor
    changes: Tensor  # how often the server has sent changes


class Client(NamedTuple):
    """The method's client, what was left out of its uploads, and its copies of the fields that go down."""

    inner: ClientState
    residuals: dict[str, Tree]
    held: dict[str, Params]


@dataclass(frozen=True)
class Compressed(Method):
    """A method whose changes of models pass through channels; see the module's text."""

    method: Method
    up: Channel
    down: Channel

    @property
    def name(self) -> str:  # type: ignore[override]
        """The method's own name."""
        return self.method.name

    @property
    def kinds(self) -> tuple[PredictorKind, ...]:  # type: ignore[override]
        """Those of the method."""
        return self.method.kinds

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """Whether the method does."""
        return self.method.adapts

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """All founding clients hold the fields that go down."""
        inner = self.method.server_init(params, population, key)
        exchanges = self.method.exchanges(inner)
        self._refuse_what_makes_no_sense(exchanges)
        broadcasts = {}
        if self.down.codec is not None:
            message = exchanges[0].down(inner, torch.tensor([0]))
            sources = sources_of(exchanges[0]).values()
            broadcasts = {name: Broadcast.begin(getattr(message, name), population) for name in sources}
        return Server(inner, broadcasts, rng.fold(key, rng.key(0, "codec")), torch.tensor(0))

    def client_init(self, server: Server, client: Tensor) -> Client:
        """Nothing has been left out yet."""
        residuals = {}
        for exchange in self.method.exchanges(server.inner):
            like = exchange.down(server.inner, torch.tensor([0]))
            like = tree.row(like, 0) if exchange.personal_down else like
            for field, source in sources_of(exchange).items():
                residuals[_account(exchange, field)] = self.up.no_residual(getattr(like, source))
        held = {name: broadcast.model for name, broadcast in server.broadcasts.items()}
        return Client(self.method.client_init(server.inner, client), residuals, held)

    def exchanges(self, server: Server) -> tuple["CompressedExchange", ...]:
        """Those of the method, each through the channels."""
        exchanges = self.method.exchanges(server.inner)
        return tuple(CompressedExchange(exchange, self.up, self.down) for exchange in exchanges)

    def end_round(self, server: Server) -> Server:
        """As the method says."""
        return server._replace(inner=self.method.end_round(server.inner))

    def adapt(self, server: Server, client: Client, site: Site) -> Client:
        """As the method says."""
        return client._replace(inner=self.method.adapt(server.inner, client.inner, site))

    def predictors(self, server: Server, client: Client, number: Tensor) -> dict[PredictorKind, Predictor]:
        """Those of the method; its server's models include what the clients have not been told yet."""
        return self.method.predictors(server.inner, client.inner, number)

    def newcomer(self, server: Server) -> Exchange | None:
        """The method's own, from the server's own models; nothing of it is absorbed, nothing compressed."""
        exchange = self.method.newcomer(server.inner)
        return None if exchange is None else CompressedExchange(exchange, Channel(None), Channel(None))

    def _refuse_what_makes_no_sense(self, exchanges: Any) -> None:
        if not any(sources_of(exchange) for exchange in exchanges):
            raise UserError(
                f"codec cannot be used with method={self.name}: none of its uploads is the change of a model "
                "that the server sent (efl compresses by itself: set method.keep); leave out codec.up and "
                "codec.down"
            )
        if self.down.codec is None:
            return
        if len(exchanges) > 1:
            raise UserError(
                f"codec.down cannot be used with method={self.name}: a round has {len(exchanges)} exchanges, "
                "and a compressed downlink needs a model that moves once in a round; leave out codec.down"
            )
        if exchanges[0].personal_down:
            raise UserError(
                f"codec.down cannot be used with method={self.name}: each client gets a message of its own, "
                "and a compressed downlink needs a model that all clients hold; leave out codec.down"
            )


@dataclass(frozen=True)
class CompressedExchange(Exchange):
    """An exchange whose changes of models pass through channels."""

    inner: Exchange
    up: Channel
    down_channel: Channel

    @property
    def local_steps(self) -> Any:  # type: ignore[override]
        """Those of the exchange."""
        return self.inner.local_steps

    @property
    def batches_per_step(self) -> int:  # type: ignore[override]
        """Those of the exchange."""
        return self.inner.batches_per_step

    @property
    def sees_all_rows(self) -> bool:  # type: ignore[override]
        """Whether the exchange does."""
        return self.inner.sees_all_rows

    @property
    def personal_down(self) -> bool:  # type: ignore[override]
        """Whether the exchange's is."""
        return self.inner.personal_down

    @property
    def sources(self) -> Mapping[str, str]:
        """Fields of the upload that are compressed, and the fields of the downlink that they change."""
        idle = self.up.codec is None and self.down_channel.codec is None
        return {} if idle else sources_of(self.inner)

    def _broadcasts(self, server: Server) -> dict[str, Broadcast]:
        """The fields that go down as changes; to a newcomer, which holds nothing, all goes as it is."""
        return {} if self.down_channel.codec is None else server.broadcasts

    def ask(self, server: Server, cohort: Cohort, key: Tensor) -> Cohort:
        """As the exchange says."""
        return self.inner.ask(server.inner, cohort, key)

    def down(self, server: Server, ids: Tensor) -> Message:
        """The exchange's message, with the fields as the clients will hold them."""
        message = self.inner.down(server.inner, ids)
        held = {name: broadcast.model for name, broadcast in self._broadcasts(server).items()}
        return message._replace(**held) if held else message

    def begin(self, client: Client, down: Message, site: Site) -> Work:
        """As the exchange says."""
        return self.inner.begin(client.inner, down, site)

    def step(self, work: Work, client: Client, down: Message, batches: tuple[Batch, ...], site: Site) -> Work:
        """As the exchange says."""
        return self.inner.step(work, client.inner, down, batches, site)

    def finish(self, work: Work, client: Client, down: Message, site: Site) -> tuple[Client, Message]:
        """Send what the codec makes of each change and of what was left out before."""
        inner, upload = self.inner.finish(work, client.inner, down, site)
        residuals, sent = dict(client.residuals), {}
        for index, (field, source) in enumerate(self.sources.items()):
            change = getattr(upload, field)
            if field in self.inner.relative_to:
                change = tree.subtract(change, getattr(down, source))
            account = _account(self.inner, field)
            key = rng.fold(site.key, rng.key(0, "codec", index))
            sent[field], residuals[account] = self.up.send(client.residuals[account], change, key)
        held = client.held
        if self.down_channel.codec is not None:
            held = {name: getattr(down, name) for name in held}
        return Client(inner, residuals, held), upload._replace(**sent) if sent else upload

    def weights(self, server: Server, cohort: Cohort) -> Tensor | None:
        """As the exchange says."""
        return self.inner.weights(server.inner, cohort)

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """Let the exchange absorb its own models plus what was sent; then tell the clients of the change."""
        inner, info = self.inner.absorb(server.inner, self._with_models(server, replies, cohort), cohort)
        if not self._broadcasts(server):
            return server._replace(inner=inner), info
        message = self.inner.down(inner, cohort.ids)
        broadcasts, info = {}, dict(info)
        for index, (name, broadcast) in enumerate(self._broadcasts(server).items()):
            untold = tree.subtract(getattr(message, name), broadcast.model)
            key = rng.fold(server.key, server.changes, index)
            sent, residual = self.down_channel.send(tree.zeros_like(untold), untold, key)
            broadcasts[name] = broadcast.confirmed(cohort.ids).moved(sent, self.down_channel)
            info[f"untold_{name}"] = tree.squared_norm(residual).sqrt()
        return Server(inner, broadcasts, server.key, server.changes + 1), info

    def _with_models(self, server: Server, replies: Message, cohort: Cohort) -> Message:
        """Replies in the exchange's own terms: for `relative_to` fields, its model plus what was sent."""
        relative = {field: self.sources[field] for field in self.sources if field in self.inner.relative_to}
        if not relative:
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

        return replies._replace(**{field: whole(field, source) for field, source in relative.items()})

    def journals(self, server: Server, before: Journals) -> Journals:
        """The changes of each field that clients hold."""
        broadcasts = self._broadcasts(server).items()
        return {name: sent.noted(before.get(name), self.down_channel) for name, sent in broadcasts}

    def send_down(self, server: Server, down: Message, client: Tensor, journals: Journals) -> Message:
        """Fields that clients hold as the changes that this one missed, or dense; the rest as it is."""
        told = {name: sent.told(journals[name], client) for name, sent in self._broadcasts(server).items()}
        return down._replace(**told) if told else down

    def receive_down(self, sent: Message, client: Client) -> Message:
        """The fields from the copies that are held."""
        held = client.held.items()
        followed = {name: self.down_channel.follow(getattr(sent, name), model) for name, model in held}
        return sent._replace(**followed) if followed else sent

    def send_up(self, upload: Message) -> Message:
        """Changes of models encoded; the rest as it is."""
        encoded = {field: self.up.encode(getattr(upload, field)) for field in self.sources}
        return upload._replace(**encoded) if encoded else upload

    def receive_up(self, sent: Message, like: Message) -> Message:
        """Changes of models decoded."""
        decoded = {
            field: self.up.decode(getattr(sent, field), getattr(like, field)) for field in self.sources
        }
        return sent._replace(**decoded) if decoded else sent

    def down_bits(self, server: Server, down: Message, ids: Tensor) -> Bits:
        """What was missed of the compressed fields, or all of them where that is shorter; the rest as is."""
        caught_up = {name: sent.catch_up_bits(ids) for name, sent in self._broadcasts(server).items()}
        return self.inner.down_bits(server.inner, down, ids) | caught_up

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """The encoded fields; the rest as it is."""
        encoded = {field: self.up.bits(getattr(uploads, field)) for field in self.sources}
        return self.inner.up_bits(uploads, ids) | encoded


def sources_of(exchange: Exchange) -> dict[str, str]:
    """Fields of the upload that are, or contain, the change of a field of the downlink."""
    return {**exchange.relative_to, **exchange.changes_of}


def _account(exchange: Exchange, field: str) -> str:
    """The name under which a client keeps what was left out of a field."""
    return f"{type(exchange).__name__}.{field}"
