import shutil
import subprocess
from pathlib import Path

import pytest

from idiolect.runs.provenance import commit


def git(place: Path, *words: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    told = subprocess.run(["git", "-C", str(place), *me, *words], capture_output=True, text=True, check=True)
    return told.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git is installed")
def test_a_package_in_a_checkout_is_known_by_the_last_commit_that_changed_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1")
    git(tmp_path, "init", "--quiet")
    assert commit(package) is None  # nothing is committed
    commit.cache_clear()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "code")
    of_code = git(tmp_path, "log", "-1", "--format=%h")
    (tmp_path / "notes.md").write_text("beside the package")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "notes")
    assert commit(package) == of_code
    commit.cache_clear()
    (package / "code.py").write_text("2")
    assert commit(package) == f"{of_code} and changes"


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path / "package") is None
