"""`idiolect join` on a bad day: nobody is there, the SuperNode ends, the name is taken, it is to end."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from distributed.deployment import BUSY, joining, started, supernode_of, wait_for
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.processes import free_port
from idiolect.silo.served_run import ServedRun
from silo.problem import config, deployed

pytest.importorskip("flwr")
pytestmark = pytest.mark.distributed


def test_join_survives_and_says_what_is_in_the_way(tmp_path: Path) -> None:
    settings = config({"name": "apfl", "local_steps": 2}, rounds=4)
    deployed(settings, tmp_path)  # writes the schema
    names = ["north", "south"]
    (tmp_path / "my.yaml").write_text(write_settings({**settings, "silos": names, "schema": "schema.json"}))
    address = f"127.0.0.1:{free_port()}"
    init_keys(tmp_path / "keys", "127.0.0.1", names)

    def log(name: str) -> str:
        path = tmp_path / f"{name}.log"
        return path.read_text() if path.is_file() else ""

    with ExitStack() as stack:
        north = stack.enter_context(started(tmp_path, "north", *joining(tmp_path, "north", address)))
        wait_for(lambda: f"nobody listens at {address}" in log("north"), 60, "that nobody is there")
        keys = ["--keys", "keys/coordinator", "--listen", address]
        serve = stack.enter_context(started(tmp_path, "serve", "serve", "my.yaml", *keys, "--out", "served"))
        wait_for(lambda: "can be reached" in log("north"), 120, "that somebody is there")
        wait_for(lambda: supernode_of(north) is not None, 60, "a SuperNode")
        first = supernode_of(north)
        wait_for(lambda: "joined run" in log("north"), 120, "the greeting")

        double = joining(tmp_path, "north", address)
        double += ["--state", "elsewhere"]
        other = stack.enter_context(started(tmp_path, "double", *double))
        wait_for(lambda: "the name is taken" in log("double"), 120, "that the name is taken")
        other.terminate()
        assert other.wait(timeout=BUSY * 30) == 0
        assert "north has left" in log("double")

        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: supernode_of(north) not in (None, first), 60, "another SuperNode")
        south = stack.enter_context(started(tmp_path, "south", *joining(tmp_path, "south", address)))
        wait_for(lambda: serve.poll() is not None, 300, "four rounds")
        assert serve.returncode == 0, log("serve")
        assert north.poll() is None
        south.send_signal(signal.SIGTERM)
        assert south.wait(timeout=BUSY * 30) == 0
    assert ServedRun(tmp_path / "served").folder.finished
    assert "Traceback" not in log("north") + log("double") + log("serve")
    for path in (tmp_path / "silo-state" / "north").rglob("*"):
        assert not path.stat().st_mode & 0o077, path


def test_serve_ends_politely_and_not_silently(tmp_path: Path) -> None:
    """Asked to end it ends with success; when its SuperLink is killed it says so."""
    settings = config({"name": "apfl", "local_steps": 2}, rounds=2)
    deployed(settings, tmp_path)
    (tmp_path / "my.yaml").write_text(
        write_settings({**settings, "silos": ["north", "south"], "schema": "schema.json"})
    )
    trial = ["--insecure", "--listen", f"127.0.0.1:{free_port()}"]
    with started(tmp_path, "serve", "serve", "my.yaml", *trial, "--out", "served") as serve:
        log = tmp_path / "served" / "log.txt"
        wait_for(lambda: log.is_file() and "not connected" in log.read_text(), 120, "who is missing")
        serve.terminate()
        assert serve.wait(timeout=BUSY * 60) == 0
    assert "ended; continue with `idiolect serve --resume served`" in (tmp_path / "serve.log").read_text()
    with started(tmp_path, "again", "serve", "--resume", "served", *trial) as serve:
        wait_for(lambda: log.read_text().count("asking again") == 2, 120, "who is missing")
        link = supernode_of(serve, b"flower-superlink")
        assert link is not None
        os.kill(link, signal.SIGKILL)
        assert serve.wait(timeout=BUSY * 60) == 2
    last = (tmp_path / "again.log").read_text().splitlines()[-1]
    assert last.startswith("error: the SuperLink, Flower's program beside `serve`, ended")
