"""Flower's programs as children: what is said of them is of their own life."""

import shutil
import socket
import sys
from pathlib import Path

import pytest

from idiolect.errors import UserError
from idiolect.silo.processes import Child, require_free


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
        assert child.last_words() == ""
        assert not child.has_said("activated")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("INFO :      SuperNode ID: 7\nINFO :      Received successfully\n", ""),
        (
            "INFO :      a\nPort in server address x:1 is already in use.\n",
            "Port in server address x:1 is already in use.",
        ),
        (
            "ERROR :     Exit Code: 104\nFailed to bind to x:1.\nInvalid arguments.\n\nFor more: <y>\n",
            "Exit Code: 104 Failed to bind to x:1. Invalid arguments.",
        ),
        ('\x1b[91mERROR\x1b[0m :     z\n\tdetails = "Invalid node ID"\n', "Invalid node ID"),
    ],
)
def test_what_is_told_is_a_reason_and_no_mere_news(tmp_path: Path, written: str, words: str) -> None:
    child = Child("silent", [], tmp_path)
    child.log.write_text(written)
    child._begin = 0
    assert child.last_words() == words


def test_an_address_that_is_taken_or_elsewhere_is_refused_before_flower_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UserError, match=f"--listen {taken} is taken: another program listens there"):
            require_free(taken)
    require_free(taken)
    for elsewhere in ("192.0.2.7:9092", "fl..example.org:9092"):
        with pytest.raises(UserError, match=f"--listen {elsewhere} is not possible: .*of this machine"):
            require_free(elsewhere)
