"""Loss and metrics of every client, for each model kind that the method has, on the client's own rows.

| task                       | metrics                              |
|----------------------------|--------------------------------------|
| multiclass, next-character | loss, accuracy                       |
| binary                     | loss, accuracy, balanced_accuracy    |
| regression                 | loss, rmse, mae, r2                  |

`loss` is the task's mean loss without the l2 term. `balanced_accuracy` is the mean recall of the classes
that occur in the client's rows. `rmse`, `mae` and `r2` are over all outputs; `r2` of a client whose targets
are all equal is not defined. What is not defined, and everything of a client without rows, is NaN and does
not count in means. A client that has rows but whose loss on them is not finite has failed: each of its
metrics is the worst there is (`Metric.failure`: 0 for a share, else infinite), which every mean keeps.

A metric of one's own is declared in the same form as these (`@metric(higher_is_better=...)`) and comes after
them in the tables.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import pandas as pd
import torch
from torch import Tensor

from idiolect.core.exchange import ClientState, Message, Site
from idiolect.core.method import Method
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.engines.engine import Look
from idiolect.errors import UserError
from idiolect.plugins import Catalogue, kind_of

Part = Literal["validation", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
COLUMNS = ("round", "client", "kind", "part", "metric", "value")

# Predictions and rows of one client -> a tensor without axes. Rows of weight zero only pad. Can be vmapped.
RowsToNumber = Callable[[Task, Tensor, Batch], Tensor]


def every_task(task: Task) -> bool:
    """Any task."""
    return True


@dataclass(frozen=True)
class Metric:
    """A number that says how good the predictions of one client's rows are."""

    name: str
    function: RowsToNumber
    higher_is_better: bool
    applies_to: Callable[[Task], bool] = every_task
    is_share: bool = False  # between 0 and 1

    @property
    def failure(self) -> float:
        """The worst value: that of a client whose loss is not finite."""
        if self.higher_is_better:
            return 0.0 if self.is_share else -math.inf
        return 1.0 if self.is_share else math.inf

    def __call__(self, task: Task, predictions: Tensor, batch: Batch) -> Tensor:
        """The number, float64."""
        value = self.function(task, predictions, batch)
        if not isinstance(value, Tensor) or value.ndim:
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"the metric {self.name} must give a tensor without axes, not one of {given}")
        return value.to(torch.float64)


def metric(
    *,
    higher_is_better: bool,
    name: str = "",
    applies_to: Callable[[Task], bool] = every_task,
    is_share: bool = False,
) -> Callable[[RowsToNumber], Metric]:
    """Declare a function as a metric, under its own name unless another one is given.

    is_share: it is between 0 and 1, so that a client whose model has failed has the worse of these.
    """
    return lambda function: Metric(
        name or function.__name__, function, higher_is_better, applies_to, is_share
    )


def mean_over_rows(values: Tensor, batch: Batch) -> Tensor:
    """The mean over the client's own rows, float64; NaN if it has none."""
    counts = (batch.weights > 0).to(torch.float64)
    return (values.to(torch.float64) * counts).sum() / counts.sum()


def _is_classification(task: Task) -> bool:
    return task.is_classification


def _is_binary(task: Task) -> bool:
    return task.kind == "binary"


def _is_regression(task: Task) -> bool:
    return not task.is_classification


@metric(higher_is_better=False)
def loss(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The task's mean loss."""
    return mean_over_rows(task.row_losses(predictions, batch.targets), batch)


@metric(higher_is_better=True, applies_to=_is_classification, is_share=True)
def accuracy(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The share of rows whose class is the predicted one."""
    return mean_over_rows(task.decide(predictions) == batch.targets, batch)


@metric(higher_is_better=True, applies_to=_is_binary, is_share=True)
def balanced_accuracy(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean recall over the classes that occur."""
    hits = (task.decide(predictions) == batch.targets).to(torch.float64)
    counts = (batch.weights > 0).to(torch.float64)
    of_class = torch.stack([(batch.targets == c).to(torch.float64) * counts for c in (0, 1)])
    sizes = of_class.sum(-1)
    recalls = (of_class * hits).sum(-1) / sizes.clamp_min(1)
    return recalls.sum() / (sizes > 0).sum()


@metric(higher_is_better=False, applies_to=_is_regression)
def rmse(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The root of the mean squared error."""
    return _mean_squared_error(predictions, batch).sqrt()


@metric(higher_is_better=False, applies_to=_is_regression)
def mae(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The mean absolute error."""
    errors = predictions.to(torch.float64) - batch.targets.to(torch.float64)
    return mean_over_rows(errors.abs().mean(-1), batch)


@metric(higher_is_better=True, applies_to=_is_regression)
def r2(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """The share of the targets' variance that is predicted."""
    targets, counts = batch.targets.to(torch.float64), (batch.weights > 0).to(torch.float64)
    centre = (targets * counts[:, None]).sum(0) / counts.sum()
    spread = mean_over_rows((targets - centre).square().mean(-1), batch)
    return torch.where(spread > 0, 1 - _mean_squared_error(predictions, batch) / spread, torch.nan)


def _mean_squared_error(predictions: Tensor, batch: Batch) -> Tensor:
    errors = predictions.to(torch.float64) - batch.targets.to(torch.float64)
    return mean_over_rows(errors.square().mean(-1), batch)


def _flaw(found: Any) -> str | None:
    if not isinstance(found, Metric):
        return (
            "it must be a function of (task, predictions, batch) that is declared as a metric with "
            f"@metric(higher_is_better=...) of idiolect.evaluation.metrics, not {kind_of(found)}"
        )
    if not re.fullmatch(r"[\w-]+", found.name):
        return f"its name {found.name!r} must be of letters, digits, - and _"
    return None


BUILT_IN: tuple[Metric, ...] = (loss, accuracy, balanced_accuracy, rmse, mae, r2)
CATALOGUE: Catalogue[Metric] = Catalogue(
    word="metric",
    several="metrics",
    group="idiolect.metrics",
    own="your own as package.module:function",
    flaw=_flaw,
    built_in={metric.name: metric for metric in BUILT_IN},
)


@dataclass(frozen=True)
class Measures:
    """What is computed of every client's rows; and by which of it rounds are chosen and models reported."""

    metrics: tuple[Metric, ...]
    main: Metric


def all_named(metrics: Sequence[str | Metric], main: str | None = None) -> tuple[str | Metric, ...]:
    """The metrics that settings name; with the main one, unless that is called by its own name."""
    own_names = [_find(metric).name for metric in metrics]
    if main is None or main in own_names:
        return tuple(metrics)
    CATALOGUE.find(main, "evaluation.metric")
    return (*metrics, main)


def measures_of(task: Task, metrics: Sequence[str | Metric] = (), main: str | None = None) -> Measures:
    """The task's own metrics and others; `main` replaces the metric that the task is judged by."""
    known = {metric.name: metric for metric in BUILT_IN}
    for metric in map(_find, all_named(metrics, main)):
        if known.setdefault(metric.name, metric) != metric:
            raise UserError(f"evaluation.metrics: two metrics are called {metric.name}; rename one of them")
    fit = {name: metric for name, metric in known.items() if metric.applies_to(task)}
    judging = known[main_metric(task)] if main is None else known.get(main) or CATALOGUE.find(main)
    for metric in (*map(_find, metrics), judging):
        if metric.name not in fit:
            raise UserError(
                f"evaluation: {metric.name} is no metric of a {task.kind} task, whose metrics are "
                f"{', '.join(fit)}"
            )
    return Measures(tuple(fit.values()), judging)


def _find(metric: str | Metric) -> Metric:
    return CATALOGUE.find(metric, "evaluation.metrics") if isinstance(metric, str) else metric


def main_metric(task: Task) -> str:
    """The metric that a task is judged by unless another one is chosen."""
    return "accuracy" if task.is_classification else "rmse"


def rows_of(federation: Federation, part: Part) -> Rows:
    """One part of the data."""
    return federation.validation if part == "validation" else federation.test


def row_metrics(
    task: Task, predictions: Tensor, batch: Batch, metrics: Sequence[Metric] = BUILT_IN
) -> dict[str, Tensor]:
    """Those metrics of one client's rows that the task has, float64. Can be vmapped."""
    failed = has_failed(task, predictions, batch)
    return {
        m.name: torch.where(failed, m.failure, m(task, predictions, batch))
        for m in metrics
        if m.applies_to(task)
    }


def has_failed(task: Task, predictions: Tensor, batch: Batch) -> Tensor:
    """Whether a client has rows, and a loss on them that is not finite. Can be vmapped."""
    return (batch.weights > 0).any() & ~loss(task, predictions, batch).isfinite()


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
    metrics = BUILT_IN if measures is None else measures.metrics
    tables = []
    for part in PARTS:
        rows = rows_of(simulation.federation, part)
        if len(rows.index):
            tables.append(_evaluate_part(simulation, part, rows, metrics))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))


def _evaluate_part(simulation: Surveyed, part: Part, rows: Rows, metrics: Sequence[Metric]) -> pd.DataFrame:
    task, names = simulation.federation.task, simulation.federation.names

    def look(client: ClientState, brief: Message, site: Site) -> dict[str, dict[str, Tensor]]:
        predictors, rows = simulation.method.predictors(client, brief), site.all_rows
        return {
            kind: row_metrics(task, site.objective.predict(predictor, rows.inputs), rows, metrics)
            for kind, predictor in predictors.items()
        }

    by_kind = simulation.survey(look, rows)
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "round": simulation.round,
                    "client": list(names),
                    "kind": kind,
                    "part": part,
                    "metric": metric,
                    "value": values.detach().numpy(),
                }
            )
            for kind, by_metric in by_kind.items()
            for metric, values in by_metric.items()
        ],
        ignore_index=True,
    )
