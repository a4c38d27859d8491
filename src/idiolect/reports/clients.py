"""The figure of clients: a row for each of few clients, or a row for each model with many clients in it."""

from typing import Any

import numpy as np
import pandas as pd

from idiolect.quantities import show_value
from idiolect.reports.evidence import Evidence
from idiolect.reports.marks import Models, draw_arrows, room_words, set_room, some_of
from idiolect.reports.palette import LIGHT
from idiolect.reports.room import Room, Values, room_for
from idiolect.reports.sheet import WIDE, Sheet, entry, mark_look, new_figure, shortened

MOST_CLIENTS_WITH_ROWS = 40
_ROW = 0.26  # inches for a client
_MODEL_ROW = 0.42  # inches for a model with all its clients
_GOLDEN = 0.618034


def clients_compared(evidence: Evidence, sheet: Sheet) -> Any:
    """Every client's value under the models that the methods are judged by."""
    draw = _a_row_for_each_client if _are_few(evidence) else _a_row_for_each_model
    return draw(evidence, sheet)


def clients_words(evidence: Evidence) -> str:
    """What the figure of clients shows."""
    how = (
        "Each row is a client; each mark is its value under one method's model."
        if _are_few(evidence)
        else "Each row is a method's model; each small mark is a client, at the same height in every row. "
        "The bar spans the middle half of the clients, its stroke is the median."
    )
    room = clients_room(evidence)
    outside = [
        f"{client} under {model} ({show_value(float(value), evidence.metric)})"
        for model in evidence.judged
        for client, value in evidence.clients[model].items()
        if room.outside(value)
    ]
    return how + room_words(room, some_of(outside))


def clients_room(evidence: Evidence) -> Room:
    """Room for most clients' values under models that did not diverge."""
    sound = [model for model in evidence.judged if model in Models(evidence).sound]
    followed = [evidence.clients[model] for model in sound or evidence.judged]
    return room_for(followed, may_be_logarithmic=not evidence.higher_is_better)


def _are_few(evidence: Evidence) -> bool:
    return len(evidence.clients) <= MOST_CLIENTS_WITH_ROWS


def _a_row_for_each_client(evidence: Evidence, sheet: Sheet) -> Any:
    judged, models, room = evidence.judged, Models(evidence), clients_room(evidence)
    table = evidence.clients[judged].sort_values(judged[0], ascending=evidence.higher_is_better)
    legend = [entry(model, *models.look(model)) for model in judged]
    figure, axes = new_figure(sheet, _ROW * max(len(table), 4), legend)
    places = np.arange(len(table), dtype=float)
    drawn = pd.DataFrame(room.at_edge(table))
    axes.hlines(places, drawn.min(axis=1), drawn.max(axis=1), color=LIGHT["line"], linewidth=1.5, zorder=0)
    for number, model in enumerate(judged):
        look = mark_look(*models.look(model))
        axes.plot(drawn[number], places, linestyle="", clip_on=False, zorder=3, **look)
    draw_arrows(axes, room, table.to_numpy(float), places, sideways=True)
    axes.set_yticks(places, [shortened(str(client), sheet.name_letters) for client in table.index])
    axes.set_ylim(-0.7, len(table) - 0.3)
    _finish(evidence, axes, room, sheet)
    return figure


def _a_row_for_each_model(evidence: Evidence, sheet: Sheet) -> Any:
    judged, models, room = evidence.judged, Models(evidence), clients_room(evidence)
    figure, axes = new_figure(sheet, _MODEL_ROW * len(judged), [])
    # Clients side by side instead of on top of each other, the same one at the same height in every row.
    aside: Values = 0.6 * (np.arange(len(evidence.clients), dtype=np.float64) * _GOLDEN % 1 - 0.5)
    for place, model in enumerate(reversed(judged)):
        values = evidence.clients[model].to_numpy(float)
        drawn = room.at_edge(values)
        look = {**mark_look(*models.look(model)), "markersize": 3.4, "markeredgewidth": 0.6, "alpha": 0.8}
        axes.plot(drawn, place + aside, linestyle="", clip_on=False, **look)
        _middle_half(axes, drawn[~np.isnan(drawn)], place)
        draw_arrows(axes, room, values[:, None], place + aside, sideways=True)
    # A method's name and a kind: two lines where there is little room.
    names = [model if sheet is WIDE else model.replace(" ", "\n") for model in reversed(judged)]
    axes.set_yticks(range(len(judged)), names)
    axes.set_ylim(-0.6, len(judged) - 0.4)
    _finish(evidence, axes, room, sheet)
    return figure


def _middle_half(axes: Any, values: Values, place: float) -> None:
    if len(values):
        first, median, third = np.percentile(values, [25, 50, 75])
        axes.hlines(place, first, third, color=LIGHT["ink"], linewidth=1.6, zorder=4)
        look = {"color": LIGHT["ink"], "markersize": 13, "markeredgewidth": 2.2}
        axes.plot([median], [place], "|", zorder=5, **look)


def _finish(evidence: Evidence, axes: Any, room: Room, sheet: Sheet) -> None:
    axes.set_xlabel(f"{evidence.part} {evidence.metric_label}")
    set_room(axes, "x", room, sheet.ticks, evidence.metric)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
