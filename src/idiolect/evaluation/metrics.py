"""Loss and metrics of every client, for each model kind that the method has, on the client's own rows.

| task           | metrics by default                     | on request                                       |
|----------------|----------------------------------------|--------------------------------------------------|
| binary         | loss, accuracy, balanced_accuracy, auc | f1, average_precision, log_loss and              |
|                |                                        | calibration_error                                |
| multiclass     | loss, accuracy, balanced_accuracy      | these, and auc                                   |
| next-character | loss, accuracy                         | these, balanced_accuracy and auc                 |
| regression     | loss, rmse, mae, r2                    |                                                  |

`loss` is the task's mean training loss without the l2 term: with class weights, and of a standardised target.
Of one class there are `recall:CLASS`, `precision:CLASS` and `f1:CLASS`; `recall:each` is all of them. What is
not defined, and everything of a client without rows, is NaN and does not count in means. A client that has
rows but whose loss on them is not finite has failed: each of its metrics is the worst there is
(`Metric.failure`: 0 for a share, else infinite), which every mean keeps.

A metric of one's own is declared in the same form as these (`@metric(higher_is_better=...)`) and comes after
them in the tables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import pandas as pd
import torch
from torch import Tensor

from idiolect.core.exchange import ClientState, Message, Site
from idiolect.core.method import Method
from idiolect.core.objective import Batch
from idiolect.core.task import Task, TaskKind
from idiolect.data.federation import Federation, Rows
from idiolect.engines.engine import Look
from idiolect.errors import UserError, did_you_mean
from idiolect.evaluation.classification import (
    OF_CLASS,
    accuracy,
    auc,
    average_precision,
    balanced_accuracy,
    calibration_error,
    f1,
    log_loss,
    of_class,
)
from idiolect.evaluation.metric import Metric, loss, mean_over_rows, metric
from idiolect.evaluation.regression import mae, r2, rmse
from idiolect.evaluation.threshold import CRITERIA, Criterion, validation_thresholds
from idiolect.plugins import Catalogue, kind_of

__all__ = [
    "BUILT_IN",
    "BY_DEFAULT",
    "CATALOGUE",
    "COLUMNS",
    "PARTS",
    "Measures",
    "Metric",
    "all_named",
    "evaluate",
    "is_of_class",
    "label_of",
    "main_metric",
    "mean_over_rows",
    "measures_of",
    "metric",
    "row_metrics",
    "rows_of",
]

Part = Literal["validation", "test", "train"]
PARTS: tuple[Part, ...] = ("validation", "test")  # by whose rows models are chosen and reported
Threshold = float | Literal["validation"]  # binary: a probability, or chosen on validation rows
COLUMNS = ("round", "client", "kind", "part", "metric", "value")


def _flaw(found: Any) -> str | None:
    if not isinstance(found, Metric):
        return (
            "it must be a function of (task, predictions, batch) that is declared as a metric with "
            f"@metric(higher_is_better=...) of idiolect.evaluation.metrics, not {kind_of(found)}"
        )
    if not re.fullmatch(r"[\w-]+", found.name):
        return f"its name {found.name!r} must be of letters, digits, - and _"
    return None


BUILT_IN: tuple[Metric, ...] = (
    loss,
    accuracy,
    balanced_accuracy,
    f1,
    auc,
    average_precision,
    log_loss,
    calibration_error,
    rmse,
    mae,
    r2,
)
BY_DEFAULT: dict[TaskKind, tuple[Metric, ...]] = {
    "binary": (loss, accuracy, balanced_accuracy, auc),
    "multiclass": (loss, accuracy, balanced_accuracy),
    "next-character": (loss, accuracy),
    "regression": (loss, rmse, mae, r2),
}
CATALOGUE: Catalogue[Metric] = Catalogue(
    word="metric",
    several="metrics",
    group="idiolect.metrics",
    own="your own as package.module:function, or recall:CLASS, precision:CLASS and f1:CLASS",
    flaw=_flaw,
    built_in={metric.name: metric for metric in BUILT_IN},
)
EACH = "each"  # in place of a class: all of them


@dataclass(frozen=True)
class Measures:
    """What is computed of every client's rows; and by which of it rounds are chosen and models reported."""

    metrics: tuple[Metric, ...]
    main: Metric
    reason: str = ""  # why the main one is not the usual one, if it is not
    threshold: Threshold = 0.5
    thresholds: Mapping[str, float] = field(default_factory=dict)  # by model kind, if they are known already
    train: bool = False  # whether also of the rows that models are trained on

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the data that are looked at."""
        return (*PARTS, "train") if self.train else PARTS


def is_of_class(name: str) -> bool:
    """Whether a name is that of a metric of one class, as `recall:yes`, rather than an import path."""
    return name.partition(":")[0] in OF_CLASS and ":" in name


def all_named(metrics: Sequence[str | Metric], main: str | None = None) -> tuple[str | Metric, ...]:
    """The metrics that settings name; with the main one, unless that is called by its own name."""
    own_names = [m if isinstance(m, str) and is_of_class(m) else _find(m).name for m in metrics]
    if main is None or main in own_names:
        return tuple(metrics)
    if main.endswith(f":{EACH}") and is_of_class(main):
        raise UserError(f"evaluation.metric={main} is not possible: models are judged by one class only")
    if not is_of_class(main):
        CATALOGUE.find(main, "evaluation.metric")
    return (*metrics, main)


def measures_of(
    task: Task,
    metrics: Sequence[str | Metric] = (),
    main: str | None = None,
    class_names: Sequence[str] = (),
) -> Measures:
    """The task's own metrics and others; `main` replaces the metric that the task is judged by."""
    known = {metric.name: metric for metric in BY_DEFAULT[task.kind]}
    named = list(_all_found(all_named(metrics, main), task, class_names))
    for found in named:
        if known.setdefault(found.name, found) != found:
            raise UserError(f"evaluation.metrics: two metrics are called {found.name}; rename one of them")
        if not found.applies_to(task):
            fit = [m.name for m in dict.fromkeys((*BUILT_IN, *known.values())) if m.applies_to(task)]
            raise UserError(
                f"evaluation: {found.name} is no metric of a {task.kind} task, whose metrics are "
                f"{', '.join(fit)}"
            )
    main = main_metric(task) if main is None else main
    return Measures(tuple(known.values()), known.get(main) or CATALOGUE.find(main))


def _all_found(named: Sequence[str | Metric], task: Task, class_names: Sequence[str]) -> Iterator[Metric]:
    for each in named:
        if isinstance(each, str) and is_of_class(each):
            yield from _of_classes(each, task, class_names)
        else:
            yield _find(each)


def _of_classes(name: str, task: Task, class_names: Sequence[str]) -> list[Metric]:
    """The metric of the one class that a name has after its colon, or those of each."""
    word, _, wanted = name.partition(":")
    names = list(class_names) or [str(number) for number in range(task.classes)]
    if not names:
        raise UserError(f"evaluation: {name} is no metric of a {task.kind} task, which has no classes")
    if wanted == EACH:
        return [of_class(word, known, number) for number, known in enumerate(names)]
    if wanted not in names:
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise UserError(
            f"evaluation: {name} names no class{did_you_mean(wanted, names)}; the classes are {shown}, "
            f"and {word}:{EACH} is all of them"
        )
    return [of_class(word, wanted, names.index(wanted))]


def _find(metric: str | Metric) -> Metric:
    return CATALOGUE.find(metric, "evaluation.metrics") if isinstance(metric, str) else metric


def main_metric(task: Task) -> str:
    """The metric that a task is judged by unless another one is chosen or fits the data better."""
    return "accuracy" if task.is_classification else "rmse"


def rows_of(federation: Federation, part: Part) -> Rows:
    """One part of the data."""
    parts: dict[Part, Rows] = {
        "validation": federation.validation,
        "test": federation.test,
        "train": federation.train,
    }
    return parts[part]


def row_metrics(
    task: Task, predictions: Tensor, batch: Batch, metrics: Sequence[Metric] | None = None
) -> dict[str, Tensor]:
    """Metrics of one client's rows, by default those of the task, float64. Can be vmapped."""
    failed = has_failed(task, predictions, batch)
    metrics = BY_DEFAULT[task.kind] if metrics is None else metrics
    return {m.name: torch.where(failed, m.failure, m(task, predictions, batch)) for m in metrics}


def has_failed(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """Whether a client has rows, and a loss on them that is not finite. Can be vmapped."""
    return (batch.weights > 0).any() & ~loss(task, predictions, batch).isfinite()


def label_of(name: str, task: Task) -> str:
    """How a metric is called for people: a loss says what it is of."""
    if name == "loss" and not task.is_classification and task.unit != 1:
        return "loss (standardised target)"
    return "loss (with class weights)" if name == "loss" and task.class_weights else name


class Surveyed(Protocol):
    """Clients that can be looked at here: those of a simulation."""

    round: int

    @property
    def method(self) -> Method:
        """Whose models are looked at."""
        ...

    @property
    def federation(self) -> Federation:
        """On whose rows."""
        ...

    def survey(self, look: Look, part: Rows) -> Any:
        """Look at every client with its rows in one part of the data; the results are stacked."""
        ...


def evaluate(simulation: Surveyed, measures: Measures | None = None) -> pd.DataFrame:
    """All metrics of all clients now, in long form with the columns `COLUMNS`.

    A part of the data in which no client has a row is left out. Without `measures`: the task's own metrics.
    """
    federation = simulation.federation
    measures = measures_of(federation.task) if measures is None else measures
    thresholds = _thresholds(simulation, measures)
    tables = []
    for part in measures.parts:
        rows = rows_of(federation, part)
        if len(rows.index):
            tables.append(_evaluate_part(simulation, part, rows, measures.metrics, thresholds))
    if not tables:  # of an empty table nothing tells which columns are numbers
        return pd.DataFrame(columns=list(COLUMNS)).astype({"round": "int64", "value": "float64"})
    return pd.concat(tables, ignore_index=True)


def _thresholds(simulation: Surveyed, measures: Measures) -> Mapping[str, float]:
    """The threshold of each model kind; none where it is one half."""
    validation = simulation.federation.validation
    if measures.thresholds or measures.threshold == 0.5:
        return measures.thresholds
    if measures.threshold != "validation":
        return dict.fromkeys(simulation.method.kinds, measures.threshold)
    if not len(validation.index):
        raise UserError("evaluation.threshold=validation is not possible: no client has validation rows")
    criterion: Criterion = next((c for c in CRITERIA if c == measures.main.name), "balanced_accuracy")
    return validation_thresholds(simulation, validation, criterion)


def _evaluate_part(
    simulation: Surveyed,
    part: Part,
    rows: Rows,
    metrics: Sequence[Metric],
    thresholds: Mapping[str, float],
) -> pd.DataFrame:
    federation = simulation.federation
    names = federation.names
    tasks = {kind: replace(federation.task, threshold=t) for kind, t in thresholds.items()}

    def look(client: ClientState, brief: Message, site: Site) -> dict[str, dict[str, Tensor]]:
        predictors, rows = simulation.method.predictors(client, brief), site.all_rows
        return {
            kind: row_metrics(
                tasks.get(kind, federation.task),
                site.objective.predict(predictor, rows.inputs),
                rows,
                metrics,
            )
            for kind, predictor in predictors.items()
        }

    by_kind = simulation.survey(look, rows)
    for kind, threshold in thresholds.items():
        by_kind[kind]["threshold"] = torch.full((len(names),), threshold, dtype=torch.float64)
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "round": simulation.round,
                    "client": list(names),
                    "kind": kind,
                    "part": part,
                    "metric": metric,
                    "value": values.detach().double().numpy(),
                }
            )
            for kind, by_metric in by_kind.items()
            for metric, values in by_metric.items()
        ],
        ignore_index=True,
    )
