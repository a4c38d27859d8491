"""The figures of a report, drawn with matplotlib."""

from typing import Any

import numpy as np
import pandas as pd

from idiolect.reports.evidence import Evidence

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = "os^DvP*X"
MOST_CLIENTS_NAMED = 40


def learning_curves(evidence: Evidence) -> Any:
    """The mean over clients after every evaluation, for each model."""
    return _curves(evidence, "round", "round")


def value_for_traffic(evidence: Evidence) -> Any:
    """The same means against all bits moved so far."""
    figure = _curves(evidence, "megabytes", "megabytes moved by all clients, both directions")
    if evidence.curves.megabytes.max() > 0:
        figure.axes[0].set_xscale("symlog", linthresh=max(evidence.curves.megabytes.max() / 1000, 1e-6))
    return figure


def clients_compared(evidence: Evidence) -> Any:
    """Every client's value under the models that the methods are judged by: a row for each client."""
    figure, axes = _new_figure(height=max(2.5, 0.24 * min(len(evidence.clients), 60) + 1.2))
    models = evidence.judged
    table = _drawable(evidence.clients[models]).sort_values(models[0], ascending=evidence.higher_is_better)
    places = np.arange(len(table))
    axes.hlines(places, table.min(axis=1), table.max(axis=1), color="#cccccc", linewidth=1, zorder=0)
    for number, model in enumerate(models):
        axes.scatter(table[model], places, label=model, s=22, **_style(number))
    named = len(table) <= MOST_CLIENTS_NAMED
    axes.set_yticks(places if named else [], [str(c) for c in table.index] if named else [])
    axes.set_ylabel("" if named else f"{len(table)} clients, sorted by {models[0]}")
    axes.set_xlabel(f"{evidence.part} {evidence.metric_label}")
    _finish(figure, axes)
    return figure


def _curves(evidence: Evidence, column: str, label: str) -> Any:
    figure, axes = _new_figure(height=3.6)
    for number, (model, curve) in enumerate(_drawable(evidence.curves).groupby("model", sort=False)):
        style = _style(number)
        axes.plot(curve[column], curve["value"], label=model, markevery=0.12, markersize=4, **style)
    axes.set_xlabel(label)
    axes.set_ylabel(f"mean {evidence.part} {evidence.metric_label}")
    _finish(figure, axes)
    return figure


def _drawable(table: pd.DataFrame) -> pd.DataFrame:
    """Without the infinite values of models that failed: the tables show them."""
    return table.replace([np.inf, -np.inf], np.nan)


def _style(number: int) -> dict[str, str]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _new_figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Any, axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#eeeeee", zorder=-1)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
