"""What normalisation layers remember, carried around any method.

A method trains parameters. The running statistics of a model's normalisation layers are no parameters, and in
training nothing reads them: so they are carried here, beside the method's own states and messages, and the
method knows nothing of them. In each step they follow the batches of the method's training passes:

    passes 0, 1, ..  the gradients that a method takes in a step, in order; it declares in `passes` which of
                     them is at the model of which kind, if that is not the first; of gradients that it only
                     follows on a condition, it takes `objective.when(condition)`
    shared           the statistics of the pass of the shared model
    own              those of any other pass, which never leave the client

What a federation does with the shared ones is the run's choice (a_i are the weights of the replies):

    average     r_μ <- Σ a_i r_μ,i    r_v <- Σ a_i r_v,i                               counters: the largest
    pooled      r_μ <- Σ a_i r_μ,i    r_v <- Σ a_i (r_v,i + (r_μ,i - r_μ)²)            counters: the largest
    silo        each client keeps its own
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.around import (
    ExchangeAround,
    MethodAround,
    TransportAround,
    as_in,
    innermost_method,
    sums_uploads,
)
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import ClientState, Exchange, Info, Message, ServerState, Site
from idiolect.core.exchange import Work as MethodWork
from idiolect.core.method import Method, PredictorKind, Predictors
from idiolect.core.neighbours import Neighbours
from idiolect.core.newcomer import Newcomer
from idiolect.core.normalisation import Moments, NormLayer, Statistics, cumulated, split_off, updated
from idiolect.core.objective import Batch, FrozenBy, Mixture, Objective, Predictor, members_of
from idiolect.core.transport import Transport
from idiolect.core.tree import Params
from idiolect.errors import UserError

Variant = Literal["average", "pooled", "silo"]
PassesByKind = Mapping[PredictorKind, int | tuple[int, ...]]


class Server(NamedTuple):
    """The method's server, and the shared statistics; where clients keep their own, the first ones."""

    inner: ServerState
    statistics: Statistics


class Client(NamedTuple):
    """The method's client, and its statistics of each pass that some kind of model is trained by."""

    inner: ClientState
    statistics: tuple[Statistics, ...]


class Work(NamedTuple):
    """The method's work, and the statistics that follow it."""

    inner: MethodWork
    statistics: tuple[Statistics, ...]


class Down(NamedTuple):
    """The method's message, and the shared statistics."""

    inner: Message
    statistics: Statistics | tuple[()]


class Up(NamedTuple):
    """The method's message, and the client's copy of the shared statistics after its steps."""

    inner: Message
    statistics: Statistics | tuple[()]


class Brief(NamedTuple):
    """The method's brief, and the shared statistics."""

    inner: Message
    statistics: Statistics | tuple[()]


@dataclass(frozen=True)
class Carrying:
    """Which statistics there are, and what becomes of them."""

    layers: tuple[NormLayer, ...]
    variant: Variant
    passes: tuple[tuple[int, ...], ...]  # those of each model with statistics of its own
    shared: int  # the place among them of the shared model's
    frozen_by: FrozenBy  # what layers that a method holds fixed normalise with

    def kept(self, passes: PassesByKind, kind: PredictorKind) -> int:
        """The place of a kind's statistics."""
        return self.passes.index(_passes_of(kind, passes))

    def sent(self, statistics: Statistics, clients: int | None) -> Statistics | tuple[()]:
        """The shared statistics in a message: to all, or to each of some clients; or nothing."""
        if self.variant == "silo":
            return ()
        return statistics if clients is None else tree.repeat(statistics, clients)


def with_statistics(method: Method, objective: Objective, variant: Variant | None = None) -> Method:
    """The method with the statistics of the model's normalisation layers, or as it is if there are none.

    variant: None: an average where a server with a model for all sums what it is sent, else silo.
    """
    if isinstance(method, WithStatistics):  # a newcomer's
        return method
    if not objective.norms:
        if variant is not None:
            raise UserError(
                f"statistics={variant} has no meaning: the model {type(objective.module).__name__} has no "
                "normalisation layer that keeps statistics; leave it out"
            )
        return method
    if variant is None:
        bare = innermost_method(method)
        sums = isinstance(bare, Exchange) and _sums_uploads(as_in(method, bare)) and "global" in bare.kinds
        variant = "average" if sums else "silo"
    return WithStatistics(method, objective.norms, variant)


@dataclass(frozen=True)
class WithStatistics(MethodAround):
    """A method on a model with normalisation layers; see the module's text."""

    method: Method
    layers: tuple[NormLayer, ...]
    variant: Variant

    @property
    def has_global_model(self) -> bool:  # type: ignore[override]
        """Where clients keep their statistics, each has the shared parameters with its own."""
        return self.variant != "silo"

    @property
    def carrying(self) -> Carrying:
        """What is carried."""
        passes = tuple(sorted({_passes_of(kind, self.passes) for kind in self.kinds}))
        shared = _passes_of("global", self.passes)
        place = passes.index(shared) if shared in passes else 0
        # Newcomers train when training is over; where clients keep statistics, theirs are still to be found.
        is_over = isinstance(innermost_method(self.method), Newcomer) and self.variant != "silo"
        return Carrying(self.layers, self.variant, passes, place, "kept" if is_over else "batch")

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """The first statistics are the model's own, which come with its parameters."""
        parameters, statistics = split_off(params, self.layers)
        inner = self.method.server_init(parameters, population, key)
        is_newcomer = isinstance(innermost_method(self.method), Newcomer)  # who sends nothing
        sums = is_newcomer or any(map(_sums_uploads, self.method.exchanges(inner)))
        if self.variant != "silo" and not sums:
            raise UserError(
                f"statistics={self.variant} is not possible with method={self.name}, whose server gets no "
                "sum of what clients send; take statistics=silo, where each client keeps its own"
            )
        return Server(inner, statistics)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Those that the server has."""
        inner = self.method.client_init(server.inner, client_id)
        return Client(inner, (server.statistics,) * len(self.carrying.passes))

    def around(self, exchange: Exchange) -> "StatisticsExchange":
        """The exchange, whose training passes are listened to."""
        return StatisticsExchange(exchange, self.carrying)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """The method's, and the shared statistics."""
        clients = len(ids) if self.personal_brief else None
        return Brief(self.method.brief(server.inner, ids), self.carrying.sent(server.statistics, clients))

    def adapt(self, client: Client, brief: Brief, site: Site) -> Client:
        """As the method says, with the statistics that it predicts with."""
        there = _at(site, brief.statistics or client.statistics[self.carrying.shared], "kept")
        return client._replace(inner=self.method.adapt(client.inner, brief.inner, there))

    def predictors(self, client: Client, brief: Brief) -> Predictors:
        """Those of the method, with their statistics: a client's own, or the server's latest."""
        shared = brief.statistics or client.statistics[self.carrying.shared]
        with_own: Predictors = {}
        for kind, predictor in self.method.predictors(client.inner, brief.inner).items():
            place = self.carrying.kept(self.passes, kind)
            follows_server = place == self.carrying.shared and kind != "localized"
            own = shared if follows_server else client.statistics[place]
            with_own[kind] = _joined(predictor, own, shared)
        return with_own

    def newcomer(self, server: Server) -> tuple[Method, ServerState]:
        """The method's own; where clients keep their statistics, a newcomer finds its own."""
        method, inner = self.method.newcomer(server.inner)
        kind = NewcomerStatistics if self.variant == "silo" else WithStatistics
        return kind(method, self.layers, self.variant), server._replace(inner=inner)

    def transport(self, exchange: Exchange) -> Transport:
        """The method's own, beside which statistics travel as they are."""
        assert isinstance(exchange, StatisticsExchange)
        return TransportAround(exchange, self.method.transport(exchange.inner))


@dataclass(frozen=True)
class NewcomerStatistics(WithStatistics):
    """Newcomers whose statistics are, for each kind of model, those of one pass over their training rows."""

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """The pass is at the model that is predicted with."""
        return True

    def adapt(self, client: Client, brief: Brief, site: Site) -> Any:
        """One pass for each kind; what is found takes the place of what training has left."""
        if self.method.adapts:
            client = super().adapt(client, brief, site)
        first = client.statistics[self.carrying.shared]
        found = tuple(
            _measured(predictor, first, site)
            for predictor in self.method.predictors(client.inner, brief.inner).values()
        )
        return client._replace(statistics=found)

    def predictors(self, client: Client, brief: Brief) -> Predictors:
        """Those of the method, each with what was found for it."""
        predictors = self.method.predictors(client.inner, brief.inner)
        pairs = zip(predictors.items(), client.statistics, strict=True)
        return {kind: _joined(predictor, own, own) for (kind, predictor), own in pairs}


@dataclass(frozen=True)
class StatisticsExchange(ExchangeAround):
    """An exchange whose training passes are listened to."""

    inner: Exchange
    carrying: Carrying

    def down(self, server: Server, ids: Tensor) -> Down:
        """The exchange's own, and the shared statistics."""
        clients = len(ids) if self.personal_down else None
        return Down(self.inner.down(server.inner, ids), self.carrying.sent(server.statistics, clients))

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """The shared statistics are the server's; others are as they were."""
        statistics = list(client.statistics)
        if down.statistics:
            statistics[self.carrying.shared] = down.statistics
        there = _at(site, statistics[self.carrying.shared])
        return Work(self.inner.begin(client.inner, down.inner, there), tuple(statistics))

    def step(self, work: Work, client: Client, down: Down, batches: tuple[Batch, ...], site: Site) -> Work:
        """Each pass moves its statistics."""
        heard: list[list[Moments]] = []
        models = list(zip(self.carrying.passes, work.statistics, strict=True))
        by_pass = {number: kept for passes, kept in models for number in passes}
        shared = work.statistics[self.carrying.shared]
        objective = site.objective.hearing(shared, heard, by_pass, self.carrying.frozen_by)
        there = replace(site, objective=objective)
        inner = self.inner.step(work.inner, client.inner, down.inner, batches, there)
        return Work(inner, tuple(_moved(kept, passes, heard) for passes, kept in models))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep all of them, send the shared ones where they are averaged."""
        shared = work.statistics[self.carrying.shared]
        inner, upload = self.inner.finish(work.inner, client.inner, down.inner, _at(site, shared))
        return Client(inner, work.statistics), Up(upload, self._sent(shared, down.statistics))

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """Let the method absorb its own; the sum of the statistics over that of the weights."""
        inner, info = self.inner.absorb(server.inner, replies.inner, cohort)
        if not replies.statistics:
            return server._replace(inner=inner), info
        weights = self.inner.weights(server.inner, cohort)
        assert weights is not None, "only then is there a sum"
        statistics = dict(replies.statistics)
        for name, value in statistics.items():
            if value.is_floating_point():
                statistics[name] = value / weights.sum().to(value.dtype)
        if self.carrying.variant == "pooled":
            for layer in self.carrying.layers:
                moved = statistics[layer.mean] - server.statistics[layer.mean]
                statistics[layer.variance] = statistics[layer.variance] - moved.square()
        return Server(inner, statistics), info

    def _sent(self, shared: Statistics, before: Statistics | tuple[()]) -> Statistics | tuple[()]:
        """What of the shared statistics is summed; for `pooled`, moments about the mean that was sent."""
        if not before or not _sums_uploads(self.inner):
            return ()
        if self.carrying.variant == "average":
            return shared
        about = {
            layer.variance: shared[layer.variance] + (shared[layer.mean] - before[layer.mean]).square()
            for layer in self.carrying.layers
        }
        return {**shared, **about}


def _passes_of(kind: PredictorKind, passes: PassesByKind) -> tuple[int, ...]:
    """The passes that train the model of a kind."""
    numbers = passes.get(kind, 0)
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _moved(statistics: Statistics, passes: tuple[int, ...], heard: list[list[Moments]]) -> Statistics:
    """The statistics of a model after those of a step's passes that train it."""
    for number in passes:
        if -len(heard) <= number < len(heard):
            statistics = updated(statistics, heard[number])
    return statistics


def _sums_uploads(exchange: Exchange) -> bool:
    """Whether clients train in an exchange, and its server gets a weighted sum of what they send."""
    if isinstance(exchange, ExchangeAround):
        return type(exchange).weights is ExchangeAround.weights and _sums_uploads(exchange.inner)
    return exchange.local_steps != 0 and sums_uploads(exchange)


def _at(site: Site, statistics: Statistics, frozen_by: FrozenBy = "batch") -> Site:
    """The site with a model that has some statistics."""
    return replace(site, objective=site.objective.hearing(statistics, frozen_by=frozen_by))


def _joined(predictor: Predictor, own: Statistics, shared: Statistics) -> Predictor:
    """A predictor with its statistics; of a mixture, the first member is the client's own."""
    if isinstance(predictor, Mixture):
        first, *others = predictor.members
        return predictor._replace(members=({**first, **own}, *({**other, **shared} for other in others)))
    if isinstance(predictor, Neighbours):
        return predictor._replace(params={**predictor.params, **own})
    return {**predictor, **own}


def _measured(predictor: Predictor, first: Statistics, site: Site) -> Statistics:
    """The statistics of one pass over a client's rows; of a mixture, those of its first member."""
    heard: list[list[Moments]] = []
    params = members_of(predictor)[0]
    with torch.no_grad():
        site.objective.hearing(first, heard).training_loss(params, site.all_rows)
    return cumulated(first, heard[0])
