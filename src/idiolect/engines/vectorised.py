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
from idiolect.engines.memory import keep_freed_memory
from idiolect.engines.recording import Arguments, Recording, Recordings, Replay, record

CHUNK_BYTES = 16 * 2**20  # parameters of one chunk: about what stays in the cache over a round
MOST_CLIENTS = 256  # in a chunk, however small the model
DRAWN_TOGETHER = 16  # clients whose batches are drawn at once, at least: it takes as long for one


class Seat(NamedTuple):
    """The part of a site that differs from client to client, stacked."""

    client: Tensor
    size: Tensor
    steps: Tensor
    key: Tensor
    rows: Batch | tuple[()]


class Vectorised:
    """Runs chunks of clients as one."""

    def __init__(self, setting: Setting, chunk: int | None = None) -> None:
        self.setting = setting
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
        traffic = Traffic(len(cohort))
        arrived = cohort.select(cohort.replied)
        replies = _Replies(weights)
        chunks = self._chunks(cohort.steps)
        for places, drawn in zip(chunks, self._draw(exchange, cohort, chunks, round_number), strict=True):
            part = cohort.select(places)
            down, up = self._work(exchange, server, part, drawn, round_number)
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

        for places in self._chunks(torch.zeros_like(ids)):
            client = setting.states(ids[places])
            seat = self._seat(ids[places], torch.zeros_like(places), round_number, part)
            if alone := len(places) == 1:
                client, seat = self._without_axis(client, seat)
            result = _over_clients(one, (0, 0), alone=alone)(client, seat)
            results.append(tree.repeat(result, 1) if alone else result)
        return tree.concatenate(results)

    def _chunks(self, steps: Tensor) -> Sequence[Tensor]:
        """Places of the clients of each chunk; clients with similar work share one."""
        order = steps.argsort(stable=True)
        pieces = -(-len(order) // self.chunk)
        return order.tensor_split(pieces) if pieces else ()

    def _draw(
        self, exchange: Exchange, cohort: Cohort, chunks: Sequence[Tensor], round_number: int
    ) -> Iterator[Tensor]:
        """The rows of all steps of each chunk, int64[calls, clients, width]."""
        together = -(-DRAWN_TOGETHER // self.chunk)
        for start in range(0, len(chunks), together):
            group = chunks[start : start + together]
            part = cohort.select(torch.cat(tuple(group)))
            calls = int(part.steps.max()) * exchange.batches_per_step
            drawn = self.setting.batches.draw(part.ids, round_number, calls)
            yield from drawn.split([len(places) for places in group], dim=1)

    def _work(
        self, exchange: Exchange, server: ServerState, part: Cohort, drawn: Tensor, round_number: int
    ) -> tuple[Message, Message]:
        """The local work of one chunk: new states are stored, the messages returned."""
        setting, count = self.setting, len(part)
        # Padding: the last client once more. What its doubles do is thrown away.
        padded = torch.arange(padded_size(count)).clamp_max(count - 1)
        part, drawn = part.select(padded), drawn[:, padded]
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
            drawn = drawn[:, 0]

        def begin(client: ClientState, down: Message, seat: Seat) -> Any:
            return exchange.begin(client, down, self._site(seat, clock))

        def finish(work: Any, client: ClientState, down: Message, seat: Seat) -> Any:
            at_end = clock._replace(step=seat.steps)
            return exchange.finish(work, client, down, self._site(seat, at_end))

        work = _over_clients(begin, (0, down_axis, 0), alone=alone)(client, own_down, seat)
        if exchange.local_steps:
            work = self._steps(exchange, work, client, own_down, seat._replace(rows=()), drawn, clock)
        over = _over_clients(finish, (0, 0, down_axis, 0), alone=alone)
        client, up = over(work, client, own_down, seat)
        client, up = tree.repeat((client, up), 1) if alone else _first(count, (client, up))
        setting.store.put(part.ids[:count], client)
        return _first(count, down) if exchange.personal_down else down, up

    def _steps(
        self,
        exchange: Exchange,
        work: Any,
        client: ClientState,
        down: Message,
        seat: Seat,
        rows: Tensor,
        clock: Clock,
    ) -> Any:
        """All local steps of a chunk: a step is recorded on its first use for these shapes, then replayed."""
        batches, per_step = self.setting.batches, exchange.batches_per_step
        weights = batches.weights(seat.client)
        # A recorded step overwrites what changes, so that needs memory of its own.
        changing, work_structure = pytree.tree_flatten(work)
        changing = [leaf.clone(memory_format=torch.contiguous_format) for leaf in changing]
        fixed, fixed_structure = pytree.tree_flatten((client, down, seat, clock.round))
        replay: Replay | None = None
        for step in range(int(seat.steps.max())):
            calls = rows[step * per_step : (step + 1) * per_step]
            drawn = [leaf for call in calls for leaf in self._laid_out(batches.gather(call, weights))]
            arguments = Arguments(changing, fixed, drawn, torch.tensor(step))
            if step == 0:
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
        masked = bool((seat.steps < seat.steps.max()).any())
        stacked_step = self._stacked_step(exchange, masked, local_steps, alone=seat.client.ndim == 0)

        def flat_step(arguments: Arguments) -> list[Tensor]:
            work = pytree.tree_unflatten(arguments.changing, work_structure)
            client, down, seat, round_number = pytree.tree_unflatten(arguments.fixed, fixed_structure)
            rows, each = arguments.drawn, len(Batch._fields)
            batches = tuple(Batch(*rows[start : start + each]) for start in range(0, len(rows), each))
            return tree.leaves(stacked_step(work, client, down, batches, seat, round_number, arguments.step))

        layouts = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in example.flat())
        signature = (exchange, masked, local_steps, layouts)
        return self._recordings.get(signature, lambda: record(flat_step, example))

    def _stacked_step(
        self, exchange: Exchange, masked: bool, local_steps: int, *, alone: bool
    ) -> Callable[..., Any]:
        """The step of a stack of clients, or of one client alone.

        With a mask, clients that have finished their work stand still.
        """

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
            moved = exchange.step(work, client, down, batches, site)
            return tree.where(step < seat.steps, moved, work) if masked else moved

        down_axis = 0 if exchange.personal_down else None
        return _over_clients(one, (0, 0, down_axis, 0, 0, None, None), alone=alone)

    def _seat(self, ids: Tensor, steps: Tensor, round_number: int, data: Rows | None) -> Seat:
        setting = self.setting
        rows: Batch | tuple[()] = ()
        if data is not None:
            rows = all_rows(setting.federation, data, ids, max(int(data.sizes.max()), 1))
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
        uploads, order = tree.concatenate(self.parts), torch.cat(self.ranks).argsort()
        in_order = bool((order.diff() == 1).all())  # a copy of all uploads saved
        return uploads if in_order else tree.select(uploads, order)


def chunk_size(module: nn.Module) -> int:
    """How many clients are worked on at once."""
    if any(isinstance(layer, nn.modules.conv._ConvNd) for layer in module.modules()):
        return 1  # for a stack of models it would be a grouped convolution, no faster than one by one
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    return max(1, min(MOST_CLIENTS, CHUNK_BYTES // size))


def padded_size(count: int) -> int:
    """A chunk's size rounded up to a few significant bits: few different shapes to record, little waste."""
    bits = 3 if count < 32 else 5
    grain = 1 << max(count.bit_length() - bits, 0)
    return -(-count // grain) * grain


def _over_clients(
    function: Callable[..., Any], axes: tuple[int | None, ...], *, alone: bool
) -> Callable[..., Any]:
    """A function of one client, for a stack of them, or for one that comes without the axis of clients."""
    return function if alone else vmap(function, in_dims=axes)


def _first(count: int, stacked: Any) -> Any:
    """The first entries of a stack."""
    return tree.map_tree(lambda leaf: leaf[:count], stacked)
