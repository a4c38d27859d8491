"""Flower's programs as children: what is said of them is of their own life."""

import shutil
import sys
from pathlib import Path

import pytest

from idiolect.silo.processes import Child


def test_a_program_is_not_taken_at_the_words_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why one ended that wrote nothing is not known: least of all that its name was taken."""
    true = shutil.which("true")
    assert true is not None
    (tmp_path / "python").symlink_to(true)  # whatever it is to run, it ends without a word
    (tmp_path / "silent").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "silent.log").write_text('details = "the node could not be activated"\n')
    with Child("silent", [], tmp_path) as child:
        child.process.wait(timeout=60)
        assert child.last_words() == "no output"
        assert not child.has_said("activated")
