"""Real processes on loopback: `idiolect join` and `idiolect serve` as a user starts them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from silo.problem import own_rows

# One thread each: several processes share two cores.
# Small tables, and metrics that are compared with a simulation's.
EXACT = ["--min-batch", "1", "--min-metric-rows", "1", "--metric-digits", "17"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def started(folder: Path, label: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`idiolect ...` as a process; ended by its number at the end of the block."""
    command = [sys.executable, "-m", "idiolect.cli", *arguments]
    with (folder / f"{label}.log").open("ab") as output:
        environment = {**os.environ, **ENVIRONMENT}
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def joining(folder: Path, name: str, address: str, *, insecure: bool = False) -> list[str]:
    """The arguments of `idiolect join` for one silo; its table is written first."""
    own_rows(name).to_csv(folder / f"{name}.csv", index=False)
    security = ["--insecure"] if insecure else ["--keys", str(folder / "keys" / name)]
    return ["join", "--server", address, "--name", name, "--data", f"{name}.csv", *security, *EXACT]


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does."""
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process as a power cut would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} seconds")
        time.sleep(0.2)
