"""Flower's own programs as child processes of ours: started with care, ended with us."""

import errno
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from idiolect.errors import UserError
from idiolect.silo.plain_text import one_line

# No statistics to anybody, no look for updates.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
LOOPBACK = "127.0.0.1"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NEWS = re.compile(
    r"INFO :|WARNING :|[IW]\d{4} "
)  # how Flower and gRPC begin a line that is no reason to end


class Child:
    """A program that runs as long as the block does; its output goes to a file."""

    def __init__(self, program: str, arguments: Sequence[str], folder: Path, **environment: str) -> None:
        self.program = program
        self.arguments = arguments
        self.folder = folder
        self.log = folder / f"{program}.log"
        self.environment = environment  # besides ours

    def __enter__(self) -> "Child":
        path = Path(sys.executable).parent / self.program
        if not path.is_file():
            raise UserError(f"{self.program} is not installed: pip install 'idiolect[flower]'")
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **QUIET, **self.environment, "FLWR_HOME": str(self.folder / "flower")}
        with self.log.open("ab") as output:
            self._begin = output.tell()
            command = [sys.executable, "-m", "idiolect.silo.launch", str(path), *self.arguments]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def ended(self) -> bool:
        """Whether the program has ended by itself."""
        return self.process.poll() is not None

    def has_said(self, words: str) -> bool:
        """Whether it has written something since it was started."""
        return words in self._output()

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so soon: a connection to it breaks a moment before that."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)
        return self.ended

    def last_words(self) -> str:
        """Why it ended: the last reason that it wrote, else a last line that is no mere news; or nothing."""
        text = _COLOURS.sub("", self._output()).strip()
        reasons = re.findall(r'details = "(.*)"$', text, re.MULTILINE)
        if reasons:
            told = re.search(r'"public_message": "([^"]*)"', reasons[-1])
            return told.group(1) if told else reasons[-1]
        if errors := re.findall(r"^ERROR :(.*(?:\n.+)*)", text, re.MULTILINE):
            return one_line(errors[-1])
        last = text.splitlines()[-1] if text else ""
        return "" if _NEWS.match(last) else last

    def _output(self) -> str:
        """What it has written since it was started; the file has what was before, too."""
        with self.log.open("rb") as output:
            output.seek(self._begin)
            return output.read().decode(errors="replace")


class Terminated(KeyboardInterrupt):
    """A polite request to end (SIGTERM), as service managers send: no error, unlike Ctrl-C in the middle."""


def end_properly_when_terminated() -> None:
    """Let a polite request to end (SIGTERM) end the children too, and everything be saved."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise Terminated

    signal.signal(signal.SIGTERM, end)


def require_free(address: str) -> None:
    """Refuse an address at which nobody can listen, before a program tries in vain."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise UserError(
                f"--listen {address} is taken: another program listens there, perhaps an `idiolect serve`; "
                "end it or choose another port"
            ) from None
        raise UserError(
            f"--listen {address} is not possible: {getattr(error, 'strerror', None) or error}; give an "
            "address of this machine, or 0.0.0.0 for all"
        ) from None


def free_port(*taken: int) -> int:
    """A port on the loopback interface that nobody uses now, and none that somebody is about to use."""
    while True:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port


def secret_file(folder: Path) -> Path:
    """A new secret that only we and our child can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "appio.secret"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(secrets.token_bytes(32))
    return path
