"""`Intervals`, `HeatMap` and `Bars` on paper."""

from typing import Any

import numpy as np

from idiolect.reports.charts import Bars, HeatMap, Intervals
from idiolect.reports.palette import LIGHT, SERIES
from idiolect.reports.room import Values
from idiolect.reports.sheet import LegendEntry, Sheet, new_figure, shortened
from idiolect.reports.thinning import evenly

_ROW = 0.3  # inches
_LEAST_ROWS = 3
_CELL = 0.16  # inches, for few rows
_TALLEST = 6.0  # inches of a heat map
_MOST_NAMES = 40


def draw_intervals(chart: Intervals, sheet: Sheet) -> Any:
    """A mark with a bar for each row; coloured where the bar excludes zero."""
    figure, axes = new_figure(sheet, _ROW * max(len(chart.rows), _LEAST_ROWS), [])
    scale = 100 if chart.percent else 1
    if chart.zero:
        axes.axvline(0, color=LIGHT["ink"], linewidth=1)
    for place, (_, value, low, high) in enumerate(chart.rows):
        told = chart.zero and (low > 0 or high < 0)
        colour = LIGHT["faint"] if not told else LIGHT["good" if value > 0 else "bad"]
        if np.isfinite([low, high]).all():
            axes.hlines(place, scale * low, scale * high, color=colour, linewidth=2)
        if np.isfinite(value):
            axes.plot([scale * value], [place], "o", color=colour, markersize=5)
    _name_rows(axes, [name for name, *_ in chart.rows], sheet)
    axes.set_xlabel(chart.label)
    axes.locator_params(axis="x", nbins=sheet.ticks)
    axes.grid(axis="x")
    return figure


def draw_heat_map(chart: HeatMap, sheet: Sheet) -> Any:
    """A cell for each value, from light to dark; categories have the colours of lines."""
    from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap

    values: Values = np.asarray(chart.values, np.float64).reshape(len(chart.rows), len(chart.columns))
    height = min(_TALLEST, max(_CELL * len(chart.rows), 1.0))
    figure, axes = new_figure(sheet, height, [])
    if not values.size:
        return figure
    look: dict[str, Any]
    if chart.categorical:
        look = {
            "cmap": ListedColormap([LIGHT[f"series-{place}"] for place in range(SERIES)]),
            "norm": BoundaryNorm(np.arange(SERIES + 1) - 0.5, SERIES),
        }
        values = values % SERIES
    else:
        look = {
            "cmap": LinearSegmentedColormap.from_list("page", [LIGHT["panel"], LIGHT["accent"]]),
            "vmin": np.nanmin(values, initial=0.0),  # amounts that hardly differ look alike
        }
    drawn = axes.imshow(values, aspect="auto", interpolation="nearest", **look)
    if not chart.categorical:
        figure.colorbar(drawn, ax=axes, label=chart.value_label)
    for axis, names, most in (
        (axes.yaxis, chart.rows, min(_MOST_NAMES, int(height / 0.14))),
        (axes.xaxis, chart.columns, 2 * sheet.ticks),
    ):
        places = list(range(0, len(names), -(-len(names) // most))) if names else []
        axis.set_ticks(places, [shortened(names[place], sheet.name_letters) for place in places])
    longest = max((len(name) for name in chart.columns), default=0)
    axes.tick_params(axis="x", rotation=90 if longest > 4 else 0)
    axes.tick_params(length=0, labelsize=7.5)
    axes.set_xlabel(chart.column_label)
    axes.set_ylabel(chart.row_label)
    return figure


def draw_bars(chart: Bars, sheet: Sheet) -> Any:
    """A bar for each group, its parts one after the other."""
    from matplotlib.patches import Patch

    colours = {part: LIGHT[f"series-{place % SERIES}"] for place, part in enumerate(chart.parts)}
    legend = [LegendEntry(part, Patch(color=colour)) for part, colour in colours.items()]
    figure, axes = new_figure(sheet, _ROW * max(len(chart.groups), _LEAST_ROWS), legend)
    for place, parts in enumerate(chart.groups.values()):
        start = 0.0
        for part, value in parts.items():
            axes.barh(place, value, left=start, height=0.65, color=colours[part])
            start += value
    _name_rows(axes, list(chart.groups), sheet)
    axes.set_xlabel(chart.label)
    axes.locator_params(axis="x", nbins=sheet.ticks)
    axes.grid(axis="x")
    return figure


def _name_rows(axes: Any, names: list[str], sheet: Sheet) -> None:
    """Names beside rows, from top to bottom."""
    places = evenly(range(len(names)), 2 * _MOST_NAMES)
    axes.set_yticks(places, [shortened(names[place], sheet.name_letters) for place in places])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
