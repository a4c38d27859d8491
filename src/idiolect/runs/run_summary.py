"""The reported numbers of a run, as summary.json has them (docs/running.md says what is in it)."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from idiolect.core.method import Method
from idiolect.core.task import Task
from idiolect.evaluation.convergence import diverged_clients, failed_clients, still_improving
from idiolect.evaluation.metrics import Measures, label_of
from idiolect.evaluation.summary import (
    Choice,
    reported_part,
    reported_round,
    reported_values,
    summarise,
    values_at,
)
from idiolect.runs.rounds import Ending
from idiolect.strict_json import nan_for_null

_INFINITE_IF_FAILED = ("mean", "weighted", "worst_tenth", "min", "max", "worst", "validation")


def summarise_run(
    metrics: pd.DataFrame,
    clients: pd.DataFrame,
    rounds: pd.DataFrame,
    task: Task,
    measures: Measures,
    method: Method,
    choice: Choice,
    broke_off: Ending | None = None,
) -> dict[str, Any]:
    """The reported numbers of each model kind, and who failed; `broke_off` says why rounds are missing."""
    part, metric = reported_part(metrics), measures.main
    all_diverged = broke_off is not None and broke_off.diverged
    by_kind = {}
    for kind in method.kinds:
        # Silos may tell nothing of their models.
        chosen = reported_round(metrics, kind, metric, choice) if len(metrics) else int(rounds["round"].max())
        values = reported_values(metrics, kind, metric.name, chosen)
        diverged = diverged_clients(metrics, kind, chosen)
        by_kind[kind] = {
            "round": chosen,
            **summarise(values, clients[part], metric)._asdict(),
            "validation": float(values_at(metrics, kind, "validation", metric.name, chosen).mean()),
            "untrained": chosen == 0,
            "still_improving": not (diverged or broke_off) and still_improving(metrics, kind, metric),
            "failed": failed_clients(metrics, kind, chosen),
            "diverged": diverged,
        }
        if len(thresholds := reported_values(metrics, kind, "threshold", chosen)):
            by_kind[kind]["threshold"] = float(thresholds.iloc[0])  # the same for all clients
    return {
        "task": task.kind,
        "metric": metric.name,
        "metric_label": label_of(metric.name, task),
        "metric_reason": measures.reason,
        "higher_is_better": metric.higher_is_better,
        "part": part,
        "chosen_by": choice,
        "judged_by": method.judged_by,
        "kinds": by_kind,
        "ended": None if broke_off is None else broke_off.reason,
        "diverged": [kind for kind in method.kinds if all_diverged or by_kind[kind]["diverged"]],
        "down_bits": int(rounds["down_bits"].sum()),
        "up_bits": int(rounds["up_bits"].sum()),
        "brief_bits": int(rounds["brief_bits"].sum()),
    }


def thresholds_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The thresholds that a run reports, by model kind; none where they are one half."""
    kinds: Mapping[str, Mapping[str, float]] = summary["kinds"]
    return {kind: numbers["threshold"] for kind, numbers in kinds.items() if "threshold" in numbers}


def as_computed(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary that was read from JSON, where what is not finite is null.

    Only failed clients make a number infinite.
    """
    worst = -math.inf if summary["higher_is_better"] else math.inf
    by_kind = {}
    for kind, numbers in summary["kinds"].items():
        infinite = [name for name in _INFINITE_IF_FAILED if numbers["failed"] and numbers[name] is None]
        by_kind[kind] = nan_for_null({**numbers, **dict.fromkeys(infinite, worst)})
    newcomers = {name: nan_for_null(summary[name]) for name in ("newcomers",) if name in summary}
    return {**summary, "kinds": by_kind, **newcomers}
