"""One client at a time: the executable specification that every other engine is tested against."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import ClientState, Cohort, Exchange, Message, ServerState, Site
from idiolect.core.schedule import Clock
from idiolect.data.federation import Rows
from idiolect.engines.base import Outcome, Setting, Traffic, combine
from idiolect.engines.batches import all_rows


class Task(NamedTuple):
    """The local work of one client: all that `Sequential.work` needs besides the setting."""

    exchange: Exchange
    down: Message
    client: ClientState
    one: Cohort
    round_number: int


Result = tuple[ClientState, Message]
Apply = Callable[[Callable[[Task], Result], Iterable[Task]], Iterable[Result]]


class Sequential:
    """Runs clients one after the other, in plain Python (or in whatever order `apply` works tasks off)."""

    def __init__(self, setting: Setting, apply: Apply = map) -> None:
        self.setting = setting
        self._apply = apply

    def run(self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int) -> Outcome:
        """Carry out one exchange."""
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        traffic = Traffic(len(cohort))
        ones = [cohort.select(torch.tensor([place])) for place in range(len(cohort))]

        def tasks() -> Iterator[Task]:
            for place, one in enumerate(ones):
                down = exchange.down(server, one.ids)
                bits = exchange.down_bits(server, down, one.ids)
                traffic.record(traffic.down, torch.tensor([place]), bits)
                client = tree.row(self.setting.states(one.ids), 0)
                yield Task(
                    exchange, tree.row(down, 0) if exchange.personal_down else down, client, one, round_number
                )

        uploads = []
        for place, (client, up) in enumerate(self._apply(self.work, tasks())):
            one = ones[place]
            self.setting.store.put(one.ids, tree.stack([client]))
            if one.replied:
                bits = exchange.up_bits(tree.stack([up]), one.ids)
                traffic.record(traffic.up, torch.tensor([place]), bits)
                uploads.append(up)
        arrived = cohort.select(cohort.replied)
        return Outcome(combine(exchange, server, uploads, arrived), arrived, traffic, cohort.ids)

    def work(self, task: Task) -> Result:
        """The local work of one client: its new state and its upload."""
        exchange, down, client, one, round_number = task
        batches = self.setting.batches
        site = self._site(exchange, one, round_number)
        calls = torch.arange(int(one.steps) * exchange.batches_per_step)
        width = int(batches.batch_sizes[one.ids])
        draws = batches.draw(one.ids, round_number, calls, width)
        weights = batches.weights(one.ids, width)
        work = exchange.begin(client, down, site(0))
        for step in range(int(one.steps)):
            first = step * exchange.batches_per_step
            drawn = draws[first : first + exchange.batches_per_step]
            work = exchange.step(
                work, client, down, tuple(batches.gather(rows, weights[0]) for rows in drawn), site(step)
            )
        return exchange.finish(work, client, down, site(int(one.steps)))

    def survey(
        self, look: Callable[[ClientState, Site], Any], part: Rows, ids: Tensor, round_number: int
    ) -> Any:
        """Apply a pure function to every client; the results are stacked."""
        results = []
        for number in ids:
            client = tree.row(self.setting.states(number[None]), 0)
            site = Site(
                objective=self.setting.objective,
                client=number,
                size=self.setting.federation.train.sizes[number],
                steps=torch.tensor(0),
                key=self.setting.client_key(number, round_number),
                clock=Clock(torch.tensor(round_number), torch.tensor(0), 0),
                rows=tree.row(all_rows(self.setting.federation, part, number[None]), 0),
            )
            results.append(look(client, site))
        return tree.stack(results)

    def _site(self, exchange: Exchange, one: Cohort, round_number: int) -> Callable[[int], Site]:
        setting, train = self.setting, self.setting.federation.train
        rows = None
        if exchange.sees_all_rows:
            rows = tree.row(all_rows(setting.federation, train, one.ids), 0)

        def at(step: int) -> Site:
            return Site(
                objective=setting.objective,
                client=one.ids[0],
                size=train.sizes[one.ids[0]],
                steps=one.steps[0],
                key=setting.client_key(one.ids[0], round_number),
                clock=Clock(torch.tensor(round_number), torch.tensor(step), setting.clock_steps(exchange)),
                rows=rows,
            )

        return at
