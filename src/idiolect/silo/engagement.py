"""A silo's part in one run, as it was agreed: the local work of exchanges, and its models' metrics.

What was agreed binds. An exchange is one of the agreed method with its agreed settings, its message looks as
it must, its round comes next; what was asked once is answered again for the very same message only, and no
other is answered in its place, also where the work was refused: that tells something of rows as well.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.cohort import Cohort, Population
from idiolect.core.exchange import ClientState, Epochs, Exchange, Message, Site
from idiolect.core.fixed import put_weights
from idiolect.core.objective import Batch
from idiolect.core.tree import Params, Tree
from idiolect.data.federation import Federation, Rows
from idiolect.engines.sequential import Assignment, Sequential
from idiolect.errors import UserError
from idiolect.evaluation.metrics import PARTS, Metric, row_metrics, rows_of
from idiolect.methods._classes import ClassSums
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import outline_model
from idiolect.privacy.row_gradients import counting_gradients
from idiolect.runs.config import RunConfig
from idiolect.runs.setup import build_setting
from idiolect.silo.checks import fraction, is_near, looks, require_finite, rounded, whole_number
from idiolect.silo.limits import Limits
from idiolect.silo.privacy.account import Account
from idiolect.silo.privacy.protection import Protection
from idiolect.silo.questions import (
    evaluation_in_common,
    exchange_question,
    work_in_common,
    work_question,
)
from idiolect.silo.rehearsal import AgreedExchange, AgreedExchanges
from idiolect.silo.schema import Schema
from idiolect.silo.secure.agreement import Credentials, evaluation_label, silo_sums, work_label
from idiolect.silo.secure.metric_sums import entries, metric_numbers
from idiolect.silo.secure.summands import numbers_of
from idiolect.silo.serve_settings import INCOMPLETE_WORK, agreed_config
from idiolect.silo.table_problems import Problem, refuse_problems
from idiolect.silo.vault import Asked, Position, RunVault
from idiolect.silo.wire import Packet, digest, pack, rebuild_object

_LONGEST_CLOCK = 10**9  # local steps of a round, at the silo that has most of them


class Engagement:
    """What was agreed, ready to work."""

    def __init__(
        self,
        agreement: dict[str, Any],
        table: pd.DataFrame,
        vault: RunVault,
        limits: Limits,
        weights: Params,
        *,
        account: Account,
        shares_metrics: bool = True,
        credentials: Credentials | None = None,
    ) -> None:
        shared = agreement["config"]
        limits.admit(shared)  # before anything that it names is imported
        clients = whole_number(agreement, "clients", 1, limits.clients)
        self.ids = torch.tensor([whole_number(agreement, "number", 0, clients - 1)])
        self.vault = vault
        self.limits = limits
        self.shares_metrics = shares_metrics
        config, schema = agreed_config(shared), Schema.from_plain(agreement["schema"])
        limits.admit_config(config)
        self.account = account.opened(config.privacy)
        self.pace = config.pace
        self.incomplete_work = shared.get(INCOMPLETE_WORK) is True
        federation = schema.read(table, agreement["name"], int(self.ids), clients)
        self.fingerprint = _fingerprint(federation)
        vault.require_same_rows(self.fingerprint)
        _admit_model(config, federation, limits)
        self.setting = build_setting(config, federation)
        put_weights(self.setting.objective.module, weights)
        self.engine = Sequential(self.setting)
        self.measures = config.evaluation.measures(federation)
        limits.admit_batch(int(self.setting.batches.batch_sizes[self.ids]))
        self.sums = silo_sums(vault.folder, agreement, clients, credentials)
        if self.sums is not None:
            limits.admit_sum(self.sums.rule.threshold)
        self.protection = Protection(config.privacy, self.setting, vault.folder, self.sums)
        model_bytes = tree.count_bits(self.setting.objective.initial_params()) // 8
        self.exchanges = AgreedExchanges(config, schema, clients, model_bytes, weights)
        for agreed in self.exchanges.of_first_round():
            self._require_shared(agreed.upload)
            self._require_common_classes(agreed.upload)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows the silo has in each part of its data."""
        federation = self.setting.federation
        parts = {"train": federation.train, "validation": federation.validation, "test": federation.test}
        return {part: int(rows.sizes[self.ids]) for part, rows in parts.items()}

    def work(self, packet: Packet) -> bytes:
        """The upload of one exchange."""
        header, trees = packet
        agreed = self.exchanges.find(rebuild_object(header.get("exchange"), self.limits.modules))
        exchange, position = agreed.exchange, self._position(header)
        cohort = self._cohort(exchange, header)
        client, is_first = self._state_before(position, trees)
        transport = self.setting.transport(exchange)
        down = transport.receive_down(_part(trees, "down"), client)
        self.exchanges.require_usual(agreed, down)
        require_finite(down, "the message of an exchange")
        question = work_question(exchange, header, down)
        asked = Asked(digest({"message": question}, {"state": client}), exchange_question(exchange))
        self._require_due(position, asked, agreed)
        self.setting.round_steps = self._clock_steps(exchange, header)
        # What the answer follows from: with the same noise for another one their difference would have none.
        origin = self.protection.origin(question, client)
        price = self.protection.price(agreed, self.exchanges, cohort)
        self.account.pay(origin, price.cost, f"round {position.round + 1}")
        self.vault.keep_asked(position, asked)
        with self.protection.own_randomness(origin), counting_gradients() as taken:
            client, upload = self.engine.work(Assignment(exchange, down, client, cohort, position.round))
            require_finite((client, upload), "what came out of the local work")
            self._require_shared(upload)
            hidden = self.protection.hidden(upload)
        price.require_enough(len(taken))
        # Before the state is kept: it may be refused.
        if self.sums is None:
            answer = pack({**echo(header), "steps": int(cohort.steps)}, {"upload": transport.send_up(hidden)})
        else:
            label = work_label(self.vault.folder.name, *position)
            numbers = numbers_of(hidden, self.protection.own_weight(exchange, cohort))
            keys = self.sums.begin(label, work_in_common(exchange, header, down), numbers)
            answer = pack({**echo(header), **keys})
        if not self.vault.has_state_after(position):
            if is_first:
                self.vault.keep_first(trees["first"])
            self.vault.keep(position, client)
        return answer

    def add_up(self, packet: Packet) -> bytes:
        """The answer to a stage of the secure sum that work or an evaluation began."""
        if self.sums is None:
            raise UserError("secure sums were not agreed in this run")
        header, trees = self.sums.answer(packet)
        return pack({**echo(packet.header), **header}, trees)

    def evaluate(self, packet: Packet) -> bytes:
        """The metrics of all models on validation and test rows; the models are kept here."""
        header, trees = packet
        done = whole_number(header, "round", 0, self.pace.rounds)
        brief = _part(trees, "brief")
        _require_usable(brief, self.exchanges.brief, "the brief")
        client, _ = self._state_before(Position(done, 0), trees)
        self._require_new_evaluation(done, digest({"round": done}, {"brief": brief, "state": client}))
        method = self.setting.method
        if method.adapts:
            client = method.adapt(client, brief, self._site(self.setting.federation.train, done))
        models = method.predictors(client, brief)
        require_finite(models, "a model of this silo")
        self.vault.keep_models(models, done)
        if not self.shares_metrics:
            return pack(echo(header))
        parts = {part: rows_of(self.setting.federation, part) for part in PARTS}
        shared = {
            part: self._metrics(models, self._site(rows, done))
            for part, rows in parts.items()
            if len(rows.index) >= self.limits.metric_rows
        }
        if self.sums is not None:
            names = [metric.name for metric in self.measures.metrics]
            numbers = metric_numbers(entries(method.kinds, names), shared, self.rows)
            label = evaluation_label(self.vault.folder.name, done)
            question = evaluation_in_common(done, brief, is_personal=method.personal_brief)
            return pack({**echo(header), **self.sums.begin(label, question, numbers)})
        return pack(echo(header), {"metrics": shared} if shared else {})

    def _position(self, header: dict[str, Any]) -> Position:
        """Which exchange of the run it is."""
        return Position(
            whole_number(header, "round", 0, self.pace.rounds - 1),
            whole_number(header, "place", 0, self.exchanges.most_in_a_round - 1),
        )

    def _require_due(self, position: Position, asked: Asked, agreed: AgreedExchange) -> None:
        """Refuse what does not come next, unless the very same was asked before."""
        known = self.vault.asked(position)
        if known == asked:
            return
        if known is not None:
            raise UserError(
                f"round {position.round} (exchange {position.place}) was asked for already, by another "
                "message; only the same message is answered again"
            )
        last, evaluated = self.vault.last(), max(self.vault.evaluated(), default=0)
        if (last is not None and position < last) or position.round < evaluated:
            raise UserError(f"round {position.round} is past: this silo has gone on")
        before = [one.exchange for one in self.vault.asked_in(position.round)]
        if before.count(asked.exchange) >= agreed.times:
            raise UserError(
                f"a message asks for {type(agreed.exchange).__name__} twice in round {position.round}, which "
                "the agreed method does not"
            )

    def _require_new_evaluation(self, done: int, message: str) -> None:
        """One message for each round after which one was agreed, and none for what is past."""
        if not self.pace.evaluates_after(done):
            raise UserError(
                f"an evaluation after round {done} was not agreed, but with "
                f"evaluation.every={self.pace.evaluate_every}"
            )
        told, last = self.vault.evaluated(), self.vault.last()
        if done in told:
            if told[done] != message:
                raise UserError(f"round {done} was evaluated already, with other models")
            return
        if done < max(told, default=0) or (last is not None and done <= last.round):
            raise UserError(f"an evaluation after round {done} is past: this silo has gone on")
        self.vault.keep_evaluated(done, message)

    def _state_before(self, position: Position, trees: dict[str, Tree]) -> tuple[ClientState, bool]:
        """The state that an exchange starts from; and whether it is the first one, which was sent along."""
        client = self.vault.before(position)
        if client is not None:
            return client, False
        first = _part(trees, "first")
        _require_usable(first, self.exchanges.first, "the first state")
        if self.sums is not None and not is_near(first, self.exchanges.first):
            raise UserError(
                "the first state is not the one that follows from what was agreed, and with secure sums "
                "nobody begins with another one"
            )
        return first, True

    def _clock_steps(self, exchange: Exchange, header: dict[str, Any]) -> int:
        """The local steps of a round on the clock of schedules: the agreed ones.

        Passes over rows are of different length at other silos: what is told of it first is kept.
        """
        agreed = exchange.local_steps
        if not isinstance(agreed, Epochs):
            return whole_number(header, "clock_steps", int(agreed), int(agreed))
        own = int(self.setting.batches.steps(agreed, self.ids))
        told = whole_number(header, "clock_steps", own, _LONGEST_CLOCK)
        if self.vault.keep_clock(agreed.epochs, told) != told:
            raise UserError(f"clock_steps={told} is not possible here: the run began with another clock")
        return told

    def _cohort(self, exchange: Exchange, header: dict[str, Any]) -> Cohort:
        """The silo alone, with its agreed work; with less only where that was agreed."""
        work = fraction(header, "work")
        if work < 1 and not self.incomplete_work:
            raise UserError(f"work={work} is not possible here: it was agreed that all work is completed")
        if exchange.local_steps == 0:
            steps = torch.zeros_like(self.ids)
        else:
            steps = self.setting.batches.steps(exchange.local_steps, self.ids)
        self.limits.admit_steps(int(steps))
        sizes = self.setting.federation.train.sizes
        return Cohort(
            self.ids,
            work=torch.tensor([work], dtype=torch.float64),
            replied=torch.tensor([True]),
            inclusion=torch.ones(1, dtype=torch.float64),  # of no concern to a client
            population=Population(sizes, torch.ones_like(sizes, dtype=torch.bool)),
            local_steps=steps,
        )

    def _metrics(self, models: Tree, site: Site) -> Tree:
        """What is told: of a class as of all, not where too few rows are behind it."""
        rows, objective = site.all_rows, site.objective
        told = [
            metric
            for metric in self.measures.metrics
            if _rows_behind(metric, rows, objective.task.classes) >= self.limits.metric_rows
        ]

        def shown(value: Tensor) -> Tensor:
            return torch.tensor(rounded(float(value), self.limits.metric_digits), dtype=torch.float64)

        return {
            kind: {
                name: shown(value)
                for name, value in row_metrics(
                    objective.task, objective.predict(model, rows.inputs), rows, told
                ).items()
            }
            for kind, model in models.items()
        }

    def _site(self, part: Rows, round_number: int) -> Site:
        return self.engine.site_of_rows(self.ids[0], part, round_number)

    def _require_shared(self, upload: Message) -> None:
        """Refuse to tell losses where metrics are kept."""
        if not self.shares_metrics and _tells_losses(upload):
            raise UserError(
                f"this silo shares no metrics (--no-share-metrics), and {self.setting.method.name} makes it "
                "tell its losses"
            )

    def _require_common_classes(self, upload: Message) -> None:
        """Refuse to tell sums over classes, one of which has so few rows that its sum comes close to them."""
        if not _sums_classes(upload):
            return
        federation, fewest = self.setting.federation, self.limits.batch
        counts = federation.targets[federation.train.index].bincount()
        if rare := [
            federation.class_names[place] for place, n in enumerate(counts.tolist()) if 0 < n < fewest
        ]:
            why = f"{self.setting.method.name} tells sums over the training rows of each class"
            told = f"{why}, and a class has fewer than {fewest} of them here (--min-batch)"
            refuse_problems([Problem(f"{told}: {', '.join(rare)}", told)])


def echo(header: dict[str, Any]) -> dict[str, Any]:
    """What tells which request a reply belongs to."""
    return {key: header[key] for key in ("ask", "run", "round", "place", "request") if key in header}


def _part(trees: dict[str, Tree], name: str) -> Tree:
    if name not in trees:
        what = {"first": "this silo has no state in this run, and none was sent"}
        raise UserError(what.get(name, f"a message has no {name}"))
    return trees[name]


def _require_usable(content: Tree, like: Tree, what: str) -> None:
    if looks(content) != looks(like):
        raise UserError(f"{what} has another structure, shape or type than the method has")
    require_finite(content, what)


def _rows_behind(metric: Metric, rows: Batch, classes: int) -> int:
    """How many rows a metric is of; of one by classes the fewest, as if what does not occur were rare."""
    if metric.by_classes:
        return int(rows.targets.bincount(minlength=classes).clamp_min(1).min())
    if metric.class_number is not None:
        return int((rows.targets == metric.class_number).sum())
    return len(rows.targets)


def _tells_losses(upload: Message) -> bool:
    """Whether a part of an upload is called a loss, or something of losses."""
    parts = (part for name in tree.to_named(upload) for part in name.lower().split(tree.PATH_SEPARATOR))
    return any({"loss", "losses"} & set(part.split("_")) for part in parts)


def _sums_classes(node: Tree) -> bool:
    """Whether sums over the rows of each class are part of an upload."""
    if isinstance(node, Tensor | ClassSums):
        return isinstance(node, ClassSums)
    return any(map(_sums_classes, node.values() if isinstance(node, Mapping) else node))


def _fingerprint(federation: Federation) -> str:
    """What tells rows from changed ones: inputs, targets, and which are for what."""
    content = hashlib.sha256()
    parts = (federation.train, federation.validation, federation.test)
    for tensor in (federation.inputs, federation.targets, *(part.index for part in parts)):
        content.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()


def _admit_model(config: RunConfig, federation: Federation, limits: Limits) -> None:
    """Refuse a model that is too large before it takes memory."""
    options = dict(config.model)
    name = options.pop("name")
    if not MODELS.is_own(name):  # an own model is the silo's own code, which it allowed by name
        limits.admit_model(outline_model(name, federation, **options), getattr(torch, config.dtype))
