"""A run that is killed at random moments ends, bit for bit, as one that was never killed."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.same_run import assert_same_run

SETTINGS = (
    "method=apfl",
    "data=vowels",
    "rounds=8",
    "method.local_steps=2",
    "batch_size=4",
    "participation.rate=0.3",
    "evaluation.every=4",
    "checkpoint.every=2",
)

KILLS = [
    ("memory", 10),
    ("disk", 4),
    pytest.param("memory", 40, marks=pytest.mark.slow),
    pytest.param("disk", 20, marks=pytest.mark.slow),
]
# Forks a child for every command, so that a kill hits the run and not the import of torch.
FORKING = """
import os, signal, sys, time
import pyarrow.dataset, pyarrow.parquet, torch
import idiolect.cli.results, idiolect.runs.lifecycle
from idiolect.cli import app
from torch.fx.experimental.proxy_tensor import make_fx
torch.set_num_threads(1)
os.fsync = lambda file: None  # who is killed here leaves the machine running
make_fx(torch.func.vmap(torch.func.grad(torch.sin)))(torch.ones(2))
child = 0
signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
print("ready", flush=True)
for line in sys.stdin:
    kill_after, *command = line.split()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        app(command)
    if kill_after != "never":
        signal.setitimer(signal.ITIMER_REAL, float(kill_after) + 1e-6)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it can still be killed: the alarm may come now
    signal.setitimer(signal.ITIMER_REAL, 0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Commands:
    """Runs `idiolect` commands in forked processes that can be killed."""

    def __init__(self) -> None:
        arguments = [sys.executable, "-c", FORKING]
        self.server = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def run(self, command: str, kill_after: float | None = None) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{'never' if kill_after is None else kill_after} {command}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()


@pytest.fixture
def commands() -> Iterator[Commands]:
    started = Commands()
    yield started
    started.close()


@pytest.mark.parametrize(("store", "kills"), KILLS)
def test_a_killed_run_ends_as_an_undisturbed_one(
    commands: Commands, tmp_path: Path, store: str, kills: int
) -> None:
    command = f"run {' '.join(SETTINGS)} store={store} out="
    began = time.monotonic()
    assert commands.run(f"{command}{tmp_path}/undisturbed") == 0
    duration = time.monotonic() - began

    moments = random.Random(20)
    killed = folders = 0
    while killed < kills:
        folders += 1
        folder = tmp_path / f"killed-{folders}"
        status = -signal.SIGKILL
        while status != 0:
            what = f"resume {folder}" if folder.exists() else f"{command}{folder}"
            status = commands.run(what, moments.uniform(0, duration) if killed < kills else None)
            assert status in (0, -signal.SIGKILL)
            killed += status != 0
        assert_same_run(folder, tmp_path / "undisturbed")
