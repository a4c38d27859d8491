"""A silo's half: it answers what the coordinator asks, from its own table and its own state.

| asked     | answered                                                                              |
|-----------|---------------------------------------------------------------------------------------|
| name      | its name, for trials without keys                                                     |
| summary   | sums over its table, if it shares them and the schema is to be found together         |
| hello     | how many rows it has, and whether it has a state of this run already                  |
| work      | the upload of one exchange; the new state stays here                                  |
| evaluate  | its metrics, if it shares them; its models stay here                                  |

Whatever is outside of its limits is refused in one sentence, which the coordinator logs.
"""

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from idiolect.codecs.config import CodecConfig
from idiolect.core import tree
from idiolect.core.method import ClientState, Cohort, Exchange, Method, Population, Site
from idiolect.core.objective import Objective, in_precision
from idiolect.data.federation import Federation, Rows
from idiolect.engines.base import Setting
from idiolect.engines.sequential import Sequential, Task
from idiolect.errors import UserError
from idiolect.evaluation.metrics import PARTS, row_metrics, rows_of
from idiolect.models import build_model, outline_model
from idiolect.runs.checks import build
from idiolect.runs.config import build_method
from idiolect.silo.limits import Limits
from idiolect.silo.schema import Schema, Search
from idiolect.silo.share import filled_in
from idiolect.silo.summary import summarise
from idiolect.silo.vault import FIRST, Position, RunVault
from idiolect.silo.wire import Packet, pack, rebuild_object, unpack

log = logging.getLogger(__name__)


class OneClient:
    """A store with room for one client."""

    def __init__(self) -> None:
        self.state: ClientState = None

    def known(self, ids: Tensor) -> Tensor:
        """The one client has a state as soon as it was given one."""
        return torch.full_like(ids, self.state is not None, dtype=torch.bool)

    def get(self, ids: Tensor) -> ClientState:
        """The state, stacked."""
        return tree.map_tree(lambda leaf: leaf[None], self.state)

    def put(self, ids: Tensor, states: ClientState) -> None:
        """Keep the state."""
        self.state = tree.row(states, 0)

    def save(self, folder: Path) -> None:
        """States are kept in the vault."""
        raise NotImplementedError

    def load(self, folder: Path, template: ClientState) -> None:
        """States are kept in the vault."""
        raise NotImplementedError


class SiloSetting(Setting):
    """A setting in which the coordinator tells the clock, since other silos' sizes are not known here."""

    steps_on_clock = 0

    def clock_steps(self, exchange: Exchange) -> int:
        """The local steps of a round on the clock of schedules."""
        return self.steps_on_clock


class Run:
    """One run at one silo: what was agreed, ready to work."""

    def __init__(
        self, agreement: dict[str, Any], table: pd.DataFrame, vault: RunVault, limits: Limits
    ) -> None:
        config = agreement["config"]
        self.vault = vault
        self.number = int(agreement["number"])
        limits.admit_run(agreement["clients"], self.number)
        schema = Schema.from_plain(agreement["schema"])
        federation = schema.read(table, agreement["name"], self.number, agreement["clients"])
        self.method, setting = build_setting(config, federation, limits)
        self.engine = Sequential(setting)
        self.setting = setting
        self.ids = torch.tensor([self.number])

    def work(self, packet: Packet, limits: Limits) -> bytes:
        """The upload of one exchange."""
        header, trees = packet
        position = Position(int(header["round"]), int(header["exchange"]))
        exchange = rebuild_object(header["task"])
        if not isinstance(exchange, Exchange):
            raise UserError("a message asks for work that is not an exchange")
        limits.admit_steps(int(header["local_steps"]))
        sizes = self.setting.federation.train.sizes
        cohort = Cohort(
            self.ids,
            work=torch.tensor([header["work"]], dtype=torch.float64),
            replied=torch.tensor([True]),
            inclusion=torch.tensor([header["inclusion"]], dtype=torch.float64),
            population=Population(sizes, torch.ones_like(sizes, dtype=torch.bool)),
            local_steps=torch.tensor([header["local_steps"]]),
        )
        if "first" in trees and self.vault.before(position) is None:
            self.vault.keep(FIRST, trees["first"])
        state = self.vault.before(position)
        if state is None:
            raise UserError("this silo has no state in this run, and none was sent")
        self.setting.steps_on_clock = int(header["clock_steps"])
        down = exchange.receive_down(trees["down"], state)
        state, upload = self.engine.work(Task(exchange, down, state, cohort, position.round))
        sent = exchange.send_up(upload)  # before the state is kept: it may be refused
        self.vault.keep(position, state)
        return pack({**_echo(header), "steps": int(cohort.steps)}, {"upload": sent})

    def evaluate(self, packet: Packet, limits: Limits, shares_metrics: bool) -> bytes:
        """The metrics of all models on validation and test rows; the models are kept here."""
        header, trees = packet
        server = filled_in(trees["server"], header["absent"], limits.most_bytes)
        round_number = int(header["round"])
        state = self.vault.latest()
        self._hold(trees["first"] if state is None else state)
        if self.method.adapts:
            adapted = self._look(lambda client, site: self.method.adapt(server, client, site), round_number)
            self._hold(adapted)

        def models(client: ClientState, site: Site) -> Any:
            return self.method.predictors(server, client, site.client)

        def metrics(client: ClientState, site: Site) -> Any:
            rows, objective = site.all_rows, site.objective
            return {
                kind: row_metrics(objective.task, objective.predict(predictor, rows.inputs), rows)
                for kind, predictor in models(client, site).items()
            }

        self.vault.keep_models(self._look(models, round_number), round_number)
        if not shares_metrics:
            return pack(_echo(header))
        parts = {part: rows_of(self.setting.federation, part) for part in PARTS}
        shared = {
            part: self._look(metrics, round_number, rows) for part, rows in parts.items() if len(rows.index)
        }
        return pack(_echo(header), {"metrics": shared})

    def _hold(self, state: ClientState) -> None:
        """Make a state the client's, to look at it."""
        self.setting.store.put(self.ids, tree.stack([state]))

    def _look(
        self, look: Callable[[ClientState, Site], Any], round_number: int, rows: Rows | None = None
    ) -> Any:
        """Apply a function to the one client, by default with its training rows."""
        part = self.setting.federation.train if rows is None else rows
        return tree.row(self.engine.survey(look, part, self.ids, round_number), 0)


class Silo:
    """Answers requests; runs are opened when they are first asked for."""

    def __init__(
        self,
        name: str,
        table: pd.DataFrame,
        folder: Path,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        *,
        ignore: Sequence[str] = (),
        shares_metrics: bool = True,
        shares_summaries: bool = True,
    ) -> None:
        self.name = name
        self.table = table.drop(columns=list(ignore))
        self.folder = folder
        self.limits = limits
        self.shares_metrics = shares_metrics
        self.shares_summaries = shares_summaries
        self._runs: dict[str, Run] = {}

    def answer(self, message: bytes) -> bytes:
        """The reply to a request; a refusal is a reply too."""
        try:
            return self._answer(unpack(message, self.limits.most_bytes))
        except UserError as error:
            sentence = " ".join(str(error).split())
            log.warning("refused: %s", sentence)
        except Exception as error:
            # Whatever a message makes go wrong, the silo stays; what it was is in its own log.
            sentence = f"the message made {type(error).__name__}"
            log.exception("refused: %s", sentence)
        return pack({"refused": sentence})

    def _answer(self, packet: Packet) -> bytes:
        header = packet.header
        match header.get("ask"):
            case "name":
                return pack({"name": self.name})
            case "summary":
                return self._summary(header)
            case "hello":
                return self._hello(header)
            case "work":
                return self._run(header["run"]).work(packet, self.limits)
            case "evaluate":
                return self._run(header["run"]).evaluate(packet, self.limits, self.shares_metrics)
            case other:
                raise UserError(
                    f"a message asks for {other!r}; name, summary, hello, work and evaluate are known"
                )

    def _summary(self, header: dict[str, Any]) -> bytes:
        """Tell what a schema is found from, or say why not."""
        self._require_own_name(header)
        if not self.shares_summaries:
            raise UserError(
                "this silo shares no summaries of its table (--no-share-summaries); write the schema's "
                "columns into the coordinator's configuration"
            )
        summary = summarise(self.table, self.name, Search.from_plain(header))
        log.info("told a summary of %d columns for run %s", len(summary.columns), header["run"])
        return pack({**_echo(header), "summary": summary.plain()})

    def _hello(self, header: dict[str, Any]) -> bytes:
        """Agree on a run, or say why not."""
        self._require_own_name(header)
        agreement = {key: header[key] for key in ("name", "number", "clients", "config", "schema")}
        self.limits.admit(agreement["config"])
        vault = self._vault(header["run"])
        # What is wrong with it is said before anything is kept.
        run = Run(agreement, self.table, vault, self.limits)
        vault.agree(agreement)
        self._runs[header["run"]] = run
        federation = run.setting.federation
        rows = {
            part: int(rows.sizes[run.number])
            for part, rows in (
                ("train", federation.train),
                ("validation", federation.validation),
                ("test", federation.test),
            )
        }
        log.info(
            "joined run %s: %s",
            header["run"],
            ", ".join(f"{count} {part} rows" for part, count in rows.items()),
        )
        return pack({**_echo(header), "rows": rows, "known": vault.latest() is not None})

    def _require_own_name(self, header: dict[str, Any]) -> None:
        if header["name"] != self.name:
            raise UserError(f"this silo is {self.name!r}, but its key is registered for {header['name']!r}")

    def _run(self, identity: str) -> Run:
        if identity not in self._runs:
            vault = self._vault(identity)
            agreement = vault.agreement
            if agreement is None:
                raise UserError(f"the run {identity!r} was never agreed with this silo")
            self._runs[identity] = Run(agreement, self.table, vault, self.limits)
        return self._runs[identity]

    def _vault(self, identity: str) -> RunVault:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identity):
            raise UserError(f"{identity!r} is not the name of a run")
        return RunVault(self.folder / identity)


def build_setting(
    config: dict[str, Any], federation: Federation, limits: Limits
) -> tuple[Method, SiloSetting]:
    """The method and all that its client half needs, for one silo."""
    dtype = torch.float64 if config["dtype"] == "float64" else torch.float32
    federation = federation.to(dtype)
    options = dict(config["model"])
    name = options.pop("name")
    if ":" not in name:  # an own model is the silo's own code, which it allowed by name
        limits.admit_model(outline_model(name, federation, **options), dtype)
    module = in_precision(build_model(name, federation, seed=config["seed"], **options), dtype)
    method = build(CodecConfig, config["codec"], "codec").wrap(build_method(config["method"]))
    setting = SiloSetting(
        method,
        Objective(module, federation.task, config["weight_decay"]),
        federation,
        OneClient(),
        seed=config["seed"],
        batch_size=None if config["batch_size"] == "all" else config["batch_size"],
        founding=None,
    )
    return method, setting


def _echo(header: dict[str, Any]) -> dict[str, Any]:
    """What tells which request a reply belongs to."""
    return {key: header[key] for key in ("ask", "run", "round", "exchange", "request") if key in header}
