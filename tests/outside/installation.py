"""How the package outside gets where Python finds it: as pip installs it, in a folder of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent
PACKAGE = "idiolect_outside"


def install(folder: Path) -> Path:
    """Where the package is installed, built from a copy so that nothing is left beside its source."""
    copy, target = folder / "source", folder / "installed"
    shutil.copytree(SOURCE / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE / "pyproject.toml", copy)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", target, copy], check=True
    )
    return target


def make_known(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, this process and those that it starts find the package and its entry points."""
    monkeypatch.syspath_prepend(str(installed))
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for module in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, module)  # what was imported from the source
