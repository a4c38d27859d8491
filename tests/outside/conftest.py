"""A package of a user's, in its source and installed; and the user's folder."""

import sys
from pathlib import Path

import pytest

from outside.installation import SOURCE, install, make_known

# Tests of what the package computes import it from its source, which declares no names.
sys.path.append(str(SOURCE))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed, for whoever looks there."""
    return install(tmp_path_factory.mktemp("outside"))


@pytest.fixture
def outside(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`idiolect_outside` is installed: it can be imported, and its entry points are found."""
    make_known(installed, monkeypatch)
    return installed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a user stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))  # puts sys.path back at the end
    return tmp_path
