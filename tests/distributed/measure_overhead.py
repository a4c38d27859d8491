"""Seconds of a tiny round: silos of ours against Flower's own minimal app, one after the other.

Run as `python tests/distributed/measure_overhead.py`; three silos, TLS and keys, a model of 40 numbers.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from flwr.cli.build import build_fab_from_files

from distributed.deployment import joining, started, wait_for
from idiolect.silo import superlink
from idiolect.silo.coordinator import coordinate
from idiolect.silo.keys import admitted_keys, init_keys
from idiolect.silo.processes import Child, free_port
from idiolect.silo.served_run import ServedRun
from silo.problem import SILOS, config, deployed

ROUNDS = 6
PROJECT = """[project]
name = "minimal"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = ["flwr==1.33.0"]
[tool.flwr.app]
publisher = "minimal"
[tool.flwr.app.components]
serverapp = "minimal:server"
clientapp = "minimal:client"
"""
APP = """
import os, time
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@client.query()
def answer(message, context):
    return Message(message.content, reply_to=message)


@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 3:
        time.sleep(0.2)
    for _ in range(ROUNDS):
        begun = time.monotonic()
        content = RecordDict({"arrays": ArrayRecord([np.zeros(40)])})
        nodes = grid.get_node_ids()
        list(grid.send_and_receive([Message(content, dst_node_id=n, message_type="query") for n in nodes]))
        with open(os.environ["MINIMAL_TIMES"], "a") as file:
            file.write(f"{time.monotonic() - begun}\\n")
"""


def minimal(folder: Path) -> list[float]:
    """Flower's own way: a process for each message."""
    times, address, control = folder / "times", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    os.environ["MINIMAL_TIMES"] = str(times)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    keys = folder / "keys"
    init_keys(keys, "127.0.0.1", SILOS)
    link = superlink._arguments(
        address,
        keys / "coordinator",
        {"control": control, "appio": f"127.0.0.1:{free_port()}"},
        folder / "none",
    )
    link[1] = "subprocess"
    place = link.index("--superexec-auth-secret-file")
    del link[place : place + 2]
    files = {"pyproject.toml": PROJECT.encode(), "minimal.py": APP.replace("ROUNDS", str(ROUNDS)).encode()}
    bundle, _ = build_fab_from_files(files)
    superlink._stub_bundle = lambda: bundle
    with ExitStack() as stack:
        child = stack.enter_context(Child("flower-superlink", link, folder / "link"))
        connection = superlink._Control(control, keys / "coordinator", child)
        for key in admitted_keys(keys / "coordinator").values():
            connection.register(key)
        for name in SILOS:
            arguments = ["--superlink", address, "--root-certificates", str(keys / name / "ca.pem")]
            arguments += ["--auth-supernode-private-key", str(keys / name / "silo.key")]
            arguments += ["--clientappio-api-address", f"127.0.0.1:{free_port()}"]
            stack.enter_context(Child("flower-supernode", arguments, folder / name))
        connection.start_run()
        wait_for(lambda: times.is_file() and len(times.read_text().splitlines()) == ROUNDS, 200, "all rounds")
    return [float(line) for line in times.read_text().splitlines()]


@contextmanager
def clocked(link: superlink.FlowerLink, times: list[float]) -> Iterator[superlink.FlowerLink]:
    """Note how long each request to all silos takes."""
    ask = link.ask

    def timed(requests, seconds):  # type: ignore[no-untyped-def]
        begun = time.monotonic()
        yield from ask(requests, seconds)
        times.append(time.monotonic() - begun)

    link.ask = timed  # type: ignore[method-assign]
    yield link


def ours(folder: Path) -> list[float]:
    """FedAvg with ten local steps."""
    address = f"127.0.0.1:{free_port()}"
    init_keys(folder / "keys", "127.0.0.1", SILOS)
    settings = config({"name": "fedavg"}, rounds=ROUNDS, evaluation={"every": ROUNDS})
    run = ServedRun.create(folder / "run", deployed(settings, folder))
    times: list[float] = []
    with ExitStack() as stack:
        link = stack.enter_context(
            superlink.flower_link(SILOS, address, folder / "keys" / "coordinator", folder / "link", 2**29)
        )
        for name in SILOS:
            stack.enter_context(started(folder, name, *joining(folder, name, address)))
        wait_for(lambda: len(set(link.grid.get_node_ids())) == 3, 120, "three silos")
        with clocked(link, times):
            coordinate(run, link)
    return times[-1 - ROUNDS : -1]  # between the greeting with the first evaluation, and the last one


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as here:
        for label in ("ours", "minimal"):
            (Path(here) / label).mkdir()
        rows = {
            "idiolect": ours(Path(here) / "ours"),
            "Flower's minimal app": minimal(Path(here) / "minimal"),
        }
    for label, seconds in rows.items():
        middle = statistics.median(seconds)
        print(f"{label:22} median {middle:5.2f} s, of {min(seconds):.2f} to {max(seconds):.2f}")
