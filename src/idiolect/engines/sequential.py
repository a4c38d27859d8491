"""One client at a time: the executable specification that every other engine is tested against."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.cohort import Cohort
from idiolect.core.device import to_device, to_host
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site
from idiolect.core.method import Method
from idiolect.core.objective import Batch
from idiolect.core.schedule import Clock
from idiolect.data.federation import Rows
from idiolect.engines.engine import Look, Outcome, Setting, Traffic, combine

T = TypeVar("T")


class Assignment(NamedTuple):
    """The local work of one client: all that `Sequential.work` needs besides the setting."""

    exchange: Exchange
    down: Message
    client: ClientState
    one: Cohort
    round_number: int


class Sequential:
    """Runs clients one after the other, in plain Python."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange."""
        transport = self.setting.transport(exchange)
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        traffic = Traffic(len(cohort))
        uploads = []
        for place in torch.arange(len(cohort))[:, None]:
            one = cohort.select(place)
            down = exchange.down(server, one.ids)
            traffic.record(traffic.down, place, transport.down_bits(server, down, one.ids))
            own_down = self._there(tree.row(down, 0) if exchange.personal_down else down)
            client = tree.row(self.setting.states(one.ids), 0)
            client, up = self.work(Assignment(exchange, own_down, client, one, round_number))
            self.setting.store.put(one.ids, tree.stack([client]))
            if one.replied:
                traffic.record(traffic.up, place, transport.up_bits(tree.stack([up]), one.ids))
                uploads.append(to_host(up))
        arrived = cohort.select(cohort.replied)
        return Outcome(combine(exchange, server, uploads, arrived), arrived, traffic, cohort.ids)

    def work(self, assignment: Assignment) -> tuple[ClientState, Message]:
        """The local work of one client: its new state and its upload."""
        exchange, down, client, one, round_number = assignment
        batches = self.setting.batches
        site = self._site(exchange, one, round_number)
        calls = torch.arange(int(one.steps) * exchange.batches_per_step)
        width = int(batches.widths[one.ids])
        draws = batches.draw(one.ids, round_number, calls, width)
        weights, keys = batches.weights(one.ids, width), batches.keys(one.ids, round_number, calls)
        work = exchange.begin(client, down, site(0))
        for step in range(int(one.steps)):
            first = step * exchange.batches_per_step
            drawn = tuple(
                batches.gather(draws[call], weights[0], tree.row(keys, call))
                for call in range(first, first + exchange.batches_per_step)
            )
            work = exchange.step(work, client, down, drawn, site(step))
        return exchange.finish(work, client, down, site(int(one.steps)))

    def survey(self, look: Look, server: ServerState, part: Rows, ids: Tensor, round_number: int) -> Any:
        """Look at every client; the results are stacked."""
        results = []
        for client_id in ids:
            client = tree.row(self.setting.states(client_id[None]), 0)
            brief = self.setting.method.brief(server, client_id[None])
            own_brief = self._there(tree.row(brief, 0) if self.setting.method.personal_brief else brief)
            seen = look(client, own_brief, self.site_of_rows(client_id, part, round_number))
            results.append(to_host(seen))
        return tree.stack(results)

    def site_of_rows(self, client_id: Tensor, part: Rows, round_number: int) -> Site:
        """Where a client is looked at with its rows in one part of the data."""
        return Site(
            objective=self.setting.objective,
            client_id=self._there(client_id),
            size=self._there(self.setting.federation.train.sizes[client_id]),
            steps=self._there(torch.tensor(0)),
            full_steps=self._there(torch.tensor(0)),
            key=self._there(self.setting.client_key(client_id, round_number)),
            clock=self._there(Clock(torch.tensor(round_number), torch.tensor(0), 0)),
            rows=self._all_rows(part, client_id, round_number),
            validation=self._validation_rows(self.setting.method, client_id, round_number),
        )

    def _there(self, tree: T) -> T:
        return to_device(tree, self.setting.device)

    def _site(self, exchange: Exchange, one: Cohort, round_number: int) -> Callable[[int], Site]:
        setting, train = self.setting, self.setting.federation.train
        rows = self._all_rows(train, one.ids[0], round_number) if exchange.sees_all_rows else None
        validation = self._validation_rows(exchange, one.ids[0], round_number)
        local_steps = setting.clock_steps(exchange)

        def clock(step: int) -> Clock:
            return self._there(Clock(torch.tensor(round_number), torch.tensor(step), local_steps))

        start = Site(
            objective=setting.objective,
            client_id=self._there(one.ids[0]),
            size=self._there(train.sizes[one.ids[0]]),
            steps=self._there(one.steps[0]),
            full_steps=self._there(one.full_steps[0]),
            key=self._there(setting.client_key(one.ids[0], round_number)),
            clock=clock(0),
            rows=rows,
            validation=validation,
        )
        return lambda step: replace(start, clock=clock(step))

    def _validation_rows(
        self, viewer: Exchange | Method, client_id: Tensor, round_number: int
    ) -> Batch | None:
        """For those who look at them."""
        if not viewer.sees_validation_rows:
            return None
        return self._all_rows(self.setting.federation.validation, client_id, round_number)

    def _all_rows(self, part: Rows, client_id: Tensor, round_number: int) -> Batch:
        return tree.row(self.setting.batches.all_rows(part, client_id[None], round_number), 0)
