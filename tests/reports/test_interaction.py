"""What a reader does with a page: hover, choose, zoom, sort, pick, download; with the mouse and without."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from idiolect.reports.charts import HeatMap
from reports import samples
from reports.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium is installed: what a browser makes of the pages cannot be seen on this machine",
)
TABLE = """<table id="costs" class="sortable clients"><caption>Costs</caption>
<thead><tr><th scope="col">client</th><th scope="col">gain</th><th scope="col">sent</th></tr></thead><tbody>
<tr><th scope="row">client-02</th><td>+3.0 (0.1 to 6)</td><td>900.0 kB</td></tr>
<tr><th scope="row">client-10</th><td>−1.5 (−2 to −1)</td><td>0.00 MB</td></tr>
<tr><th scope="row">client-01</th><td>–</td><td>1.20 MB</td></tr></tbody></table>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("charts") / "page.html"
    path.write_text(samples.page_of(samples.every_chart()).replace("</main>", f"{TABLE}</main>"))
    return path


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.open(page, width=1280)
    yield browser
    assert browser.complaints == []


def lines(browser: Browser, figure: str = "learning-curves") -> int:
    """How many lines a figure shows."""
    return browser.evaluate(f"document.querySelectorAll('#{figure} [aria-label=line] path').length")


def ticks(browser: Browser, figure: str, axis: str = "x") -> list[str]:
    """The labels of an axis."""
    found = f'#{figure} .drawing [aria-label="{axis}-axis tick label"] text'
    return browser.evaluate(f"[...document.querySelectorAll('{found}')].map(each => each.textContent)")


def button(figure: str, words: str) -> str:
    """A button of a figure, by its name or text."""
    named = f"each => each.ariaLabel === '{words}' || each.textContent.trim() === '{words}'"
    return f"[...document.querySelectorAll('#{figure} button')].find({named})"


def choose(browser: Browser, figure: str, label: str, value: str) -> None:
    labels = f"[...document.querySelectorAll('#{figure} label')]"
    found = f"{labels}.find(each => each.textContent.startsWith('{label}'))"
    browser.evaluate(
        f"{{const list = {found}.querySelector('select'); list.value = '{value}';"
        "list.dispatchEvent(new Event('change', {bubbles: true}));}"
    )


def place(browser: Browser, selector: str, across: float, down: float) -> tuple[float, float]:
    """A place within an element, as shares of it, in the window, which is scrolled to it."""
    browser.evaluate(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    return seen_place(browser, selector, across, down)


def seen_place(browser: Browser, selector: str, across: float, down: float) -> tuple[float, float]:
    """A place within an element that is in the window as it is."""
    box = browser.evaluate(
        f"(e => ({{...e.getBoundingClientRect().toJSON()}}))(document.querySelector('{selector}'))"
    )
    return box["left"] + across * box["width"], box["top"] + down * box["height"]


def test_lines_are_shown_and_hidden_by_the_legend(opened: Browser) -> None:
    assert lines(opened) == 3  # one is aside
    opened.evaluate(f"{button('learning-curves', 'apfl personal')}.click()")
    assert lines(opened) == 2
    assert opened.evaluate(f"{button('learning-curves', 'apfl personal')}.ariaPressed") == "false"
    opened.evaluate(f"{button('learning-curves', 'show all')}.click()")
    assert lines(opened) == 4
    opened.evaluate(f"{button('learning-curves', 'hide all')}.click()")
    assert lines(opened) == 0


def test_the_axis_is_chosen_and_who_has_no_place_on_it_is_level(opened: Browser) -> None:
    assert ticks(opened, "learning-curves")[-1] == "100"
    choose(opened, "learning-curves", "Horizontal axis", "megabytes")
    assert ticks(opened, "learning-curves")[-1] == "3"
    assert lines(opened) == 3
    level = (
        "[...document.querySelectorAll('#learning-curves [aria-label=line] path')].at(-1).getAttribute('d')"
    )
    heights = [pair.split(",")[1] for pair in opened.evaluate(level).strip("M").split("L")]
    assert len(set(heights)) == 1


def test_a_drag_zooms_in_and_reset_shows_all_again(opened: Browser) -> None:
    before = ticks(opened, "learning-curves")
    svg = "#learning-curves .drawing svg"
    opened.drag(place(opened, svg, 0.3, 0.2), place(opened, svg, 0.6, 0.7))
    after = [float(tick) for tick in ticks(opened, "learning-curves")]
    assert 20 < after[0] < after[-1] < 65
    assert ticks(opened, "learning-curves", "y") != []
    assert opened.evaluate(f"{button('learning-curves', 'reset zoom')}.disabled") is False
    opened.evaluate(f"{button('learning-curves', 'reset zoom')}.click()")
    assert ticks(opened, "learning-curves") == before


@pytest.mark.parametrize("figure", ["learning-curves", "gains", "how-each-client-fares"])
def test_buttons_zoom_without_a_mouse(opened: Browser, figure: str) -> None:
    def span() -> tuple[float, float]:
        numbers = [float(tick.replace("−", "-").removesuffix(" %")) for tick in ticks(opened, figure)]
        return numbers[0], numbers[-1]

    low, high = span()
    opened.evaluate(f"{button(figure, 'zoom in')}.focus()")
    opened.press("Enter")
    inner_low, inner_high = span()
    assert inner_high - inner_low < 0.7 * (high - low)
    opened.evaluate(f"{button(figure, 'move right')}.focus()")
    opened.press(" ")
    assert span()[0] > inner_low
    opened.evaluate(f"{button(figure, 'zoom out')}.click()")
    opened.evaluate(f"{button(figure, 'reset zoom')}.click()")
    assert span() == (low, high)


def test_a_drag_over_a_map_shows_its_cells_larger(opened: Browser) -> None:
    figure, cell = "who-learns-from-whom", "#who-learns-from-whom [aria-label=rect] rect"
    drawing = f"document.querySelector('#{figure} .drawing svg')"
    height = opened.evaluate(f"{drawing}.getAttribute('height')")
    # From within one cell to within another one: those have names whose middle is covered.
    first, last = (f"{cell}:nth-of-type({12 * row + column + 1})" for row, column in ((2, 1), (5, 5)))
    end = place(opened, last, 0.8, 0.9)
    opened.drag(seen_place(opened, first, 0.2, 0.3), end)
    assert ticks(opened, figure, "y") == list(samples.CLIENTS[2:6])
    assert ticks(opened, figure) == list(samples.CLIENTS[1:6])
    assert opened.evaluate(f"document.querySelectorAll('{cell}').length") == 4 * 5
    opened.hover(*place(opened, cell, 0.9, 0.9))
    tip = opened.evaluate(f"document.querySelector('#{figure} [aria-label=tip]').textContent")
    assert "client client-02" in tip
    assert "helper client-01" in tip
    assert opened.evaluate(f"{drawing}.getAttribute('height')") == height  # the page does not jump
    opened.evaluate(f"{button(figure, 'reset zoom')}.click()")
    assert ticks(opened, figure, "y") == list(samples.CLIENTS)


def test_the_colours_of_a_map_begin_at_zero(browser: Browser, tmp_path: Path) -> None:
    weights = [[0.019, 0.021], [0.02, 0.02]]
    alike = HeatMap("alike", "d", ["a", "b"], ["a", "b"], weights, "client", "helper", "weight")
    (tmp_path / "alike.html").write_text(samples.page_of([alike]))
    browser.open(tmp_path / "alike.html", width=1280)
    browser.evaluate("new Promise(done => setTimeout(done, 100))")  # until it is drawn
    cells = "[...document.querySelectorAll('#alike [aria-label=rect] rect')]"
    fills = browser.evaluate(f"{cells}.map(each => parseInt(each.getAttribute('fill').match(/(\\d+)%/)[1]))")
    assert fills == [round(100 * weight / 0.021) for row in weights for weight in row]
    assert browser.evaluate("document.querySelector('#alike .legend').textContent") == "weight: 00.021"


def test_buttons_zoom_a_map_as_far_as_one_cell_and_not_beyond_its_edges(opened: Browser) -> None:
    figure = "who-learns-from-whom"

    def click(words: str, times: int = 1) -> None:
        for _ in range(times):
            opened.evaluate(f"{button(figure, words)}.click()")

    click("zoom in")
    assert ticks(opened, figure, "y") == ticks(opened, figure) == list(samples.CLIENTS[3:9])
    click("move down", 3)
    click("move right", 3)
    assert ticks(opened, figure, "y") == ticks(opened, figure) == list(samples.CLIENTS[6:])
    click("move up", 5)
    assert ticks(opened, figure, "y") == list(samples.CLIENTS[:6])
    assert ticks(opened, figure) == list(samples.CLIENTS[6:])
    click("zoom in", 5)
    assert len(ticks(opened, figure)) == len(ticks(opened, figure, "y")) == 1
    click("move left", 60)
    click("move up", 20)
    assert ticks(opened, figure) == ticks(opened, figure, "y") == [samples.CLIENTS[0]]
    click("zoom out", 5)
    assert ticks(opened, figure) == ticks(opened, figure, "y") == list(samples.CLIENTS)


def test_all_controls_are_reached_by_tab(opened: Browser) -> None:
    opened.evaluate("document.querySelector('#learning-curves select').focus()")
    reached = []
    for _ in range(8):
        opened.press("Tab")
        reached.append(
            opened.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent.trim()")
        )
    assert reached[:2] == ["zoom in", "zoom out"]  # what would do nothing now is left out
    assert reached[2:6] == ["apfl personal", "fedavg global", "apfl global", "local personal"]
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert opened.evaluate(outline) != "none"


def test_a_client_is_picked_in_all_figures_and_tables_at_once(opened: Browser) -> None:
    choose(opened, "how-each-client-fares", "Highlight client", "client-02")
    chosen = "[...document.querySelectorAll('figure select')].filter(s => s.value === 'client-02').length"
    assert opened.evaluate(chosen) == 4  # weights, spread, and two maps
    thick = "document.querySelectorAll('#weights-over-time [aria-label=line] [stroke-width=\"3\"]').length"
    assert opened.evaluate(thick) == 1
    assert opened.evaluate("document.querySelector('tr.picked th').innerText") == "client-02"
    choose(opened, "groups", "Highlight client", "")
    assert opened.evaluate(thick) == 0
    assert opened.evaluate("document.querySelector('tr.picked')") is None


def test_clients_can_have_rows_of_their_own(opened: Browser) -> None:
    assert ticks(opened, "how-each-client-fares", "y") == ["apfl personal", "fedavg global"]
    choose(opened, "how-each-client-fares", "Rows", "clients")
    rows = ticks(opened, "how-each-client-fares", "y")
    assert sorted(rows) == list(samples.CLIENTS)
    values = samples.spread().values["apfl personal"]
    assert rows == sorted(values, key=lambda client: -values[client])  # the best one at the top


@pytest.mark.parametrize(
    ("figure", "told"),
    [
        ("learning-curves", ["%"]),
        ("how-each-client-fares", ["client-", "%"]),
        ("gains", ["points"]),
        ("who-learns-from-whom", ["helper client-", "weight"]),
        ("what-crosses-the-wire", ["megabytes"]),
    ],
)
def test_hovering_tells_the_numbers(opened: Browser, figure: str, told: list[str]) -> None:
    marks = {
        "gains": "circle",
        "what-crosses-the-wire": "rect",
        "who-learns-from-whom": "[aria-label=rect] rect",
    }
    mark = marks.get(figure, "[aria-label=dot] path")
    selector = f"#{figure} .drawing > svg {mark}"
    opened.hover(*place(opened, selector, 0.5, 0.5))
    tip = opened.evaluate(f"document.querySelector('#{figure} [aria-label=tip]')?.textContent ?? ''")
    assert all(words in tip for words in told), tip


def cells(browser: Browser, column: int) -> list[str]:
    body = "[...document.querySelectorAll('#costs tbody tr')]"
    return browser.evaluate(f"{body}.map(row => row.cells[{column}].innerText.slice(0, 9))")


def test_tables_are_sorted_by_their_headings(opened: Browser) -> None:
    def heading(place: int) -> str:
        return f"document.querySelectorAll('#costs thead th')[{place}]"

    opened.evaluate(f"{heading(2)}.querySelector('button').focus()")
    opened.press("Enter")
    assert cells(opened, 2) == ["1.20 MB", "900.0 kB", "0.00 MB"]
    assert opened.evaluate(f"{heading(2)}.ariaSort") == "descending"
    opened.press("Enter")
    assert cells(opened, 2) == ["0.00 MB", "900.0 kB", "1.20 MB"]
    assert opened.evaluate(f"{heading(2)}.ariaSort") == "ascending"
    opened.evaluate(f"{heading(1)}.querySelector('button').click()")
    assert cells(opened, 1) == ["+3.0 (0.1", "−1.5 (−2 ", "–"]  # what is missing is last
    opened.evaluate(f"{heading(1)}.querySelector('button').click()")
    assert cells(opened, 1) == ["−1.5 (−2 ", "+3.0 (0.1", "–"]
    assert opened.evaluate(f"{heading(2)}.ariaSort") is None
    opened.evaluate(f"{heading(0)}.querySelector('button').click()")
    assert cells(opened, 0) == ["client-10", "client-02", "client-01"]


def test_the_numbers_of_each_figure_are_a_table_and_files(opened: Browser) -> None:
    opened.evaluate("document.querySelectorAll('figure details').forEach(each => each.open = true)")
    opened.evaluate("new Promise(done => setTimeout(done, 100))")
    rows = "document.querySelectorAll('#{} details tbody tr').length"
    expected = {"learning-curves": 3 * 11 + 2, "how-each-client-fares": 12, "gains": 3, "groups": 12}
    assert {name: opened.evaluate(rows.format(name)) for name in expected} == expected
    texts = "map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    first, *others = opened.evaluate(f"[...document.querySelectorAll('#gains details tr')].{texts}")
    assert [heading.split("\n")[0] for heading in first] == ["name", "gain, points", "low", "high"]
    assert others[2] == ["perm", "−0.05", "−0.09", "−0.01"]
    # A link makes its file when it is followed; what it would hold is read here.
    read = (
        "(async () => {{const links = [...document.querySelectorAll('#gains a')];"
        "const link = links.find(a => a.textContent === '{}');"
        "link.addEventListener('click', e => e.preventDefault()); link.click();"
        "return [link.download, await (await fetch(link.href)).text()];}})()"
    )
    name, text = opened.evaluate(read.format("CSV"))
    assert name == "gains.csv"
    assert text.splitlines()[:2] == ['name,"gain, points",low,high', "apfl,0.03,0.01,0.05"]
    name, text = opened.evaluate(read.format("JSON"))
    assert json.loads(text)[2] == {"name": "perm", "gain, points": -0.05, "low": -0.09, "high": -0.01}
    opened.complaints.clear()  # the requests for these two files


def test_charts_with_nothing_usual_to_draw_are_drawn(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "odd.html").write_text(samples.page_of(samples.odd_charts()))
    for width in (1280, 360):
        browser.open(tmp_path / "odd.html", width=width)
        drawn = browser.evaluate("document.querySelectorAll('figure .drawing > svg').length")
        assert drawn == len(samples.odd_charts())
        assert browser.evaluate("document.querySelector('main').innerHTML.match(/NaN|undefined/g)") is None
        assert browser.complaints == []
    # Every tick of a logarithmic axis has its label.
    assert ticks(browser, "far") == ["5", "10", "20"]
    assert ticks(browser, "powers") == ["1", "10", "100", "1000"]
    assert ticks(browser, "powers", "y") == ["1e−5", "0.001", "0.1", "10"]


def test_a_window_that_gets_narrow_draws_anew(opened: Browser) -> None:
    width = "document.querySelector('#learning-curves .drawing svg').getBoundingClientRect().width"
    before = opened.evaluate(width)
    opened.ask("Emulation.setDeviceMetricsOverride", width=360, height=900, deviceScaleFactor=1, mobile=False)
    opened.evaluate("new Promise(done => setTimeout(done, 300))")
    assert opened.evaluate(width) < 360 < before
    assert opened.evaluate("document.scrollingElement.scrollWidth") <= 360
    letters = "parseFloat(getComputedStyle(document.querySelector('#learning-curves svg text')).fontSize)"
    assert opened.evaluate(letters) >= 10


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_in_the_way(browser: Browser, page: Path, dark: bool, width: int) -> None:
    browser.open(page, width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    choose(browser, "how-each-client-fares", "Highlight client", "client-02")
    assert browser.violations() == []
