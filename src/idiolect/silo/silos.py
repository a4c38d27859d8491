"""The engine whose clients are silos: what a round asks of them, and what is made of their answers."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.around import innermost
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState
from idiolect.core.transport import Journals
from idiolect.engines.engine import Outcome, Setting, Traffic, combine
from idiolect.errors import UserError
from idiolect.evaluation.metrics import COLUMNS, PARTS
from idiolect.silo.monitor import Monitor
from idiolect.silo.questions import evaluation_in_common, work_in_common
from idiolect.silo.rehearsal import rehearsed_upload
from idiolect.silo.requests import Expected, Link, Request, ask_all
from idiolect.silo.secure.agreement import Occasion, evaluation_label, work_label
from idiolect.silo.secure.metric_sums import entries
from idiolect.silo.secure.summands import count_numbers, mean_of
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import Packet, describe_object
from idiolect.store.roster import Roster

if TYPE_CHECKING:
    from idiolect.silo.secure.coordinator_side import CoordinatorSums

SharedMetrics = dict[tuple[str, str, str], float]  # by part of the data, kind of model and metric


class Silos:
    """An engine: the client half of each exchange is carried out at the silos."""

    def __init__(
        self,
        setting: Setting,
        roster: Roster,
        link: Link,
        run: ServedRun,
        monitor: Monitor,
        sums: "CoordinatorSums | None" = None,
    ) -> None:
        self.setting = setting
        self.roster = roster
        self.link = link
        self.monitor = monitor
        self.sums = sums  # None: uploads are seen one by one
        self.settings = run.settings
        self.run_name = run.name
        self.measures = run.settings.config.evaluation.measures(setting.federation)
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
            answers = ask_all(self.link, requests, self.settings.patience, minimum)
        self.monitor.usable(answers)
        if self.sums is not None:
            return self._summed_securely(exchange, server, cohort, answers, traffic, what)
        uploads, arrived = [], torch.zeros_like(cohort.replied)
        for place, client_id in enumerate(cohort.ids.tolist()):
            name = self._name(client_id)
            if name not in answers:
                continue
            self.roster.settled(client_id)
            if cohort.replied[place]:
                arrived[place] = True
                uploads.append(answers[name])
                bits = transport.up_bits(tree.stack(uploads[-1:]), cohort.ids[place : place + 1])
                traffic.record(traffic.up, torch.tensor([place]), bits)
        heard = cohort.select(arrived)
        return Outcome(combine(exchange, server, uploads, heard), heard, traffic, cohort.ids)

    def _summed_securely(
        self,
        exchange: Exchange,
        server: ServerState,
        cohort: Cohort,
        keys: Mapping[str, Any],
        traffic: Traffic,
        what: str,
    ) -> Outcome:
        """What an exchange brought, of whose uploads only the weighted mean is known."""
        assert self.sums is not None, "asked for"
        if cohort.multiplicity is not None and not bool((cohort.multiplicity == 1).all()):
            raise UserError(f"{self.setting.method.name} draws a silo twice, which secure sums cannot count")
        names = [self._name(client_id) for client_id in cohort.ids.tolist()]
        for client_id, name in zip(cohort.ids.tolist(), names, strict=True):
            if name in keys:
                self.roster.settled(client_id)
        one = cohort.select(torch.tensor([0]))
        down = exchange.down(server, one.ids)
        down = tree.row(down, 0) if exchange.personal_down else down
        like = self._expected(exchange, down, one).like
        round_number, place = self._position
        header = {"run": self.run_name, "round": round_number, "place": place}
        question = work_in_common(exchange, self._asked(exchange, one), down)
        occasion = Occasion(work_label(self.run_name, round_number, place), question, header, "silos", what)
        replied = {name for name, arrives in zip(names, cohort.replied.tolist(), strict=True) if arrives}
        minimum = self.settings.minimum(len(keys))
        total = self.sums.collect(occasion, keys, count_numbers(like), replied, minimum)
        arrived = torch.tensor([name in total.survivors for name in names])
        bits = {"masked": torch.full((int(arrived.sum()),), 64 * count_numbers(like))}
        traffic.record(traffic.up, arrived.nonzero()[:, 0], bits)
        return Outcome(mean_of(total.numbers, like), cohort.select(arrived), traffic, cohort.ids)

    def evaluate(self, server: ServerState, ids: Tensor, round_number: int) -> pd.DataFrame:
        """The metrics of the silos that share them, in the form of a simulation's."""
        requests: dict[str, Request[Any]] = {}
        for client_id in ids.tolist():
            first, method = self.first_state(client_id), self.setting.method
            brief = method.brief(server, torch.tensor([client_id]))
            brief = tree.row(brief, 0) if method.personal_brief else brief
            header = {"ask": "evaluate", "run": self.run_name, "round": round_number}
            trees = {"brief": brief} | ({} if first is None else {"first": first})
            read = self._read_metrics if self.sums is None else self.sums.read_keys
            requests[self._name(client_id)] = Request(header, trees, read)
        with self.monitor.asking("evaluation", f"evaluation after round {round_number}"):
            replies = ask_all(self.link, requests, self.settings.patience, 0)
        self.monitor.usable(replies)
        if self.sums is not None:
            self._sum_metrics(self.sums, replies, server, round_number)
            replies = {}
        return _metrics_table(replies, [self._name(client_id) for client_id in ids.tolist()], round_number)

    def _sum_metrics(
        self, sums: "CoordinatorSums", keys: Mapping[str, Any], server: ServerState, round_number: int
    ) -> None:
        """Keep the metrics of all silos together, in a table of their own."""
        method = self.setting.method
        names = [metric.name for metric in self.measures.metrics]
        header = {"run": self.run_name, "round": round_number}
        what = f"metrics after round {round_number}"
        brief = method.brief(server, torch.tensor([0]))
        question = evaluation_in_common(round_number, brief, is_personal=method.personal_brief)
        label = evaluation_label(self.run_name, round_number)
        occasion = Occasion(label, question, header, "evaluation", what)
        sums.collect_metrics(occasion, keys, entries(method.kinds, names), round_number)

    def first_state(self, client_id: int) -> ClientState | None:
        """The state to send to a silo that has none yet."""
        if self.roster.has_state[client_id]:
            return None
        return tree.row(self.setting.states(torch.tensor([client_id])), 0)

    def _name(self, client_id: int) -> str:
        return self.settings.silos[client_id]

    def _work(self, exchange: Exchange, server: ServerState, down: Message, one: Cohort) -> Request[Message]:
        """The request for one exchange with one silo."""
        header = {
            "ask": "work",
            "run": self.run_name,
            "exchange": describe_object(innermost(exchange)),
            **self._asked(exchange, one),
        }
        first = self.first_state(int(one.ids))
        expected = self._expected(exchange, down, one)
        if first is not None:
            # It may be a silo that lost its state: whatever it held before is gone, so nothing is left out.
            trees = {"down": down, "first": first}
        else:
            transport = self.setting.transport(exchange)
            trees = {"down": transport.send_down(server, down, one.ids[0], self._journals)}
        if self.sums is not None:
            return Request(header, trees, self.sums.read_keys)
        return Request(header, trees, expected.read, expected.modules)

    def _asked(self, exchange: Exchange, one: Cohort) -> dict[str, Any]:
        """For when, and how much of it, a silo is asked to do the work of an exchange."""
        round_number, place = self._position
        return {
            "round": round_number,
            "place": place,
            "work": float(one.work),
            "clock_steps": self.setting.clock_steps(exchange),
        }

    def _expected(self, exchange: Exchange, down: Message, one: Cohort) -> Expected:
        """What an upload must look like, from a rehearsal with a row of zeros."""
        client = tree.row(self.setting.arrivals(self.setting.founding, one.ids), 0)
        upload = rehearsed_upload(self.setting, exchange, client, down, one.ids[0], self._position[0])
        return Expected(self.setting.transport(exchange), upload)

    def _read_metrics(self, packet: Packet) -> SharedMetrics:
        """What a silo tells of its models, of the parts, kinds and metrics that there are."""
        shared = packet.trees.get("metrics", {})
        names = {metric.name for metric in self.measures.metrics}
        told: SharedMetrics = {}
        for part, kinds in _entries(shared, PARTS):
            for kind, values in _entries(kinds, self.setting.method.kinds):
                for metric, value in _entries(values, names):
                    if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
                        raise UserError(f"sent metrics that cannot be read: {metric} is not a number")
                    told[part, kind, metric] = float(value)
        return told


def _entries(node: Any, known: Collection[str]) -> Iterable[tuple[str, Any]]:
    """The entries of a part of the metrics; others than there are are refused."""
    if not isinstance(node, Mapping) or (odd := node.keys() - set(known)):
        what = "not a table" if not isinstance(node, Mapping) else f"there is no {sorted(odd)[0]!r}"
        raise UserError(f"sent metrics that cannot be read: {what}")
    return node.items()


def _metrics_table(replies: Mapping[str, SharedMetrics], names: list[str], round_number: int) -> pd.DataFrame:
    """Shared metrics in the long form of a simulation's."""
    lines = [
        (round_number, name, kind, part, metric, value)
        for name in names
        for (part, kind, metric), value in replies.get(name, {}).items()
    ]
    # Where nobody tells anything there is nothing to infer the types from.
    return pd.DataFrame(lines, columns=list(COLUMNS)).astype({"round": "int64", "value": "float64"})
