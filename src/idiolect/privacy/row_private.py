"""Row privacy around any method: its clients get sealed batches and an objective with private gradients.

No list of methods is needed: a method that asks of rows anything but gradients of the batches of its steps
is refused as it asks, and one of the user's own is safe for the same reason.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core.around import MethodAround
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Exchange, Info, Message, ServerState, Site, Work
from idiolect.core.method import Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.same_messages import Client, SameMessages, SameMessagesExchange
from idiolect.core.tree import Params
from idiolect.errors import UserError
from idiolect.privacy.row_gradients import PrivateObjective, SealedBatch
from idiolect.privacy.settings import RowPrivacy


class Server(NamedTuple):
    """The method's server."""

    inner: ServerState


@dataclass(frozen=True)
class RowPrivate(SameMessages):
    """A method whose clients learn of rows by private gradients alone; `batch_size` None: of all rows.

    `origin` is what, besides the seed, the noise follows from: of two trainings with the same noise the
    difference would have none.
    """

    method: Method
    privacy: RowPrivacy
    batch_size: int | None
    origin: str = ""

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The method's own."""
        return Server(self.method.server_init(params, population, key))

    def exchanges(self, server: Server) -> tuple["RowPrivateExchange", ...]:
        """Those of the method. Two in which clients train would see the same batches, and noise, twice."""
        exchanges = super().exchanges(server)
        if sum(exchange.local_steps != 0 for exchange in exchanges) > 1:
            raise UserError(
                f"privacy.unit=row cannot be used with method={self.name}: its clients train twice in a "
                "round; choose another method, or privacy.unit=silo"
            )
        return exchanges  # type: ignore[return-value]

    def around(self, exchange: Exchange) -> "RowPrivateExchange":
        """The exchange, whose clients get sealed batches."""
        return RowPrivateExchange(exchange, self)

    def adapt(self, client: Client, brief: Message, site: Site) -> Client:
        """The method's own, without rows."""
        return super().adapt(client, brief, self.sealed(site))

    def newcomer(self, server: Server) -> tuple["RowPrivate", Server]:
        """The method's own, with the same around it: newcomers train too."""
        method, inner = self.method.newcomer(server.inner)
        return replace(self, method=method), Server(inner)

    def for_others(self, method: Method, rows: str) -> "RowPrivate":
        """The same around another method, with noise for other rows, named by a digest, alone."""
        inner = method.method if isinstance(method, RowPrivate) else method
        return replace(self, method=inner, origin=f"{self.origin} {inner.name} {rows}")

    def sealed(self, site: Site, objective: Objective | None = None) -> Site:
        """A site at which no row can be looked at."""
        rows, validation = (
            None if given is None else self.seal(given) for given in (site.rows, site.validation)
        )
        return replace(site, objective=objective or site.objective, rows=rows, validation=validation)

    def seal(self, batch: Batch, number: int | None = None) -> Any:
        """A batch that cannot be looked at, in the place of one that can."""
        return SealedBatch(self.name, batch, number)

    def share(self, size: Tensor, dtype: torch.dtype) -> Tensor:
        """1 / b for a client of so many rows."""
        rows = size if self.batch_size is None else size.clamp_max(self.batch_size)
        return rows.to(dtype).reciprocal()


@dataclass(frozen=True)
class RowPrivateExchange(SameMessagesExchange):
    """An exchange whose clients get sealed batches."""

    inner: Exchange
    around: RowPrivate

    def begin(self, client: Client, down: Message, site: Site) -> Work:
        """Without rows."""
        return super().begin(client, down, self.around.sealed(site))

    def step(self, work: Work, client: Client, down: Message, batches: tuple[Batch, ...], site: Site) -> Work:
        """With sealed batches, whose gradients are private."""
        around = self.around
        share = around.share(site.size, site.objective.dtype)
        objective = PrivateObjective(site.objective, around.privacy, around.name, share, around.origin)
        sealed = tuple(around.seal(batch, number) for number, batch in enumerate(batches))
        return super().step(work, client, down, sealed, around.sealed(site, objective))

    def finish(self, work: Work, client: Client, down: Message, site: Site) -> tuple[Client, Message]:
        """Without rows."""
        return super().finish(work, client, down, self.around.sealed(site))

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """As the exchange says."""
        inner, info = self.inner.absorb(server.inner, replies, cohort)
        return Server(inner), info


def row_privacy_of(method: Method) -> RowPrivate | None:
    """What hides rows around a method, if anything does."""
    if isinstance(method, RowPrivate):
        return method
    return row_privacy_of(method.method) if isinstance(method, MethodAround) else None
