"""What docs/theory.md shows is what comes out."""

import doctest
from pathlib import Path


def test_the_page_on_theory_is_true():
    page = Path(__file__).parents[2] / "docs" / "theory.md"
    failures, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 5
    assert not failures
