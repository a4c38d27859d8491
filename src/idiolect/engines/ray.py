"""Clients spread over Ray actors: each holds a block of clients and runs the vectorised engine on it.

Actors return what the server needs of an exchange: a partial weighted sum where the method needs only sums,
else the stacked uploads. With it come the clients' new states, which the driver puts into its store. So when
a worker is lost, another one starts from the store and repeats its part of the exchange; local work is a
pure function of states, messages and keys, so nothing shows that it was done twice.
"""

import copy
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.cohort import Cohort
from idiolect.core.device import CPU, to_host
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState
from idiolect.core.transport import Bits
from idiolect.data.federation import Rows
from idiolect.engines.compiler.doubt import Doubt
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.engine import Look, Outcome, Setting, Traffic
from idiolect.engines.local_view import partial_view
from idiolect.engines.vectorised import Vectorised, at_their_places
from idiolect.engines.ways import Way
from idiolect.errors import UserError
from idiolect.store.memory import MemoryStore

START_SECONDS = 60.0  # for a worker to begin, before it is said that it waits
MOST_ATTEMPTS = 5  # to carry out one exchange on one block, before a cluster counts as broken
OBJECT_STORE_BYTES = 256 * 2**20  # for a cluster that is started here: messages of one exchange

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """What one worker brings back from an exchange."""

    replies: Message | None
    down: Bits
    up: Bits
    states: ClientState  # of the clients it asked, stacked
    doubts: tuple[Doubt, ...]


class Assignment(NamedTuple):
    """What one worker is asked to do."""

    exchange: Exchange
    server: Any  # a reference, so that the workers of a node share one copy
    cohort: Cohort
    weights: Tensor | None  # of the cohort's replies, where the server needs their sum
    round_number: int


class Worker:
    """Lives in an actor: a block of clients and the vectorised engine."""

    def __init__(
        self, setting: Setting, way: Way, passes: Iterable[str] | None, device: torch.device
    ) -> None:
        if device != CPU:
            setting.move_to(device)
            setting.store = MemoryStore(len(setting.federation), device)
        self.engine = Vectorised(setting, way, passes)

    def restore(self, ids: Tensor, states: ClientState) -> None:
        """Take over clients that have a state already."""
        self.engine.setting.store.put(ids, states)

    def carry_out(self, assignment: Assignment) -> Part:
        """Carry out an exchange with those clients of its cohort that are in this block."""
        exchange, reference, cohort, weights, round_number = assignment
        server = _ray().get(reference)
        outcome = self.engine.carry_out_prepared(exchange, server, cohort, weights, round_number)
        states = to_host(self.engine.setting.states(cohort.ids))
        return Part(outcome.replies, outcome.traffic.down, outcome.traffic.up, states, outcome.doubts)


class Block:
    """A range of clients and the actor that holds them: started when first needed, replaced when lost."""

    def __init__(
        self, clients: range, setting: Setting, way: Way, passes: Iterable[str] | None, gpus: float
    ) -> None:
        self.clients = clients
        self._gpus = gpus  # its share of those of the cluster
        self._setting = setting
        self._way, self._passes = way, passes
        self._actor: Any = None
        self._begun: Any = None  # comes true when the actor has a process
        self._held = torch.zeros(len(setting.federation), dtype=torch.bool)  # whose state the actor has

    def places(self, cohort: Cohort) -> Tensor:
        """Where the block's clients are in a cohort."""
        return ((cohort.ids >= self.clients.start) & (cohort.ids < self.clients.stop)).nonzero()[:, 0]

    def ask(self, assignment: Assignment) -> Any:
        """Send an assignment to the actor, and first the states that only the driver has; gives a future."""
        if self._actor is None:
            # Spread over the nodes, so that a lost one takes few blocks with it.
            remote = _ray().remote(
                num_cpus=1, num_gpus=self._gpus, max_restarts=0, scheduling_strategy="SPREAD"
            )(Worker)
            block = _setting_of_block(self._setting, self.clients)
            # Ray shows a worker its own GPUs only, of which the first is meant.
            self._actor = remote.remote(
                block, self._way, self._passes, torch.device(self._setting.device.type)
            )
            self._begun = self._actor.__ray_ready__.remote()
        store, ids = self._setting.store, assignment.cohort.ids
        new = ids[store.known(ids) & ~self._held[ids]]
        if len(new):  # after a loss or a resumption, and for clients that have just arrived
            self._actor.restore.remote(new, store.get(new))
        return self._actor.carry_out.remote(assignment)

    def say_if_it_waits(self) -> None:
        """Where no processor is free, the actor waits for one; that is said, since it can be for ever."""
        if self._begun is None:
            return
        has_begun, _ = _ray().wait([self._begun], timeout=START_SECONDS)
        if not has_begun:
            log.warning(
                "the worker of clients %d to %d waits for a free processor of the cluster: end what else "
                "runs on it, as a simulation that is still in memory, or take fewer engine.workers",
                self.clients.start,
                self.clients.stop - 1,
            )
        self._begun = None  # said once is enough

    def answered(self, ids: Tensor) -> None:
        """The actor has the states of these clients now."""
        self._held[ids] = True

    def lost(self) -> None:
        """The actor is gone, and with it what it held."""
        self._actor = self._begun = None
        self._held.fill_(False)


class RayEngine:
    """Runs blocks of clients on Ray actors, on this machine or on the cluster at `address`."""

    def __init__(
        self,
        setting: Setting,
        *,
        workers: int = 2,
        address: str | None = None,
        way: Way | None = None,
        passes: Iterable[str] | None = tuple(PASSES),
    ) -> None:
        self.setting = setting
        # Looking at clients needs closures of the driver; it has all states and rows.
        self._local = Vectorised(setting, way, passes)
        _connect(address, workers)
        pieces = torch.arange(len(setting.federation)).tensor_split(min(workers, len(setting.federation)))
        ranges = [range(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]
        gpus = _ray().cluster_resources().get("GPU", 0.0) if setting.device.type == "cuda" else 0.0
        share = min(1.0, gpus / len(ranges))
        self.blocks = [Block(clients, setting, self._local.way, passes, share) for clients in ranges]

    @property
    def way(self) -> Way:
        """How clients are computed."""
        return self._local.way

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange on all blocks at once."""
        self._local.explain_way()
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        arrived = cohort.select(cohort.replied)
        weights = exchange.weights(server, arrived) if len(arrived) else None
        traffic, replies = Traffic(len(cohort)), []
        doubts: tuple[Doubt, ...] = ()
        shared, ranks = _ray().put(server), cohort.replied.cumsum(0) - 1
        assignments, order = [], []
        for block in self.blocks:
            if len(places := block.places(cohort)):
                part = cohort.select(places)
                order.append(ranks[places[part.replied]])
                share = None if weights is None else weights[order[-1]]
                work = Assignment(exchange, shared, part, share, round_number)
                assignments.append((block, places, work))
        for places, result in _collect(assignments):
            self.setting.store.put(cohort.ids[places], result.states)
            traffic.record(traffic.down, places, result.down)
            traffic.record(traffic.up, places, result.up)
            doubts += result.doubts
            if result.replies is not None:
                replies.append(result.replies)
        return Outcome(_joined(replies, weights, order), arrived, traffic, cohort.ids, doubts)

    def survey(self, look: Look, server: ServerState, part: Rows, ids: Tensor, round_number: int) -> Any:
        """Look at every client, on the driver; the results are stacked."""
        return self._local.survey(look, server, part, ids, round_number)


def _collect(assignments: list[tuple[Block, Tensor, Assignment]]) -> list[tuple[Tensor, Part]]:
    """The results of all blocks in their order; a block whose worker is lost gets another one."""
    ray = _ray()
    lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)
    pending = [block.ask(assignment) for block, _, assignment in assignments]
    results = []
    for future, (block, places, assignment) in zip(pending, assignments, strict=True):
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                block.say_if_it_waits()
                results.append((places, ray.get(future)))
                block.answered(assignment.cohort.ids)
                break
            except lost:
                if attempt == MOST_ATTEMPTS:
                    raise
                log.warning(
                    "the worker of clients %d to %d is lost; its part of round %d is repeated elsewhere",
                    block.clients.start,
                    block.clients.stop - 1,
                    assignment.round_number,
                )
                block.lost()
                future = block.ask(assignment)
    return results


def _joined(parts: list[Message], weights: Tensor | None, ranks: list[Tensor]) -> Message | None:
    """Partial sums added, or stacks put end to end, each reply at its place."""
    if not parts:
        return None
    if weights is None:
        return at_their_places(tree.concatenate(parts), torch.cat(ranks))
    total = parts[0]
    for part in parts[1:]:
        total = tree.add_sums(total, part)
    return total


def _setting_of_block(setting: Setting, clients: range) -> Setting:
    """The setting with the rows of some clients, and an empty store of their own; on the CPU, to be sent."""
    objective = setting.objective
    if setting.device != CPU:
        objective = copy.deepcopy(objective)
        objective.module.to(CPU)
    return Setting(
        setting.method,
        objective,
        partial_view(setting.federation, clients),
        MemoryStore(len(setting.federation)),
        seed=setting.seed,
        batch_size=setting.batches.batch_size,
        founding=setting.founding,
    )


def _connect(address: str | None, workers: int) -> None:
    """Join a cluster, or start one on this machine; a connection that is there already is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _ray()
    if ray.is_initialized():
        return
    if address is not None:
        try:
            ray.init(address=address, log_to_driver=False)
        except ConnectionError as error:
            raise UserError(
                f"engine.address={address} cannot be reached: start a cluster there with `ray start --head`, "
                "or leave the address out to use this machine"
            ) from error
        return
    with _same_modules():
        ray.init(
            address="local",  # of its own, whoever else runs one on this machine
            num_cpus=workers,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
        )


@contextmanager
def _same_modules() -> Iterator[None]:
    """Let processes that are started find a user's own method where this one finds it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("engine=ray needs Ray: pip install 'idiolect[ray]'") from None
    return ray
