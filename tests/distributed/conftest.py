"""SuperNodes that tests start look for messages often, and are missed soon when they are killed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

IMPATIENT = Path(__file__).parent / "impatient"


@pytest.fixture(scope="session", autouse=True)
def impatient_supernodes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(IMPATIENT), prepend=os.pathsep)
        yield
