"""Flower's own programs as child processes of ours: started with care, ended with us."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from idiolect.errors import UserError

# No statistics to anybody, no look for updates.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
LOOPBACK = "127.0.0.1"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


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

    def last_words(self) -> str:
        """Why it ended: the last reason that it wrote, else its last line."""
        text = _COLOURS.sub("", self._output()).strip()
        reasons = re.findall(r'details = "(.*)"$', text, re.MULTILINE)
        if not reasons:
            return text.splitlines()[-1].removeprefix("INFO :").strip() if text else "no output"
        told = re.search(r'"public_message": "([^"]*)"', reasons[-1])
        return told.group(1) if told else reasons[-1]

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
