"""The engine whose clients are silos: what a round asks of them, and what is made of their answers."""

from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.around import innermost
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site
from idiolect.core.objective import Batch
from idiolect.core.schedule import Clock
from idiolect.core.transport import Journals
from idiolect.engines.engine import Outcome, Setting, Traffic, combine
from idiolect.evaluation.metrics import COLUMNS
from idiolect.silo.monitor import Monitor
from idiolect.silo.requests import Expected, Link, Request, ask_all
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import Packet, describe_object
from idiolect.store.roster import Roster


class Silos:
    """An engine: the client half of each exchange is carried out at the silos."""

    def __init__(
        self,
        setting: Setting,
        roster: Roster,
        link: Link,
        run: ServedRun,
        monitor: Monitor,
    ) -> None:
        self.setting = setting
        self.roster = roster
        self.link = link
        self.monitor = monitor
        self.settings = run.settings
        self.run_name = run.name
        self._position = (-1, 0)
        self._journals: Journals = {}

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange."""
        transport = self.setting.transport(exchange)
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        started = self._position[0] == round_number
        self._position = (round_number, self._position[1] + 1 if started else 0)
        self._journals = transport.journals(server, self._journals)
        traffic = Traffic(len(cohort))
        requests = {}
        for place in range(len(cohort)):
            here = torch.tensor([place])
            one = cohort.select(here)
            down = exchange.down(server, one.ids)
            traffic.record(traffic.down, here, transport.down_bits(server, down, one.ids))
            down = tree.row(down, 0) if exchange.personal_down else down
            requests[self._name(int(one.ids))] = self._work(exchange, server, down, one)
        minimum = self.settings.minimum(len(requests))
        what = f"round {round_number + 1}" + (f", exchange {self._position[1] + 1}" if started else "")
        with self.monitor.asking("silos", what):
            packets = ask_all(self.link, requests, self.settings.patience, minimum)
        self.monitor.usable(packets)
        uploads, arrived = [], torch.zeros_like(cohort.replied)
        for place, client_id in enumerate(cohort.ids.tolist()):
            packet = packets.get(self._name(client_id))
            if packet is None:
                continue
            self.roster.settled(client_id)
            if cohort.replied[place]:
                arrived[place] = True
                uploads.append(packet.trees["upload"])
                bits = transport.up_bits(tree.stack(uploads[-1:]), cohort.ids[place : place + 1])
                traffic.record(traffic.up, torch.tensor([place]), bits)
        heard = cohort.select(arrived)
        return Outcome(combine(exchange, server, uploads, heard), heard, traffic, cohort.ids)

    def evaluate(self, server: ServerState, ids: Tensor, round_number: int) -> pd.DataFrame:
        """The metrics of the silos that share them, in the form of a simulation's."""
        requests = {}
        for client_id in ids.tolist():
            first, method = self.first_state(client_id), self.setting.method
            brief = method.brief(server, torch.tensor([client_id]))
            brief = tree.row(brief, 0) if method.personal_brief else brief
            header = {"ask": "evaluate", "run": self.run_name, "round": round_number}
            trees = {"brief": brief} | ({} if first is None else {"first": first})
            requests[self._name(client_id)] = Request(header, trees)
        with self.monitor.asking("evaluation", f"evaluation after round {round_number}"):
            replies = ask_all(self.link, requests, self.settings.patience, 0)
        self.monitor.usable(replies)
        return _metrics_table(replies, [self._name(client_id) for client_id in ids.tolist()], round_number)

    def first_state(self, client_id: int) -> ClientState | None:
        """The state to send to a silo that has none yet."""
        if self.roster.has_state[client_id]:
            return None
        return tree.row(self.setting.states(torch.tensor([client_id])), 0)

    def _name(self, client_id: int) -> str:
        return self.settings.silos[client_id]

    def _work(self, exchange: Exchange, server: ServerState, down: Message, one: Cohort) -> Request:
        """The request for one exchange with one silo."""
        round_number, place = self._position
        assert one.local_steps is not None, "set by prepare"
        header = {
            "ask": "work",
            "run": self.run_name,
            "round": round_number,
            "place": place,
            "exchange": describe_object(innermost(exchange)),
            "work": float(one.work),
            "inclusion": float(one.inclusion),
            "local_steps": int(one.local_steps),
            "clock_steps": self.setting.clock_steps(exchange),
        }
        first = self.first_state(int(one.ids))
        expected = self._expected(exchange, down, one)
        if first is not None:
            # It may be a silo that lost its state: whatever it held before is gone, so nothing is left out.
            return Request(header, {"down": down, "first": first}, expected)
        sent = self.setting.transport(exchange).send_down(server, down, one.ids[0], self._journals)
        return Request(header, {"down": sent}, expected)

    def _expected(self, exchange: Exchange, down: Message, one: Cohort) -> Expected:
        """What an upload must look like, from a rehearsal with a row of zeros."""
        client = tree.row(self.setting.arrivals(self.setting.founding, one.ids), 0)
        site = self._stand_in_site(one.ids[0], self._position[0], self.setting.clock_steps(exchange))
        _, upload = exchange.finish(exchange.begin(client, down, site), client, down, site)
        return Expected(self.setting.transport(exchange), upload)

    def _stand_in_site(self, client_id: Tensor, round_number: int, clock_steps: int) -> Site:
        federation = self.setting.federation
        weights = torch.ones(1, dtype=federation.inputs.dtype)
        rows = Batch(federation.inputs, federation.targets, weights, torch.tensor(0))
        return Site(
            objective=self.setting.objective,
            client_id=client_id,
            size=torch.tensor(1),
            steps=torch.tensor(1),
            full_steps=torch.tensor(1),
            key=self.setting.client_key(client_id, round_number),
            clock=Clock(torch.tensor(round_number), torch.tensor(0), clock_steps),
            rows=rows,
        )


def _metrics_table(replies: Mapping[str, Packet], names: list[str], round_number: int) -> pd.DataFrame:
    """Shared metrics in the long form of a simulation's."""
    lines = [
        (round_number, name, kind, part, metric, float(value))
        for name in names
        if name in replies
        for part, kinds in replies[name].trees.get("metrics", {}).items()
        for kind, values in kinds.items()
        for metric, value in values.items()
    ]
    # Where nobody tells anything there is nothing to infer the types from.
    return pd.DataFrame(lines, columns=list(COLUMNS)).astype({"round": "int64", "value": "float64"})
