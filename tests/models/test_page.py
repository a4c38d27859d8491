"""What docs/models.md shows is what happens, and it has every model."""

import doctest
from pathlib import Path

from idiolect.models import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_its_examples_are_true():
    failures, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried >= 10
    assert not failures


def test_it_has_every_model_by_name():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"\n| `{name}` |" in text for name in MODELS)
