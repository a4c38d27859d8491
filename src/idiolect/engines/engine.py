"""What every engine does: run the client half of an exchange, and look at every client's models."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from idiolect.core import rng, tree
from idiolect.core.cohort import Cohort, Population
from idiolect.core.device import CPU, refuse_precision, to_device, to_host
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site
from idiolect.core.fitness import refuse_unfit_model
from idiolect.core.inputs import row_count, take_rows
from idiolect.core.method import Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.transport import Bits, Transport
from idiolect.data.federation import Federation, Rows
from idiolect.engines.batches import Batches
from idiolect.engines.compiler.doubt import Doubt
from idiolect.engines.private_batches import PrivateBatches
from idiolect.errors import UserError
from idiolect.participation.sampling import Plan
from idiolect.privacy.row_private import row_privacy_of
from idiolect.store.store import Store


class Traffic:
    """Bits that crossed in one exchange, by part of the message, for each asked client."""

    def __init__(self, asked: int) -> None:
        self.asked = asked
        self.down: Bits = {}  # part -> int64[asked]
        self.up: Bits = {}  # part -> int64[asked]: zero where the reply was lost

    def record(self, direction: Bits, places: Tensor, bits: Bits) -> None:
        """Note what the clients at some places received (`self.down`) or sent (`self.up`)."""
        for part, sizes in bits.items():
            direction.setdefault(part, torch.zeros(self.asked, dtype=torch.int64))[places] = sizes


class Outcome(NamedTuple):
    """What an exchange brought: the replies (None if none arrived), from whom, who was asked, traffic."""

    replies: Message | None
    arrived: Cohort
    traffic: Traffic
    asked: Tensor  # int64[asked]: the clients that the traffic's entries belong to
    doubts: tuple[Doubt, ...] = ()  # rewritten steps that were found to differ from the plain ones


class Setting:
    """What all engines are given: the objective, the data, the method, and where client states live.

    `round_steps` are the local steps of a round on the clock of schedules, where they do not follow from the
    clients that are here: for newcomers those of the run, at a silo those that the coordinator tells.
    """

    def __init__(
        self,
        method: Method,
        objective: Objective,
        federation: Federation,
        store: Store,
        *,
        seed: int,
        batch_size: int | None,
        founding: ServerState = None,
        round_steps: int | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.method = method
        self.objective = objective
        self.federation = federation
        self.store = store
        self.seed = seed
        # torch warns of operations that it does for one model after the other: no concern of a user's.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        # Kernels of attention for evaluation alone, which many models cannot take at once.
        torch.backends.mha.set_fastpath_enabled(False)
        batch_sizes = Batches(federation, seed, batch_size, objective.dtype).batch_sizes
        self._tried_rows = {1, 2} if (batch_sizes == 1).any() else {2}
        self._try_model(CPU)
        self.batches = (
            Batches(federation, seed, batch_size, objective.dtype, has_noise=objective.draws_noise)
            if row_privacy_of(method) is None
            else PrivateBatches(federation, seed, batch_size, objective.dtype)
        )
        if device != CPU:
            self.move_to(device)
        self.round_steps = round_steps
        # The server before round 0, where it is known: founding clients that were never asked start from it.
        self.founding = founding

    @property
    def device(self) -> torch.device:
        """Where clients are computed; the server and the plan are on the CPU."""
        return self.batches.device

    def move_to(self, device: torch.device) -> None:
        """Put the model and the rows on a device, where the model is tried once more."""
        refuse_precision(device, self.objective.dtype)
        self.objective.move_to(device)
        self.batches.move_to(device)
        self._try_model(device)  # a tensor that it keeps besides parameters and buffers stays behind

    def _try_model(self, device: torch.device) -> None:
        first = {
            count: to_device(_first_rows(self.federation, count, self.objective.dtype), device)
            for count in (1, 2, 3)
        }
        for count in self._tried_rows:
            refuse_unfit_model(self.objective, first[count])
        self.objective.examine(first[2], first[3])

    def found(self, plan: Plan) -> ServerState:
        """Begin the run: the server before round 0, from which the founding clients start."""
        federation = self.federation
        if not federation.train.sizes.all():
            empty = federation.names[int(federation.train.sizes.argmin())]
            raise UserError(f"client {empty!r} has no training rows; every client needs at least one")
        population = Population(federation.train.sizes, plan.present(0, len(federation)))
        key = rng.key(self.seed, "server")
        self.founding = self.method.server_init(to_host(self.objective.initial_model()), population, key)
        return self.founding

    def transport(self, exchange: Exchange) -> Transport:
        """How the messages of an exchange travel."""
        return self.method.transport(exchange)

    def prepare(self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int) -> Cohort:
        """Whom the exchange asks, with their local steps; inactive clients are as if never asked."""
        key = rng.key(self.seed, "ask", round_number)
        cohort = exchange.ask(server, cohort, key)
        if exchange.local_steps == 0:
            steps = torch.zeros_like(cohort.ids)
        else:
            steps = self.batches.steps(exchange.local_steps, cohort.ids)
        cohort = Cohort(
            cohort.ids,
            cohort.work,
            cohort.replied,
            cohort.inclusion,
            cohort.population,
            steps,
            cohort.multiplicity,
        )
        active = cohort.work > 0 if exchange.local_steps == 0 else cohort.steps > 0
        return cohort.select(active)

    def clock_steps(self, exchange: Exchange) -> int:
        """The local steps of a round on the clock of schedules."""
        if self.round_steps is not None:
            return self.round_steps
        return 0 if exchange.local_steps == 0 else self.batches.longest(exchange.local_steps)

    def states(self, ids: Tensor) -> ClientState:
        """The stacked states of clients, where they are computed.

        One that was never asked has the state of a founding client.
        """
        known = self.store.known(ids)
        if known.all():
            return to_device(self.store.get(ids), self.device)
        states = to_device(self.arrivals(self.founding, ids), self.device)
        if known.any():
            chosen = known.nonzero()[:, 0]
            stored = to_device(self.store.get(ids[chosen]), self.device)
            places = to_device(chosen, self.device)
            states = tree.map_tree(lambda new, kept: new.clone().index_copy_(0, places, kept), states, stored)
        return states

    def arrivals(self, server: ServerState, ids: Tensor) -> ClientState:
        """The stacked first states of clients that arrive while the server is in some state, beside it."""
        return vmap(lambda client_id: self.method.client_init(server, client_id))(ids)

    def draw_by(self, seed: int) -> None:
        """Let clients draw batches and whatever else by another seed."""
        self.seed = self.batches.seed = seed

    def client_key(self, ids: Tensor, round_number: int) -> Tensor:
        """Randomness of a client's own in a round."""
        return rng.key(self.seed, "client", ids, round_number)


class Engine(Protocol):
    """What plays rounds: it carries out exchanges with clients, wherever they are."""

    setting: Setting

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange: update the client states, return what the server gets."""
        ...


def _first_rows(federation: Federation, count: int, dtype: torch.dtype) -> Batch:
    """Some rows, the same ones again where there are fewer, as a batch."""
    rows = torch.arange(count) % row_count(federation.inputs)
    weights = torch.full((count,), 1 / count, dtype=dtype)
    return Batch(take_rows(federation.inputs, rows), federation.targets[rows], weights, torch.tensor(0))


Look = Callable[[ClientState, Message, Site], Any]  # at a client, with its brief; a pure function


class LocalEngine(Engine, Protocol):
    """An engine in this process, which can also look at every client."""

    def survey(self, look: Look, server: ServerState, part: Rows, ids: Tensor, round_number: int) -> Any:
        """Look at clients; `site.rows` are their rows in one part of the data. The results are stacked.

        The look is taken where clients are computed; its results are where the server is.
        """
        ...


def combine(
    exchange: Exchange, server: ServerState, uploads: list[Message], cohort: Cohort
) -> Message | None:
    """The replies as the server gets them: their weighted sum, or all of them; None if there are none."""
    if not uploads:
        return None
    weights = exchange.weights(server, cohort)
    stacked = tree.stack(uploads)
    return stacked if weights is None else tree.weighted_sum(stacked, weights)
