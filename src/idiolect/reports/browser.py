"""Charts on a page: `scripts/` draws them in the reader's browser from the numbers that are written here.

    from idiolect.reports.browser import charts_html
    from idiolect.reports.html import render

    render("my-page.html", package="my_package", title="...", figures=charts_html([Curves(...), Spread(...)]))

where the template, in `my_package/templates`, extends `chart-page.html`, which has scripts and look inlined,
and its block `main` says `{{ figures }}`. Where a page calls `charts_html` more than once, each call needs a
`prefix` of its own, so that no two figures have one id. A table with the class `sortable` gets headings to
sort by and a link to its CSV; in one with the class `clients` the row of the client that the reader picks is
marked. `save_static` (`static.py`) writes the same charts, under the same names, as files beside the page.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from idiolect.reports.charts import Bars, Chart, Curves, HeatMap, Intervals, Spread
from idiolect.reports.html import render
from idiolect.reports.looks import (
    is_stretched,
    looks_of_models,
    looks_of_series,
    room_of_curves,
    room_of_spread,
    with_ids,
)
from idiolect.reports.palette import SERIES
from idiolect.reports.room import Room
from idiolect.reports.styles import KindStyle, MethodStyle, mark_path
from idiolect.reports.thinning import thinned

_DIGITS = 5  # significant ones of what is drawn
_MARK_SIZE = 10


def charts_html(charts: Iterable[Chart], prefix: str = "", headings: int | None = 2) -> str:
    """Figures with their captions, and for each an island of JSON that it is drawn from. See above.

    headings: the level of the titles as headings; None where the page has its own.
    """
    from markupsafe import Markup

    named = with_ids(charts, prefix)
    shown = [_on_page(name, chart) for name, chart in named.items()]
    return Markup(render("charts.html", charts=shown, headings=headings))


def _on_page(name: str, chart: Chart) -> dict[str, Any]:
    drawn, left_out = thinned(chart)
    content = {"kind": type(chart).__name__, "title": chart.title, **_content(drawn)}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return {
        "id": name,
        "title": chart.title,
        "description": f"{chart.description} {left_out}".strip(),
        "json": text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    }


def _content(chart: Chart) -> dict[str, Any]:
    """What the script reads."""
    if isinstance(chart, Curves):
        return _curves(chart)
    if isinstance(chart, Spread):
        return _spread(chart)
    if isinstance(chart, Intervals):
        return {
            "label": chart.label,
            "percent": chart.percent,
            "zero": chart.zero,
            "rows": [[name, *_rounded(numbers)] for name, *numbers in chart.rows],
        }
    if isinstance(chart, HeatMap):
        return {
            "rows": list(chart.rows),
            "columns": list(chart.columns),
            "values": [_rounded(row) for row in chart.values],
            "rowLabel": chart.row_label,
            "columnLabel": chart.column_label,
            "valueLabel": chart.value_label,
            "categorical": chart.categorical,
        }
    return _bars(chart)


def _curves(chart: Curves) -> dict[str, Any]:
    return {
        "axes": chart.axes,
        "yLabel": chart.y_label,
        "yLog": chart.y_log or room_of_curves(chart).logarithmic,
        "xLog": {axis: is_stretched(chart, axis) for axis in chart.axes},
        "markers": chart.markers,
        "percent": chart.percent,
        "room": _ends(room_of_curves(chart)),
        "series": [
            {
                "name": series.name,
                "x": {name: _rounded(values) for name, values in series.x.items()},
                "y": _rounded(series.y),
                **({} if series.low is None else {"low": _rounded(series.low)}),
                **({} if series.high is None else {"high": _rounded(series.high)}),
                **({} if series.client is None else {"client": series.client}),
                **({} if series.level is None else {"level": _number(series.level)}),
                **({"aside": True} if series.aside else {}),
                **_look(*looks),
            }
            for series, looks in zip(chart.series, looks_of_series(chart.series), strict=True)
        ],
    }


def _spread(chart: Spread) -> dict[str, Any]:
    looks = looks_of_models(chart)
    return {
        "label": chart.label,
        "percent": chart.percent,
        "log": room_of_spread(chart).logarithmic,
        "room": _ends(room_of_spread(chart)),
        "higherIsBetter": chart.higher_is_better,
        "clients": chart.clients,
        "models": [
            {
                "name": model,
                "values": _rounded([values.get(client, math.nan) for client in chart.clients]),
                "quartiles": _quartiles(values),
                **_look(*looks[model]),
            }
            for model, values in chart.values.items()
        ],
    }


def _bars(chart: Bars) -> dict[str, Any]:
    return {
        "label": chart.label,
        "parts": [{"name": part, "colour": f"series-{n % SERIES}"} for n, part in enumerate(chart.parts)],
        "groups": [
            {"name": group, "values": _rounded([parts.get(part, 0.0) for part in chart.parts])}
            for group, parts in chart.groups.items()
        ],
    }


def _look(method: MethodStyle, kind: KindStyle) -> dict[str, Any]:
    return {
        "colour": method.colour_name,
        "width": method.width,
        "dash": "" if isinstance(kind.line, str) else ",".join(f"{2 * part:g}" for part in kind.line[1]),
        "hollow": kind.fill == "none",
        "mark": mark_path(method.mark, _MARK_SIZE),
    }


def _quartiles(values: Mapping[str, float]) -> list[float | None]:
    finite = [value for value in values.values() if math.isfinite(value)]
    return _rounded(np.percentile(finite, [25, 50, 75])) if finite else [None] * 3


def _ends(room: Room) -> list[float | None]:
    return _rounded([room.low, room.high])


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Few digits, and nothing that JSON has no word for: nan is null, the infinite is very far."""
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return math.copysign(1e308, value)
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
