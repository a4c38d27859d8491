"""Runs with secure sums on a page: a table of means over all rows, and their curves; no client is in it."""

from collections.abc import Sequence

from idiolect.reports.charts import Curves, Series
from idiolect.reports.figures import is_share
from idiolect.runs.folder import RunFolder
from idiolect.runs.summed import HEADINGS, WHAT_IT_IS, summed_rows
from idiolect.runs.tabulation import model_name


def summed_table(runs: Sequence[RunFolder]) -> tuple[list[str], list[list[str]]]:
    """A row for each model of each run."""
    rows = []
    for run in runs:
        for kind, *cells in summed_rows(run):
            rows.append([model_name(run.config.method_name, kind), run.summary()["metric_label"], *cells])
    return [HEADINGS[0], "metric", *HEADINGS[1:]], rows


def summed_charts(runs: Sequence[RunFolder]) -> list[Curves]:
    """The run's metric over rounds, a figure for each metric that runs are judged by."""
    by_metric: dict[str, list[RunFolder]] = {}
    for run in runs:
        by_metric.setdefault(run.summary()["metric"], []).append(run)
    return [_chart(metric, own) for metric, own in by_metric.items()]


def _chart(metric: str, runs: Sequence[RunFolder]) -> Curves:
    label = runs[0].summary()["metric_label"]
    return Curves(
        title=f"Secure sums: {label} round by round",
        description=f"Test rows; {WHAT_IT_IS}.",
        series=[series for run in runs for series in _series(run, metric)],
        y_label=f"{label}, mean over rows",
        percent=is_share(metric),
        markers=True,
    )


def _series(run: RunFolder, metric: str) -> list[Series]:
    summed, method = run.summed_metrics(), run.config.method_name
    of_metric = summed[(summed.metric == metric) & (summed.part == "test")]
    return [
        Series(
            name=model_name(method, kind),
            x={"round": own["round"].tolist()},
            y=own["value"].tolist(),
            method=method,
            kind=kind,
        )
        for kind in dict.fromkeys(of_metric.kind)
        for own in (of_metric[of_metric.kind == kind],)
    ]
