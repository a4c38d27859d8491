"""The files and commands of the page on extending work as they stand."""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.evaluation.metrics import CATALOGUE as METRICS
from idiolect.methods.catalogue import CATALOGUE as METHODS
from idiolect.testing import check_codec, check_method

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (DOCS / "extending.md").read_text(), re.M | re.S)
PYTHON = [code for language, code in BLOCKS if language == "python"]
FILES = {
    code.partition("\n")[0].removeprefix("# "): code for code in PYTHON if code.startswith("# my_package/")
}
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]


@pytest.fixture
def reader(here: Path) -> Iterator[Path]:
    """Somebody who copied the page's files."""
    for name, code in FILES.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(code)
    yield here
    for module in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[module]


def test_the_page_has_one_file_of_each_kind() -> None:
    names = [Path(name).stem for name in FILES]
    assert names == ["fedmomentum", "data", "models", "codecs", "metrics", "plans"]
    assert len(COMMANDS) == 11


def test_every_command_of_the_page(reader: Path) -> None:
    for line in COMMANDS:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, (line, result.output)
    assert idiolect.RunFolder("runs/judged").summary()["metric"] == "brier"
    assert idiolect.RunFolder("runs/momentum").config.method_name == "fedmomentum"


def test_the_lines_of_python(reader: Path) -> None:
    (code,) = [code for code in PYTHON if code.startswith("import idiolect")]
    idiolect.method("my_package.fedmomentum:FedMomentum")  # finds the folder, as a notebook there would
    names: dict[str, object] = {}
    exec(code, names)
    result = names["result"]
    assert isinstance(result, idiolect.Result)
    assert "brier" in result.metrics.metric.unique()


def test_the_method_of_the_page_keeps_the_contract(reader: Path) -> None:
    check_method(idiolect.method("my_package.fedmomentum:FedMomentum", lr=0.2))


def test_the_codec_of_the_page_keeps_the_contract(reader: Path) -> None:
    check_codec(idiolect.codecs.by_name("my_package.codecs:Rounded", digits=3))


def test_the_entry_points_of_the_page_are_those_that_are_looked_for() -> None:
    (text,) = [text for language, text in BLOCKS if language == "toml"]
    declared = tomllib.loads(text)["project"]["entry-points"]
    assert declared == {
        "idiolect.methods": {"fedmomentum": "my_package.fedmomentum:FedMomentum"},
        "idiolect.metrics": {"brier": "my_package.metrics:brier"},
    }
    # A name of Idiolect's own would mean that one.
    assert METHODS.is_own("fedmomentum")
    assert METRICS.is_own("brier")
