"""Flower's own programs as child processes of ours: started with care, ended with us."""

import ctypes
import os
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


class Child:
    """A program that runs as long as the block does; its output goes to a file."""

    def __init__(self, program: str, arguments: Sequence[str], folder: Path) -> None:
        self.program = program
        self.arguments = arguments
        self.folder = folder
        self.log = folder / f"{program}.log"

    def __enter__(self) -> "Child":
        path = Path(sys.executable).parent / self.program
        if not path.is_file():
            raise UserError(f"{self.program} is not installed: pip install 'idiolect[flower]'")
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(self.folder / "flower")}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(path), *self.arguments],
                stdout=output,
                stderr=output,
                env=environment,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
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

    def last_words(self) -> str:
        """The last line that it wrote."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "no output"


def end_properly_when_terminated() -> None:
    """Let a polite request to end (SIGTERM) end the children too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.h
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """In the child: end when the parent is killed, so that the next one is not taken for a double."""
    if _libc is not None:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def free_port() -> int:
    """A port on the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def secret_file(folder: Path) -> Path:
    """A new secret that only we and our child can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "appio.secret"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(secrets.token_bytes(32))
    return path
