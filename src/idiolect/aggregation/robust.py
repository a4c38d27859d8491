"""A rule in place of the weighted sum, around any method whose server needs only that.

    replies = Σ_i w_i x_i    becomes    Σ_i w_i r + W m,    W = Σ_i w_i,  m = rule(x_i - r, w_i / W)

r is what the server sent, for uploads that are changed copies of it, and zero for others. Uploads that are
not finite are left out by every rule. The server sees each upload: with secure sums there are no rules.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.aggregation.rules import RobustRule
from idiolect.core import tree
from idiolect.core.around import ExchangeAround, MethodAround
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import ClientState, Exchange, Info, Message, ServerState, Site, Work
from idiolect.core.method import Method
from idiolect.core.observed import StepAverage
from idiolect.core.transport import OwnCodec, Transport
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError


class Server(NamedTuple):
    """The method's server."""

    inner: ServerState


class Client(NamedTuple):
    """The method's client."""

    inner: ClientState


@dataclass(frozen=True)
class Robust(MethodAround):
    """A method whose uploads are combined by a rule."""

    method: Method
    rule: RobustRule

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The method's own; one whose server takes no sum is refused."""
        inner = self.method.server_init(params, population, key)
        if any(type(exchange).weights is Exchange.weights for exchange in self.method.exchanges(inner)):
            raise UserError(
                f"robust={self.rule.name} cannot be used with method={self.name}: its server needs each "
                "upload, and no sum that a rule could take the place of; leave out robust"
            )
        return Server(inner)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The method's own."""
        return Client(self.method.client_init(server.inner, client_id))

    def around(self, exchange: Exchange) -> "RobustExchange":
        """The exchange, whose server does not trust uploads."""
        return RobustExchange(exchange, self.rule)

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


@dataclass(frozen=True)
class RobustExchange(ExchangeAround):
    """An exchange whose uploads are combined by a rule."""

    inner: Exchange
    rule: RobustRule

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

    def weights(self, server: Server, cohort: Cohort) -> None:
        """The server needs each upload."""

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """The exchange absorbs what the rule makes of the uploads; nothing if none is finite."""
        weights = self.inner.weights(server.inner, cohort)
        assert weights is not None, "looked at before the first round"
        sent = self._sent(server, replies, cohort)
        changes = tree.flatten_rows(tree.subtract(replies, sent))
        finite = changes.isfinite().all(1) & (weights != 0)
        left_out = torch.zeros(len(cohort.population.sizes))
        left_out[cohort.ids] = (~finite).to(left_out.dtype)
        if not finite.any():
            return server, {"left_out": left_out}
        counted = weights[finite].to(changes.dtype)
        mean, dropped = self.rule.combine(changes[finite], counted / counted.sum())
        left_out[cohort.ids[finite]] = dropped.to(left_out.dtype)
        combined = tree.add(
            tree.weighted_sum(sent, weights),
            tree.unflatten(weights.sum().to(mean.dtype) * mean, tree.row(replies, 0)),
        )
        inner, info = self.inner.absorb(server.inner, combined, cohort)
        return Server(inner), {**info, "left_out": left_out}

    def _sent(self, server: Server, replies: Message, cohort: Cohort) -> Tree:
        """r for each upload: what it is a changed copy of, or zero."""
        message = self.inner.down(server.inner, cohort.ids)
        fields = {
            field: getattr(message, self.inner.relative_to[field])
            if field in self.inner.relative_to
            else tree.zeros_like(upload)
            for field, upload in replies._asdict().items()
        }
        if not self.personal_down:
            shared = {field: fields[field] for field in self.inner.relative_to}
            fields |= tree.repeat(shared, len(cohort))
        return type(replies)(**fields)
