"""References lead somewhere: "spec 5.7" to a section of docs/spec, links to a file and a heading."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import idiolect
from idiolect.runs.config import RunConfig

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "docs" / "spec"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SOURCES = [*PAGES, *sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]

REFERENCE = re.compile(r"\b[Ss]pec (\d.*)")  # one or several sections, to the end of the line
SECTION = re.compile(r"\b\d\.\d+\b|^\d\b")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)")
IDENTITY = re.compile(r"def test_(a|ad|ef|km|pe|p)(\d+)_")


def headings(page: Path) -> list[str]:
    return HEADING.findall(page.read_text())


def anchor(heading: str) -> str:
    """A heading as links name it: small letters, digits and hyphens."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_references_to_the_specification_are_sections_of_it() -> None:
    sections = {heading.split()[0] for page in SPEC.glob("*.md") for heading in headings(page)}
    found = {
        (str(source.relative_to(ROOT)), section)
        for source in SOURCES
        for line in REFERENCE.findall(source.read_text())
        for section in SECTION.findall(line)
    }
    assert len(found) > 50
    assert not {(source, section) for source, section in found if section not in sections}


def test_identities_of_the_specification_are_those_of_the_tests() -> None:
    text = "".join(page.read_text() for page in SPEC.glob("*.md"))
    tests = "".join(source.read_text() for source in (ROOT / "tests").rglob("*.py"))
    assert set(re.findall(r"\*\*([A-Z]+\d+)\*\*", text)) - {"E0", "E1", "E2"} == {
        letters.upper() + number for letters, number in IDENTITY.findall(tests)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for path, place in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not place or place in map(anchor, headings(target)), f"{path}#{place}"


def test_every_method_card_leads_to_its_section() -> None:
    cards = (ROOT / "docs" / "methods").glob("*.md")
    assert not [card.name for card in cards if "](../spec/" not in card.read_text()]


def test_every_setting_of_a_run_is_in_the_table_of_settings() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", page.partition("## What is left open")[0], re.MULTILINE)
    told = {name.partition(".")[0] for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert {field.name for field in fields(RunConfig)} <= told


def test_the_summary_is_described_with_all_that_is_in_it() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^### summary.json\n+```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    described = yaml.safe_load(text)
    result = idiolect.train("local", "vowels", rounds=1, local_steps=1)
    assert set(described["required"]) == set(result._summary)
    assert set(described["required"]) | {"privacy", "newcomers"} == set(described["properties"])


NAMED = re.compile(r"`?([a-z_/]+\.py): (?:(\w+)\.)?(\w+)")


def test_the_calls_of_the_architecture_are_in_the_code() -> None:
    """`runs/rounds.py: play_rounds` is a function of that file, `a.py: B.c` a function of a class."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    calls = NAMED.findall(page)
    assert len(calls) > 15
    for file, owner, name in calls:
        code = (ROOT / "src" / "idiolect" / file).read_text(encoding="utf-8")
        assert not owner or f"class {owner}" in code, f"{file}: {owner}"
        assert re.search(rf"(def|class) {name}\b", code), f"{file}: {name}"


def test_the_files_of_the_architecture_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for file in re.findall(r"`((?:\w+/)+\w+\.py)`", page):
        assert (ROOT / "src" / "idiolect" / file).is_file(), file
