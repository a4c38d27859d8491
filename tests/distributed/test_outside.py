"""Ray's workers import a method and a codec of the user's own, whether installed or in the user's folder."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import idiolect

pytestmark = pytest.mark.distributed

OUTSIDE = Path(__file__).parents[1] / "plugins" / "outside"
SETTINGS = (
    "method=elsewhere.fedrep:FedRep codec.up=elsewhere.others:Rounded data=elsewhere.others:blobs "
    "data.clients=4 model=elsewhere.others:two_layers evaluation.metrics=elsewhere.others:brier rounds=3"
)


@pytest.fixture
def ray() -> Iterator[Any]:
    import ray

    yield ray
    ray.shutdown()


def run(folder: Path, *settings: str) -> idiolect.RunFolder:
    return idiolect.run(*SETTINGS.split(), *settings, out=folder)


@pytest.mark.parametrize("installed", [True, False])
def test_the_same_numbers_as_one_by_one(
    installed: bool, ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("elsewhere", "elsewhere.fedrep", "elsewhere.others"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    if installed:
        monkeypatch.syspath_prepend(str(OUTSIDE))
    else:
        monkeypatch.syspath_prepend(str(tmp_path / "nothing"))  # puts sys.path back at the end
        shutil.copytree(OUTSIDE / "elsewhere", tmp_path / "elsewhere")
    ours = run(tmp_path / "ray", "engine=ray", "engine.workers=2")
    theirs = run(tmp_path / "sequential", "engine=sequential")
    pd.testing.assert_frame_equal(ours.metrics(), theirs.metrics(), rtol=1e-5, atol=1e-6)
    pd.testing.assert_frame_equal(ours.rounds(), theirs.rounds())
