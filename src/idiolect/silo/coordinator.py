"""The coordinator's half: an engine whose clients are silos, and the rounds with checkpoints around it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.core.method import (
    ClientState,
    Cohort,
    Exchange,
    Journals,
    Message,
    Population,
    ServerState,
    Site,
)
from idiolect.core.objective import Batch, Objective, in_precision
from idiolect.core.schedule import Clock
from idiolect.data.federation import Rows
from idiolect.engines.base import Outcome, Setting, Traffic, combine
from idiolect.engines.loop import play_round
from idiolect.evaluation.metrics import COLUMNS, main_metric
from idiolect.models import build_model
from idiolect.runs.config import build_method
from idiolect.silo.asking import Expected, Link, Request, ask_all
from idiolect.silo.finding import agree_on_schema
from idiolect.silo.roster import Roster
from idiolect.silo.serving import ServeFolder, ServeSettings
from idiolect.silo.share import needs, shared_part
from idiolect.silo.tracking import Tracker, View
from idiolect.silo.wire import Packet, describe_object

log = logging.getLogger(__name__)


class Silos:
    """An engine: the client half of each exchange is carried out at the silos."""

    def __init__(
        self,
        setting: Setting,
        roster: Roster,
        link: Link,
        settings: ServeSettings,
        run: str,
        tracker: Tracker,
    ) -> None:
        self.setting = setting
        self.roster = roster
        self.link = link
        self.tracker = tracker
        self.settings = settings
        self.run_name = run
        self._position = (-1, 0)
        self._journals: Journals = {}

    def run(self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int) -> Outcome:
        """Carry out one exchange."""
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        started = self._position[0] == round_number
        self._position = (round_number, self._position[1] + 1 if started else 0)
        self._journals = exchange.journals(server, self._journals)
        traffic = Traffic(len(cohort))
        requests = {}
        for place in range(len(cohort)):
            here = torch.tensor([place])
            one = cohort.select(here)
            down = exchange.down(server, one.ids)
            traffic.record(traffic.down, here, exchange.down_bits(server, down, one.ids))
            down = tree.row(down, 0) if exchange.personal_down else down
            requests[self._name(int(one.ids))] = self._work(exchange, server, down, one)
        minimum = self.settings.minimum(len(requests))
        what = f"round {round_number + 1}" + (f", exchange {self._position[1] + 1}" if started else "")
        with self.tracker.asking("silos", what):
            packets = ask_all(self.link, requests, self.settings.patience, minimum)
        self.tracker.usable(packets)
        uploads, arrived = [], torch.zeros_like(cohort.replied)
        for place, number in enumerate(cohort.ids.tolist()):
            packet = packets.get(self._name(number))
            if packet is None:
                continue
            self.roster.settled(number)
            if cohort.replied[place]:
                arrived[place] = True
                uploads.append(packet.trees["upload"])
                bits = exchange.up_bits(tree.stack(uploads[-1:]), cohort.ids[place : place + 1])
                traffic.record(traffic.up, torch.tensor([place]), bits)
        heard = cohort.select(arrived)
        return Outcome(combine(exchange, server, uploads, heard), heard, traffic, cohort.ids)

    def survey(
        self, look: Callable[[ClientState, Site], Any], part: Rows, ids: Tensor, round_number: int
    ) -> Any:
        """Nobody looks at silos from here: they are asked to evaluate."""
        raise NotImplementedError("the coordinator cannot look at clients")

    def evaluate(self, server: ServerState, ids: Tensor, round_number: int) -> pd.DataFrame:
        """The metrics of the silos that share them, in the form of a simulation's."""
        requests = {}
        for number in ids.tolist():
            first = self.first_state(number)
            template = tree.row(self.setting.arrivals(self.setting.founding, torch.tensor([number])), 0)
            site = self._stand_in_site(torch.tensor(number), round_number, 0)
            needed = needs(self.setting.method, server, template, site)
            share, absent = shared_part(server, needed, number)
            header = {"ask": "evaluate", "run": self.run_name, "round": round_number, "absent": absent}
            trees = {"server": share} | ({} if first is None else {"first": first})
            requests[self._name(number)] = Request(header, trees)
        with self.tracker.asking("evaluation", f"evaluation after round {round_number}"):
            replies = ask_all(self.link, requests, self.settings.patience, 0)
        self.tracker.usable(replies)
        metrics = _metrics_table(replies, [self._name(number) for number in ids.tolist()], round_number)
        self.tracker.evaluated(metrics)
        return metrics

    def first_state(self, number: int) -> ClientState | None:
        """The state to send to a silo that has none yet."""
        if self.roster.has_state[number]:
            return None
        if number in self.roster.pending:
            return self.roster.pending[number]
        return tree.row(self.setting.arrivals(self.setting.founding, torch.tensor([number])), 0)

    def _name(self, number: int) -> str:
        return self.settings.silos[number]

    def _work(self, exchange: Exchange, server: ServerState, down: Message, one: Cohort) -> Request:
        """The request for one exchange with one silo."""
        number, (round_number, index) = int(one.ids), self._position
        assert one.local_steps is not None, "set by prepare"
        header = {
            "ask": "work",
            "run": self.run_name,
            "round": round_number,
            "exchange": index,
            "task": describe_object(exchange),
            "work": float(one.work),
            "inclusion": float(one.inclusion),
            "local_steps": int(one.local_steps),
            "clock_steps": self.setting.clock_steps(exchange),
        }
        first = self.first_state(number)
        expected = self._expected(exchange, down, one)
        if first is not None:
            # It may be a silo that lost its state: whatever it held before is gone, so nothing is left out.
            return Request(header, {"down": down, "first": first}, expected)
        sent = exchange.send_down(server, down, one.ids[0], self._journals)
        return Request(header, {"down": sent}, expected)

    def _expected(self, exchange: Exchange, down: Message, one: Cohort) -> Expected:
        """What an upload must look like, from a rehearsal with a row of zeros."""
        client = tree.row(self.setting.arrivals(self.setting.founding, one.ids), 0)
        site = self._stand_in_site(one.ids[0], self._position[0], self.setting.clock_steps(exchange))
        _, upload = exchange.finish(exchange.begin(client, down, site), client, down, site)
        return Expected(exchange, upload)

    def _stand_in_site(self, number: Tensor, round_number: int, clock_steps: int) -> Site:
        federation = self.setting.federation
        rows = Batch(federation.inputs, federation.targets, torch.ones(1, dtype=federation.inputs.dtype))
        return Site(
            objective=self.setting.objective,
            client=number,
            size=torch.tensor(1),
            steps=torch.tensor(1),
            key=self.setting.client_key(number, round_number),
            clock=Clock(torch.tensor(round_number), torch.tensor(0), clock_steps),
            rows=rows,
        )


def coordinate(folder: ServeFolder, link: Link, views: Sequence[View] = ()) -> pd.DataFrame:
    """Greet the silos, play the rounds that are left, evaluate and save; returns all metrics."""
    with Tracker(folder, views) as tracker:
        metrics = _play(folder, tracker.watch(link), tracker)
        folder.finish()
        log.info("finished after round %d", folder.settings.config.rounds)
    return pd.concat(metrics, ignore_index=True)


def _play(folder: ServeFolder, link: Link, tracker: Tracker) -> list[pd.DataFrame]:
    """All rounds that are left; a table of metrics for each evaluation, earlier ones included."""
    config, silos = folder.settings.config, folder.settings.silos
    engine, server, start = _begin(folder, link, tracker)
    plan = config.participation.bind(silos)
    metrics = folder.metrics(up_to=start)

    def evaluate(done: int) -> None:
        present = plan.present(max(done - 1, 0), len(silos)).nonzero()[:, 0]
        with tracker.phase("evaluation"):
            metrics.append(engine.evaluate(server, present, done))
            folder.write_metrics(metrics)
        _log_metrics(
            metrics[-1], engine.setting.method.kinds[-1], main_metric(engine.setting.federation.task)
        )

    def is_due(done: int) -> bool:
        return done in (0, config.rounds) or done % config.evaluation.every == 0

    log.info("%s at round %d", "started" if start == 0 else "continued", start)
    if is_due(start) and not any(start in table["round"].values for table in metrics):
        evaluate(start)
    if start == 0:
        tracker.played(0, 0, 0)
        tracker.completed()
    for round_number in range(start, config.rounds):
        result = play_round(engine, plan, server, round_number)
        server, done = result.server, round_number + 1
        down_bits, up_bits = int(result.down_bits.sum()), int(result.up_bits.sum())
        record = tracker.played(done, down_bits, up_bits)
        with tracker.phase("saving"):
            folder.save(done, server, engine.roster.pending)
        line = "round %d of %d: %.1f s, %.3g kB down, %.3g kB up"
        log.info(line, done, config.rounds, record.own_seconds, down_bits / 8e3, up_bits / 8e3)
        if is_due(done):
            evaluate(done)
        tracker.completed()
    return metrics


def _begin(folder: ServeFolder, link: Link, tracker: Tracker) -> tuple[Silos, ServerState, int]:
    """The engine, the server and the round to go on with: the first, or the one after the checkpoint."""
    with tracker.asking("greeting", "summary of its columns"):
        agree_on_schema(folder, link)
    with tracker.asking("greeting", "greeting"):
        rows, known = _greet(folder, link)
    folder.remember_rows(rows)
    engine, server = _build(folder, link, rows, tracker)
    tracker.greeted(rows, main_metric(engine.setting.federation.task))
    engine.roster.has_state = torch.tensor([known[name] for name in folder.settings.silos])
    checkpoint = folder.checkpoint()
    if checkpoint is None:
        tracker.continued(-1)
        return engine, server, 0
    start, server, engine.roster.pending = checkpoint
    tracker.continued(start)
    return engine, server, start


def _log_metrics(metrics: pd.DataFrame, kind: str, metric: str) -> None:
    """One line with the models that the method is judged by, at the silos that share their metrics."""
    part = metrics[(metrics.part == "validation") & (metrics.kind == kind) & (metrics.metric == metric)]
    if len(part):
        values = ", ".join(f"{row.client} {row.value:.4g}" for row in part.itertuples())
        log.info("validation %s of %s models: %s", metric, kind, values)


def _greet(folder: ServeFolder, link: Link) -> tuple[dict[str, int], dict[str, bool]]:
    """Agree with every silo on configuration and schema; learn how many rows it trains on."""
    settings = folder.settings
    requests = {}
    for number, name in enumerate(settings.silos):
        header = {
            "ask": "hello",
            "run": folder.run_name,
            "name": name,
            "number": number,
            "clients": len(settings.silos),
            "config": settings.shared_config(),
            "schema": settings.agreed_schema.plain(),
        }
        requests[name] = Request(header, {})
    replies = ask_all(link, requests, settings.patience, len(requests))
    rows = {name: int(packet.header["rows"]["train"]) for name, packet in replies.items()}
    return rows, {name: bool(packet.header["known"]) for name, packet in replies.items()}


def _build(
    folder: ServeFolder, link: Link, rows: Mapping[str, int], tracker: Tracker
) -> tuple[Silos, ServerState]:
    """The engine, and the server before the first round: as in a simulation, but without data."""
    settings, config = folder.settings, folder.settings.config
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    sizes = [rows[name] for name in settings.silos]
    federation = settings.agreed_schema.stand_in(settings.silos, sizes).to(dtype)
    options = dict(config.model)
    module = build_model(options.pop("name"), federation, seed=config.seed, **options)
    objective = Objective(in_precision(module, dtype), federation.task, config.weight_decay)
    method = config.codec.wrap(build_method(config.method))
    plan = config.participation.bind(settings.silos)
    population = Population(federation.train.sizes, plan.present(0, len(federation)))
    founding = method.server_init(objective.initial_params(), population, rng.key(config.seed, "server"))
    roster = Roster(len(federation))
    setting = Setting(
        method,
        objective,
        federation,
        roster,
        seed=config.seed,
        batch_size=None if config.batch_size == "all" else config.batch_size,
        founding=founding,
    )
    return Silos(setting, roster, link, settings, folder.run_name, tracker), founding


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
    return pd.DataFrame(lines, columns=list(COLUMNS))
