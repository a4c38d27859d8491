"""What a coordinator is told (a YAML file), and what of it silos agree to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idiolect.errors import UserError
from idiolect.evaluation.metrics import all_named, measures_of
from idiolect.participation import Participation
from idiolect.participation.work import Fixed
from idiolect.runs.config import AT_SILOS, RunConfig, resolve
from idiolect.runs.identity import ADDED_LATER
from idiolect.runs.settings import Settings, merge
from idiolect.runs.setup import preparation_of
from idiolect.silo.keys import check_names
from idiolect.silo.requests import Patience
from idiolect.silo.schema import Schema, Search, read_schema
from idiolect.silo.secure.agreement import SECURE, SecureSettings

_OWN = (
    "silos",
    "schema",
    "secure",
    "minimum_replies",
    "answer_seconds",
    "patience_seconds",
    "most_megabytes",
)
# What decides the numbers at a silo; everything else stays with the coordinator.
_SHARED = (
    "method",
    "codec",
    "robust",
    "privacy",
    "model",
    "train",
    "rounds",
    "seed",
    "batch_size",
    "weight_decay",
    "clip",
    "statistics",
    "dtype",
)
# Whether silos may be asked for a part of their local work; who is, is the coordinator's plan.
INCOMPLETE_WORK = "incomplete_work"
# Silos keep the models of the last evaluation, so by default that is what is reported.
_FIXED: Settings = {
    "data": {"name": AT_SILOS},
    "checkpoint": {"every": 1},
    "evaluation": {"choose": "last"},
    "rounds": 50,
    "batch_size": 20,
}


@dataclass(frozen=True)
class ServeSettings:
    """A configuration of `idiolect run`, with silos and a schema in place of data."""

    config: RunConfig
    silos: tuple[str, ...]
    schema: Schema | Search  # a search until the silos have found a schema together
    minimum_replies: int | None = None  # None: all who are asked, or with secure sums their threshold
    patience: Patience = field(default_factory=Patience)
    secure: SecureSettings | None = None  # None: uploads are seen one by one

    @property
    def agreed_schema(self) -> Schema:
        """The schema, when it has been given or found."""
        assert isinstance(self.schema, Schema), "found before silos are greeted"
        return self.schema

    @property
    def main_metric(self) -> str:
        """The metric that models are shown by."""
        evaluation, rows = self.config.evaluation, self.agreed_schema.preprocessing
        return measures_of(rows.task, evaluation.metrics, evaluation.metric, rows.class_names).main.name

    def minimum(self, asked: int) -> int:
        """How many usable replies an exchange needs."""
        usual = asked if self.secure is None else self.secure.threshold
        return min(asked, usual if self.minimum_replies is None else self.minimum_replies)

    def shared_config(self) -> dict[str, Any]:
        """The part of the configuration that silos agree to."""
        plain = self.config.plain()
        for option in preparation_of(
            self.config
        ).file_options:  # files are here; silos are sent what is in them
            del plain["model"][option]
        metrics = all_named(self.config.evaluation.metrics, self.config.evaluation.metric)
        return {key: plain[key] for key in _SHARED} | {
            "evaluation": {"metrics": list(metrics), "every": self.config.evaluation.every},
            INCOMPLETE_WORK: not _completes_all_work(self.config.participation),
            **({} if self.secure is None else {SECURE: self.secure.plain()}),
        }


def _completes_all_work(participation: Participation) -> bool:
    """Whether every silo that is asked does all of its local work."""
    own = [entry.work for entry in participation.clients.values()]
    return (
        participation.plan is None
        and participation.work == Fixed()
        and all(work in (None, 1.0) for work in own)
    )


def serve_settings(settings: Mapping[str, Any], folder: Path) -> ServeSettings:
    """Check settings and fill in every default; paths in them are relative to `folder`."""
    own = {key: settings[key] for key in _OWN if key in settings}
    rest = {key: value for key, value in settings.items() if key not in _OWN}
    if "data" in rest:
        raise UserError("data is not a setting of `idiolect serve`: each silo gives its own with --data")
    if "checkpoint" in rest:
        raise UserError(
            "checkpoint is not a setting of `idiolect serve`: it saves every round, as its silos do"
        )
    silos = _names(own.get("silos"))
    if "schema" not in own:
        raise UserError(
            "schema is missing: columns, target and classes, or the target only, or the path of a JSON file"
        )
    if "device" in rest:
        raise UserError("device is not a setting of `idiolect serve`: all compute on the CPU there")
    config = resolve(merge(_FIXED, rest))
    if config.evaluation.threshold != 0.5:
        raise UserError(
            f"evaluation.threshold={config.evaluation.threshold} is not a setting of `idiolect serve`: it is "
            "chosen on the validation rows of all clients, and silos show nobody theirs"
        )
    if config.evaluation.train:
        raise UserError(
            "evaluation.train=true is not a setting of `idiolect serve`: silos tell metrics of validation "
            "and test rows only"
        )
    if config.newcomers.clients is not None:
        raise UserError(
            "newcomers is not a setting of `idiolect serve`: leave a silo out of `silos`, and give it "
            "a model with `idiolect personalize` when it comes"
        )
    if config.participation.looks_at_classes:
        raise UserError(
            "participation.work=classes is not a setting of `idiolect serve`: silos tell nobody their classes"
        )
    if config.privacy is not None and config.privacy.noise is None and config.privacy.unit == "row":
        raise UserError(
            f"privacy.epsilon={config.privacy.epsilon:g} cannot be met for all silos at once: what a row "
            "pays follows from how many there are, and silos differ; give privacy.noise, and let each stop "
            "by itself (`idiolect join --max-epsilon`)"
        )
    minimum = own.get("minimum_replies")
    if minimum is not None and (type(minimum) is not int or not 1 <= minimum <= len(silos)):
        raise UserError(f"minimum_replies={minimum} is not possible: it must be from 1 to {len(silos)}")
    patience = Patience(
        answer_seconds=_number(own, "answer_seconds", Patience.answer_seconds),
        total_seconds=_number(own, "patience_seconds", Patience.total_seconds, zero=True),
        megabytes=_number(own, "most_megabytes", Patience.megabytes),
    )
    schema = read_schema(own["schema"], folder, config.seed)
    secure = SecureSettings.read(own.get("secure"), len(silos))
    if secure is not None and minimum is not None and minimum < secure.threshold:
        raise UserError(
            f"minimum_replies={minimum} is below secure.threshold={secure.threshold}: a sum over fewer is "
            "never opened"
        )
    return ServeSettings(config, silos, schema, minimum, patience, secure)


def _names(silos: Any) -> tuple[str, ...]:
    """The silos' names, which are those of keys and folders; a number may stand for its digits."""
    listed = isinstance(silos, list | tuple) and all(isinstance(name, str | int) for name in silos)
    names = tuple(str(name) for name in silos) if listed else ()
    if len(set(names)) < max(len(names), 2):
        raise UserError(f"silos={silos} is not possible: give two or more different names, as [a, b]")
    check_names(names)
    return names


def _number(own: Mapping[str, Any], key: str, usual: float, *, zero: bool = False) -> float:
    """A positive number of the file; `zero`: or none at all, as who does not want to wait says."""
    value = own.get(key, usual)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    if not is_number or (value == 0 and not zero):
        raise UserError(
            f"{key}={value} is not possible: it must be a number {'from 0 on' if zero else 'above 0'}"
        )
    return float(value)


def agreed_config(shared: Mapping[str, Any]) -> RunConfig:
    """The configuration of which a silo was told the part that it agrees to; anything else is left out."""
    if missing := [key for key in _SHARED if key not in shared and key not in ADDED_LATER]:
        raise UserError(f"the configuration of the run has no {missing[0]}")
    told = {key: shared.get(key, ADDED_LATER[key]) if key in ADDED_LATER else shared[key] for key in _SHARED}
    evaluation = {key: value for key, value in shared["evaluation"].items() if key in ("metrics", "every")}
    config = resolve(merge(_FIXED, {**told, "evaluation": evaluation}))
    if config.rounds is None:
        raise UserError("rounds=None is not possible between silos: give a number")
    if config.privacy is not None and config.privacy.noise is None:
        raise UserError("the configuration of the run says privacy, and no privacy.noise")
    if (weights := preparation_of(config).weights) is not None:
        raise UserError(
            f"model.weights={weights} would read a file of the silo's; a coordinator sends weights"
        )
    return config
