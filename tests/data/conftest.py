import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets, by IDIOLECT_DATA or beside the repository."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ["IDIOLECT_DATA"]) if "IDIOLECT_DATA" in os.environ else beside
    if not folder.is_dir():
        pytest.skip(f"real data sets are not at hand: no folder {folder.name!r}; set IDIOLECT_DATA")
    return folder
