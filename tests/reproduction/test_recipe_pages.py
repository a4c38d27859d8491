"""A recipe's page in a real browser: it opens, fits, has no barriers, and says what came of claims."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import idiolect
from idiolect.reproduction.recipe import PAPERS
from reports.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two deterministic recipes, which take seconds; their claims are the spec's numbers."""
    out = tmp_path_factory.mktemp("recipes")
    found = idiolect.reproduce("additive-fig1b", "additive-fig2", out=out, jobs=1)
    assert set(found.claims.verdict) == {"confirmed"}
    return out


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("page", ["additive.html", "additive-fig2/index.html"])
def test_pages_open_fit_and_have_no_barriers(
    browser: Browser, out: Path, page: str, width: int, dark: bool
) -> None:
    browser.open(out / page, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('figure.chart svg').length") > 0
    assert browser.violations() == []


def test_verdicts_are_words_and_lead_to_their_figures(browser: Browser, out: Path) -> None:
    browser.open(out / "additive.html", width=1280)
    assert PAPERS["additive"] in browser.evaluate("document.querySelector('h1').textContent")
    verdicts = (
        "[...document.querySelectorAll('.claims td:nth-child(2)')].map(cell => cell.textContent.trim())"
    )
    assert set(browser.evaluate(verdicts)) == {"✓ confirmed"}
    links = "[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.hash) !== null)"
    assert browser.evaluate(links) == [True, True]
