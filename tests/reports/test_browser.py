"""Pages as a real browser shows them, in the light and in the dark, on a desk and on a phone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import idiolect
from idiolect.reports import page as page_module
from idiolect.reports import write_report
from idiolect.reports.evidence import gather
from idiolect.reports.palette import DARK, LIGHT
from idiolect.runs.comparison import Failure
from idiolect.silo import live_page
from reports.browser import CHROMIUM, Browser
from silo.test_progress import STATUS

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium is installed: what a browser makes of the pages cannot be seen on this machine",
)
LONG_NAME = "the-regional-hospital-of-a-very-long-name-with-sixty-letters"
METHODS = ["local", "fedavg", "apfl", "agnostic-apfl", "federated-dropout"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve models with long names, as if over three seeds; those of one method diverged, one run failed."""
    folder = tmp_path_factory.mktemp("report")
    settings = {"methods": METHODS, "data": "vowels", "rounds": 1, "lr": 0.1}
    runs = idiolect.compare(settings, out=folder / "runs").path
    evidence = gather([runs])
    clients = evidence.clients.rename(index={"speaker-00": LONG_NAME})
    clients.loc["speaker-01", "apfl personal"] = -np.inf
    table = evidence.table.assign(std_over_seeds=0.1234, seeds=3)
    table.loc[table.method == "apfl", ["mean", "diverged"]] = [-np.inf, True]
    failure = Failure("efl-seed0", "efl", 0, "ValueError: " + "a long reason without an end, " * 10)
    changed = dataclasses.replace(evidence, clients=clients, table=table, failures=(failure,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "gather", lambda folders: changed)
        write_report([runs], folder / "page.html")
    return folder / "page.html"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "page.html"
    long_named = dataclasses.replace(STATUS.silos[0], name=LONG_NAME)
    status = dataclasses.replace(STATUS, silos=(*STATUS.silos, long_named))
    path.write_text(live_page.draw(status, f"model: {'x' * 300}"))
    return path


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize("name", ["report", "live"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_or_asked_for(
    browser: Browser, request: pytest.FixtureRequest, name: str, dark: bool, width: int
) -> None:
    browser.open(request.getfixturevalue(name), width=width, dark=dark)
    assert browser.complaints == []
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    colours = DARK if dark else LIGHT
    style = "getComputedStyle(document.body)"
    assert browser.evaluate(f"{style}.backgroundColor") == rgb(colours["paper"])
    assert browser.evaluate(f"{style}.color") == rgb(colours["ink"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["report", "live"])
def test_axe_finds_nothing_in_the_way(
    browser: Browser, request: pytest.FixtureRequest, name: str, dark: bool
) -> None:
    browser.open(request.getfixturevalue(name), width=1280, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    # A run that goes on is shown as it is by loading its page again, without any script.
    meant = "meta-refresh:" if name == "live" else "nothing:"
    found = [told for told in browser.violations() if not told.startswith(meant)]
    assert found == []


@pytest.mark.parametrize(
    ("name", "tables"), [("report", ("models", "clients")), ("live", ("silos", "rounds"))]
)
def test_all_columns_are_seen_on_a_desk(
    browser: Browser, request: pytest.FixtureRequest, name: str, tables: tuple[str, str]
) -> None:
    browser.open(request.getfixturevalue(name), width=1280)
    for table in tables:
        box = f"document.getElementById('{table}').parentElement"
        assert browser.evaluate(f"{box}.scrollWidth <= {box}.clientWidth"), table


@pytest.mark.parametrize(("name", "table"), [("report", "models"), ("report", "clients"), ("live", "silos")])
def test_on_a_phone_a_table_scrolls_in_its_box_beside_its_first_column(
    browser: Browser, request: pytest.FixtureRequest, name: str, table: str
) -> None:
    browser.open(request.getfixturevalue(name), width=360)
    found = f"document.getElementById('{table}')"
    first = f"{found}.querySelector('tbody th').getBoundingClientRect()"
    before = browser.evaluate(f"{first}.left")
    browser.evaluate(f"{found}.parentElement.scrollLeft = 10000")
    assert browser.evaluate(f"{found}.parentElement.scrollLeft") > 100
    assert browser.evaluate(f"{first}.left") == before
    assert browser.evaluate(f"{first}.width") <= 360 / 2
    last = browser.evaluate(f"{found}.querySelector('tbody tr td:last-child').getBoundingClientRect().right")
    assert last <= 360


def test_figures_turn_dark_with_the_page_and_fit_the_window(browser: Browser, report: Path) -> None:
    for dark, colours in ((False, LIGHT), (True, DARK)):
        browser.open(report, width=1280, dark=dark)
        style = "getComputedStyle(document.querySelector('#learning-curves .drawing {}'))"
        assert browser.evaluate(style.format("[aria-label=line] path") + ".stroke") == rgb(colours["alone"])
        assert browser.evaluate(style.format("text") + ".fill") == rgb(colours["ink"])
    for width in (1280, 360):
        browser.open(report, width=width)
        drawn = "[...document.querySelectorAll('figure .drawing > svg')]"
        figures = browser.evaluate("document.querySelectorAll('figure').length")
        assert browser.evaluate(f"{drawn}.length") == figures
        assert browser.evaluate(f"{drawn}.every(svg => svg.getBoundingClientRect().right <= {width})")
        # Letters are as large as they were made: a drawing is made anew for each width.
        scale = "svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
        assert browser.evaluate(f"{drawn}.map({scale}).every(factor => Math.abs(factor - 1) < 0.01)")
        sizes = f"{drawn}.map(svg => parseFloat(getComputedStyle(svg.querySelector('text')).fontSize))"
        assert min(browser.evaluate(sizes)) >= 10


def test_what_diverged_and_what_failed_is_said_in_words(browser: Browser, report: Path) -> None:
    browser.open(report, width=1280)
    flags = browser.evaluate("[...document.querySelectorAll('#models .flag')].map(each => each.innerText)")
    assert {"(diverged)", "failed:"} <= {flag.strip() for flag in flags}
