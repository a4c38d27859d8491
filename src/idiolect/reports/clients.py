"""`Spread` on paper: a row for each of few clients, or a row for each model with many clients in it."""

from typing import Any

import numpy as np
import pandas as pd

from idiolect.reports.charts import Spread
from idiolect.reports.looks import looks_of_models, room_of_spread
from idiolect.reports.marks import draw_arrows, set_room
from idiolect.reports.palette import LIGHT
from idiolect.reports.room import Room, Values
from idiolect.reports.sheet import WIDE, Sheet, entry, mark_look, new_figure, shortened

MOST_CLIENTS_WITH_ROWS = 40
_ROW = 0.26  # inches for a client
_MODEL_ROW = 0.42  # inches for a model with all its clients
_GOLDEN = 0.618034


def draw_spread(chart: Spread, sheet: Sheet) -> Any:
    """Every client's value under each model."""
    few = len(chart.clients) <= MOST_CLIENTS_WITH_ROWS
    return (_a_row_for_each_client if few else _a_row_for_each_model)(chart, sheet)


def _table(chart: Spread) -> pd.DataFrame:
    """A row for each client, a column for each model."""
    columns = {model: pd.Series(values, dtype="float64") for model, values in chart.values.items()}
    return pd.DataFrame(columns).reindex(chart.clients)


def _a_row_for_each_client(chart: Spread, sheet: Sheet) -> Any:
    looks, room, table = looks_of_models(chart), room_of_spread(chart), _table(chart)
    table = table.sort_values(table.columns[0], ascending=chart.higher_is_better)
    legend = [entry(model, *look) for model, look in looks.items()]
    figure, axes = new_figure(sheet, _ROW * max(len(table), 4), legend)
    places = np.arange(len(table), dtype=float)
    drawn = pd.DataFrame(room.at_edge(table))
    axes.hlines(places, drawn.min(axis=1), drawn.max(axis=1), color=LIGHT["line"], linewidth=1.5, zorder=0)
    for number, look in enumerate(looks.values()):
        axes.plot(drawn[number], places, linestyle="", clip_on=False, zorder=3, **mark_look(*look))
    draw_arrows(axes, room, table.to_numpy(float), places, sideways=True)
    axes.set_yticks(places, [shortened(str(client), sheet.name_letters) for client in table.index])
    axes.set_ylim(-0.7, len(table) - 0.3)
    _finish(chart, axes, room, sheet)
    return figure


def _a_row_for_each_model(chart: Spread, sheet: Sheet) -> Any:
    looks, room, table = looks_of_models(chart), room_of_spread(chart), _table(chart)
    models = list(reversed(list(table.columns)))
    figure, axes = new_figure(sheet, _MODEL_ROW * len(models), [])
    # Clients side by side instead of on top of each other, the same one at the same height in every row.
    aside: Values = 0.6 * (np.arange(len(table), dtype=np.float64) * _GOLDEN % 1 - 0.5)
    for place, model in enumerate(models):
        values = table[model].to_numpy(float)
        drawn = room.at_edge(values)
        look = {**mark_look(*looks[model]), "markersize": 3.4, "markeredgewidth": 0.6, "alpha": 0.8}
        axes.plot(drawn, place + aside, linestyle="", clip_on=False, **look)
        _middle_half(axes, drawn[~np.isnan(drawn)], place)
        draw_arrows(axes, room, values[:, None], place + aside, sideways=True)
    # A method's name and a kind: two lines where there is little room.
    names = [model if sheet is WIDE else model.replace(" ", "\n") for model in models]
    axes.set_yticks(range(len(models)), names)
    axes.set_ylim(-0.6, len(models) - 0.4)
    _finish(chart, axes, room, sheet)
    return figure


def _middle_half(axes: Any, values: Values, place: float) -> None:
    if len(values):
        first, median, third = np.percentile(values, [25, 50, 75])
        axes.hlines(place, first, third, color=LIGHT["ink"], linewidth=1.6, zorder=4)
        look = {"color": LIGHT["ink"], "markersize": 13, "markeredgewidth": 2.2}
        axes.plot([median], [place], "|", zorder=5, **look)


def _finish(chart: Spread, axes: Any, room: Room, sheet: Sheet) -> None:
    axes.set_xlabel(chart.label)
    set_room(axes, "x", room, sheet.ticks, percent=chart.percent)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
