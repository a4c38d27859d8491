"""Charts with bounded numbers: a page stays light with many clients and long runs.

Each function returns the chart to draw and, in words, what of it was left out ("" for nothing).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from idiolect.reports.charts import Bars, Chart, Curves, HeatMap, Intervals, Series, Spread

MOST_POINTS = 200  # of a series
MOST_CLIENT_NUMBERS = 8_000  # of all lines of clients together
MOST_CLIENTS = 1_000  # of a spread
MOST_ROWS = 60  # of intervals and bars
MOST_CELLS = 100  # rows and columns of a heat map, each

Item = TypeVar("Item")


def thinned(chart: Chart) -> tuple[Chart, str]:
    """The chart with few enough numbers, and what was left out."""
    if isinstance(chart, Curves):
        return _curves(chart)
    if isinstance(chart, Spread):
        return _spread(chart)
    if isinstance(chart, HeatMap):
        return _heat_map(chart)
    if isinstance(chart, Intervals) and len(chart.rows) > MOST_ROWS:
        return replace(chart, rows=evenly(chart.rows, MOST_ROWS)), _told("rows", MOST_ROWS, len(chart.rows))
    if isinstance(chart, Bars) and len(chart.groups) > MOST_ROWS:
        kept = dict(evenly(list(chart.groups.items()), MOST_ROWS))
        return replace(chart, groups=kept), _told("bars", MOST_ROWS, len(chart.groups))
    return chart, ""


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of them, evenly spaced, with the first and the last one.

    >>> evenly(list(range(101)), 3)
    [0, 50, 100]
    """
    if len(items) <= most:
        return list(items)
    places = np.linspace(0, len(items) - 1, most).round().astype(int)
    return [items[place] for place in places]


def _told(what: str, kept: int, there: int) -> str:
    return f"Of {there:,} {what} {kept:,} are drawn, evenly spaced."


def _curves(chart: Curves) -> tuple[Curves, str]:
    longest = max((len(series.y) for series in chart.series), default=0)
    told = [_told("values of a line", MOST_POINTS, longest)] if longest > MOST_POINTS else []
    series = [_series(one) for one in chart.series]
    of_clients = [one for one in series if one.client is not None]
    most = max(1, MOST_CLIENT_NUMBERS // max((len(one.y) for one in of_clients), default=1))
    if len(of_clients) > most:
        kept = {id(one) for one in evenly(of_clients, most)}
        series = [one for one in series if one.client is None or id(one) in kept]
        told.append(_told("lines of clients", most, len(of_clients)))
    return replace(chart, series=series), " ".join(told)


def _series(series: Series) -> Series:
    if len(series.y) <= MOST_POINTS:
        return series
    return replace(
        series,
        x={name: evenly(values, MOST_POINTS) for name, values in series.x.items()},
        y=evenly(series.y, MOST_POINTS),
        low=None if series.low is None else evenly(series.low, MOST_POINTS),
        high=None if series.high is None else evenly(series.high, MOST_POINTS),
    )


def _spread(chart: Spread) -> tuple[Spread, str]:
    clients = chart.clients
    if len(clients) <= MOST_CLIENTS:
        return chart, ""
    first = next(iter(chart.values.values()))
    kept = evenly(sorted(clients, key=lambda client: first.get(client, np.nan)), MOST_CLIENTS)
    values = {model: {c: own[c] for c in kept if c in own} for model, own in chart.values.items()}
    return replace(chart, values=values), _told("clients", MOST_CLIENTS, len(clients))


def _heat_map(chart: HeatMap) -> tuple[HeatMap, str]:
    shape = len(chart.rows), len(chart.columns)
    if max(shape) <= MOST_CELLS:
        return chart, ""
    values = np.asarray(chart.values, dtype=np.float64)
    rows, columns = (np.array_split(np.arange(size), min(size, MOST_CELLS)) for size in shape)
    if chart.categorical:  # numbers of categories have no mean
        rows, columns = ([block[:1] for block in blocks] for blocks in (rows, columns))
    cells = [[float(np.mean(values[np.ix_(row, column)])) for column in columns] for row in rows]
    small = replace(
        chart,
        rows=[_block(chart.rows, block) for block in rows],
        columns=[_block(chart.columns, block) for block in columns],
        values=cells,
    )
    how = "one of several neighbours" if chart.categorical else "the mean of several neighbours"
    told = (
        f"Of {shape[0]:,} rows and {shape[1]:,} columns {len(rows)} and {len(columns)} are drawn: {how} each."
    )
    return small, told


def _block(names: Sequence[str], block: "np.ndarray") -> str:
    first, last = names[block[0]], names[block[-1]]
    return first if first == last else f"{first} – {last}"
