"""What theorems ask about a method, around any method that says what to look at.

A method declares a `StepAverage` or a path to log; whatever has to be remembered and sent for it is added
here to the states and messages, and the method itself knows nothing of it:

    own:     Σ_t p_t x_i^t          kept by client i; between its rounds x_i stands still
    shared:  Σ_t p_t mean_j y_j^t   sent by the clients for each round, kept by the server; in a step that a
                                    client of the round does not take, its y_j stands still
    path:    y_j^t - y_j^0          of every local step, sent by the clients: their spread is logged
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.around import ExchangeAround, MethodAround, TransportAround
from idiolect.core.averages import Average, Path
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import ClientState, Exchange, Info, Message, ServerState, Site
from idiolect.core.exchange import Work as MethodWork
from idiolect.core.method import Method, PredictorKind
from idiolect.core.objective import Batch, Predictor
from idiolect.core.schedule import Clock, Number
from idiolect.core.transport import Transport
from idiolect.core.tree import Params


@dataclass(frozen=True)
class StepAverage:
    """An average over the steps of a run, which takes the place of the model that the method is judged by."""

    own: Callable[[MethodWork], Params]  # x_i, of which each client keeps the average
    model: Callable[[ClientState, Params, Params], Params]  # from the means of x_i and y
    shared: Callable[[MethodWork], Params] | None = None  # y_j, averaged over clients too; None: nothing is
    still: Callable[[ClientState], Params] | None = None  # x_i between rounds; None: as in a client's work
    counts_absence: bool = True  # whether the steps of rounds without the client count
    weight: Callable[[Number], Number] = lambda time: 1  # p_t

    def between_rounds(self, client: ClientState) -> Params:
        """x_i of a client that does not train."""
        return (self.still or self.own)(client)

    def inside(self, inner: Callable[[ClientState], ClientState]) -> "StepAverage":
        """The same for clients inside of others."""
        return replace(
            self,
            still=lambda client: self.between_rounds(inner(client)),
            model=lambda client, own, shared: self.model(inner(client), own, shared),
        )

    def round_weight(self, clock: Clock, like: Tensor) -> Tensor:
        """The sum of p_t over the steps of the clock's round, in the order and type in which clients add."""
        total = torch.zeros_like(like)
        for step in range(clock.local_steps):
            total = total + self.weight(clock._replace(step=step).time)
        return total


Sums = Any  # an Average, or () where nothing is averaged
_NOTHING: Any = ()


class Server(NamedTuple):
    """The method's server, and Σ_t p_t mean_j y_j^t."""

    inner: ServerState
    average: Sums


class Client(NamedTuple):
    """The method's client, Σ_t p_t x_i^t, and Σ_t p_t before the client arrived."""

    inner: ClientState
    average: Sums
    missed: Any


class Down(NamedTuple):
    """The method's message, and Σ_t p_t so far."""

    inner: Message
    weight: Any


class Up(NamedTuple):
    """The method's message, Σ_t p_t y_j^t of this round, and the path of y_j in it."""

    inner: Message
    average: Sums
    path: Any


class Brief(NamedTuple):
    """The method's brief, the mean of y, and Σ_t p_t."""

    inner: Message
    shared: Any
    weight: Any


class Work(NamedTuple):
    """The method's work and the sums that grow with it; `start` is y_j^0 where its path is followed."""

    inner: MethodWork
    own: Sums
    shared: Sums
    path: Any
    start: Any


def observed(method: Method) -> Method:
    """The method with what it declares to be observed, or as it is if that is nothing."""
    declares = method.step_average() is not None or method.logged_path() is not None
    return Observed(method) if declares else method


@dataclass(frozen=True)
class Observed(MethodAround):
    """A method whose steps are looked at; see the module's text."""

    method: Method

    @property
    def average(self) -> StepAverage | None:
        """What the method declares."""
        return self.method.step_average()

    def logged_path(self) -> None:
        """It is logged here."""

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """Nothing has been averaged yet."""
        shares = self.average is not None and self.average.shared is not None
        inner = self.method.server_init(params, population, key)
        return Server(inner, Average.empty(params) if shares else ())

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Nothing has been averaged yet."""
        inner = self.method.client_init(server.inner, client_id)
        if self.average is None:
            return Client(inner, (), ())
        return Client(inner, Average.empty(self.average.between_rounds(inner)), _weight(server))

    def around(self, exchange: Exchange) -> "ObservedExchange":
        """The exchange, whose steps are looked at."""
        return ObservedExchange(self.method, exchange)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """The method's, and the mean of y."""
        inner = self.method.brief(server.inner, ids)
        if not isinstance(server.average, Average):
            return Brief(inner, (), ())
        return Brief(inner, server.average.mean(tree.zeros_like(server.average.total)), server.average.weight)

    def adapt(self, client: Client, brief: Brief, site: Site) -> Client:
        """As the method says."""
        return client._replace(inner=self.method.adapt(client.inner, brief.inner, site))

    def predictors(self, client: Client, brief: Brief) -> dict[PredictorKind, Predictor]:
        """Those of the method; the one that it is judged by is the average's, once there is one."""
        predictors = self.method.predictors(client.inner, brief.inner)
        if self.average is None:
            return predictors
        own, last = client.average, predictors[self.judged_by]
        if self.average.counts_absence:
            here = torch.maximum(brief.weight - client.missed, own.weight)
            own = own.caught_up(self.average.between_rounds(client.inner), here)
        shared = brief.shared if isinstance(brief.shared, dict) else tree.zeros_like(own.total)
        averaged = self.average.model(client.inner, own.mean(tree.zeros_like(own.total)), shared)
        return predictors | {self.judged_by: tree.where(own.weight > 0, averaged, last)}

    def newcomer(self, server: Server) -> tuple[Method, ServerState]:
        """The method's own; it averages from its arrival, where it declares to."""
        method, inner = self.method.newcomer(server.inner)
        return (Observed(method), server._replace(inner=inner)) if method.step_average() else (method, inner)

    def transport(self, exchange: Exchange) -> Transport:
        """The method's own, beside which the sums travel as they are."""
        assert isinstance(exchange, ObservedExchange)
        return TransportAround(exchange, self.method.transport(exchange.inner))


@dataclass(frozen=True)
class ObservedExchange(ExchangeAround):
    """An exchange whose steps are looked at."""

    method: Method
    inner: Exchange

    def down(self, server: Server, ids: Tensor) -> Down:
        """The exchange's own, and Σ_t p_t so far."""
        weight = _weight(server)
        if isinstance(weight, Tensor) and self.personal_down:
            weight = weight.expand(len(ids))
        return Down(self.inner.down(server.inner, ids), weight)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """x_i has stood still since the client's last round."""
        average, path = self.method.step_average(), self.method.logged_path()
        inner = self.inner.begin(client.inner, down.inner, site)
        own, shared = client.average, _NOTHING
        if average is not None and average.counts_absence:
            own = own.caught_up(average.between_rounds(client.inner), down.weight - client.missed)
        if average is not None and average.shared is not None:
            shared = Average.empty(average.shared(inner))
        if path is None:
            return Work(inner, own, shared, (), ())
        return Work(inner, own, shared, Path.empty(path(inner), site.clock.local_steps), path(inner))

    def step(self, work: Work, client: Client, down: Down, batches: tuple[Batch, ...], site: Site) -> Work:
        """Add what there is before the step, then take it."""
        average, path = self.method.step_average(), self.method.logged_path()
        if average is not None:
            weight = average.weight(site.clock.time)
            work = work._replace(own=work.own.plus(average.own(work.inner), weight))
            if average.shared is not None:
                work = work._replace(shared=work.shared.plus(average.shared(work.inner), weight))
        if path is not None:
            move = tree.subtract(path(work.inner), work.start)
            work = work._replace(path=work.path.at(site.clock.step, move))
        return work._replace(inner=self.inner.step(work.inner, client.inner, down.inner, batches, site))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """y_j stands still until the end of the round."""
        average, path = self.method.step_average(), self.method.logged_path()
        inner, upload = self.inner.finish(work.inner, client.inner, down.inner, site)
        shared, followed = work.shared, work.path
        if average is not None and average.shared is not None:
            whole = average.round_weight(site.clock, shared.weight)
            shared = shared.caught_up(average.shared(work.inner), whole)
        if path is not None:
            followed = followed.stopped(site.steps, tree.subtract(path(work.inner), work.start))
        return Client(inner, work.own, client.missed), Up(upload, shared, followed)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """Let the method absorb its own; add the sums, log the spread."""
        inner, info = self.inner.absorb(server.inner, replies.inner, cohort)
        average = server.average
        if isinstance(average, Average):
            average = tree.add(average, replies.average)
        if isinstance(replies.path, Path):
            info = info | {"consensus_error": replies.path.spread()}
        return Server(inner, average), info


def _weight(server: Server) -> Tensor | tuple[()]:
    """Σ_t p_t so far, where somebody asks for it."""
    return server.average.weight if isinstance(server.average, Average) else ()
