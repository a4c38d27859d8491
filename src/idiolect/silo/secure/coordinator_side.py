"""The coordinator's half of a secure sum: four more questions to the silos that have begun one.

Which silos a sum is over is kept in the run's folder before anybody signs it: silos open a sum for one list
only, so after a crash it must be the same. `idiolect serve --resume` goes on when all of them are there.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.fixed import fingerprint
from idiolect.core.tree import Params
from idiolect.errors import UserError
from idiolect.runs.folder import SUMMED_METRICS
from idiolect.secure.collector import Collector
from idiolect.secure.fixed_point import FixedPoint, Residues
from idiolect.secure.messages import Advert, Revealed
from idiolect.secure.rule import Rule
from idiolect.secure.signing import KnownKeys
from idiolect.silo.monitor import Monitor
from idiolect.silo.requests import Link, Request, ask_all
from idiolect.silo.secure.admission import require_sums
from idiolect.silo.secure.agreement import Occasion, terms_of
from idiolect.silo.secure.letters import read, read_advert, read_all, write_advert, written
from idiolect.silo.secure.metric_sums import Entry, mean_metrics
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import Packet
from idiolect.store.files import read_json, read_parquet, write_json, write_parquet

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_PROMISED = "survivors.json"


class Sum(NamedTuple):
    """What became of a sum."""

    numbers: NDArray[np.float64]
    survivors: list[str]  # whose numbers it is the sum of
    heard: list[str]  # who sent masked numbers, in the sum or not


class CoordinatorSums:
    """Sums of one run."""

    def __init__(
        self,
        link: Link,
        run: ServedRun,
        rule: Rule,
        fixed_point: FixedPoint,
        known: KnownKeys,
        monitor: Monitor,
    ) -> None:
        self._link = link
        self._patience = run.settings.patience
        self._known = known
        self._monitor = monitor
        self._file = run.path / _PROMISED
        self._metrics = run.path / SUMMED_METRICS
        self.rule = rule
        self.fixed_point = fixed_point

    @staticmethod
    def read_keys(packet: Packet) -> Advert | None:
        """The keys with which a silo begins a sum; None if it begins none."""
        return read_advert(packet.header, "keys") if "keys" in packet.header else None

    def collect(
        self,
        occasion: Occasion,
        adverts: Mapping[str, Advert | None],
        length: int,
        counted: Collection[str],
        minimum: int,
    ) -> Sum:
        """The sum of the numbers of those who are counted, from the keys with which silos began it."""
        collector = Collector(occasion.label, self._known, self.rule.about(occasion.question), length)
        try:
            return self._play(occasion, collector, adverts, counted, minimum)
        finally:  # also where it came to nothing
            for name, trouble in sorted(collector.troubles.items()):
                log.warning("%s: %s", name, trouble)

    def _play(
        self,
        occasion: Occasion,
        collector: Collector,
        adverts: Mapping[str, Advert | None],
        counted: Collection[str],
        minimum: int,
    ) -> Sum:
        """All stages of a sum."""
        counted = self._promised(occasion.label, counted)
        collector.take_adverts({name: advert for name, advert in adverts.items() if advert is not None})
        ask = partial(self._ask, occasion)
        keys = {name: write_advert(advert) for name, advert in collector.adverts.items()}
        collector.take_boxes(ask("share", {name: {"keys": keys} for name in keys}, _boxes, minimum))
        told = {name: {"boxes": written(collector.boxes_for(name))} for name in collector.sharers}
        masked = ask("mask", told, _masked, minimum)
        for name in sorted(counted & masked.keys()):
            collector.add(name, masked[name])
        survivors = collector.survivors
        self._promise(occasion.label, survivors)
        asked = {name: {"survivors": survivors} for name in survivors}
        signatures = collector.confirmed(ask("confirm", asked, _signature, self.rule.threshold))
        asked_last = {name: {"signatures": written(signatures)} for name in survivors}
        total = collector.unmask(ask("reveal", asked_last, _revealed, self.rule.threshold))
        return Sum(self.fixed_point.decode(total), survivors, sorted(masked))

    def collect_metrics(
        self,
        occasion: Occasion,
        adverts: Mapping[str, Advert | None],
        order: Sequence[Entry],
        round_number: int,
    ) -> None:
        """Keep the metrics of all silos together; a run goes on without them if too few tell theirs."""
        sharing = {name for name, advert in adverts.items() if advert is not None}
        try:
            self.rule.require(sharing, "metrics")
            total = self.collect(occasion, adverts, 2 * len(order), sharing, self.rule.threshold)
        except UserError as error:
            log.warning("%s: none, since %s", occasion.what, error)
            return
        means = mean_metrics(order, total.numbers, round_number, len(total.survivors))
        if self._metrics.is_file():
            before = read_parquet(self._metrics)
            means = pd.concat([before[before["round"] < round_number], means], ignore_index=True)
        write_parquet(self._metrics, means)

    def _ask(
        self,
        occasion: Occasion,
        stage: str,
        told: Mapping[str, dict[str, Any]],
        read_answer: Callable[[Packet], Answer],
        minimum: int,
    ) -> dict[str, Answer]:
        head = {"ask": "sum", "sum": occasion.label, "stage": stage, **occasion.header}
        requests = {name: Request({**head, **content}, {}, read_answer) for name, content in told.items()}
        with self._monitor.asking(occasion.phase, f"{occasion.what}: {stage}"):
            answers = ask_all(self._link, requests, self._patience, max(minimum, self.rule.threshold))
        self._monitor.usable(answers)
        return answers

    def _promised(self, label: str, counted: Collection[str]) -> set[str]:
        """Who can be in the sum: where one was begun before, those who were in it."""
        return set(self._promises().get(label, counted))

    def _promise(self, label: str, survivors: list[str]) -> None:
        """Keep whose sum it is, unless it was begun with others."""
        promises = self._promises()
        before = promises.get(label, survivors)
        if survivors != before:
            raise UserError(
                f"the sum {label!r} was begun with {', '.join(before)}, and silos open a sum for one list "
                "only; continue with `idiolect serve --resume` when all of these are there"
            )
        write_json(self._file, {**promises, label: survivors})

    def _promises(self) -> dict[str, list[str]]:
        promises: dict[str, list[str]] = read_json(self._file) if self._file.is_file() else {}
        return promises


def begin_sums(
    run: ServedRun, link: Link, monitor: Monitor, known: KnownKeys, weights: Params
) -> CoordinatorSums:
    """A coordinator's half of the secure sums of a run that has them; silos are sent some weights."""
    settings = run.settings
    assert settings.secure is not None, "looked at before"
    schema = settings.agreed_schema.preprocessing
    require_sums(settings.config, schema, settings.silos, settings.secure.threshold)
    terms = terms_of(
        settings.shared_config(), settings.agreed_schema.plain(), fingerprint(weights) if weights else None
    )
    rule = settings.secure.rule(len(settings.silos), terms)
    return CoordinatorSums(link, run, rule, settings.secure.fixed_point(rule.parties), known, monitor)


def _boxes(packet: Packet) -> dict[str, bytes]:
    return read_all(packet.header, "boxes")


def _masked(packet: Packet) -> Residues:
    numbers = packet.trees.get("masked", {}).get("numbers")
    if not isinstance(numbers, Tensor):
        raise UserError("sent no masked numbers")
    return numbers.numpy().view(np.uint64)


def _signature(packet: Packet) -> bytes:
    return read(packet.header.get("signature"))


def _revealed(packet: Packet) -> Revealed:
    return Revealed(read_all(packet.header, "seeds"), read_all(packet.header, "keys"))
