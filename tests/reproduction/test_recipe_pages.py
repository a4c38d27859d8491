"""A recipe's page in a real browser: it opens, fits, has no barriers, and says what came of claims."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import idiolect
from idiolect.reproduction.recipe import PAPERS
from idiolect.reproduction.words import chosen
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
    verdicts = "[...document.querySelectorAll('.claims > li > strong')].map(cell => cell.textContent.trim())"
    assert set(browser.evaluate(verdicts)) == {"✓ confirmed"}
    links = "[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.hash) !== null)"
    assert browser.evaluate(links) == [True, True]


RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.html")), ids=lambda page: page.stem)
def test_published_pages_open_fit_and_have_no_barriers(browser: Browser, page: Path) -> None:
    browser.open(page, width=360)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    browser.evaluate("new Promise(done => setTimeout(done, 500))")
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.violations() == []


def test_what_was_chosen_has_no_column_for_panels_that_there_are_not() -> None:
    rows = [
        {"panel": "", "line": "FedAvg", "lr": 0.1},
        {"panel": "", "line": "APFL", "lr": 0.3, "mixing": 0.5},
    ]
    assert chosen({"chosen": rows}) == (
        ["line", "lr", "mixing"],
        [["FedAvg", "0.1", ""], ["APFL", "0.3", "0.5"]],
    )
    assert chosen({"chosen": [{"panel": "IID", "line": "FedAvg", "lr": 0.1}]})[0] == ["panel", "line", "lr"]


FOUND = """|
  **It holds** where `x` < 1, see [the other](../{other}/README.md).

  | x | what is *seen* there, in words that are too many for a narrow screen |
  |---|---|
  | 0.5 | <b id="raw">a & b</b> and-a-word-of-sixty-letters-that-no-browser-breaks-for-want-of-room |
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes without runs whose figures have the same titles, with text in Markdown."""
    folder = tmp_path_factory.mktemp("written")
    for name, other in (("one", "two"), ("two", "one")):
        found = FOUND.format(other=other)
        (folder / f"{name}.yaml").write_text(f"like: additive-fig4\nitem: Figure {name}\nfound: {found}")
    idiolect.reproduce(*(str(folder / f"{name}.yaml") for name in ("one", "two")), out=folder / "out", jobs=1)
    return folder / "out"


@pytest.mark.parametrize(("page", "leads_to"), [("additive.html", "two/"), ("one/index.html", "../two/")])
def test_what_was_found_is_shown_as_it_is_meant(
    browser: Browser, written: Path, page: str, leads_to: str
) -> None:
    browser.open(written / page, width=1280)
    prose = "document.querySelector('.prose')"
    assert browser.evaluate(f"{prose}.querySelector('strong').textContent") == "It holds"
    assert browser.evaluate(f"{prose}.querySelector('code').textContent") == "x"
    assert browser.evaluate(f"{prose}.querySelector('a').getAttribute('href')") == f"{leads_to}README.md"
    target = (written / page).parent / leads_to / "README.md"
    assert target.is_file()
    assert browser.evaluate(f"{prose}.querySelector('td:last-child').textContent").startswith(
        '<b id="raw">a & b'
    )
    assert browser.evaluate("document.getElementById('raw')") is None


@pytest.mark.parametrize("width", [360, 1280])
def test_all_that_can_be_opened_on_a_page_of_several_recipes_has_no_barriers(
    browser: Browser, written: Path, width: int
) -> None:
    browser.open(written / "additive.html", width=width)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    browser.evaluate("new Promise(done => setTimeout(done, 300))")
    assert browser.evaluate("document.querySelectorAll('figure details tbody tr').length") > 100
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    assert browser.violations() == []
