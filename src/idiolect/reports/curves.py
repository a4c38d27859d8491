"""`Curves` on paper: lines over one of their axes, with bands."""

from typing import Any

import numpy as np

from idiolect.reports.charts import Curves, Series
from idiolect.reports.looks import is_stretched, looks_of_series, room_of_curves
from idiolect.reports.marks import draw_arrows, set_room
from idiolect.reports.palette import LIGHT
from idiolect.reports.room import Room, Values, log_ticks
from idiolect.reports.sheet import Sheet, entry, mark_look, new_figure
from idiolect.reports.styles import KindStyle, MethodStyle

_HEIGHT = 3.2  # inches
_TICKS = 6
_MARKS_APART = 0.16  # of the figure

Look = tuple[MethodStyle, KindStyle]


def draw_curves(chart: Curves, sheet: Sheet, axis: str) -> Any:
    """The lines over one axis; those of clients are thin."""
    pairs = list(zip(chart.series, looks_of_series(chart.series), strict=True))
    drawn = [(one, look) for one, look in pairs if not one.aside]
    named = [(one, look) for one, look in drawn if one.client is None]
    legend = _legend([one for one, _ in named], [look for _, look in named])
    figure, axes = new_figure(sheet, _HEIGHT, legend)
    axes.set_ylabel(chart.y_label)
    room = room_of_curves(chart)
    set_room(axes, "y", room, _TICKS, percent=chart.percent)
    axes.grid(axis="both")
    for number, (one, look) in enumerate(drawn):
        # Where curves run together, the marks of one are beside those of the others.
        first_mark = _MARKS_APART * number / len(drawn)
        if axis in one.x:
            _line(axes, room, one, axis, look, 1 if chart.markers else (first_mark, _MARKS_APART))
        elif one.level is not None and np.isfinite(one.level):
            method, kind = look
            axes.axhline(one.level, color=method.colour, linestyle=kind.line, linewidth=method.width)
            at_end = axes.get_yaxis_transform()
            axes.plot([0.98], [one.level], transform=at_end, linestyle="", **mark_look(method, kind))
    axes.set_xlabel(axis)
    _stretch(chart, axes, axis, sheet)
    return figure


def _legend(series: list[Series], looks: list[Look]) -> list[Any]:
    """The methods by their marks and the kinds by their lines; else each line by its own name."""
    if not series or any(one.method is None or one.kind is None for one in series):
        return [entry(one.name, *look) for one, look in zip(series, looks, strict=True)]
    methods = {str(one.method): look[0] for one, look in zip(series, looks, strict=True)}
    kinds = {str(one.kind): look[1] for one, look in zip(series, looks, strict=True)}
    return [
        *(entry(name, style, None) for name, style in methods.items()),
        *(entry(f"{style.word}: {kind}", None, style) for kind, style in kinds.items()),
    ]


def _line(axes: Any, room: Room, series: Series, axis: str, looks: Look, marks_at: Any) -> None:
    """A curve that may leave the axis: a mark with an arrow is where it does."""
    places, values = (np.asarray(own, np.float64) for own in (series.x[axis], series.y))
    if np.isnan(values).all():
        return
    method, kind = looks
    if series.client is not None:
        axes.plot(places, room.just_outside(values), color=LIGHT["faint"], linewidth=0.6, alpha=0.6)
        return
    look = mark_look(method, kind)
    if series.low is not None and series.high is not None:
        ends = (room.just_outside(end) for end in (series.low, series.high))
        axes.fill_between(places, *ends, color=method.colour, alpha=0.13, linewidth=0)
    line = {"linestyle": kind.line, "linewidth": method.width, "markevery": marks_at, **look}
    axes.plot(places, room.just_outside(values), **line)
    outside = room.outside(values)
    leaving = outside & ~np.concatenate([[False], outside[:-1]])
    axes.plot(places[leaving], room.at_edge(values[leaving]), linestyle="", clip_on=False, zorder=3, **look)
    draw_arrows(axes, room, values[leaving][:, None], places[leaving], sideways=False)


def _stretch(chart: Curves, axes: Any, axis: str, sheet: Sheet) -> None:
    """The ends and the scale of the axis from left to right."""
    places: Values = np.array([x for one in chart.series for x in one.x.get(axis, ())], np.float64)
    if not len(places):
        axes.set_xticks([])
        return
    low, high = float(places.min()), float(places.max())
    if is_stretched(chart, axis):
        positive = float(places[places > 0].min())
        axes.set_xscale("symlog", linthresh=positive, linscale=0.2)
        ticks = log_ticks(positive, high, sheet.ticks)
        axes.set_xticks([0.0, *ticks] if low <= 0 else ticks, minor=False)
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
        axes.set_xlim(low, high * 1.1)
    else:
        axes.locator_params(axis="x", nbins=sheet.ticks, integer=bool((places % 1 == 0).all()))
        padding = 0.02 * (high - low) or max(0.5 * high, 0.5)
        axes.set_xlim(low - padding, high + padding)
