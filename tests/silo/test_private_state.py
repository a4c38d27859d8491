"""A silo's state is its own: nobody else on the machine reads it, and no name leads out of its folder."""

import logging
import os
from pathlib import Path

import pytest

from idiolect.errors import UserError
from idiolect.silo.deployment import private_files
from idiolect.silo.keys import check_names
from idiolect.silo.plain_text import OneLineFormatter, one_line
from silo.letters import answer, honest, north


def test_state_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    folder.mkdir(mode=0o755)
    old = folder / "log.txt"
    old.write_text("of an earlier version\n")
    old.chmod(0o644)
    before = os.umask(0o022)
    try:
        with private_files(folder):
            silo = north(folder)
            for message in honest("apfl")[:3]:
                assert "refused" not in answer(silo, message).header
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    found = [folder, *folder.rglob("*")]
    assert len(found) > 4
    for path in found:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_link_in_the_folder_changes_nothing_elsewhere(tmp_path: Path) -> None:
    """A folder of others, a program, and what is no longer there."""
    folder, elsewhere = tmp_path / "north", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir(mode=0o755)
    program = elsewhere / "program"
    program.touch(mode=0o755)
    for name, target in {"a": elsewhere, "b": program, "c": tmp_path / "gone"}.items():
        (folder / name).symlink_to(target)
    with private_files(folder):
        pass
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    assert program.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "name", ["coordinator", "authority.key", "flower", "Flower", "log.txt", "..", "a/b", ""]
)
def test_names_that_are_ours_or_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="is not possible"):
        check_names(["north", name])


def test_names_that_differ_in_capital_letters_only_are_refused() -> None:
    with pytest.raises(UserError, match="capital letters"):
        check_names(["north", "North"])


def test_no_control_character_reaches_a_log() -> None:
    evil = "gone\x1b[2J\r\n2026-01-01 00:00:00 all is well\x00\u202e"
    record = logging.LogRecord("idiolect", logging.WARNING, "", 0, "%s: %s", ("west", evil), None)
    line = OneLineFormatter("%(message)s").format(record)
    assert line.isprintable()
    assert one_line("ä" * 10, 3) == "äää..."
