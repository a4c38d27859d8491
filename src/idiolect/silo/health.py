"""Whether `join` or `serve` is well: they write it down every few seconds, for whoever asks.

A thread beats; the loop that looks for messages leaves its own mark, so that one that hangs shows too, unless
it is busy with a message, which may take hours. Under systemd the beat is its watchdog's too (`WatchdogSec`).
Nothing heavy is imported here: a health check runs every half minute.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

FILE = "health.json"
BEAT_SECONDS = 5.0
STALE_SECONDS = 30.0  # without a beat, or a look for messages
NOT_YET = "has not reached the coordinator yet"


class Health(NamedTuple):
    """Whether a process is well, and what there is to say."""

    healthy: bool
    sentence: str


class Pulse:
    """What a process says of itself while the block lasts."""

    def __init__(self, folder: Path, trouble: str = "") -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._said: dict[str, Any] = {"trouble": trouble}

    def __enter__(self) -> "Pulse":
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=BEAT_SECONDS)
        self.say(ended=time.time())
        self._write()

    def say(self, **facts: Any) -> None:
        """Change what is told: trouble, busy, answered, what."""
        with self._lock:
            self._said.update(facts)

    def turn(self) -> None:
        """The loop has come round."""
        self.say(turn=time.time())

    @contextmanager
    def busy(self) -> Iterator[None]:
        """In the block a message is answered, however long it takes."""
        self.say(busy=time.time())
        try:
            yield
            self.say(answered=time.time())
        finally:
            self.say(busy=None, turn=time.time())

    def _beat(self) -> None:
        while True:
            self._write()
            if not _hangs(self._said, time.time()):
                _pat_watchdog()
            if self._over.wait(BEAT_SECONDS):
                return

    def _write(self) -> None:
        with self._lock:
            text = json.dumps({**self._said, "beat": time.time()})
        with contextlib.suppress(OSError):  # a full disk is told by whoever needs it
            temporary = self._path.with_name(f".writing-{FILE}")
            temporary.write_text(text)
            temporary.replace(self._path)


def silo_health(folder: str | Path) -> Health:
    """Whether the `join` of a silo's state folder, or the `serve` of a run's folder, is well.

    folder: silo-state/NAME, or the run's.
    """
    try:
        said = json.loads((Path(folder) / FILE).read_text())
        return _judge(said, time.time())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Health(False, f"nothing runs, or ever ran, with the folder {str(folder)!r}")


def _judge(said: dict[str, Any], now: float) -> Health:
    if said.get("ended"):
        return Health(False, f"ended {_ago(said['ended'], now)}")
    if now - said["beat"] > STALE_SECONDS:
        return Health(False, f"killed or hanging: the last sign of life was {_ago(said['beat'], now)}")
    if _hangs(said, now):
        return Health(False, f"hanging: it looked for messages {_ago(said['turn'], now)} the last time")
    if said["trouble"]:
        return Health(False, str(said["trouble"]))
    answered = f"last answer {_ago(said['answered'], now)}" if said.get("answered") else "no answer yet"
    what = f"at work since {now - said['busy']:.0f} s" if said.get("busy") else said.get("what", "connected")
    return Health(True, f"{what}; {answered}")


def _hangs(said: dict[str, Any], now: float) -> bool:
    turn = said.get("turn")
    return turn is not None and not said.get("busy") and now - turn > STALE_SECONDS


def _ago(then: float, now: float) -> str:
    return f"{max(now - then, 0):.0f} s ago"


def _pat_watchdog() -> None:
    """Tell systemd that we are well, where it asked for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"WATCHDOG=1", address)
