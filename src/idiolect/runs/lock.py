"""One process at a time for one folder: a lock of the operating system, which a dying process gives up."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from idiolect.errors import UserError
from idiolect.store.files import clear_write_errors

LOCK = "lock"


@contextmanager
def alone_in(folder: Path, remedy: str = "wait for it, or choose another out") -> Iterator[None]:
    """Nobody else plays what is in a folder as long as the block lasts; else a second one is refused."""
    with clear_write_errors(folder / LOCK):
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{str(folder)!r} is in use: another process plays it; {remedy}") from None
        yield
    finally:
        os.close(file)


@contextmanager
def creating_in(parent: Path) -> Iterator[None]:
    """Nobody else makes a folder in this one as long as the block lasts; a second one waits, for a moment."""
    with clear_write_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        directory = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
