import doctest
from pathlib import Path


def test_the_examples_of_the_data_page_are_true(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "data.md"
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0
