"""The small sections of a run's configuration, and how they are built, so that messages name the section."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf
from pydantic.dataclasses import dataclass

from idiolect.aggregation.rules import RULES
from idiolect.codecs.choice import CodecConfig
from idiolect.core.hyper import STRICT
from idiolect.core.outer_step import OUTER_STEPS
from idiolect.data.federation import Federation
from idiolect.engines.assembly import ENGINES
from idiolect.errors import UserError
from idiolect.evaluation.judge import default_metric
from idiolect.evaluation.metrics import Measures, Metric, measures_of
from idiolect.evaluation.summary import Choice
from idiolect.participation import Participation
from idiolect.privacy.settings import UNITS, PrivacyChoice
from idiolect.runs.left_out import NewcomerSettings
from idiolect.runs.settings import Settings
from idiolect.runs.signatures import build, fields_of

WholeNumber = Annotated[int, Field(strict=True)]


@dataclass(frozen=True, config=STRICT)
class EvaluationSettings:
    """When clients' models are evaluated, and which round is reported."""

    every: WholeNumber = Field(default=5, ge=1, description="rounds from one evaluation to the next")
    choose: Choice = Field(default="validation", description="the reported round: best validation, or last")
    metrics: tuple[str | InstanceOf[Metric], ...] = Field(
        default=(), description="further metrics: auc, f1, recall:CLASS, ..., or package.module:function"
    )
    metric: str | None = Field(
        default=None, description="what rounds are chosen and models reported by; None: what suits the data"
    )
    threshold: Annotated[float, Field(gt=0, lt=1)] | Literal["validation"] = Field(
        default=0.5, description="from which probability on it is the second of two classes, or validation"
    )
    patience: Annotated[WholeNumber, Field(ge=0)] | None = Field(
        default=None,
        description="rounds without a better validation value or loss after which a run ends; 0: none do; "
        "None: 100 where `rounds` is left open",
    )
    train: bool = Field(
        default=False, description="whether metrics are also of the rows that models are trained on"
    )

    def measures(self, federation: Federation) -> Measures:
        """What is computed of every client's rows."""
        task = federation.task
        if self.threshold != 0.5 and task.kind != "binary":
            raise UserError(
                f"evaluation.threshold={self.threshold} is not possible: a {task.kind} task has none, "
                "which is between two classes"
            )
        metric, reason = (self.metric, "") if self.metric is not None else default_metric(federation)
        measures = measures_of(task, self.metrics, metric, federation.class_names)
        return replace(measures, reason=reason, threshold=self.threshold, train=self.train)


@dataclass(frozen=True, config=STRICT)
class CheckpointSettings:
    """When states are saved."""

    every: WholeNumber = Field(default=10, ge=1, description="rounds from one checkpoint to the next")
    states: bool = Field(
        default=True,
        description="whether states are saved at all; if not, a run that was stopped starts anew, and there "
        "are no models to export",
    )


def with_sections(settings: Settings) -> Settings:
    """The settings with these sections built."""
    sections = {
        "participation": Participation,
        "codec": CodecConfig,
        "newcomers": NewcomerSettings,
        "evaluation": EvaluationSettings,
        "checkpoint": CheckpointSettings,
    }
    built: Settings = _listed(settings, "trackers")
    if "," in str(settings.get("train")):  # one word may also be a rule
        built = _listed(built, "train")
    for name, kind in sections.items():
        if name in built and not isinstance(built[name], kind):
            if not isinstance(built[name], Mapping):
                first = next(iter(fields_of(kind)))
                raise UserError(
                    f"{name}={built[name]} is not possible: it has settings, as {name}.{first}=..."
                )
            built[name] = build(kind, _listed(built[name], "metrics"), name)
    for name, choices in (("engine", ENGINES), ("robust", RULES), ("outer", OUTER_STEPS)):
        chosen = built.get(name)
        if isinstance(chosen, Mapping) and chosen.get("name") in choices:
            built[name] = build(choices[chosen["name"]], chosen, name)
    if built.get("privacy") is not None and not isinstance(built["privacy"], tuple(UNITS.values())):
        built["privacy"] = _built_privacy(built["privacy"])
    return built


def _built_privacy(given: Any) -> PrivacyChoice:
    """The section that is chosen by a unit in place of a name."""
    if not isinstance(given, Mapping):
        raise UserError(f"privacy={given} is not possible: it has settings, as privacy.unit=row")
    unit = given.get("unit")
    if not isinstance(unit, str) or unit not in UNITS:
        said = " is missing" if unit is None else f"={unit} is not possible"
        raise UserError(f"privacy.unit{said}: it must be {' or '.join(UNITS)}")
    return build(UNITS[unit], given, "privacy")


def _listed(section: Mapping[str, Any], setting: str) -> Settings:
    """A section with a setting as a list, which may also have been given as a,b."""
    given = section.get(setting)
    if not isinstance(given, str):
        return dict(section)
    return {**section, setting: [part.strip() for part in given.split(",")]}
