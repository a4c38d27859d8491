"""All clients at once: chunks of them as one stack; where one client keeps a core busy, one in each thread.

Clients are taken in chunks that fit the cache, all local steps of one chunk before the next. What the chunks
need is fetched before and kept after their work, in the order of the chunks, so nothing depends on threads.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.cohort import Cohort
from idiolect.core.device import CPU, to_device, to_host
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState
from idiolect.core.method import Method
from idiolect.core.objective import Batch, Objective
from idiolect.core.schedule import Clock
from idiolect.data.federation import Rows
from idiolect.engines.allocator import keep_freed_memory
from idiolect.engines.chunks import padded, padded_width, parameter_bytes, similar_size, similar_work, stages
from idiolect.engines.compiler.compiler import Compiler
from idiolect.engines.compiler.passes import ON_CPU_ONLY, PASSES
from idiolect.engines.engine import Look, Outcome, Setting, Traffic
from idiolect.engines.local_work import Chunk, LocalWork, Seat, Stages, first_of, over_clients
from idiolect.engines.threads import ClientThreads
from idiolect.engines.ways import Way, choose_way, stacking, why_one_by_one

logger = logging.getLogger("idiolect")

T = TypeVar("T")

DRAWN_TOGETHER = 16  # clients whose batches are drawn at once, at least: it takes as long for one


class Group(NamedTuple):
    """Some clients of a cohort that are computed together."""

    places: Tensor  # in the cohort
    part: Cohort
    down: Message
    chunk: Chunk


class Vectorised:
    """Runs chunks of clients as one. `passes` rewrite recorded steps; None: steps are not recorded."""

    def __init__(
        self, setting: Setting, way: Way | None = None, passes: Iterable[str] | None = tuple(PASSES)
    ) -> None:
        self.setting = setting
        self.way = way or choose_way(setting)
        self._has_more_to_say = self.way == Way(1, is_recorded=False)
        if passes is not None and setting.device != CPU:
            passes = [name for name in passes if name not in ON_CPU_ONLY]
        self._compiler = Compiler(passes) if passes is not None and self.way.is_recorded else None
        self._threads = ClientThreads(setting.objective)
        self._client_bytes = parameter_bytes(setting.objective.module)
        self._row_bytes = sum(leaf[:1].nbytes for leaf in tree.leaves(setting.federation.inputs))
        layers = setting.objective.module.modules()
        # Convolution and pooling are faster with channels last, which a stack of clients cannot have.
        self._channels_last = self.way.clients == 1 and any(isinstance(layer, nn.Conv2d) for layer in layers)
        keep_freed_memory()

    @property
    def records_all_steps(self) -> bool:
        """Whether no step had to be computed as it is written, though it was to be recorded."""
        return self._compiler is None or self._compiler.records_all_steps

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange."""
        self.explain_way()
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        arrived = cohort.select(cohort.replied)
        weights = exchange.weights(server, arrived) if len(arrived) else None
        return self.carry_out_prepared(exchange, server, cohort, weights, round_number)

    def explain_way(self) -> None:
        """Say, once, why clients run one at a time if that is not for speed."""
        if self._has_more_to_say:
            self._has_more_to_say = False
            if (reason := why_one_by_one(self.setting)) is not None:
                logger.warning("%s", reason)

    def carry_out_prepared(
        self,
        exchange: Exchange,
        server: ServerState,
        cohort: Cohort,
        weights: Tensor | None,
        round_number: int,
    ) -> Outcome:
        """The exchange with a cohort that is prepared already; `weights` are those of its replies."""
        traffic, replies = Traffic(len(cohort)), _Replies(weights, self.setting.device)
        transport = self.setting.transport(exchange)
        arrived, ranks = cohort.select(cohort.replied), cohort.replied.cumsum(0) - 1
        doubts_before = self._doubts()

        def work(objective: Objective, group: Group) -> tuple[Group, ClientState, Message]:
            return group, *LocalWork(self.setting, objective, self._compiler, self._laid_out).work(
                group.chunk
            )

        groups = self._groups(exchange, server, cohort, round_number)
        for (places, part, down, chunk), client, up in self._each(work, groups):
            client, up = self._stack_of(len(part), (client, up), alone=chunk.seat.is_alone)
            self.setting.store.put(part.ids, client)
            traffic.record(traffic.down, places, transport.down_bits(server, down, part.ids))
            if not part.replied.any():
                continue
            if not part.replied.all():
                up = tree.select(up, to_device(part.replied.nonzero()[:, 0], self.setting.device))
            heard = places[part.replied]
            traffic.record(traffic.up, heard, transport.up_bits(up, part.ids[part.replied]))
            replies.add(up, ranks[heard])
        doubts = self._doubts()[len(doubts_before) :]
        return Outcome(replies.total(), arrived, traffic, cohort.ids, doubts)

    def survey(self, look: Look, server: ServerState, part: Rows, ids: Tensor, round_number: int) -> Any:
        """Look at every client; the results are stacked."""
        method = self.setting.method
        clock = self._clock(round_number, 0)
        chunks = list(similar_size(part.sizes[ids], self.way.clients, self._row_bytes))
        shared = None if method.personal_brief else self._there(method.brief(server, ids))

        def seen(objective: Objective, place: tuple[ClientState, Message, Seat]) -> Any:
            def one(client: ClientState, brief: Message, seat: Seat) -> Any:
                return look(client, brief, seat.site(objective, clock))

            alone, axis = place[2].is_alone, 0 if method.personal_brief else None
            return self._stack_of(None, over_clients(one, (0, axis, 0), alone=alone)(*place), alone=alone)

        def fetched(places: Tensor) -> tuple[ClientState, Message, Seat]:
            no_steps = torch.zeros_like(places)
            seat = self._seat(method, ids[places], no_steps, no_steps, round_number, part)
            client, seat = self._as_one(self.setting.states(ids[places]), seat)
            if not method.personal_brief:
                return client, shared, seat
            brief = self._there(method.brief(server, ids[places]))
            return client, tree.row(brief, 0) if seat.is_alone else brief, seat

        results = [to_host(result) for result in self._each(seen, map(fetched, chunks))]
        return at_their_places(tree.concatenate(results), torch.cat(chunks))

    def _each(self, work: Callable[[Objective, Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Some work on every chunk, in threads where a chunk is a client; the results in their order."""
        if self.way.clients == 1:
            return self._threads.map(work, tasks)
        return self._stacks(work, tasks)

    def _stacks(self, work: Callable[[Objective, Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            with stacking():
                result = work(self.setting.objective, task)
            yield result

    def _groups(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Iterator[Group]:
        """What is needed for the work of each chunk."""
        setting = self.setting
        train = setting.federation.train
        rows = train.sizes if exchange.sees_all_rows else setting.batches.widths
        chunks = list(similar_work(cohort.steps, rows[cohort.ids], self.way.clients, self._row_bytes))
        clock = self._clock(round_number, setting.clock_steps(exchange))
        shared = None if exchange.personal_down else exchange.down(server, cohort.ids)
        sent_to_all = self._there(shared)
        for places, staged in zip(chunks, self._staged(exchange, cohort, chunks, round_number), strict=True):
            # Padding: the last client once more. What its doubles do is thrown away.
            part = cohort.select(padded(places))
            # First states are views of the server's parameters: one layout is enough to record.
            client = tree.map_tree(torch.Tensor.contiguous, setting.states(part.ids))
            seen = train if exchange.sees_all_rows else None
            seat = self._seat(exchange, part.ids, part.steps, part.full_steps, round_number, seen)
            client, seat = self._as_one(client, seat)
            down, sent = sent_to_all, shared
            if exchange.personal_down:
                each = exchange.down(server, part.ids)
                down = self._there(tree.row(each, 0) if seat.is_alone else each)
                sent = first_of(len(places), each)
            chunk = Chunk(exchange, down, client, seat, clock, part.ids, staged, round_number)
            yield Group(places, cohort.select(places), sent, chunk)

    def _staged(
        self, exchange: Exchange, cohort: Cohort, chunks: Sequence[Tensor], round_number: int
    ) -> Iterator[Stages]:
        """The stages of each chunk, with their rows; none if there is no training."""
        if not exchange.local_steps:
            yield from ([] for _ in chunks)
            return
        batches, per_step = self.setting.batches, exchange.batches_per_step
        together = -(-DRAWN_TOGETHER // self.way.clients)
        for start in range(0, len(chunks), together):
            group = [padded(places) for places in chunks[start : start + together]]
            plans = [stages(cohort.steps[places], self._client_bytes) for places in group]
            widths = [self._width(batches.widths[cohort.ids[places]]) for places in group]
            grids = [
                torch.cartesian_prod(
                    torch.arange(stage.steps.start * per_step, stage.steps.stop * per_step),
                    cohort.ids[places[: stage.stack]],
                )
                for places, plan in zip(group, plans, strict=True)
                for stage in plan
            ]
            calls, ids = torch.cat(grids).unbind(1)
            drawn = batches.draw(ids, round_number, calls, max(widths))
            pieces = iter(drawn.split([len(grid) for grid in grids]))
            for plan, width in zip(plans, widths, strict=True):
                yield [(stage, next(pieces)[:, :width].unflatten(0, (-1, stage.stack))) for stage in plan]

    def _width(self, widths: Tensor) -> int:
        """The rows of a chunk's batches; some more where that makes for fewer recordings."""
        if not self.way.is_recorded:
            return int(widths.max())
        return padded_width(widths, self.setting.batches.batch_size)

    def _seat(
        self,
        viewer: Exchange | Method,
        ids: Tensor,
        steps: Tensor,
        full_steps: Tensor,
        round_number: int,
        data: Rows | None,
    ) -> Seat:
        setting, federation = self.setting, self.setting.federation
        rows, validation = (
            () if part is None else setting.batches.all_rows(part, ids, round_number)
            for part in (data, federation.validation if viewer.sees_validation_rows else None)
        )
        key = setting.client_key(ids, round_number)
        sizes = federation.train.sizes[ids]
        return self._there(Seat(ids, sizes, steps, full_steps, key, rows, validation))

    def _clock(self, round_number: int, local_steps: int) -> Clock:
        return self._there(Clock(torch.tensor(round_number), torch.tensor(0), local_steps))

    def _there(self, tree: T) -> T:
        return to_device(tree, self.setting.device)

    def _as_one(self, client: ClientState, seat: Seat) -> tuple[ClientState, Seat]:
        """The only client of a stack without its axis: a stack of one would go through slower operations."""
        if len(seat.client_id) > 1:
            return client, seat
        client, seat = tree.row((client, seat), 0)
        rows, validation = (
            self._laid_out(given) if isinstance(given, Batch) else given
            for given in (seat.rows, seat.validation)
        )
        return client, seat._replace(rows=rows, validation=validation)

    @staticmethod
    def _stack_of(count: int | None, results: Any, *, alone: bool) -> Any:
        """Results of the first clients of a stack, or of the one that came without its axis."""
        if alone:
            return tree.repeat(results, 1)
        return results if count is None else first_of(count, results)

    def _laid_out(self, batch: Batch) -> Batch:
        """The batch in the memory layout that the model's layers prefer."""
        if not self._channels_last:
            return batch
        return batch._replace(inputs=tree.map_tree(_with_channels_last, batch.inputs))

    def _doubts(self) -> tuple[Any, ...]:
        return () if self._compiler is None else tuple(self._compiler.doubts)


def _with_channels_last(leaf: Tensor) -> Tensor:
    """Images with their channels last in memory."""
    return leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf


class _Replies:
    """Uploads as they come in: summed at once where the server needs only the sum, else kept."""

    def __init__(self, weights: Tensor | None, device: torch.device) -> None:
        self.weights = weights
        self.device = device
        self.parts: list[Message] = []
        self.ranks: list[Tensor] = []

    def add(self, uploads: Message, ranks: Tensor) -> None:
        """Take the uploads of a chunk; `ranks` are their places among all replies."""
        if self.weights is None:
            self.parts.append(to_host(uploads))
            self.ranks.append(ranks)
            return
        share = tree.weighted_sum(uploads, to_device(self.weights[ranks], self.device))
        self.parts = [tree.add_sums(self.parts[0], share) if self.parts else share]

    def total(self) -> Message | None:
        """What the server gets; None if no reply arrived."""
        if not self.parts:
            return None
        if self.weights is not None:
            return to_host(self.parts[0])
        return at_their_places(tree.concatenate(self.parts), torch.cat(self.ranks))


def at_their_places(stacked: Any, places: Tensor) -> Any:
    """Entries that belong at some places, each at its place."""
    order = places.argsort()
    in_order = bool((order.diff() == 1).all())  # a copy of everything saved
    return stacked if in_order else tree.select(stacked, order)
