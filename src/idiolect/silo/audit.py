"""Who asked what, and what was answered or refused: a file to which lines are only ever added.

Every line holds a hash of the line before it, so a line that was changed or taken out shows (`read_audit`).
What was sent is there as its size and hash, never itself.
"""

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.errors import UserError
from idiolect.silo.plain_text import one_line
from idiolect.silo.requests import Link, NotConnected, Unreachable
from idiolect.silo.wire import peek
from idiolect.store.files import clear_write_errors

FILE = "audit.jsonl"
_KEYS = ("ask", "run", "round", "place")  # of a header


class AuditLog:
    """A party's file, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._last: str | None = None
        self._one_at_a_time = threading.Lock()  # a coordinator also notes who knocks

    def add(self, question: bytes, answer: bytes | Unreachable | None, **further: str) -> None:
        """Note a question and its answer; None: there is none yet."""
        asked = peek(question)
        told = {key: asked[key] for key in _KEYS if isinstance(asked.get(key), str | int)}
        self._append({**further, **told, "question": _mark(question), **_outcome(answer)})

    def note(self, what: str, outcome: str, **further: str) -> None:
        """Note what happened without a question, such as a login that failed."""
        self._append({**further, "ask": what, "outcome": outcome})

    def _append(self, entry: dict[str, Any]) -> None:
        with self._one_at_a_time:
            time = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
            self._write({"time": time, **entry, "before": self._before()})

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps({key: _plain(value) for key, value in entry.items()}, ensure_ascii=False)
        with clear_write_errors(self.path):  # what cannot be noted is not answered
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                file.write((b"" if _ends_a_line(file) else b"\n") + line.encode() + b"\n")
                os.fsync(file.fileno())
        self._last = _hash(line)

    def _before(self) -> str:
        if self._last is None:
            lines = _lines(self.path)
            self._last = _hash(lines[-1]) if lines else ""
        return self._last


class AuditedLink:
    """A coordinator's link that notes what passes."""

    def __init__(self, link: Link, audit: AuditLog) -> None:
        self.link = link
        self.audit = audit
        self._away: set[str] = set()

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        """Replies as they come in."""
        for name, reply in self.link.ask(requests, seconds):
            if not (isinstance(reply, NotConnected) and name in self._away):
                self.audit.add(requests.get(name, b""), reply, silo=name)
            self._note_presence(name, reply)
            yield name, reply

    def _note_presence(self, name: str, reply: bytes | Unreachable) -> None:
        """Who is away is sent nothing, and looked for every second: that is noted once until it is back."""
        if isinstance(reply, NotConnected):
            self._away.add(name)
        else:
            self._away.discard(name)


class Audit(NamedTuple):
    """What a file tells, and whether it is as it was written."""

    entries: list[dict[str, Any]]
    broken: int | None  # the first line that does not follow from the one before it


def read_audit(folder: Path) -> Audit:
    """The lines of a silo's state folder, or of a served run's."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{str(folder)!r} has no {FILE}; give a silo's state folder or that of a served run")
    entries, before, broken = [], "", None
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = json.loads(line)
            follows = entry.pop("before") == before
        except (ValueError, KeyError, AttributeError):
            entry, follows = {"outcome": "unreadable"}, False
        if not follows and broken is None:
            broken = number
        entries.append(entry)
        before = _hash(line)
    return Audit(entries, broken)


def _lines(path: Path) -> list[str]:
    """What was written, also by somebody who was interrupted in the middle of it."""
    return path.read_bytes().decode(errors="replace").splitlines() if path.is_file() else []


def _ends_a_line(file: io.FileIO) -> bool:
    """Whether what comes next begins a line: not after a power cut in the middle of one."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _outcome(answer: bytes | Unreachable | None) -> dict[str, str]:
    if not isinstance(answer, bytes):
        return {"outcome": f"no answer: {answer}"}
    header = peek(answer)
    told = f"refused: {header['refused']}" if "refused" in header else "answered"
    return {"outcome": told, "answer": _mark(answer)}


def _mark(message: bytes) -> str:
    return f"{len(message)} bytes, {hashlib.sha256(message).hexdigest()[:16]}"


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    return one_line(value, 500) if isinstance(value, str) else value
