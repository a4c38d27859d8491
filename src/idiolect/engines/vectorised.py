"""All clients at once: stacked states, `torch.func.vmap`, and a step that is traced once and replayed.

Clients are taken in chunks that fit the cache, all local steps of one chunk before the next. The vmapped
step is recorded as a flat graph of tensor operations on its first use for a shape; replaying it saves the
transforms' bookkeeping, which for small models costs more than the arithmetic (see docs/performance.md).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from idiolect.core import tree
from idiolect.core.method import ClientState, Cohort, Exchange, Message, ServerState, Site
from idiolect.core.objective import Batch
from idiolect.core.schedule import Clock
from idiolect.data.federation import Rows
from idiolect.engines.base import Outcome, Setting, Traffic
from idiolect.engines.batches import all_rows
from idiolect.engines.chunks import (
    Stage,
    chunk_size,
    padded,
    padded_width,
    parameter_bytes,
    similar_size,
    similar_work,
    stages,
)
from idiolect.engines.memory import keep_freed_memory
from idiolect.engines.recording import Arguments, Recording, Recordings, Replay, record

Stages = list[tuple[Stage, Tensor]]  # the stages of a chunk, with their rows int64[calls, stack, width]
DRAWN_TOGETHER = 16  # clients whose batches are drawn at once, at least: it takes as long for one


class Seat(NamedTuple):
    """The part of a site that differs from client to client, stacked."""

    client: Tensor
    size: Tensor
    steps: Tensor
    key: Tensor
    rows: Batch | tuple[()]


class Stack(NamedTuple):
    """What local steps take of some clients: what changes, and what does not."""

    work: Any
    client: ClientState
    down: Message  # the same for all, unless the exchange has personal ones
    seat: Seat


class Vectorised:
    """Runs chunks of clients as one."""

    def __init__(self, setting: Setting, chunk: int | None = None) -> None:
        self.setting = setting
        self._client_bytes = parameter_bytes(setting.objective.module)
        self._row_bytes = setting.federation.inputs[:1].nbytes
        self.chunk = chunk or chunk_size(setting.objective.module)
        layers = setting.objective.module.modules()
        # Convolution and pooling are faster with channels last, which a stack of clients cannot have.
        self._channels_last = self.chunk == 1 and any(isinstance(layer, nn.Conv2d) for layer in layers)
        self._recordings = Recordings()
        keep_freed_memory()

    def run(self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int) -> Outcome:
        """Carry out one exchange."""
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        arrived = cohort.select(cohort.replied)
        weights = exchange.weights(server, arrived) if len(arrived) else None
        return self.carry_out(exchange, server, cohort, weights, round_number)

    def carry_out(
        self,
        exchange: Exchange,
        server: ServerState,
        cohort: Cohort,
        weights: Tensor | None,
        round_number: int,
    ) -> Outcome:
        """The exchange with a cohort that is prepared already; `weights` are those of its replies."""
        setting, traffic, replies = self.setting, Traffic(len(cohort)), _Replies(weights)
        arrived = cohort.select(cohort.replied)
        rows = setting.federation.train.sizes if exchange.sees_all_rows else setting.batches.batch_sizes
        chunks = list(similar_work(cohort.steps, rows[cohort.ids], self.chunk, self._row_bytes))
        for places, staged in zip(chunks, self._staged(exchange, cohort, chunks, round_number), strict=True):
            part = cohort.select(places)
            down, up = self._work(exchange, server, part, staged, round_number)
            traffic.record(traffic.down, places, exchange.down_bits(server, down, part.ids))
            if not part.replied.any():
                continue
            up = up if part.replied.all() else tree.select(up, part.replied)
            ids = part.ids[part.replied]
            traffic.record(traffic.up, places[part.replied], exchange.up_bits(up, ids))
            replies.add(up, torch.searchsorted(arrived.ids, ids))
        return Outcome(replies.total(), arrived, traffic, cohort.ids)

    def survey(
        self, look: Callable[[ClientState, Site], Any], part: Rows, ids: Tensor, round_number: int
    ) -> Any:
        """Apply a pure function to every client; the results are stacked."""
        setting, results = self.setting, []
        clock = Clock(torch.tensor(round_number), torch.tensor(0), 0)

        def one(client: ClientState, seat: Seat) -> Any:
            return look(client, self._site(seat, clock))

        chunks = list(similar_size(part.sizes[ids], self.chunk, self._row_bytes))
        for places in chunks:
            client = setting.states(ids[places])
            seat = self._seat(ids[places], torch.zeros_like(places), round_number, part)
            if alone := len(places) == 1:
                client, seat = self._without_axis(client, seat)
            result = _over_clients(one, (0, 0), alone=alone)(client, seat)
            results.append(tree.repeat(result, 1) if alone else result)
        return _in_order(tree.concatenate(results), torch.cat(chunks))

    def _staged(
        self, exchange: Exchange, cohort: Cohort, chunks: Sequence[Tensor], round_number: int
    ) -> Iterator[Stages]:
        """The stages of each chunk, with their rows; none if there is no training."""
        if not exchange.local_steps:
            yield from ([] for _ in chunks)
            return
        batches, per_step = self.setting.batches, exchange.batches_per_step
        together = -(-DRAWN_TOGETHER // self.chunk)
        for start in range(0, len(chunks), together):
            group = [padded(places) for places in chunks[start : start + together]]
            plans = [stages(cohort.steps[places], self._client_bytes) for places in group]
            widths = [
                padded_width(batches.batch_sizes[cohort.ids[places]], batches.batch_size) for places in group
            ]
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

    def _work(
        self, exchange: Exchange, server: ServerState, part: Cohort, staged: Stages, round_number: int
    ) -> tuple[Message, Message]:
        """The local work of one chunk: new states are stored, the messages returned."""
        setting, count = self.setting, len(part)
        # Padding: the last client once more. What its doubles do is thrown away.
        part = part.select(padded(torch.arange(count)))
        clock = Clock(torch.tensor(round_number), torch.tensor(0), setting.clock_steps(exchange))
        down = exchange.down(server, part.ids)
        down_axis = 0 if exchange.personal_down else None
        # First states are views of the server's parameters: one layout is enough to record.
        client = tree.map_tree(torch.Tensor.contiguous, setting.states(part.ids))
        data = setting.federation.train if exchange.sees_all_rows else None
        seat = self._seat(part.ids, part.steps, round_number, data)

        alone = len(part) == 1
        own_down = tree.row(down, 0) if alone and exchange.personal_down else down
        if alone:
            client, seat = self._without_axis(client, seat)

        def begin(client: ClientState, down: Message, seat: Seat) -> Any:
            return exchange.begin(client, down, self._site(seat, clock))

        def finish(work: Any, client: ClientState, down: Message, seat: Seat) -> Any:
            at_end = clock._replace(step=seat.steps)
            return exchange.finish(work, client, down, self._site(seat, at_end))

        work = _over_clients(begin, (0, down_axis, 0), alone=alone)(client, own_down, seat)
        if exchange.local_steps:
            # A recorded step overwrites what changes, so that needs memory of its own.
            own = tree.map_tree(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), work)
            stack = Stack(own, client, own_down, seat._replace(rows=()))
            work = self._steps(exchange, stack, staged, clock)
        over = _over_clients(finish, (0, 0, down_axis, 0), alone=alone)
        client, up = over(work, client, own_down, seat)
        client, up = tree.repeat((client, up), 1) if alone else _first(count, (client, up))
        setting.store.put(part.ids[:count], client)
        return _first(count, down) if exchange.personal_down else down, up

    def _steps(self, exchange: Exchange, stack: Stack, staged: Stages, clock: Clock) -> Any:
        """All local steps of a chunk. Those who finish are set aside: they may be computed a while longer."""
        if stack.seat.client.ndim == 0:
            ((stage, rows),) = staged
            return self._replay(exchange, stack, stage.steps, rows[:, 0], clock)
        finished: list[Any] = []
        for stage, rows in staged:
            down = _first(stage.stack, stack.down) if exchange.personal_down else stack.down
            stack = _first(stage.stack, stack._replace(down=()))._replace(down=down)
            stack = stack._replace(work=self._replay(exchange, stack, stage.steps, rows, clock))
            done = _between(stage.staying, stage.active, stack.work)
            finished.append(tree.map_tree(torch.clone, done) if stage.staying else done)
        return tree.concatenate(finished[::-1])

    def _replay(self, exchange: Exchange, stack: Stack, steps: range, rows: Tensor, clock: Clock) -> Any:
        """Some steps of a stack: a step is recorded on its first use for these shapes, then replayed."""
        batches, per_step = self.setting.batches, exchange.batches_per_step
        weights = batches.weights(stack.seat.client, rows.shape[-1])
        changing, work_structure = pytree.tree_flatten(stack.work)
        fixed, fixed_structure = pytree.tree_flatten((*stack[1:], clock.round))
        replay: Replay | None = None
        for step, calls in zip(steps, rows.split(per_step), strict=True):
            drawn = [leaf for call in calls for leaf in self._laid_out(batches.gather(call, weights))]
            arguments = Arguments(changing, fixed, drawn, torch.tensor(step))
            if replay is None:
                structures = (work_structure, fixed_structure)
                recording = self._recording(exchange, arguments, structures, clock.local_steps)
            this = recording.first if step == 0 else recording.later
            if this is not replay:
                replay, shared = this, this.share(*fixed)
            changing = replay.step(*arguments.flat(), *shared)
        return pytree.tree_unflatten(changing, work_structure)

    def _without_axis(self, client: ClientState, seat: Seat) -> tuple[ClientState, Seat]:
        """The only client of a stack: a stack of one would go through slower operations."""
        client, seat = tree.row((client, seat), 0)
        if isinstance(seat.rows, Batch):
            seat = seat._replace(rows=self._laid_out(seat.rows))
        return client, seat

    def _laid_out(self, batch: Batch) -> Batch:
        """The batch in the memory layout that the model's layers prefer."""
        if not self._channels_last or batch.inputs.ndim != 4:
            return batch
        return batch._replace(inputs=batch.inputs.contiguous(memory_format=torch.channels_last))

    def _recording(
        self, exchange: Exchange, example: Arguments, structures: tuple[Any, Any], local_steps: int
    ) -> Recording:
        """The recorded step for arguments of these shapes."""
        work_structure, fixed_structure = structures
        _, _, seat, _ = pytree.tree_unflatten(example.fixed, fixed_structure)
        stacked_step = self._stacked_step(exchange, local_steps, alone=seat.client.ndim == 0)

        def flat_step(arguments: Arguments) -> list[Tensor]:
            work = pytree.tree_unflatten(arguments.changing, work_structure)
            client, down, seat, round_number = pytree.tree_unflatten(arguments.fixed, fixed_structure)
            rows, each = arguments.drawn, len(Batch._fields)
            batches = tuple(Batch(*rows[start : start + each]) for start in range(0, len(rows), each))
            return tree.leaves(stacked_step(work, client, down, batches, seat, round_number, arguments.step))

        layouts = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in example.flat())
        signature = (exchange, local_steps, layouts)
        return self._recordings.get(signature, lambda: record(flat_step, example))

    def _stacked_step(self, exchange: Exchange, local_steps: int, *, alone: bool) -> Callable[..., Any]:
        """The step of a stack of clients, or of one client alone."""

        def one(
            work: Any,
            client: ClientState,
            down: Message,
            batches: tuple[Batch, ...],
            seat: Seat,
            round_number: Tensor,
            step: Tensor,
        ) -> Any:
            site = self._site(seat, Clock(round_number, step, local_steps))
            return exchange.step(work, client, down, batches, site)

        down_axis = 0 if exchange.personal_down else None
        return _over_clients(one, (0, 0, down_axis, 0, 0, None, None), alone=alone)

    def _seat(self, ids: Tensor, steps: Tensor, round_number: int, data: Rows | None) -> Seat:
        setting = self.setting
        rows: Batch | tuple[()] = ()
        if data is not None:
            rows = all_rows(setting.federation, data, ids)
        sizes = setting.federation.train.sizes[ids]
        return Seat(ids, sizes, steps, setting.client_key(ids, round_number), rows)

    def _site(self, seat: Seat, clock: Clock) -> Site:
        rows = seat.rows if isinstance(seat.rows, Batch) else None
        return Site(self.setting.objective, seat.client, seat.size, seat.steps, seat.key, clock, rows)


class _Replies:
    """Uploads as they come in: summed at once where the server needs only the sum, else kept."""

    def __init__(self, weights: Tensor | None) -> None:
        self.weights = weights
        self.parts: list[Message] = []
        self.ranks: list[Tensor] = []

    def add(self, uploads: Message, ranks: Tensor) -> None:
        """Take the uploads of a chunk; `ranks` are their places among all replies."""
        if self.weights is None:
            self.parts.append(uploads)
            self.ranks.append(ranks)
            return
        share = tree.weighted_sum(uploads, self.weights[ranks])
        self.parts = [tree.add(self.parts[0], share) if self.parts else share]

    def total(self) -> Message | None:
        """What the server gets; None if no reply arrived."""
        if not self.parts:
            return None
        if self.weights is not None:
            return self.parts[0]
        return _in_order(tree.concatenate(self.parts), torch.cat(self.ranks))


def _over_clients(
    function: Callable[..., Any], axes: tuple[int | None, ...], *, alone: bool
) -> Callable[..., Any]:
    """A function of one client, for a stack of them, or for one that comes without the axis of clients."""
    return function if alone else vmap(function, in_dims=axes)


def _in_order(stacked: Any, places: Tensor) -> Any:
    """Entries that belong at some places, each at its place."""
    order = places.argsort()
    in_order = bool((order.diff() == 1).all())  # a copy of everything saved
    return stacked if in_order else tree.select(stacked, order)


def _first(count: int, stacked: Any) -> Any:
    """The first entries of a stack."""
    return _between(0, count, stacked)


def _between(start: int, stop: int, stacked: Any) -> Any:
    """Neighbouring entries of a stack."""
    return tree.map_tree(lambda leaf: leaf[start:stop], stacked)
