"""The local work of a chunk: a stack of clients through `torch.func.vmap`, or one client without that axis.

Nothing is fetched or kept here, so that chunks can be worked on in several threads. The step is recorded on
its first use for a signature and replayed, which saves the transforms' bookkeeping: more than the arithmetic
of small models (see docs/performance.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from idiolect.core import rng, tree
from idiolect.core.device import to_device
from idiolect.core.exchange import ClientState, Exchange, Message, Site
from idiolect.core.objective import Batch, Objective
from idiolect.core.schedule import Clock
from idiolect.engines.chunks import Stage
from idiolect.engines.compiler.compiler import Compiler, Steps
from idiolect.engines.compiler.recorder import Arguments, Step
from idiolect.engines.engine import Setting

Stages = list[tuple[Stage, Tensor]]  # the stages of a chunk, with their rows int64[calls, stack, width]
CHECKED_ONE_IN = 128  # of the times that some steps of a chunk are replayed: one of these steps is compared


class Seat(NamedTuple):
    """The part of a site that differs from client to client, stacked."""

    client_id: Tensor
    size: Tensor
    steps: Tensor
    full_steps: Tensor
    key: Tensor
    rows: Batch | tuple[()]
    validation: Batch | tuple[()] = ()

    @property
    def is_alone(self) -> bool:
        """Whether this is one client, without an axis of clients."""
        return self.client_id.ndim == 0

    def site(self, objective: Objective, clock: Clock) -> Site:
        """Where the client half of a method runs."""
        rows, validation = (
            given if isinstance(given, Batch) else None for given in (self.rows, self.validation)
        )
        own = (self.client_id, self.size, self.steps, self.full_steps, self.key)
        return Site(objective, *own, clock, rows, validation)


class Chunk(NamedTuple):
    """What the local work of some clients takes: what they work with on the device, their plan on the CPU."""

    exchange: Exchange
    down: Message  # the same for all, unless the exchange has personal ones
    client: ClientState
    seat: Seat
    clock: Clock  # at the first step
    ids: Tensor  # who they are, and
    staged: Stages  # which rows they see: none if there is no training
    round_number: int

    @property
    def down_axis(self) -> int | None:
        """The axis of clients in the message to them."""
        return 0 if self.exchange.personal_down and not self.seat.is_alone else None


class LocalWork:
    """Works on chunks with one copy of the model. Steps are recorded if there is a compiler."""

    def __init__(
        self,
        setting: Setting,
        objective: Objective,
        compiler: Compiler | None,
        layout: Callable[[Batch], Batch],
    ) -> None:
        self.setting, self.objective, self._compiler, self._laid_out = setting, objective, compiler, layout

    def work(self, chunk: Chunk) -> tuple[ClientState, Message]:
        """The new states and the uploads."""
        exchange, down, client, seat, clock, _, staged, _ = chunk

        def begin(client: ClientState, down: Message, seat: Seat) -> Any:
            return exchange.begin(client, down, seat.site(self.objective, clock))

        def finish(work: Any, client: ClientState, down: Message, seat: Seat) -> Any:
            return exchange.finish(
                work, client, down, seat.site(self.objective, clock._replace(step=seat.steps))
            )

        alone, axis = seat.is_alone, chunk.down_axis
        work = over_clients(begin, (0, axis, 0), alone=alone)(client, down, seat)
        if staged:
            # A recorded step overwrites what changes, so that needs memory of its own.
            own = tree.map_tree(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), work)
            work = self._steps(chunk._replace(seat=seat._replace(rows=(), validation=())), own)
        return over_clients(finish, (0, 0, axis, 0), alone=alone)(work, client, down, seat)

    def _steps(self, chunk: Chunk, work: Any) -> Any:
        """All local steps. Those who finish are set aside: they may be computed a while longer."""
        if chunk.seat.is_alone:
            ((stage, rows),) = chunk.staged
            return self._some_steps(chunk._replace(ids=chunk.ids[0]), work, stage.steps, rows[:, 0])
        finished: list[Any] = []
        for stage, rows in chunk.staged:
            work, client, seat, ids = first_of(stage.stack, (work, chunk.client, chunk.seat, chunk.ids))
            down = chunk.down if chunk.down_axis is None else first_of(stage.stack, chunk.down)
            chunk = chunk._replace(client=client, seat=seat, ids=ids, down=down)
            work = self._some_steps(chunk, work, stage.steps, rows)
            done = between(stage.staying, stage.active, work)
            finished.append(tree.map_tree(torch.clone, done) if stage.staying else done)
        return tree.concatenate(finished[::-1])

    def _some_steps(self, chunk: Chunk, work: Any, steps: range, rows: Tensor) -> Any:
        """Steps of one stack."""
        batches, per_step = self.setting.batches, chunk.exchange.batches_per_step
        weights = batches.weights(chunk.ids, rows.shape[-1])
        rows = to_device(rows, batches.rows_device)
        numbers = torch.arange(steps.start, steps.stop, device=batches.device)
        changing, work_structure = pytree.tree_flatten(work)
        fixed, fixed_structure = pytree.tree_flatten(
            (chunk.client, chunk.down, chunk.seat, chunk.clock.round)
        )
        first_call, ids = steps.start * per_step, chunk.ids
        calls = torch.arange(first_call, first_call + len(rows)).reshape(-1, *[1] * ids.ndim)
        keys = batches.keys(ids, chunk.round_number, calls)
        taken: Steps | None = None
        checked = None if self._compiler is None else self._checked_step(chunk, steps)
        for place, (step, number) in enumerate(zip(steps, numbers, strict=True)):
            drawn, drawn_structure = pytree.tree_flatten(
                tuple(
                    self._laid_out(batches.gather(rows[call], weights, tree.row(keys, call)))
                    for call in range(place * per_step, (place + 1) * per_step)
                )
            )
            arguments = Arguments(changing, fixed, drawn, number)
            if taken is None:
                plain = self._plain_step(chunk, work_structure, fixed_structure, drawn_structure)
                taken = self._compiled(chunk, plain, arguments)
            changing = taken.take(arguments, step, is_checked=step == checked)
        return pytree.tree_unflatten(changing, work_structure)

    def _compiled(self, chunk: Chunk, plain: Step, example: Arguments) -> Steps:
        if self._compiler is None:
            return Steps(plain)
        layouts = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in example.flat())
        signature = (chunk.exchange, chunk.clock.local_steps, layouts)
        return self._compiler.steps(signature, plain, example)

    def _checked_step(self, chunk: Chunk, steps: range) -> int | None:
        """Now and then, by a key of the run, a step is compared with the plain one once more."""
        first_client = chunk.ids.reshape(-1)[0]
        key = rng.key(self.setting.seed, "check", first_client, chunk.round_number, steps.start)
        return (
            steps[int(rng.below(rng.fold(key, 1), len(steps)))]
            if rng.below(key, CHECKED_ONE_IN) == 0
            else None
        )

    def _plain_step(
        self, chunk: Chunk, work_structure: Any, fixed_structure: Any, drawn_structure: Any
    ) -> Step:
        """The step of a stack of clients, or of one client alone, as a function of flat arguments."""
        exchange, local_steps, objective = chunk.exchange, chunk.clock.local_steps, self.objective

        def one(
            work: Any,
            client: ClientState,
            down: Message,
            batches: tuple[Batch, ...],
            seat: Seat,
            round_number: Tensor,
            step: Tensor,
        ) -> Any:
            site = seat.site(objective, Clock(round_number, step, local_steps))
            return exchange.step(work, client, down, batches, site)

        axes = (0, 0, chunk.down_axis, 0, 0, None, None)
        stacked = over_clients(one, axes, alone=chunk.seat.is_alone)

        def flat_step(arguments: Arguments) -> list[Tensor]:
            work = pytree.tree_unflatten(arguments.changing, work_structure)
            client, down, seat, round_number = pytree.tree_unflatten(arguments.fixed, fixed_structure)
            batches = pytree.tree_unflatten(arguments.drawn, drawn_structure)
            moved = stacked(work, client, down, batches, seat, round_number, arguments.step)
            return tree.leaves(moved, like=work)

        return flat_step


def over_clients(
    function: Callable[..., Any], axes: tuple[int | None, ...], *, alone: bool
) -> Callable[..., Any]:
    """A function of one client, for a stack of them, or for one that comes without the axis of clients."""
    return function if alone else vmap(function, in_dims=axes)


def first_of(count: int, stacked: Any) -> Any:
    """The first entries of a stack."""
    return between(0, count, stacked)


def between(start: int, stop: int, stacked: Any) -> Any:
    """Neighbouring entries of a stack."""
    return tree.map_tree(lambda leaf: leaf[start:stop], stacked)
