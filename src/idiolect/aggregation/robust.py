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
from idiolect.core.around import sums_uploads
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Exchange, Info, Message, ServerState
from idiolect.core.method import Method
from idiolect.core.same_messages import SameMessages, SameMessagesExchange
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError


class Server(NamedTuple):
    """The method's server."""

    inner: ServerState


@dataclass(frozen=True)
class Robust(SameMessages):
    """A method whose uploads are combined by a rule."""

    method: Method
    rule: RobustRule

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The method's own; one whose server takes no sum is refused."""
        inner = self.method.server_init(params, population, key)
        if any(not sums_uploads(exchange) for exchange in self.method.exchanges(inner)):
            raise UserError(
                f"robust={self.rule.name} cannot be used with method={self.name}: its server needs each "
                "upload, and no sum that a rule could take the place of; leave out robust"
            )
        return Server(inner)

    def around(self, exchange: Exchange) -> "RobustExchange":
        """The exchange, whose server does not trust uploads."""
        return RobustExchange(exchange, self.rule)


@dataclass(frozen=True)
class RobustExchange(SameMessagesExchange):
    """An exchange whose uploads are combined by a rule."""

    inner: Exchange
    rule: RobustRule

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
