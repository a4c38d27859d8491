"""The same charts on paper: SVG and PNG files, on white, in the manner of papers."""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from idiolect.reports.charts import Chart, Curves, HeatMap, Intervals, Spread
from idiolect.reports.clients import draw_spread
from idiolect.reports.curves import draw_curves
from idiolect.reports.looks import with_ids
from idiolect.reports.palette import LIGHT
from idiolect.reports.panels import draw_bars, draw_heat_map, draw_intervals
from idiolect.reports.sheet import WIDE, Sheet, drawing_for
from idiolect.reports.thinning import thinned
from idiolect.store.files import write_bytes


def save_static(charts: Iterable[Chart], folder: Path, prefix: str = "") -> list[Path]:
    """Write `NAME.svg` and `NAME.png` for each chart, `NAME-AXIS` for curves with several axes.

    The names are the ids that `charts_html` gives with the same prefix. Returns the SVG files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in with_ids(charts, prefix).items():
        with drawing_for(name):
            for ending, figure in _figures(thinned(chart)[0]):
                written.append(folder / f"{name}{ending}.svg")
                _save(figure, written[-1])
    return written


def draw(chart: Chart, sheet: Sheet, axis: str | None = None) -> Any:
    """A chart as a matplotlib figure; curves over one of their axes, the first one unless given."""
    if isinstance(chart, Curves):
        return draw_curves(chart, sheet, axis or next(iter(chart.axes), ""))
    if isinstance(chart, Spread):
        return draw_spread(chart, sheet)
    if isinstance(chart, Intervals):
        return draw_intervals(chart, sheet)
    return draw_heat_map(chart, sheet) if isinstance(chart, HeatMap) else draw_bars(chart, sheet)


def _figures(chart: Chart) -> Iterator[tuple[str, Any]]:
    """What is added to the name of the file, and the figure."""
    axes = chart.axes if isinstance(chart, Curves) else []
    if len(axes) < 2:
        yield "", draw(chart, WIDE)
    for axis in axes if len(axes) > 1 else []:
        yield f"-{axis}", draw(chart, WIDE, axis)


def _save(figure: Any, path: Path) -> None:
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # letters of a PNG are a little wider
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # once is enough for both files
    looks: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 150}}
    for ending, look in looks.items():
        file = io.BytesIO()
        figure.savefig(file, format=ending, facecolor=LIGHT["paper"], **look)
        write_bytes(path.with_suffix(f".{ending}"), file.getvalue())
