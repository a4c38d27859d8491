"""Loss and metrics of every client, for each model kind that the method has, on the client's own rows.

| task                       | metrics                              |
|----------------------------|--------------------------------------|
| multiclass, next-character | loss, accuracy                       |
| binary                     | loss, accuracy, balanced_accuracy    |
| regression                 | loss, rmse, mae, r2                  |

`loss` is the task's mean loss without the l2 term. `balanced_accuracy` is the mean recall of the classes
that occur in the client's rows. `rmse`, `mae` and `r2` are over all outputs; `r2` of a client whose targets
are all equal is not defined. What is not defined, and everything of a client without rows, is NaN.
"""

from typing import Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from idiolect.core.method import ClientState, Site
from idiolect.core.objective import Batch
from idiolect.core.task import Task
from idiolect.data.federation import Federation, Rows
from idiolect.simulation import Simulation

Part = Literal["validation", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
COLUMNS = ("round", "client", "kind", "part", "metric", "value")
_HIGHER_IS_BETTER = frozenset({"accuracy", "balanced_accuracy", "r2"})


def main_metric(task: Task) -> str:
    """The metric that a task is judged by."""
    return "accuracy" if task.is_classification else "rmse"


def higher_is_better(metric: str) -> bool:
    """Whether a larger value of the metric is the better one."""
    return metric in _HIGHER_IS_BETTER


def rows_of(federation: Federation, part: Part) -> Rows:
    """One part of the data."""
    return federation.validation if part == "validation" else federation.test


def row_metrics(task: Task, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
    """The metrics of one client's rows, float64; rows of weight zero only pad. Can be vmapped."""
    counts = (batch.weights > 0).to(torch.float64)

    def mean(values: Tensor) -> Tensor:
        return (values.to(torch.float64) * counts).sum() / counts.sum()

    metrics = {"loss": mean(task.row_losses(predictions, batch.targets))}
    if task.is_classification:
        hits = (task.decide(predictions) == batch.targets).to(torch.float64)
        metrics["accuracy"] = mean(hits)
        if task.kind == "binary":
            metrics["balanced_accuracy"] = _balanced_accuracy(hits, batch.targets, counts)
        return metrics
    targets = batch.targets.to(torch.float64)
    errors = predictions.to(torch.float64) - targets
    centre = (targets * counts[:, None]).sum(0) / counts.sum()
    spread = mean((targets - centre).square().mean(-1))
    squared = mean(errors.square().mean(-1))
    return metrics | {
        "rmse": squared.sqrt(),
        "mae": mean(errors.abs().mean(-1)),
        "r2": torch.where(spread > 0, 1 - squared / spread, torch.nan),
    }


def evaluate(simulation: Simulation) -> pd.DataFrame:
    """All metrics of all clients now, in long form with the columns `COLUMNS`.

    A part of the data in which no client has a row is left out.
    """
    tables = []
    for part in PARTS:
        rows = rows_of(simulation.federation, part)
        if len(rows.index):
            tables.append(_evaluate_part(simulation, part, rows))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))


def _evaluate_part(simulation: Simulation, part: Part, rows: Rows) -> pd.DataFrame:
    task, names = simulation.federation.task, simulation.federation.names

    def look(client: ClientState, site: Site) -> dict[str, dict[str, Tensor]]:
        predictors = simulation.method.predictors(simulation.server, client, site.client)
        return {
            kind: row_metrics(task, site.objective.predict(predictor, site.all_rows.inputs), site.all_rows)
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
            for kind, metrics in by_kind.items()
            for metric, values in metrics.items()
        ],
        ignore_index=True,
    )


def _balanced_accuracy(hits: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """The mean recall over the classes that occur."""
    of_class = torch.stack([(targets == c).to(torch.float64) * counts for c in (0, 1)])
    sizes = of_class.sum(-1)
    recalls = (of_class * hits).sum(-1) / sizes.clamp_min(1)
    return recalls.sum() / (sizes > 0).sum()
