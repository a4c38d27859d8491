"""How charts look, in the browser and on paper alike: their ids, styles of lines, ends and scales of axes."""

import math
import re
from collections.abc import Iterable, Sequence

from idiolect.reports.charts import Chart, Curves, Series, Spread
from idiolect.reports.room import Room, room_for
from idiolect.reports.styles import KindStyle, MethodStyle, kind_style, method_styles, nth_style

_LONGER = 10.0  # times as long as the shortest line


def with_ids(charts: Iterable[Chart], prefix: str = "") -> dict[str, Chart]:
    """Charts by an id made of each one's title, as `learning-curves`; no two have the same."""
    named: dict[str, Chart] = {}
    for chart in charts:
        words = re.sub(r"[^a-z0-9]+", "-", f"{prefix} {chart.title}".lower()).strip("-") or "figure"
        name, number = words, 1
        while name in named:
            number += 1
            name = f"{words}-{number}"
        named[name] = chart
    return named


def looks_of_series(series: Sequence[Series]) -> list[tuple[MethodStyle, KindStyle]]:
    """The style of each line: its method's and its kind's, else by its place among those without a method."""
    styles = method_styles(one.method for one in series if one.method is not None)
    without = iter(range(len(series)))
    return [
        (
            nth_style(next(without)) if one.method is None else styles[one.method],
            kind_style(one.kind or "personal"),
        )
        for one in series
    ]


def looks_of_models(chart: Spread) -> dict[str, tuple[MethodStyle, KindStyle]]:
    """The style of each row, in the same way."""
    named = {model: chart.looks.get(model, (None, None)) for model in chart.values}
    series = [Series(model, {}, (), method=look[0], kind=look[1]) for model, look in named.items()]
    return dict(zip(named, looks_of_series(series), strict=True))


def room_of_curves(chart: Curves) -> Room:
    """The ends of the vertical axis."""
    if chart.room is not None:
        return chart.room
    numbers = [one.y for one in chart.series]
    numbers += [end for one in chart.series for end in (one.low, one.high) if end is not None]
    if chart.y_log:
        numbers = [[value for value in values if value > 0] for values in numbers]
    return _all_of(numbers, logarithmic=chart.y_log)


def is_stretched(chart: Curves, axis: str) -> bool:
    """Whether an axis is logarithmic: where it is asked for, or some line is much longer than another one."""
    ends = [max(own) for one in chart.series if (own := [x for x in one.x.get(axis, ()) if x > 0])]
    return bool(ends) and (chart.x_log or max(ends) > _LONGER * min(ends))


def room_of_spread(chart: Spread) -> Room:
    """The ends of the axis of values."""
    return chart.room or room_for([list(values.values()) for values in chart.values.values()])


def _all_of(groups: Sequence[Sequence[float]], *, logarithmic: bool) -> Room:
    """Room for all values that are finite, whatever their scale."""
    finite = [value for group in groups for value in group if math.isfinite(value)]
    if not logarithmic:
        return room_for([], finite)
    return Room(min(finite, default=0.1) / 1.1, max(finite, default=1.0) * 1.1, logarithmic=True)
