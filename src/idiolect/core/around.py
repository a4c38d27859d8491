"""Methods with something around them, such as codecs: whatever it does not change is forwarded here.

The states of what stands around hold those of the method as `inner`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor, nn

from idiolect.core.cohort import Cohort
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site, Work
from idiolect.core.method import Method, PredictorKind, Predictors
from idiolect.core.objective import Batch
from idiolect.core.transport import Bits, Journals, Transport, plain_bits
from idiolect.core.tree import Params


class MethodOfAnother(Method, ABC):
    """A method that is, in its name and in the models it gives, another one."""

    method: Method

    def for_model(self, module: nn.Module) -> Self:
        """The same of the method for this model."""
        method = self.method.for_model(module)
        return self if method is self.method else replace(self, method=method)  # type: ignore[type-var]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The method's own name."""
        return self.method.name

    @property
    def kinds(self) -> tuple[PredictorKind, ...]:  # type: ignore[override]
        """Those of the method."""
        return self.method.kinds

    @property
    def judged_by(self) -> PredictorKind:  # type: ignore[override]
        """As the method is."""
        return self.method.judged_by

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """Whether the method does."""
        return self.method.adapts

    @property
    def sees_validation_rows(self) -> bool:  # type: ignore[override]
        """Whether the method does."""
        return self.method.sees_validation_rows

    @property
    def personal_brief(self) -> bool:  # type: ignore[override]
        """Whether the method's is."""
        return self.method.personal_brief


class MethodAround(MethodOfAnother, ABC):
    """A method with something around it."""

    @abstractmethod
    def around(self, exchange: Exchange) -> "ExchangeAround":
        """One of the method's exchanges, with the same around it."""

    @property
    def passes(self) -> Mapping[PredictorKind, int | tuple[int, ...]]:  # type: ignore[override]
        """Those of the method."""
        return self.method.passes

    def exchanges(self, server: ServerState) -> tuple["ExchangeAround", ...]:
        """Those of the method, each with the same around it."""
        return tuple(self.around(exchange) for exchange in self.method.exchanges(server.inner))

    def end_round(self, server: ServerState) -> ServerState:
        """As the method says."""
        return server._replace(inner=self.method.end_round(server.inner))

    def brief(self, server: ServerState, ids: Tensor) -> Message:
        """As the method says."""
        return self.method.brief(server.inner, ids)

    def adapt(self, client: ClientState, brief: Message, site: Site) -> ClientState:
        """As the method says."""
        return client._replace(inner=self.method.adapt(client.inner, brief, site))

    def predictors(self, client: ClientState, brief: Message) -> Predictors:
        """Those of the method."""
        return self.method.predictors(client.inner, brief)

    def logged_path(self) -> Callable[[Work], Params] | None:
        """The method's."""
        return self.method.logged_path()

    def client_facts(self) -> Callable[[ClientState], dict[str, Tensor]] | None:
        """The method's."""
        facts = self.method.client_facts()
        return None if facts is None else lambda client: facts(client.inner)

    def newcomer(self, server: ServerState) -> tuple[Method, ServerState]:
        """The method's own, from its own server: nothing is absorbed, so nothing has to stand around it."""
        return self.method.newcomer(server.inner)


class ExchangeAround(Exchange, ABC):
    """An exchange with something around it."""

    inner: Exchange

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
    def sees_validation_rows(self) -> bool:  # type: ignore[override]
        """Whether the exchange does."""
        return self.inner.sees_validation_rows

    @property
    def personal_down(self) -> bool:  # type: ignore[override]
        """Whether the exchange's is."""
        return self.inner.personal_down

    def ask(self, server: ServerState, cohort: Cohort, key: Tensor) -> Cohort:
        """As the exchange says."""
        return self.inner.ask(server.inner, cohort, key)

    def down(self, server: ServerState, ids: Tensor) -> Message:
        """As the exchange says."""
        return self.inner.down(server.inner, ids)

    def begin(self, client: ClientState, down: Message, site: Site) -> Work:
        """As the exchange says."""
        return self.inner.begin(client.inner, down, site)

    def step(
        self, work: Work, client: ClientState, down: Message, batches: tuple[Batch, ...], site: Site
    ) -> Work:
        """As the exchange says."""
        return self.inner.step(work, client.inner, down, batches, site)

    def weights(self, server: ServerState, cohort: Cohort) -> Tensor | None:
        """As the exchange says."""
        return self.inner.weights(server.inner, cohort)


@dataclass(frozen=True)
class TransportAround(Transport):
    """The messages of an exchange, `inner` in those around them, as they travel anyway; the rest as it is."""

    exchange: ExchangeAround
    inner: Transport

    def journals(self, server: ServerState, before: Journals) -> Journals:
        """Those of the exchange's own messages."""
        return self.inner.journals(server.inner, before)

    def send_down(self, server: ServerState, down: Message, client_id: Tensor, journals: Journals) -> Message:
        """The exchange's own message as it travels."""
        return down._replace(inner=self.inner.send_down(server.inner, down.inner, client_id, journals))

    def receive_down(self, sent: Message, client: ClientState) -> Message:
        """The inverse of `send_down`."""
        return sent._replace(inner=self.inner.receive_down(sent.inner, client.inner))

    def send_up(self, upload: Message) -> Message:
        """The exchange's own upload as it travels."""
        return upload._replace(inner=self.inner.send_up(upload.inner))

    def receive_up(self, sent: Message, like: Message) -> Message:
        """The inverse of `send_up`."""
        return sent._replace(inner=self.inner.receive_up(sent.inner, like.inner))

    def down_bits(self, server: ServerState, down: Message, ids: Tensor) -> Bits:
        """The exchange's own message, and the rest."""
        rest = plain_bits(down._replace(inner=()), len(ids), stacked=self.exchange.personal_down)
        return rest | self.inner.down_bits(server.inner, down.inner, ids)

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """The exchange's own upload, and the rest."""
        rest = plain_bits(uploads._replace(inner=()), len(ids), stacked=True)
        return rest | self.inner.up_bits(uploads.inner, ids)


def innermost(exchange: Exchange) -> Exchange:
    """The exchange alone, without what stands around it."""
    return innermost(exchange.inner) if isinstance(exchange, ExchangeAround) else exchange


def sums_uploads(exchange: Exchange) -> bool:
    """Whether the server of an exchange needs no more than a weighted sum of the uploads."""
    return type(innermost(exchange)).weights is not Exchange.weights


def innermost_method(method: Method) -> Method:
    """The method alone, without what stands around it."""
    return innermost_method(method.method) if isinstance(method, MethodAround) else method


def as_in(method: Method, exchange: Exchange) -> Exchange:
    """An exchange of the innermost method with everything around it that stands around the method."""
    return method.around(as_in(method.method, exchange)) if isinstance(method, MethodAround) else exchange
