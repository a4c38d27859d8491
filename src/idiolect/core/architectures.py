"""Which of several architectures a client has, carried around any method that combines no parameters.

The number of a client's architecture is part of its state from its arrival, and of each of its predictors, so
that whoever has a predictor can compute it. It is never sent. The method knows nothing of it: it gets an
objective that computes the client's own architecture.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from idiolect.core.around import ExchangeAround, MethodAround, innermost_method
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Batches, ClientState, Exchange, Info, Message, ServerState, Site, Work
from idiolect.core.method import Method, Predictors
from idiolect.core.objective import Objective
from idiolect.core.several import ARCHITECTURE, Several, architecture_of
from idiolect.core.transport import Bits, Journals, Transport
from idiolect.core.tree import Params
from idiolect.errors import UserError


class Server(NamedTuple):
    """The method's server."""

    inner: ServerState


class Client(NamedTuple):
    """The method's client, and the number of its architecture."""

    inner: ClientState
    architecture: Tensor


def with_architectures(method: Method, objective: Objective, statistics: str | None) -> Method:
    """The method for clients of several architectures, or as it is if the model has one.

    statistics: what becomes of those of normalisation layers, of which a client moves all.
    """
    if not isinstance(objective.module, Several) or _has_architectures(method):  # a newcomer's
        return method
    if not innermost_method(method).models_may_differ:
        raise UserError(
            f"method={method.name} combines parameters of clients' models, which is not possible where their "
            "architectures differ: take fedproto or local, or one model for all"
        )
    if statistics not in (None, "silo"):
        raise UserError(
            f"statistics={statistics} is not possible where clients' architectures differ: take "
            "statistics=silo, where each client keeps its own"
        )
    return WithArchitectures(method, len(objective.module.bodies))


@dataclass(frozen=True)
class WithArchitectures(MethodAround):
    """A method on clients with different architectures."""

    method: Method
    architectures: int  # how many there are

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The method's own."""
        return Server(self.method.server_init(params, population, key))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The method's own, and its turn."""
        inner = self.method.client_init(server.inner, client_id)
        return Client(inner, architecture_of(client_id, self.architectures))

    def around(self, exchange: Exchange) -> "ArchitecturesExchange":
        """The exchange at clients with different architectures."""
        return ArchitecturesExchange(exchange)

    def adapt(self, client: Client, brief: Message, site: Site) -> Client:
        """As the method says, with the client's own architecture."""
        return client._replace(inner=self.method.adapt(client.inner, brief, _at(site, client)))

    def predictors(self, client: Client, brief: Message) -> Predictors:
        """Those of the method, which know their architecture."""
        found: Predictors = {}
        for kind, model in self.method.predictors(client.inner, brief).items():
            assert isinstance(model, dict), "a method that combines no parameters mixes no models"
            found[kind] = {**model, ARCHITECTURE: client.architecture}
        return found

    def newcomer(self, server: Server) -> tuple[Method, ServerState]:
        """The method's own, who take turns among themselves."""
        method, inner = self.method.newcomer(server.inner)
        return WithArchitectures(method, self.architectures), Server(inner)

    def transport(self, exchange: Exchange) -> Transport:
        """The method's own."""
        assert isinstance(exchange, ArchitecturesExchange)
        return TransportInside(exchange, self.method.transport(exchange.inner))


@dataclass(frozen=True)
class ArchitecturesExchange(ExchangeAround):
    """An exchange at clients with different architectures."""

    inner: Exchange

    def begin(self, client: Client, down: Message, site: Site) -> Work:
        """As the exchange says, with the client's own architecture."""
        return self.inner.begin(client.inner, down, _at(site, client))

    def step(self, work: Work, client: Client, down: Message, batches: Batches, site: Site) -> Work:
        """As the exchange says, with the client's own architecture."""
        return self.inner.step(work, client.inner, down, batches, _at(site, client))

    def finish(self, work: Work, client: Client, down: Message, site: Site) -> tuple[Client, Message]:
        """As the exchange says, with the client's own architecture."""
        inner, upload = self.inner.finish(work, client.inner, down, _at(site, client))
        return client._replace(inner=inner), upload

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """As the exchange says."""
        inner, info = self.inner.absorb(server.inner, replies, cohort)
        return Server(inner), info


@dataclass(frozen=True)
class TransportInside(Transport):
    """The messages of an exchange as they travel anyway, between states that hold those of the method."""

    inner: Transport

    def journals(self, server: Server, before: Journals) -> Journals:
        """Those of the exchange."""
        return self.inner.journals(server.inner, before)

    def send_down(self, server: Server, down: Message, client_id: Tensor, journals: Journals) -> Message:
        """As the exchange's own."""
        return self.inner.send_down(server.inner, down, client_id, journals)

    def receive_down(self, sent: Message, client: Client) -> Message:
        """As the exchange's own."""
        return self.inner.receive_down(sent, client.inner)

    def send_up(self, upload: Message) -> Message:
        """As the exchange's own."""
        return self.inner.send_up(upload)

    def receive_up(self, sent: Message, like: Message) -> Message:
        """As the exchange's own."""
        return self.inner.receive_up(sent, like)

    def down_bits(self, server: Server, down: Message, ids: Tensor) -> Bits:
        """As the exchange's own."""
        return self.inner.down_bits(server.inner, down, ids)

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """As the exchange's own."""
        return self.inner.up_bits(uploads, ids)


def _has_architectures(method: Method) -> bool:
    if isinstance(method, MethodAround) and not isinstance(method, WithArchitectures):
        return _has_architectures(method.method)
    return isinstance(method, WithArchitectures)


def _at(site: Site, client: Client) -> Site:
    """The site with the client's own architecture."""
    return replace(site, objective=site.objective.with_architecture(client.architecture))
