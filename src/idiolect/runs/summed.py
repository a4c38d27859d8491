"""Metrics of runs whose silos told them in secure sums only: means over all rows, of no single silo.

    summed_metrics.parquet   round, kind, part, metric, value, rows, silos

`metrics.parquet` of such a run is empty: nobody knows a client's own value, nor how values differ.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from idiolect.quantities import show_value
from idiolect.runs.folder import RunFolder

WHAT_IT_IS = "means over all rows of all silos, from secure sums; nobody knows the values of single silos"
HEADINGS = ("model", "test", "validation", "test loss", "validation loss", "test rows", "silos", "round")


def is_summed(run: RunFolder) -> bool:
    """Whether a run's metrics are known in sums only."""
    return not run.summed_metrics().empty and run.metrics().empty


def reported_sums(run: RunFolder) -> pd.DataFrame:
    """The means that are reported: of the last round of which there are any."""
    summed = run.summed_metrics()
    return summed[summed["round"] == summed["round"].max()]


def summed_rows(run: RunFolder) -> list[list[str]]:
    """A row for each kind of model, under `HEADINGS`; test and validation are those of the run's metric."""
    summary, sums = run.summary(), reported_sums(run)
    told = {(row["kind"], row["part"], row["metric"]): row for row in sums.to_dict(orient="records")}
    rows = []
    for kind in summary["kinds"]:
        entries = [
            (part, metric) for metric in (summary["metric"], "loss") for part in ("test", "validation")
        ]
        found = [(told.get((kind, part, metric)), metric) for part, metric in entries]
        cells = ["–" if row is None else show_value(row["value"], metric) for row, metric in found]
        tested = told.get((kind, "test", "loss"))
        counts = ["–"] * 2 if tested is None else [str(tested["rows"]), str(tested["silos"])]
        rows.append([kind, *cells, *counts, str(sums["round"].max())])
    return rows


def summed_records(runs: Sequence[RunFolder]) -> list[dict[Any, Any]]:
    """All means of runs, for programs."""
    return [
        {"method": run.config.method_name, "seed": run.config.seed, **record}
        for run in runs
        for record in run.summed_metrics().to_dict(orient="records")
    ]
