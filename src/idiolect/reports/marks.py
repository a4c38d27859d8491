"""What all figures on paper have in common: arrows at the edge, ends and ticks of axes."""

from typing import Any, Literal

import numpy as np

from idiolect.quantities import show_value
from idiolect.reports.palette import LIGHT
from idiolect.reports.room import Room, Values, log_ticks
from idiolect.reports.sheet import MARK_SIZE


def draw_arrows(axes: Any, room: Room, values: Values, places: Values, *, sideways: bool) -> None:
    """An arrow outwards beside each mark that was moved to the edge; a row of values for each place."""
    from matplotlib.markers import CARETDOWNBASE, CARETLEFTBASE, CARETRIGHTBASE, CARETUPBASE
    from matplotlib.transforms import ScaledTranslation

    for edge, beyond, away, arrow in (
        (room.low, values < room.low, -1, CARETLEFTBASE if sideways else CARETDOWNBASE),
        (room.high, values > room.high, 1, CARETRIGHTBASE if sideways else CARETUPBASE),
    ):
        where = places[beyond.any(axis=1)]
        edges = np.full(len(where), edge)
        right, up = (away, 0) if sideways else (0, away)
        step = 0.75 * MARK_SIZE / 72
        shift = ScaledTranslation(step * right, step * up, axes.figure.dpi_scale_trans)
        axes.plot(
            *((edges, where) if sideways else (where, edges)),
            linestyle="",
            marker=arrow,
            markersize=4.5,
            color=LIGHT["ink"],
            clip_on=False,
            transform=axes.transData + shift,
        )


def set_room(axes: Any, which: Literal["x", "y"], room: Room, ticks: int, *, percent: bool) -> None:
    """Give an axis of values its ends, its scale and ticks that are labelled as tables show values."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    if room.logarithmic:
        axes.set(**{f"{which}scale": "log"})
        axis.set_ticks(log_ticks(room.low, room.high, ticks))
        axis.set_ticks([], minor=True)
    else:
        axis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=percent)))
    axes.set(**{f"{which}lim": (room.low, room.high)})


def tick_label(value: float, *, percent: bool) -> str:
    """A value as in tables, without needless zeros.

    >>> tick_label(0.5, percent=True), tick_label(0.25, percent=False), tick_label(20, percent=False)
    ('50 %', '0.25', '20')
    """
    shown = show_value(round(value, 12), "accuracy" if percent else "")
    number, unit = shown.removesuffix(" %"), " %" if shown.endswith(" %") else ""
    plain = "." in number and "e" not in number
    return (number.rstrip("0").rstrip(".") if plain else number) + unit
