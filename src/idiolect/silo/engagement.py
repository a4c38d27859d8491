"""A silo's part in one run, as it was agreed: the local work of exchanges, and its models' metrics."""

import dataclasses
import sys
from typing import Any

import pandas as pd
import torch

from idiolect.core.around import as_in, innermost_method
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import Exchange, Site
from idiolect.core.fixed import put_weights
from idiolect.core.method import Method
from idiolect.core.tree import Params, Tree
from idiolect.data.federation import Federation, Rows
from idiolect.engines.sequential import Assignment, Sequential
from idiolect.errors import UserError
from idiolect.evaluation.metrics import PARTS, row_metrics, rows_of
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import outline_model
from idiolect.runs.config import RunConfig
from idiolect.runs.setup import build_setting
from idiolect.silo.limits import Limits
from idiolect.silo.schema import Schema
from idiolect.silo.serve_settings import agreed_config
from idiolect.silo.vault import FIRST, Position, RunVault
from idiolect.silo.wire import Packet, pack, rebuild_object


class Engagement:
    """What was agreed, ready to work."""

    def __init__(
        self,
        agreement: dict[str, Any],
        table: pd.DataFrame,
        vault: RunVault,
        limits: Limits,
        weights: Params,
    ) -> None:
        limits.admit(agreement["config"])  # before anything that it names is imported
        limits.admit_run(agreement["clients"], int(agreement["number"]))
        self.vault = vault
        self.limits = limits
        self.ids = torch.tensor([int(agreement["number"])])
        config, schema = agreed_config(agreement["config"]), Schema.from_plain(agreement["schema"])
        federation = schema.read(table, agreement["name"], int(self.ids), agreement["clients"])
        _admit_model(config, federation, limits)
        self.setting = build_setting(config, federation)
        put_weights(self.setting.objective.module, weights)
        self.engine = Sequential(self.setting)
        self.measures = config.evaluation.measures(federation)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows the silo has in each part of its data."""
        federation = self.setting.federation
        parts = {"train": federation.train, "validation": federation.validation, "test": federation.test}
        return {part: int(rows.sizes[self.ids]) for part, rows in parts.items()}

    def work(self, packet: Packet) -> bytes:
        """The upload of one exchange."""
        header, trees = packet
        position = Position(int(header["round"]), int(header["place"]))
        exchange = self._agreed(rebuild_object(header["exchange"], self.limits.modules))
        self.limits.admit_steps(int(header["local_steps"]))
        if "first" in trees and self.vault.before(position) is None:
            self.vault.keep(FIRST, trees["first"])
        client = self.vault.before(position)
        if client is None:
            raise UserError("this silo has no state in this run, and none was sent")
        self.setting.round_steps = int(header["clock_steps"])
        transport, cohort = self.setting.transport(exchange), self._cohort(header)
        down = transport.receive_down(trees["down"], client)
        client, upload = self.engine.work(Assignment(exchange, down, client, cohort, position.round))
        sent = transport.send_up(upload)  # before the state is kept: it may be refused
        self.vault.keep(position, client)
        return pack({**echo(header), "steps": int(cohort.steps)}, {"upload": sent})

    def evaluate(self, packet: Packet, shares_metrics: bool) -> bytes:
        """The metrics of all models on validation and test rows; the models are kept here."""
        header, trees = packet
        method, brief, done = self.setting.method, trees["brief"], int(header["round"])
        client = self.vault.before(Position(done, 0))
        if client is None:
            client = trees["first"]
        if method.adapts:
            client = method.adapt(client, brief, self._site(self.setting.federation.train, done))
        models = method.predictors(client, brief)
        self.vault.keep_models(models, done)
        if not shares_metrics:
            return pack(echo(header))
        parts = {part: rows_of(self.setting.federation, part) for part in PARTS}
        shared = {
            part: self._metrics(models, self._site(rows, done))
            for part, rows in parts.items()
            if len(rows.index)
        }
        return pack(echo(header), {"metrics": shared})

    def _metrics(self, models: Tree, site: Site) -> Tree:
        rows, objective = site.all_rows, site.objective
        return {
            kind: row_metrics(
                objective.task, objective.predict(model, rows.inputs), rows, self.measures.metrics
            )
            for kind, model in models.items()
        }

    def _site(self, part: Rows, round_number: int) -> Site:
        return self.engine.site_of_rows(self.ids[0], part, round_number)

    def _cohort(self, header: dict[str, Any]) -> Cohort:
        """The silo alone, with as much work as it is asked for."""
        sizes = self.setting.federation.train.sizes
        return Cohort(
            self.ids,
            work=torch.tensor([header["work"]], dtype=torch.float64),
            replied=torch.tensor([True]),
            inclusion=torch.tensor([header["inclusion"]], dtype=torch.float64),
            population=Population(sizes, torch.ones_like(sizes, dtype=torch.bool)),
            local_steps=torch.tensor([header["local_steps"]]),
        )

    def _agreed(self, exchange: Any) -> Exchange:
        """An exchange of the agreed method, with the agreed codecs around it; any other is refused."""
        method = innermost_method(self.setting.method)
        if not isinstance(exchange, Exchange) or not _belongs(exchange, method):
            raise UserError(
                f"a message asks for {type(exchange).__name__}, which is no exchange of the agreed method "
                f"{method.name} with its agreed settings"
            )
        return as_in(self.setting.method, exchange)


def echo(header: dict[str, Any]) -> dict[str, Any]:
    """What tells which request a reply belongs to."""
    return {key: header[key] for key in ("ask", "run", "round", "place", "request") if key in header}


def _belongs(part: Exchange | Method, method: Method) -> bool:
    """Whether an exchange, or a method inside of one, is the method's own.

    Its class must be there where the method is written, and whatever setting it shares with the method must
    have the agreed value.
    """
    if part == method:
        return True
    homes = [sys.modules[base.__module__] for base in type(method).__mro__ if base is not object]
    if not any(getattr(home, type(part).__name__, None) is type(part) for home in homes):
        return False
    return all(
        _belongs(value, method)
        if isinstance(value := getattr(part, field.name), Exchange | Method)
        else value == getattr(method, field.name, value)
        for field in dataclasses.fields(part)  # type: ignore[arg-type]  # every exchange is a dataclass
    )


def _admit_model(config: RunConfig, federation: Federation, limits: Limits) -> None:
    """Refuse a model that is too large before it takes memory."""
    options = dict(config.model)
    name = options.pop("name")
    if not MODELS.is_own(name):  # an own model is the silo's own code, which it allowed by name
        limits.admit_model(outline_model(name, federation, **options), getattr(torch, config.dtype))
