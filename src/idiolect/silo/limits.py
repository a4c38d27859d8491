"""What a silo admits: limits that it sets itself, whatever the coordinator asks for.

Code that is not part of this package is imported only if the silo allowed it, by import path or by the name
of an entry point. Of what a message may consist of follows from it: see `wire.py`.
"""

from collections.abc import Iterable, Mapping
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

MOST_CLIENTS = 1_000_000


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

    @property
    def most_bytes(self) -> int:
        """The largest message."""
        return int(self.megabytes * 2**20)

    def admit(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration outside of the limits."""
        method, rounds = config["method"]["name"], config["rounds"]
        if self.methods and method not in self.methods and not METHODS.is_own(method):
            raise UserError(f"method={method} is not admitted here; admitted are {', '.join(self.methods)}")
        _admit_code(METHODS, [method], self.own_methods)
        _admit_code(MODELS, [config["model"]["name"]], self.own_models)
        _admit_code(CODECS, codec_names(config["codec"]), self.own_codecs)
        _admit_code(METRICS, filterfalse(is_of_class, config["evaluation"]["metrics"]), self.own_metrics)
        if rounds > self.rounds:
            raise UserError(f"rounds={rounds} is more than the {self.rounds} that are admitted here")

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

    def admit_run(self, clients: int, number: int) -> None:
        """Refuse a place that cannot be, in a run of more silos than anybody has."""
        if not 0 <= number < clients <= MOST_CLIENTS:
            raise UserError(f"client {number} of {clients} is not admitted here")

    def admit_model(self, outline: nn.Module, dtype: torch.dtype) -> None:
        """Refuse a model that would not fit into a message, by an outline that has no numbers yet."""
        size = sum(parameter.numel() for parameter in outline.parameters()) * dtype.itemsize
        if size > self.most_bytes:
            raise UserError(f"a model of {size} bytes is larger than the {self.most_bytes} that are admitted")

    def admit_steps(self, steps: int) -> None:
        """Refuse too much local work."""
        if steps > self.steps:
            raise UserError(f"{steps} local steps are more than the {self.steps} that are admitted here")


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
