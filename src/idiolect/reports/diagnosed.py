"""Charts of what methods tell about themselves: mixing weights, labels, mixing matrices, consensus."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from idiolect.reports.charts import Chart, Curves, HeatMap, Series
from idiolect.reports.ordering import by_similarity
from idiolect.runs.folder import RunFolder

BAND = (10, 90)  # percentiles of the clients


def diagnosed_charts(runs: Sequence[RunFolder]) -> list[Chart]:
    """The charts of each method's first run."""
    first: dict[str, RunFolder] = {}
    for run in runs:
        first.setdefault(run.config.method_name, run)
    return [chart for run in first.values() for chart in _charts_of(run)]


def _charts_of(run: RunFolder) -> Iterator[Chart]:
    table = run.diagnostics()
    clients = [str(client) for client in run.clients().index]
    whose = f"{run.config.method_name}, seed {run.config.seed}"
    for name, describe in _CHARTS.items():
        own = table[table["name"] == name]
        if own["value"].nunique() > 1:  # a weight that stays what it was needs no chart
            yield describe(own, clients, whose)


def _own_weights(table: pd.DataFrame, clients: list[str], whose: str) -> Curves:
    values = table.pivot(index="round", columns="index", values="value")
    rounds = values.index.tolist()
    low, median, high = np.nanpercentile(values.to_numpy(), [BAND[0], 50, BAND[1]], axis=1)
    names = _names(clients, len(values.columns))
    lines = [
        Series(name, {"round": rounds}, own.tolist(), client=name)
        for name, (_, own) in zip(names, values.items(), strict=True)
    ]
    middle = Series(
        "median of the clients",
        {"round": rounds},
        median.tolist(),
        low.tolist(),
        high.tolist(),
        method="apfl",
    )
    return Curves(
        f"Weight of each client's own model ({whose})",
        "α over time: 1 is a model of one's own, 0 the shared one. Thin lines are clients; the band spans "
        f"{BAND[1] - BAND[0]} % of them.",
        [*lines, middle],
        "α",
    )


def _labels(table: pd.DataFrame, clients: list[str], whose: str) -> HeatMap:
    values = table.pivot(index="index", columns="round", values="value")
    history = values.to_numpy()
    order = np.lexsort(history.T)  # by the last label, then by those before
    names = _names(clients, len(history))
    return HeatMap(
        f"Groups of clients ({whose})",
        "The group of each client in each round; clients that end in one group stand together.",
        [names[place] for place in order],
        [str(number) for number in values.columns],
        history[order].tolist(),
        "client",
        "round",
        "group",
        categorical=True,
    )


def _mixing(table: pd.DataFrame, clients: list[str], whose: str) -> HeatMap:
    last = table["round"].max()
    matrix = table[table["round"] == last].sort_values("index")["value"].to_numpy()
    size = math.isqrt(len(matrix))
    matrix = matrix.reshape(size, size)
    order = by_similarity(matrix)
    names = [_names(clients, size)[place] for place in order]
    return HeatMap(
        f"Who learns from whom ({whose})",
        f"The mixing matrix of round {last}: the weight that each client (row) gives to each helper "
        "(column). Clients that mix alike stand together.",
        names,
        names,
        matrix[np.ix_(order, order)].tolist(),
        "client",
        "helper",
        "weight",
    )


def _consensus(table: pd.DataFrame, clients: list[str], whose: str) -> Curves:
    last_step = table.sort_values(["round", "index"]).groupby("round")["value"].last()
    return Curves(
        f"Consensus error ({whose})",
        "How far the clients' shared parts are apart after the last local step of each round, before they "
        "are averaged: ξ, the mean squared distance from their mean.",
        [Series("consensus error", {"round": last_step.index.tolist()}, last_step.tolist())],
        "consensus error ξ",
        y_log=bool((last_step > 0).all()),
    )


def _names(clients: list[str], count: int) -> list[str]:
    """The clients that a method tells of; by number, should they be others than the table's."""
    return clients if len(clients) == count else [f"client {place}" for place in range(count)]


_CHARTS: dict[str, Callable[[pd.DataFrame, list[str], str], Chart]] = {
    "mixing": _own_weights,
    "labels": _labels,
    "mixing_matrix": _mixing,
    "consensus_error": _consensus,
}
