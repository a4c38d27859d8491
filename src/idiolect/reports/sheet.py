"""What figures are drawn on: wide for screens and paper, narrow for phones."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.reports.palette import LIGHT, themed
from idiolect.reports.styles import KindStyle, MethodStyle
from idiolect.store.files import write_bytes

MARK_SIZE = 5.0  # points
_LEGEND_LINE = 0.19  # inches


@dataclass(frozen=True)
class Sheet:
    """How much there is room for."""

    name: str
    width: float  # inches
    letters: int  # of the legend in a line
    ticks: int  # on the axis from left to right
    name_letters: int  # of a client's or a model's name beside the plot


WIDE = Sheet("wide", 8.6, 120, 9, 36)
NARROW = Sheet("narrow", 3.5, 46, 4, 15)


@dataclass(frozen=True)
class LegendEntry:
    """A word, and the line or mark that it explains."""

    label: str
    handle: Any


def entry(label: str, method: MethodStyle | None, kind: KindStyle | None) -> LegendEntry:
    """A method's mark, a kind's line, or the mark of a method's model."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"linestyle": "", "color": LIGHT["ink"]}
    if method is None and kind is not None:
        look["linestyle"] = kind.line
    elif method is not None:
        look |= mark_look(method, kind)
    return LegendEntry(label, Line2D([], [], **look))


def mark_look(method: MethodStyle, kind: KindStyle | None) -> dict[str, Any]:
    """How matplotlib draws the mark of a method; without a kind it is full."""
    return {
        "color": method.colour,
        "marker": method.mark,
        "markersize": MARK_SIZE,
        "fillstyle": "full" if kind is None else kind.fill,
        "markerfacecoloralt": LIGHT["paper"],
        **({"markerfacecolor": LIGHT["paper"]} if kind is not None and kind.fill == "none" else {}),
    }


def new_figure(sheet: Sheet, plot_height: float, legend: Sequence[LegendEntry]) -> tuple[Any, Any]:
    """A figure and its axes: what the legend needs is added to the height."""
    from matplotlib.figure import Figure

    longest = max((len(one.label) for one in legend), default=0)
    columns = max(1, min(len(legend), sheet.letters // (longest + 5)))
    lines = -(-len(legend) // columns)
    figure = Figure(figsize=(sheet.width, plot_height + 0.6 + _LEGEND_LINE * lines), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        # A word that begins with "_" would be left out.
        labels = [f" {one.label}" for one in legend]
        handles = [one.handle for one in legend]
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)
    return figure, axes


def shortened(name: str, letters: int) -> str:
    """A name that fits; both its ends stay, since names differ at one of them.

    >>> shortened("the-hospital-of-a-long-name", 11), shortened("short", 11)
    ('the-h…-name', 'short')
    """
    if len(name) <= letters:
        return name
    tail = (letters - 1) // 2
    return f"{name[: letters - 1 - tail]}…{name[-tail:]}"


def save(name: str, draw: Callable[[Sheet], Any], folder: Path) -> dict[str, str]:
    """Draw on each sheet: SVG for the page, with its variables as colours, and the wide one as a PNG file."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with drawing_for(name):
        for sheet in (WIDE, NARROW):
            figure = draw(sheet)
            vector = io.StringIO()
            figure.savefig(vector, format="svg", metadata={"Date": None}, transparent=True)
            drawn[sheet.name] = _for_page(vector.getvalue(), f"{name}-{sheet.name}")
            if sheet is WIDE:
                picture = io.BytesIO()
                figure.savefig(picture, format="png", dpi=150, facecolor=LIGHT["paper"])
                write_bytes(folder / f"{name}.png", picture.getvalue())
    return drawn


@contextmanager
def drawing_for(name: str) -> Iterator[None]:
    """The settings of matplotlib for a figure of that name."""
    """The settings of matplotlib for a figure of that name."""
    from matplotlib import rc_context

    ink = LIGHT["ink"]
    settings: dict[Any, Any] = {
        "svg.hashsalt": f"figure {name}",  # no random names: two reports of the same runs are the same file
        "svg.fonttype": "none",  # text stays text: it can be read aloud and found
        "text.parse_math": False,  # a client may be called $1$
        "font.size": 9.5,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": LIGHT["faint"],
        "axes.unicode_minus": True,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": LIGHT["line"],
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
    }
    with rc_context(settings), warnings.catch_warnings():
        # A browser has letters for all names, even if the PNG file has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def _for_page(svg: str, prefix: str) -> str:
    """The drawing alone, with names that no other drawing of the page has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return themed(svg)
