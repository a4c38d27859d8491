"""The examples of the pages on Python and on the command line work as they stand."""

import doctest
import shlex
from pathlib import Path

import pandas as pd
import pytest

from idiolect.runs.comparison import resolve_comparison
from idiolect.runs.config import resolve
from idiolect.runs.settings import read_settings

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [line for line in (DOCS / "running.md").read_text().splitlines() if line.startswith("idiolect ")]


def test_the_examples_of_the_api_page() -> None:
    failures, tried = doctest.testfile(str(DOCS / "api.md"), module_relative=False)
    assert tried > 10
    assert failures == 0


@pytest.mark.parametrize("line", [c for c in COMMANDS if c.split()[1] in ("run", "compare")])
def test_the_settings_of_the_page_on_running(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("method: {name: apfl, mixing: 0.5}\ndata: vowels\nrounds: 50\n")
    pd.DataFrame({"hospital": ["a"], "outcome": [1]}).to_csv("patients.csv", index=False)
    _, command, *settings = shlex.split(line)
    (resolve if command == "run" else resolve_comparison)(read_settings(settings))
