"""Colours that can be read, one look for one method, axes that no single value can spoil, and plain HTML."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import idiolect
from idiolect.methods.catalogue import METHODS
from idiolect.reports import figures as figures_module
from idiolect.reports import page as page_module
from idiolect.reports import write_report
from idiolect.reports.diagnosed import diagnosed_charts
from idiolect.reports.evidence import Evidence, gather
from idiolect.reports.figures import curves_chart, curves_room, spread_chart
from idiolect.reports.palette import DARK, LIGHT
from idiolect.reports.room import room_for
from idiolect.reports.sheet import NARROW, WIDE, Sheet, save
from idiolect.reports.static import draw
from idiolect.reports.styles import kind_style, method_styles
from reports.reading import tables
from reports.test_charts import islands

SEVEN = ["local", "fedavg", "apfl", "ditto", "perm", "efl", "pfedkm"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven methods on fifteen clients, as in the demo, over one round."""
    folder = tmp_path_factory.mktemp("look") / "runs"
    return idiolect.compare({"methods": SEVEN, "data": "vowels", "rounds": 1, "lr": 0.1}, out=folder).path


@pytest.fixture(scope="module")
def evidence(comparison: Path) -> Evidence:
    return gather([comparison])


def drawings(evidence: Evidence) -> Iterator[Callable[[Sheet], object]]:
    """The figure of clients, and the curves over rounds and over traffic."""
    clients, curves = spread_chart(evidence), curves_chart(evidence)
    yield lambda sheet: draw(clients, sheet)
    for axis in curves.axes:
        yield lambda sheet, axis=axis: draw(curves, sheet, axis)


# Colours.


def luminance(colour: str) -> float:
    """Of WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def variables(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The colours that a page's CSS has for the light and for the dark."""
    light, dark = re.findall(r":root \{ [^}]*\}", text)[:2]
    return tuple(dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", rules)) for rules in (light, dark))


def test_contrast_of_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # as every checker says


def test_text_and_marks_can_be_seen_in_the_light_and_in_the_dark(comparison: Path) -> None:
    write_report([comparison], comparison / "report.html")
    light, dark = variables((comparison / "report.html").read_text())
    assert (light, dark) == (dict(LIGHT), dict(DARK))
    assert contrast(light["paper"], dark["paper"]) > 15
    for colours in (light, dark):
        for name in ("ink", "faint", "accent", "good", "bad"):
            assert contrast(colours[name], colours["paper"]) >= 4.5, name
        assert contrast(colours["ink"], colours["panel"]) >= 4.5
        for name in colours:
            if name.startswith("series-") or name in ("alone", "shared"):
                assert contrast(colours[name], colours["paper"]) >= 3, name


def test_figures_have_no_colours_of_their_own(evidence: Evidence, tmp_path: Path) -> None:
    for drawing in drawings(evidence):
        for svg in save("figure", drawing, tmp_path).values():
            assert "var(--ink)" in svg
            assert "var(--alone)" in svg
            assert re.findall(r"#[0-9a-f]{6}\b|rgb\(|: (?:white|black)\b", svg) == []


# One look for one method.


def test_every_method_has_a_look_of_its_own_whatever_it_is_compared_with() -> None:
    names = [method.name for method in METHODS]
    styles = method_styles([*names, "of-mine", "of-yours"])
    assert len({(style.colour_name, style.mark) for style in styles.values()}) == len(names) + 2
    for few in (names[::-3], ["efl", "local", "apfl"], ["fedavg"]):
        assert method_styles(few) == {name: styles[name] for name in few}
    baselines = {styles["local"].colour_name, styles["fedavg"].colour_name}
    others = [style for name, style in styles.items() if name not in ("local", "fedavg")]
    assert baselines == {"alone", "shared"}
    assert baselines.isdisjoint(style.colour_name for style in others)
    assert {styles["local"].mark, styles["fedavg"].mark}.isdisjoint(style.mark for style in others)
    together = (
        SEVEN,
        ["fedprox", "scaffold", "apfl", "efl"],  # EFL's figures
        ["fedavg", "scaffold", "apfl", "per-fedavg", "pfedme"],  # APFL's
        ["perm-two-stage", "heterofl", "fedrolex", "federated-dropout"],  # PERM's sizes
    )
    for names in together:
        assert len({styles[name].colour_name for name in names}) == len(names)


def test_model_kinds_differ_by_line_and_fill() -> None:
    kinds = [kind_style(kind) for kind in ("personal", "global", "localized", "group", "something else")]
    for one, other in itertools.combinations(kinds, 2):
        assert one.line != other.line
        assert one.fill != other.fill


def test_a_method_has_its_colour_in_every_figure_and_in_the_table(comparison: Path) -> None:
    text = (comparison / "report.html").read_text()
    charts = islands(text)
    for name, style in method_styles(SEVEN).items():
        for chart, lines in (("learning-curves", "series"), ("how-each-client-fares", "models")):
            own = [line["colour"] for line in charts[chart][lines] if line["name"].startswith(f"{name} ")]
            assert set(own) == {style.colour_name}, (name, chart)
        rows = re.findall(rf'<tr><th scope="row">.*?fill: ([^"]+)"/></svg>{name} ', text)
        assert set(rows) == {f"var(--{style.colour_name})"}


# Axes.


def test_an_axis_follows_most_values() -> None:
    usual = np.linspace(0.5, 0.9, 41)
    room = room_for([[*usual, 1e30, -1e200, np.inf, np.nan]])
    assert 0.45 < room.low < 0.5
    assert 0.9 < room.high < 0.95
    values = np.array([0.7, 1e30, -np.inf, np.nan])
    assert room.outside(values).tolist() == [False, True, True, False]
    np.testing.assert_equal(room.at_edge(values), [0.7, room.high, room.low, np.nan])
    assert np.isfinite(room.just_outside(values[:3])).all()


def test_an_axis_has_room_for_each_group_for_what_is_needed_and_for_equal_values() -> None:
    room = room_for([[0.27, 0.28, 0.3], [1.6, 1.7, 1.9]], needed=[2.5, np.inf])
    assert room.low < 0.27
    assert 2.5 < room.high < 3
    for equal in (0.0, 1.0, -40.0):
        room = room_for([[equal] * 5])
        assert room.low < equal < room.high
    one_aside = room_for([[1.0] * 30 + [0.9] * 3])  # their quartiles are equal
    assert one_aside.low < 0.9


def test_a_curve_that_is_level_for_long_is_shown_from_its_rise_on() -> None:
    rise, level = [0.2, 0.4, 0.5, 0.55], 0.8 + 0.001 * np.sin(np.arange(96))
    assert room_for([[*rise, *level]]).low > 0.7
    assert room_for([[*rise, *level]], central=0.96).low < 0.5


def test_values_over_orders_of_magnitude_make_it_logarithmic_where_that_is_possible() -> None:
    errors = [0.1, 0.3, 1.0, 5.0, 30.0, 80.0]
    assert room_for([errors], needed=errors, may_be_logarithmic=True).logarithmic
    assert not room_for([errors], needed=errors).logarithmic
    assert not room_for([[-1.0, *errors]], needed=errors, may_be_logarithmic=True).logarithmic


def disturbed(evidence: Evidence, value: float) -> Evidence:
    """One client under one model, and the curve of that model from its second evaluation on."""
    clients, curves = evidence.clients.copy(), evidence.curves.copy()
    clients.loc["speaker-03", "apfl personal"] = value
    curves.loc[(curves.model == "apfl personal") & (curves["round"] > 0), "value"] = value
    table = evidence.table.copy()
    row = (table.method == "apfl") & (table.kind == "personal")
    table.loc[row, "mean"] = value
    table.loc[row, "diverged"] = True
    return dataclasses.replace(evidence, clients=clients, curves=curves, table=table)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e308, -1e30])
def test_what_diverged_is_at_the_edge_and_said(evidence: Evidence, value: float, tmp_path: Path) -> None:
    changed = disturbed(evidence, value)
    clients, curves = spread_chart(changed), curves_chart(changed)
    assert clients.room is not None
    assert clients.room.high < 1.5
    assert curves_room(changed).low > -0.5
    assert "speaker-03 under apfl personal (" in clients.description
    assert re.search(r"with an arrow: .*\bof apfl personal", curves.description)
    for drawing in drawings(changed):
        for svg in save("figure", drawing, tmp_path).values():
            assert not re.search(r"\b(nan|inf)\b", svg, flags=re.IGNORECASE)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_figures_without_any_usual_value_are_drawn(evidence: Evidence, value: float, tmp_path: Path) -> None:
    nothing = dataclasses.replace(
        evidence,
        clients=evidence.clients * 0 + value,
        curves=evidence.curves.assign(value=value),
        table=evidence.table.assign(mean=value, diverged=value != 0),
    )
    for drawing in drawings(nothing):
        for svg in save("figure", drawing, tmp_path).values():
            ElementTree.fromstring(svg)


def with_clients(evidence: Evidence, names: list[str]) -> Evidence:
    random = np.random.default_rng(len(names))
    values = random.uniform(0.4, 0.9, (len(names), evidence.clients.shape[1]))
    return dataclasses.replace(
        evidence, clients=pd.DataFrame(values, index=names, columns=evidence.clients.columns)
    )


def drawn_texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter() if "text" in text.tag]


@pytest.mark.parametrize("count", [1, 4, 30, 139])
def test_clients_have_rows_if_they_are_few_and_models_if_they_are_many(
    evidence: Evidence, count: int, tmp_path: Path
) -> None:
    names = [f"$client {number}$ <&>" for number in range(count)]
    changed = with_clients(evidence, names)
    chart = spread_chart(changed)
    drawn = save("clients", lambda sheet: draw(chart, sheet), tmp_path)
    texts = drawn_texts(drawn["wide"])
    assert [name for name in names if name in texts] == (names if count <= 40 else [])
    assert set(evidence.judged) <= {text.strip() for text in texts}
    height = draw(chart, WIDE).get_size_inches()[1]
    assert 1.5 < height < 12


def test_a_long_name_leaves_room_for_the_plot(evidence: Evidence) -> None:
    changed = with_clients(evidence, ["x" * 60, "b", "c", "d"])
    for sheet in (WIDE, NARROW):
        figure = draw(spread_chart(changed), sheet)
        figure.draw_without_rendering()
        assert figure.axes[0].get_position().width > 0.5


@pytest.mark.parametrize("sheet", [WIDE, NARROW])
def test_the_legend_takes_nothing_from_the_plot(evidence: Evidence, sheet: Sheet) -> None:
    figure = draw(curves_chart(evidence), sheet)
    figure.draw_without_rendering()
    plot = figure.axes[0].get_window_extent()
    legend = figure.legends[0].get_window_extent()
    assert legend.y0 >= plot.y1
    assert legend.width <= figure.bbox.width
    assert plot.height / figure.dpi > 2.5
    labels = [label.get_window_extent() for label in figure.axes[0].get_xticklabels() if label.get_text()]
    seen = sorted((box for box in labels if plot.x0 - 1 <= box.x0 <= plot.x1), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(seen))


# The page.


class Outline(HTMLParser):
    """Headings, ids, and cells without a scope."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.ids: list[str] = []
        self.unscoped = 0
        self.language: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if facts.get("id"):
            self.ids.append(str(facts["id"]))
        self.unscoped += tag == "th" and "scope" not in facts
        self.language = facts.get("lang") if tag == "html" else self.language


def test_the_page_can_be_read_without_eyes(comparison: Path) -> None:
    text = re.sub(r"<script>.*?</script>", "", (comparison / "report.html").read_text(), flags=re.DOTALL)
    outline = Outline()
    outline.feed(text)
    assert outline.language == "en"
    assert outline.levels[:2] == [1, 2]
    assert set(outline.levels[1:]) == {2, 3}
    assert all(after <= before + 1 for before, after in itertools.pairwise(outline.levels))
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.unscoped == 0
    assert text.count("<caption>") == text.count("<table")
    assert len(re.findall(r'role="img" aria-label="[^"]{20,}"', text)) == len(islands(text)) >= 8
    referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert referred <= set(outline.ids)


def test_the_reported_round_is_in_the_table(comparison: Path, evidence: Evidence) -> None:
    header, *rows = tables((comparison / "report.html").read_text())["models"]
    assert header[1:4] == ["test mean", "validation mean", "reported round"]
    found = {row[0]: row[3] for row in rows}
    for run in evidence.runs:
        for kind, numbers in run.summary()["kinds"].items():
            assert found[f"{run.config.method_name} {kind}"] == str(numbers["round"])


class Told:
    """Stands for a run of a method that tells much about many clients."""

    def __init__(self, method: str, name: str, clients: int) -> None:
        self.config = SimpleNamespace(method_name=method, seed=0)
        self._clients = pd.DataFrame(index=[f"client-{number}" for number in range(clients)])
        places = np.arange(100 * clients)
        values = places % 7 if name == "labels" else np.random.default_rng(0).random(len(places))
        self._table = pd.DataFrame(
            {
                "round": places // clients,
                "name": name,
                "index": places % clients,
                "value": values.astype(float),
            }
        )

    def diagnostics(self) -> pd.DataFrame:
        return self._table

    def clients(self) -> pd.DataFrame:
        return self._clients


def enlarged(evidence: Evidence, clients: int) -> Evidence:
    """As if there were so many clients, and a hundred evaluations of each model."""
    many = with_clients(evidence, [f"client-{number:04d}" for number in range(clients)])
    first = evidence.curves[evidence.curves["round"] == 0].assign(seconds=0.123456789)
    rounds = [first.assign(round=number, value=number / 123.4567, low=0.1, high=0.9) for number in range(100)]
    assert evidence.gains is not None
    own = [evidence.gains.clients[evidence.gains.clients.client == "speaker-00"]] * clients
    of_clients = pd.concat(
        [table.assign(client=name) for table, name in zip(own, many.clients.index, strict=True)]
    )
    random = np.random.default_rng(1)
    for column in [
        name for name in of_clients if str(name).endswith(("_alone", "_shared")) and "verdict" not in name
    ]:
        of_clients[column] = random.normal(0, 0.1, len(of_clients))
    gains = dataclasses.replace(evidence.gains, clients=of_clients)
    return dataclasses.replace(many, curves=pd.concat(rounds), gains=gains)


@pytest.mark.parametrize("clients", [100, 1000])
def test_many_clients_and_evaluations_do_not_make_a_heavy_page(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    many = enlarged(evidence, clients)
    told = [
        Told("apfl", "mixing", clients),
        Told("pfedkm", "labels", clients),
        Told("ifca", "labels", clients),
    ]
    monkeypatch.setattr(page_module, "gather", lambda folders: many)
    monkeypatch.setattr(page_module, "save_static", lambda charts, folder: None)
    monkeypatch.setattr(figures_module, "diagnosed_charts", lambda runs: diagnosed_charts(told))
    write_report([many.runs[0].path], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert len(text.encode()) < 2e6
    charts = islands(text)
    assert len(charts["learning-curves"]["series"][0]["y"]) == 100
    assert len(charts["how-each-client-fares"]["clients"]) == clients
    assert {"weight-of-each-client-s-own-model-apfl-seed-0", "groups-of-clients-ifca-seed-0"} <= set(charts)
    left_out = re.findall(r"Of 1,000 (?:clients|rows|lines of clients) [\d,]+ are", text)
    assert bool(left_out) == (clients == 1000)
