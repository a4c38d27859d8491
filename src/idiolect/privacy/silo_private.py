"""Silo privacy around any method whose server needs only a sum: uploads are clipped, and the sum gets noise.

    client:  x_i  ->  r + clip(x_i - r, C)
    server:  Σ_i a x_i  ->  Σ_i a x_i + a σ C z,    z ~ N(0, I),  the same weight a for every reply

r is what was sent, for uploads that are changed copies of it, and zero for others. The norm is over all
fields of an upload together. To take one client's upload out of a sum over a public list of replies, putting
zero change in its place, moves the sum by at most a C. Who is asked is a public function of seed and round:
nothing is gained by the sampling of clients. What stays at a client is its own, and hides nobody.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.core.around import MethodAround, innermost_method, sums_uploads
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Exchange, Info, Message, ServerState, Site, Work
from idiolect.core.method import Method
from idiolect.core.same_messages import Client, SameMessages, SameMessagesExchange
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError
from idiolect.privacy.settings import SiloPrivacy


class Server(NamedTuple):
    """The method's server, the key of the noise, and how many sums were released."""

    inner: ServerState
    key: Tensor
    released: Tensor


@dataclass(frozen=True)
class SiloPrivate(SameMessages):
    """A method whose sums hide single clients; `origin` as of `RowPrivate`."""

    method: Method
    privacy: SiloPrivacy
    adds_noise: bool = True  # not where uploads come with their noise, as from silos
    origin: str = ""

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The method's own; one that needs more than sums of equal weights is refused."""
        inner = self.method.server_init(params, population, key)
        for exchange in self.method.exchanges(inner):
            self._refuse_unfit(exchange)
            self.require_equal(exchange.weights(inner, _unlike_clients()))
        return Server(inner, rng.fold(key, rng.key(0, f"privacy{self.origin}")), torch.tensor(0))

    def exchanges(self, server: Server) -> tuple["SiloPrivateExchange", ...]:
        """Those of the method, which may have others in later rounds."""
        for exchange in self.method.exchanges(server.inner):
            self._refuse_unfit(exchange)
        return super().exchanges(server)  # type: ignore[return-value]

    def _refuse_unfit(self, exchange: Exchange) -> None:
        average = self.method.step_average()
        reason = None
        if not sums_uploads(exchange):
            reason = "its server needs each upload, and no sum that noise could hide one in"
        elif self.method.own_codec() is not None:
            reason = "it compresses uploads, which can make them longer than the clip"
        elif self.method.logged_path() is not None or (average is not None and average.shared is not None):
            reason = "it sends more than its model, to be averaged or logged over steps"
        if reason is not None:
            raise UserError(
                f"privacy.unit=silo cannot be used with method={self.name} as it is set: {reason}; choose "
                "another method or setting, or privacy.unit=row"
            )

    def require_equal(self, weights: Tensor | None) -> None:
        """Refuse weights that tell of clients' rows, or make one client count for more than the others."""
        assert weights is not None, "looked at before the first round"
        if len(weights) and not torch.allclose(weights, weights[0].expand_as(weights)):
            has_choice = hasattr(innermost_method(self.method), "weighting")
            remedy = "set method.weighting=uniform" if has_choice else "choose another method or plan"
            raise UserError(
                f"privacy.unit=silo needs replies of equal weights, and method={self.name} weighs them "
                f"differently, which would tell of their rows; {remedy}"
            )

    def around(self, exchange: Exchange) -> "SiloPrivateExchange":
        """The exchange, whose uploads are clipped."""
        return SiloPrivateExchange(exchange, self)


@dataclass(frozen=True)
class SiloPrivateExchange(SameMessagesExchange):
    """An exchange whose uploads are clipped, and whose sum gets noise."""

    inner: Exchange
    around: SiloPrivate

    def finish(self, work: Work, client: Client, down: Message, site: Site) -> tuple[Client, Message]:
        """The upload, with a change that is at most so long."""
        client, upload = super().finish(work, client, down, site)
        return client, self.clipped(upload, down)

    def clipped(self, upload: Message, down: Message) -> Message:
        """r + clip(x - r, C); what is not finite is no change."""
        if not tree.leaves(upload):  # nothing is told
            return upload
        sent, clip = self._sent(upload, down), self.around.privacy.clip
        change = tree.subtract(upload, sent)
        squares = tree.squared_norm(change)
        finite = squares.isfinite()
        factor = torch.where(finite, clip * squares.clamp_min(clip**2).rsqrt(), 0.0)
        return tree.map_tree(
            lambda start, move: _moved(start, factor.to(move.dtype) * torch.where(finite, move, 0.0)),
            sent,
            change,
        )

    def _sent(self, upload: Message, down: Message) -> Tree:
        """What each field of an upload is a changed copy of, or zero."""
        relative = self.inner.relative_to
        fields = {
            name: getattr(down, relative[name]) if name in relative else tree.zeros_like(value)
            for name, value in upload._asdict().items()
        }
        return type(upload)(**fields)

    def weights(self, server: Server, cohort: Cohort) -> Tensor | None:
        """Those of the exchange, if they are equal."""
        weights = self.inner.weights(server.inner, cohort)
        self.around.require_equal(weights)
        return weights

    def absorb(self, server: Server, replies: Message, cohort: Cohort) -> tuple[Server, Info]:
        """The exchange absorbs the sum and its noise."""
        weights = self.weights(server, cohort)
        assert weights is not None
        if self.around.adds_noise:
            deviation = float(weights.max()) * self.around.privacy.multiplier * self.around.privacy.clip
            replies = with_noise(replies, deviation, rng.fold(server.key, server.released))
        inner, info = self.inner.absorb(server.inner, replies, cohort)
        return Server(inner, server.key, server.released + 1), info


def _moved(start: Tensor, move: Tensor) -> Tensor:
    """Their sum, rounded towards the start: from a large one the nearest number can be twice as far away."""
    there = start + move
    too_far = (there - start).abs() > move.abs()
    return torch.where(too_far, torch.nextafter(there, start), there)


def with_noise(message: Message, deviation: float, key: Tensor) -> Message:
    """A message with Gaussian noise of some standard deviation in every entry."""
    noisy = (
        leaf + (deviation * rng.normal(rng.fold(key, place), *leaf.shape)).to(leaf.dtype)
        for place, leaf in enumerate(tree.leaves(message))
    )
    return tree.with_leaves(message, noisy)


def _unlike_clients() -> Cohort:
    """Replies of clients whose numbers of rows differ."""
    ones = torch.ones(3, dtype=torch.float64)
    sizes = torch.tensor([1, 2, 4])
    population = Population(sizes, torch.ones(3, dtype=torch.bool))
    return Cohort(torch.arange(3), ones, ones.bool(), ones, population, torch.full((3,), 1))


def silo_privacy_of(method: Method) -> SiloPrivate | None:
    """What hides silos around a method, if anything does."""
    if isinstance(method, SiloPrivate):
        return method
    return silo_privacy_of(method.method) if isinstance(method, MethodAround) else None
