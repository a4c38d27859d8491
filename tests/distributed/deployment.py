"""Real processes on loopback: `idiolect join` and `idiolect serve` as a user starts them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from idiolect.core import tree
from idiolect.silo.vault import RunVault
from idiolect.simulation import Simulation
from silo.problem import assert_same, own_rows

# Small tables, and metrics that are compared with a simulation's.
EXACT = ["--min-batch", "1", "--min-metric-rows", "1", "--metric-digits", "17"]
BUSY = 4  # times as long may take on a machine with other work what never takes so long where nothing hangs
# One thread each: several processes share two cores.
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
                process.wait(timeout=BUSY * 20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def joining(folder: Path, name: str, address: str, *, insecure: bool = False) -> list[str]:
    """The arguments of `idiolect join` for one silo; its table is written first."""
    own_rows(name).to_csv(folder / f"{name}.csv", index=False)
    security = ["--insecure"] if insecure else ["--keys", str(folder / "keys" / name)]
    return ["join", "--server", address, "--name", name, "--data", f"{name}.csv", *security, *EXACT]


def supernode_of(process: subprocess.Popen[bytes], program: bytes = b"flower-supernode") -> int | None:
    """The number of the SuperNode that `idiolect join` has started; or of another program of Flower's."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if program in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does."""
    process.send_signal(signal.SIGINT)
    process.wait(timeout=BUSY * 30)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process as a power cut would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Until it holds, for so many seconds of a machine that has nothing else to do."""
    end = time.monotonic() + BUSY * seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {BUSY * seconds:.0f} seconds")
        time.sleep(0.2)


def assert_same_models(folder: Path, run: str, simulation: Simulation) -> None:
    """Every silo's state and models are those of the simulation's client."""
    for number, name in enumerate(simulation.federation.names):
        vault = RunVault(folder / "silo-state" / name / run)
        assert_same(vault.latest(), tree.row(simulation.clients(), number))
        assert_same(vault.models()[0], simulation.predictor(number))
