"""A package of a user's, as if it were installed; and the user's folder."""

from pathlib import Path

import pytest

OUTSIDE = Path(__file__).parent / "outside"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Path:
    """`elsewhere` can be imported, and its entry points are found."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    return OUTSIDE


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a user stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))  # puts sys.path back at the end
    return tmp_path
