"""Learning curves: means over clients and seeds with their 95 % intervals, by round, traffic and time."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from idiolect.errors import UserError
from idiolect.evaluation.intervals import NORMAL_95
from idiolect.evaluation.summary import reported_part
from idiolect.runs.folder import RunFolder
from idiolect.runs.tabulation import model_name

BITS_PER_MEGABYTE = 8e6


def curves_of(runs: Sequence[RunFolder], metric: str) -> pd.DataFrame:
    """model, round, value, low, high, megabytes, seconds: a row for each evaluation of each model.

    seconds: of training, so far; nan where a run has no table of them.
    """
    values, costs = [], []
    for run in runs:
        metrics, method = run.metrics(), run.config.method_name
        if metrics.empty:
            raise UserError(f"{str(run.path)!r} has nothing to report: no silo shares its metrics")
        kept = metrics[(metrics.part == reported_part(metrics)) & (metrics.metric == metric)]
        kinds = list(dict.fromkeys(kept.kind))
        names = kept.kind.map({kind: model_name(method, kind) for kind in kinds})
        values.append(kept[["round", "client", "value"]].assign(model=names, seed=run.config.seed))
        costs += [_costs(run).assign(model=model_name(method, kind)) for kind in kinds]
    curves = _with_intervals(pd.concat(values))
    spent = pd.concat(costs).groupby(["model", "round"], sort=False).mean()
    return curves.join(spent, on=["model", "round"])


def _with_intervals(values: pd.DataFrame) -> pd.DataFrame:
    """The mean over seeds of the means over clients, and where it would be with other clients and seeds.

    The variance of the mean is that between clients, by their number, and that between seeds, by theirs.
    """
    of_seeds = values.groupby(["model", "round", "seed"], sort=False)["value"].mean()
    means = of_seeds.groupby(["model", "round"], sort=False).mean()
    finite = values[np.isfinite(values["value"])]
    of_clients = finite.groupby(["model", "round", "client"], sort=False)["value"].mean()
    variance = _variance_of_mean(of_clients).reindex(means.index)
    variance += _variance_of_mean(of_seeds[np.isfinite(of_seeds)]).reindex(means.index).fillna(0.0)
    half = NORMAL_95 * np.sqrt(variance)
    table = pd.DataFrame({"value": means, "low": means - half, "high": means + half}).reset_index()
    order = {model: place for place, model in enumerate(dict.fromkeys(values.model))}
    return table.sort_values(["model", "round"], key=lambda c: c.map(order) if c.name == "model" else c)


def _variance_of_mean(values: "pd.Series[float]") -> "pd.Series[float]":
    grouped = values.groupby(["model", "round"], sort=False)
    return grouped.var(ddof=1) / grouped.size()


def _costs(run: RunFolder) -> pd.DataFrame:
    """Megabytes and seconds up to the end of each round, of those that are known."""
    bits = run.rounds().set_index("round")[["down_bits", "up_bits"]].sum(axis=1).cumsum()
    table = pd.DataFrame({"megabytes": bits / BITS_PER_MEGABYTE})
    seconds = _seconds(run)
    table["seconds"] = np.nan if seconds is None else seconds.reindex(table.index)
    if seconds is not None and 0 in table.index:
        table.loc[0, "seconds"] = 0.0  # before training
    return table.reset_index()


def _seconds(run: RunFolder) -> "pd.Series[float] | None":
    """Of training up to the end of each round; None where the run has no table of them."""
    timing = run.timing()
    return None if timing.empty else timing.set_index("round")["seconds"]
