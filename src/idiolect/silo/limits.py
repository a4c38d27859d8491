"""What a silo admits: limits that it sets itself, whatever the coordinator asks for.

Code that is not part of this package is imported only if the silo allowed it, by import path or by the name
of an entry point. Of what a message may consist of follows from it: see `wire.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any

import torch
from torch import nn

from idiolect.codecs.registry import CATALOGUE as CODECS
from idiolect.errors import UserError
from idiolect.evaluation.metrics import CATALOGUE as METRICS
from idiolect.evaluation.metrics import is_of_class
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.models import CATALOGUE as MODELS
from idiolect.plugins import Catalogue, chosen
from idiolect.runs.config import RunConfig

LARGEST_SETTING = 1e9  # of a method: beyond it no step size, factor or radius is meant


@dataclass(frozen=True)
class Limits:
    """The most that a run may ask of a silo."""

    methods: tuple[str, ...] = ()  # of this package; empty: all of them
    own_methods: tuple[str, ...] = ()  # of its own installation (package.module:Class), to be imported
    own_models: tuple[str, ...] = ()
    own_codecs: tuple[str, ...] = ()
    own_metrics: tuple[str, ...] = ()
    rounds: int = 1000
    steps: int = 10_000  # local steps in one exchange
    megabytes: float = 512.0  # of one message
    runs: int = 100  # that it takes part in with this state folder: each has budgets of its own
    clients: int = 1_000_000  # silos of one run
    batch: int = 4  # fewest rows in a gradient, or in the sum over a class
    metric_rows: int = 10  # fewest rows that metrics are told of
    metric_digits: int = 3  # significant digits of a metric
    summed: int = 2  # fewest silos that a secure sum is over
    misfits: int = 20  # how often it says that its table does not fit what is to be agreed
    values: int = 5  # fewest rows behind a mean, a category or a class that a summary tells

    @property
    def most_bytes(self) -> int:
        """The largest message."""
        return int(self.megabytes * 2**20)

    def admit(self, config: Mapping[str, Any]) -> None:
        """Refuse code that is not admitted, in a configuration of which nothing is known yet."""
        try:
            method, model = config["method"]["name"], config["model"]["name"]
            codecs, metrics = codec_names(config["codec"]), list(config["evaluation"]["metrics"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the configuration of the run cannot be read: {error!r}") from None
        if not all(isinstance(name, str) for name in (method, model, *codecs, *metrics)):
            raise UserError("the configuration of the run cannot be read: names must be texts")
        if self.methods and method not in self.methods and not METHODS.is_own(method):
            raise UserError(f"method={method} is not admitted here; admitted are {', '.join(self.methods)}")
        _admit_code(METHODS, [method], self.own_methods)
        _admit_code(MODELS, [model], self.own_models)
        _admit_code(CODECS, codecs, self.own_codecs)
        _admit_code(METRICS, filterfalse(is_of_class, metrics), self.own_metrics)

    def admit_config(self, config: RunConfig) -> None:
        """Refuse a configuration outside of the limits."""
        rounds = config.pace.rounds
        if rounds > self.rounds:
            raise UserError(f"rounds={rounds} is more than the {self.rounds} that are admitted here")
        for name, value in _numbers(config.method, "method."):
            if not abs(value) <= LARGEST_SETTING:
                raise UserError(f"{name}={value:g} is not admitted here: no setting is beyond 1e9")
        if config.weight_decay > LARGEST_SETTING:
            raise UserError(f"weight_decay={config.weight_decay:g} is not admitted here: it is beyond 1e9")

    def admit_batch(self, rows: int) -> None:
        """Refuse gradients of too few rows: they come close to the rows themselves."""
        if rows < self.batch:
            raise UserError(
                f"gradients of {rows} rows are not admitted here, but of {self.batch} and more (batch_size, "
                "and as many training rows; --min-batch)"
            )

    def admit_sum(self, silos: int) -> None:
        """Refuse sums over so few silos that little is hidden in them."""
        if silos < self.summed:
            raise UserError(
                f"sums over {silos} silos are not admitted here, but over {self.summed} and more "
                "(secure.threshold; --min-sum)"
            )

    def check(self) -> None:
        """Refuse to allow what is not there."""
        for kind, allowed in (
            (METHODS, self.own_methods),
            (MODELS, self.own_models),
            (CODECS, self.own_codecs),
            (METRICS, self.own_metrics),
        ):
            for name in allowed:
                kind.find(name, f"--allow-{kind.word}")

    @property
    def modules(self) -> frozenset[str]:
        """The modules of the methods and codecs that are allowed, whose classes messages may name."""
        return modules_of(self.own_methods, self.own_codecs)

    def admit_another_run(self, known: int) -> None:
        """Refuse one run more than there may be."""
        if known >= self.runs:
            raise UserError(
                f"this silo has taken part in {known} runs, as many runs as are admitted (--max-runs)"
            )

    def admit_model(self, outline: nn.Module, dtype: torch.dtype) -> None:
        """Refuse a model that would not fit into a message, by an outline that has no numbers yet."""
        size = sum(parameter.numel() for parameter in outline.parameters()) * dtype.itemsize
        if size > self.most_bytes:
            raise UserError(f"a model of {size} bytes is larger than the {self.most_bytes} that are admitted")

    def admit_steps(self, steps: int) -> None:
        """Refuse too much local work."""
        if steps > self.steps:
            raise UserError(f"{steps} local steps are more than the {self.steps} that are admitted here")


def _numbers(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """All numbers of a section, by name."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield from _numbers(dict(enumerate(value)), f"{prefix}{name}.")  # type: ignore[arg-type]
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)


def codec_names(section: Mapping[str, Any]) -> list[str]:
    """The codecs that a configuration's section names."""
    return [chosen(section[direction])[0] for direction in ("up", "down") if section[direction] is not None]


def modules_of(methods: Iterable[str], codecs: Iterable[str]) -> frozenset[str]:
    """The modules in which methods and codecs that are not part of this package are written."""
    found: list[Any] = [METHODS.find(name) for name in methods if METHODS.is_own(name)]
    found += [CODECS.find(name) for name in codecs if CODECS.is_own(name)]
    return frozenset(base.__module__ for kind in found for base in kind.__mro__ if base is not object)


def _admit_code(kind: Catalogue[Any], names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse code of others that was not allowed, before it is imported."""
    admitted = {kind.path(name) for name in allowed}
    for name in names:
        if kind.is_own(name) and kind.path(name) not in admitted:
            raise UserError(f"{kind.word}={name} would import code; allow it with --allow-{kind.word} {name}")
