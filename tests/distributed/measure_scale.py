"""Seconds of a round and memory of a silo, of many silos on one machine with TLS, keys and secure sums.

Run as `python tests/distributed/measure_scale.py SILOS ROUNDS`, or `... SILOS ROUNDS forked`; it gives up
after MINUTES (40). Memory is what a process has for itself and its part of what it shares (PSS). Silos are
started a few at a time: few cores would not get through the start of all of them at once.

forked: every `idiolect join` is a copy of one process that has imported what they need, so what never
changes of it is in memory once. What a silo takes that is alone on its machine, the other way tells.
"""

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch reads it: a process with more threads cannot be forked

import idiolect.silo.supernode  # noqa: F401  (what silos need is imported once)
from distributed.deployment import BUSY, started, supernode_of, wait_for
from idiolect.cli import main
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.processes import free_port
from idiolect.silo.served_run import ServedRun
from silo.problem import config, deployed, table

MINUTES = float(os.environ.get("MINUTES", "40"))
AT_A_TIME = 4


def measure(silos: int, rounds: int, folder: Path, start: Callable) -> str:
    """A row of the table in docs/deployment.md; `start` is one of the two ways to start a silo."""
    names = [f"silo-{number:03d}" for number in range(silos)]
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=rounds, evaluation={"every": rounds})
    deployed(settings, folder, names)  # writes the schema
    rows = table(names)
    for name in names:
        rows[rows.hospital == name].drop(columns="hospital").to_csv(folder / f"{name}.csv", index=False)
    own = {"silos": names, "schema": "schema.json", "secure": True}
    waits = {"answer_seconds": 600, "patience_seconds": 60 * MINUTES}
    (folder / "my.yaml").write_text(write_settings({**settings, **own, **waits}))
    init_keys(folder / "keys", "127.0.0.1", names)
    address = f"127.0.0.1:{free_port()}"
    end = time.monotonic() + 60 * MINUTES
    with ExitStack() as stack:
        keys = ("--keys", "keys/coordinator", "--listen", address)
        serve = stack.enter_context(started(folder, "serve", "serve", "my.yaml", *keys, "--out", "run"))

        def wait(condition: Callable[[], bool], what: str) -> None:
            seconds = (end - time.monotonic()) / BUSY  # of which `wait_for` makes as many again
            wait_for(lambda: condition() or serve.poll() is not None, seconds, what)
            if serve.poll():
                sys.exit((folder / "serve.log").read_text()[-2000:])

        gc.collect()
        gc.freeze()  # a collection would write to what is shared
        joined = []
        for number, name in enumerate(names, start=1):
            where = ("--server", address, "--name", name, "--keys", f"keys/{name}", "--data", f"{name}.csv")
            joined.append(stack.enter_context(start(folder, name, "join", *where, "--min-batch", "1")))
            if number % AT_A_TIME == 0:
                wait(lambda: all(is_connected(folder, name) for name in names[:number]), "connections")  # noqa: B023  (at once)
        say(f"{silos} silos are started")
        wait(lambda: played(folder) >= 2, "two rounds")
        taken = [(megabytes(join.pid), megabytes(supernode_of(join))) for join in joined]
        before = [processor_seconds(join) for join in joined]
        coordinator = megabytes(serve.pid)
        say("two rounds are played")
        wait(lambda: played(folder) >= rounds - 1, "nearly all rounds")
        busy = [processor_seconds(join) - then for join, then in zip(joined, before, strict=True)]
        wait(lambda: serve.poll() is not None, "all rounds")
        for join in joined:  # all at once, and not one after the other
            join.terminate()
    seconds = [record.own_seconds for record in ServedRun(folder / "run").progress()[1:-1]]
    own_join, own_node = (statistics.mean(one) for one in zip(*taken, strict=True))
    cells = [silos, rounds, f"{statistics.median(seconds):.0f}", f"{max(seconds):.0f}"]
    cells += [f"{statistics.mean(busy) / (rounds - 3):.1f}"]
    cells += [f"{own_join:.0f}", f"{own_node:.0f}", f"{coordinator:.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


@contextmanager
def forked(folder: Path, label: str, *arguments: str) -> Iterator[BaseProcess]:
    """`idiolect ...` as a copy of this process; ended by its number at the end of the block."""
    process = get_context("fork").Process(target=_command, args=(folder, label, arguments))
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def _command(folder: Path, label: str, arguments: tuple[str, ...]) -> None:
    os.chdir(folder)
    with (folder / f"{label}.log").open("ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    sys.argv = ["idiolect", *arguments]
    main()


def is_connected(folder: Path, name: str) -> bool:
    """Whether the coordinator has let a silo in."""
    log = folder / "silo-state" / name / "flower" / "flower-supernode.log"
    return log.is_file() and "SuperNode ID:" in log.read_text()


def megabytes(process: int | None) -> float:
    """What a process takes of the memory."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def processor_seconds(join: BaseProcess) -> float:
    """What a silo has taken of the processor up to now, its SuperNode included."""
    ticks = 0
    for process in (join.pid, supernode_of(join)):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # for itself, and in the kernel
    return ticks / os.sysconf("SC_CLK_TCK")


def played(folder: Path) -> int:
    """Rounds that are over."""
    path = folder / "run"
    progress = ServedRun(path).progress() if (path / "progress.parquet").is_file() else []
    return progress[-1].round if progress else 0


def say(what: str) -> None:
    """How far it is, and what memory the machine has left, on the side."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    left = int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) / 2**20
    print(f"{time.strftime('%H:%M:%S')} {what}; {left:.1f} GB are free", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as here:
        say("begun")
        way = forked if sys.argv[3:] == ["forked"] else started
        row = measure(int(sys.argv[1]), int(sys.argv[2]), Path(here), way)
        print(
            "| silos | rounds | seconds of a round | most | processor seconds of a silo in a round ", end=""
        )
        print("| MB of join | of its SuperNode | of serve |")
        print(row)
