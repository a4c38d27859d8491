"""What all figures have in common: marks, arrows at the edge, ticks, and words for what is outside."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from idiolect.quantities import show_value
from idiolect.reports.evidence import Evidence
from idiolect.reports.palette import LIGHT
from idiolect.reports.room import Room, Values, log_ticks
from idiolect.reports.sheet import MARK_SIZE
from idiolect.reports.styles import KindStyle, MethodStyle, kind_style, method_styles
from idiolect.runs.tabulation import model_name

MOST_NAMED = 3


class Models:
    """The models of a page by their names: how they are drawn, and which ones the axes have to follow."""

    def __init__(self, evidence: Evidence) -> None:
        table = evidence.table
        pairs = list(zip(table.method, table.kind, strict=True))
        names = [model_name(method, kind) for method, kind in pairs]
        self.methods = method_styles(table.method)
        self.kinds = {kind: kind_style(kind) for _, kind in pairs}
        self.means = table["mean"].set_axis(names)
        self._pairs = dict(zip(names, pairs, strict=True))
        sound = [name for name, bad in zip(names, table.diverged | table.untrained, strict=True) if not bad]
        self.sound = sound or names

    def look(self, model: str) -> tuple[MethodStyle, KindStyle]:
        """The style of a model's method and of its kind."""
        method, kind = self._pairs[model]
        return self.methods[method], self.kinds[kind]


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


def set_room(axes: Any, which: Literal["x", "y"], room: Room, ticks: int, metric: str) -> None:
    """Give an axis of values its ends, its scale and ticks that are labelled as tables show values."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    if room.logarithmic:
        axes.set(**{f"{which}scale": "log"})
        axis.set_ticks(log_ticks(room.low, room.high, ticks))
        axis.set_ticks([], minor=True)
    else:
        axis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, metric)))
    axes.set(**{f"{which}lim": (room.low, room.high)})


def tick_label(value: float, metric: str) -> str:
    """A value as in tables, without needless zeros.

    >>> tick_label(0.5, "accuracy"), tick_label(0.25, "auc"), tick_label(0.3, "rmse"), tick_label(20, "rmse")
    ('50 %', '0.25', '0.3', '20')
    """
    shown = show_value(round(value, 12), metric)
    number, unit = shown.removesuffix(" %"), " %" if shown.endswith(" %") else ""
    plain = "." in number and "e" not in number
    return (number.rstrip("0").rstrip(".") if plain else number) + unit


def some_of(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def room_words(room: Room, outside: str) -> str:
    """What has to be known about an axis: who is not on it, and that it is logarithmic."""
    told = f" Outside of the axis, at its edge with an arrow: {outside}." if outside else ""
    return told + (" The axis is logarithmic." if room.logarithmic else "")
