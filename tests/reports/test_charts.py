"""Charts as data: what the browser is given, what is left out of very many numbers, and the same on paper."""

import hashlib
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from idiolect.reports.browser import charts_html
from idiolect.reports.charts import Bars, Curves, HeatMap, Intervals, Series, Spread
from idiolect.reports.looks import is_stretched, with_ids
from idiolect.reports.ordering import by_similarity
from idiolect.reports.static import save_static
from idiolect.reports.styles import method_styles
from idiolect.reports.thinning import evenly, thinned
from reports import samples


def islands(html: str) -> dict[str, dict]:
    """The JSON of each figure, by the figure's id."""
    pattern = r'<figure class="chart" id="([^"]+)">.*?<script type="application/json">(.*?)</script>'
    return {name: json.loads(text) for name, text in re.findall(pattern, html, flags=re.DOTALL)}


def test_each_chart_is_an_island_of_json_with_its_own_id() -> None:
    found = islands(charts_html([*samples.every_chart(), samples.curves()]))
    assert list(found)[:3] == ["learning-curves", "weights-over-time", "how-each-client-fares"]
    assert list(found)[-1] == "learning-curves-2"
    kinds = [chart["kind"] for chart in found.values()]
    assert kinds == ["Curves", "Curves", "Spread", "Intervals", "HeatMap", "HeatMap", "Bars", "Curves"]
    assert list(with_ids([samples.bars()], "apfl-table2")) == ["apfl-table2-what-crosses-the-wire"]


def test_the_island_holds_the_numbers_and_the_look_of_each_method() -> None:
    chart = islands(charts_html([samples.curves()]))["learning-curves"]
    given = samples.curves().series
    for series, line in zip(given, chart["series"], strict=True):
        assert line["name"] == series.name
        assert line["y"] == pytest.approx(series.y, rel=1e-4)
        assert line["colour"] == method_styles([series.method])[series.method].colour_name
    assert [line["dash"] for line in chart["series"]] == ["", "10,4", "10,4", ""]
    assert chart["axes"] == ["round", "megabytes"]
    assert [line.get("aside", False) for line in chart["series"]] == [False, False, True, False]


def test_names_that_look_like_html_stay_names() -> None:
    nasty = "</script><script>alert(1)</script>"
    html = charts_html([Intervals(nasty, nasty, "gain", [(nasty, 0.1, 0.0, 0.2)])])
    assert "<script>alert" not in html
    (chart,) = islands(html).values()
    assert chart["rows"][0][0] == nasty


def test_what_is_undefined_or_infinite_is_valid_json() -> None:
    series = Series("a", {"round": [0, 1, 2, 3]}, [1.0, math.nan, math.inf, -math.inf])
    (chart,) = islands(charts_html([Curves("t", "d", [series], "y")])).values()
    assert chart["series"][0]["y"] == [1, None, 1e308, -1e308]


def test_series_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values of y and 1 of round"):
        Series("a", {"round": [1]}, [1.0, 2.0])
    with pytest.raises(ValueError, match="one end"):
        Series("a", {"round": [1]}, [1.0], low=[0.0])
    with pytest.raises(ValueError, match="1 x 2"):
        HeatMap("t", "d", ["a"], ["b", "c"], [[1.0]], "r", "c", "v")


def test_an_axis_is_logarithmic_where_one_line_is_much_longer() -> None:
    def lines(longest: float) -> Curves:
        ends = (1.0, longest)
        return Curves("t", "d", [Series(str(end), {"megabytes": [0, end]}, [0, 1]) for end in ends], "y")

    assert not is_stretched(lines(9), "megabytes")
    assert is_stretched(lines(11), "megabytes")


# Very many numbers.


def test_evenly_keeps_the_ends() -> None:
    assert evenly(list(range(1000)), 5) == [0, 250, 500, 749, 999]
    assert evenly("abc", 5) == ["a", "b", "c"]


def test_long_lines_and_many_clients_are_thinned_out_and_that_is_said() -> None:
    rounds = list(range(5001))
    long = Series("a", {"round": rounds}, [math.sqrt(r) for r in rounds], rounds, rounds)
    own = [Series(f"c{n}", {"round": rounds}, rounds, client=f"c{n}") for n in range(300)]
    chart, told = thinned(Curves("t", "d", [long, *own], "y"))
    assert isinstance(chart, Curves)
    first = chart.series[0]
    assert (first.x["round"][0], first.x["round"][-1], len(first.y)) == (0, 5000, 200)
    assert first.y == [math.sqrt(place) for place in first.x["round"]]
    assert sum(len(one.y) for one in chart.series[1:]) <= 8000
    assert chart.series[-1].name == "c299"
    assert "Of 5,001 values of a line 200 are drawn" in told
    assert "Of 300 lines of clients 40 are drawn" in told


def test_a_spread_of_many_clients_keeps_its_quantiles() -> None:
    clients = [f"c{number}" for number in range(10_000)]
    whole = samples.spread(clients)
    chart, told = thinned(whole)
    assert isinstance(chart, Spread)
    assert told == "Of 10,000 clients 1,000 are drawn, evenly spaced."
    # Of 10,000 values over 0.4 every tenth is kept: no quantile moves by more than about ten times 4e-5.
    few, many = (list(one.values["apfl personal"].values()) for one in (chart, whole))
    assert np.percentile(few, [0, 25, 50, 75, 100]) == pytest.approx(
        np.percentile(many, [0, 25, 50, 75, 100]), abs=5e-4
    )


def test_a_large_heat_map_is_averaged_over_neighbours_and_one_of_categories_is_not() -> None:
    names = [str(number) for number in range(200)]
    values = np.arange(200.0)[:, None] + 1000 * np.arange(200.0)
    chart, told = thinned(HeatMap("t", "d", names, names, values.tolist(), "r", "c", "v"))
    assert isinstance(chart, HeatMap)
    assert np.shape(chart.values) == (100, 100)
    assert chart.values[3][5] == values[6:8, 10:12].mean()
    assert chart.rows[3] == "6 – 7"
    assert "the mean of several neighbours" in told
    groups, told = thinned(
        HeatMap("t", "d", names, names, (values % 3).tolist(), "r", "c", "v", categorical=True)
    )
    assert isinstance(groups, HeatMap)
    assert set(np.unique(groups.values)) <= {0, 1, 2}
    assert "one of several neighbours" in told


def test_few_numbers_are_left_as_they_are() -> None:
    for chart in samples.every_chart():
        same, told = thinned(chart)
        assert told == ""
        if not isinstance(chart, Curves):
            assert same == chart
    rows = [(str(n), float(n), n - 1.0, n + 1.0) for n in range(500)]
    assert len(thinned(Intervals("t", "d", "l", rows))[0].rows) == 60  # type: ignore[union-attr]
    assert len(thinned(Bars("t", "d", "l", {str(n): {"a": 1.0} for n in range(99)}))[0].groups) == 60  # type: ignore[union-attr]


# An order for matrices.


def test_clients_that_mix_alike_stand_together() -> None:
    random = np.random.default_rng(0)
    groups = random.permutation(np.repeat([0, 1, 2, 3], [3, 9, 5, 7]))
    weights = (groups[:, None] == groups) + 0.05 * random.random((24, 24))
    order = by_similarity(weights / weights.sum(1, keepdims=True))
    assert sorted(order) == list(range(24))
    ordered = groups[order]
    assert (np.diff(ordered) != 0).sum() == 3  # each group is one block
    assert by_similarity(np.zeros((0, 0))) == []
    assert by_similarity([[1.0]]) == [0]


# On paper.


def texts(svg: Path) -> set[str]:
    found = ElementTree.parse(svg).getroot().iter()
    return {"".join(one.itertext()).strip() for one in found if one.tag.endswith("text")}


def test_every_chart_is_a_file_of_each_kind_under_the_name_that_it_has_on_the_page(tmp_path: Path) -> None:
    files = save_static(samples.every_chart(), tmp_path)
    ids = set(islands(charts_html(samples.every_chart())))
    names = {file.stem for file in files}
    assert {"learning-curves-round", "learning-curves-megabytes", "groups"} <= names
    assert names - {"learning-curves-round", "learning-curves-megabytes"} == ids - {"learning-curves"}
    for file in files:
        assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "#ffffff" in file.read_text()  # on paper
    assert {"apfl", "fedavg", "dashed: global", "round"} <= texts(tmp_path / "learning-curves-round.svg")
    assert {"apfl", "efl", "perm", "gain, points"} <= texts(tmp_path / "gains.svg")
    assert {"perm up", "gradient", "megabytes"} <= texts(tmp_path / "what-crosses-the-wire.svg")
    assert {"client-03", "helper", "weight"} <= texts(tmp_path / "who-learns-from-whom.svg")
    again = save_static(samples.every_chart(), tmp_path / "again")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


@pytest.mark.parametrize(
    "chart", samples.odd_charts(), ids=lambda chart: f"{type(chart).__name__}-{chart.title}"
)
def test_charts_with_nothing_to_draw_are_drawn(chart: Curves, tmp_path: Path) -> None:
    (file,) = save_static([chart], tmp_path)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', file.read_text(), flags=re.IGNORECASE)
    assert len(islands(charts_html([chart]))) == 1


# Scripts of others.


@pytest.mark.parametrize(
    "folder",
    [Path(samples.render.__code__.co_filename).parent / "vendor", Path(__file__).parent / "vendor"],
    ids=["pages", "tests"],
)
def test_scripts_of_others_are_those_that_were_released(folder: Path) -> None:
    listed = re.findall(
        r"^\| (\S+\.js) \|.*\((\S+)\) \| ([0-9a-f]{64}) \|$", (folder / "README.md").read_text(), re.M
    )
    assert {name for name, _, _ in listed} == {path.name for path in folder.glob("*.js")}
    for name, licence, digest in listed:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert (folder / licence).stat().st_size > 300


def test_a_page_with_scripts_of_others_has_their_licences() -> None:
    page = samples.page_of([])
    for holder in ("Copyright 2010-2026 Mike Bostock", "Copyright 2020-2025 Observable, Inc."):
        assert page.count(holder) >= 2  # in the licence, and in the script itself
    assert page.count("Permission to use, copy, modify, and/or distribute this software") == 2
