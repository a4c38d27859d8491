"""What stands around a method and leaves its states and messages as they are, but for what they hold."""

from abc import ABC
from typing import NamedTuple

from torch import Tensor

from idiolect.core.around import ExchangeAround, MethodAround
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site, Work
from idiolect.core.observed import StepAverage
from idiolect.core.transport import OwnCodec, Transport


class Client(NamedTuple):
    """The method's client."""

    inner: ClientState


class SameMessages(MethodAround, ABC):
    """A method with something around it that sends nothing of its own."""

    def client_init(self, server: ServerState, client_id: Tensor) -> Client:
        """The method's own."""
        return Client(self.method.client_init(server.inner, client_id))

    def own_codec(self) -> OwnCodec | None:
        """The method's."""
        return self.method.own_codec()

    def step_average(self) -> StepAverage | None:
        """The method's, whose clients are inside of these."""
        average = self.method.step_average()
        return average and average.inside(lambda client: client.inner)

    def transport(self, exchange: Exchange) -> Transport:
        """Messages as they are."""
        return Transport(exchange)


class SameMessagesExchange(ExchangeAround, ABC):
    """An exchange with something around it that sends nothing of its own."""

    @property
    def relative_to(self) -> dict[str, str]:  # type: ignore[override]
        """Those of the exchange."""
        return dict(self.inner.relative_to)

    @property
    def changes_of(self) -> dict[str, str]:  # type: ignore[override]
        """Those of the exchange."""
        return dict(self.inner.changes_of)

    @property
    def common_fields(self) -> frozenset[str]:  # type: ignore[override]
        """Those of the exchange."""
        return self.inner.common_fields

    def finish(self, work: Work, client: Client, down: Message, site: Site) -> tuple[Client, Message]:
        """As the exchange says."""
        inner, upload = self.inner.finish(work, client.inner, down, site)
        return Client(inner), upload
