"""What computed a run: packages, the machine, and the commit of this one where it is run from its source."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parent.parent
CHANGED = " and changes"  # behind a commit: what computed is in no commit


def versions() -> dict[str, str]:
    """What computed the numbers."""
    packages = {name: version(name) for name in ("idiolect", "torch", "numpy")}
    source = commit()
    return {
        **packages,
        **({} if source is None else {"commit": source}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
    }


@cache  # what a process has imported stays what it was
def commit(package: Path = PACKAGE) -> str | None:
    """The last commit that changed the package, where it is run from a checkout; None: it is installed."""
    last = _git(package, "log", "-1", "--format=%h")
    if not last:
        return None
    return last + (CHANGED if _git(package, "status", "--porcelain") else "")


def _git(package: Path, *words: str) -> str | None:
    """What git says about the package's folder; None: there is no git, or nothing that it knows."""
    # Without locks: a run must not stand in the way of somebody who commits.
    command = ["git", "--no-optional-locks", "-C", str(package), *words, "--", "."]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
