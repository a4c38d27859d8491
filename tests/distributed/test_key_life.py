"""The life of keys on Flower, as people live it: a silo is revoked in the middle of a run, gets another key,
comes back; strangers knock; a health check sees what is killed and what hangs.
"""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

import idiolect
from distributed.deployment import joining, started, supernode_of, wait_for
from idiolect.runs.checkpoint import newest_checkpoint
from idiolect.runs.settings import write_settings
from idiolect.silo.keys import init_keys
from idiolect.silo.processes import Child, free_port
from idiolect.silo.served_run import ServedRun
from silo.problem import SILOS, config, deployed

pytest.importorskip("flwr")
pytestmark = pytest.mark.distributed


def test_a_silo_is_revoked_and_comes_back_with_another_key_while_the_run_goes_on(tmp_path: Path) -> None:
    settings = config({"name": "apfl", "local_steps": 2}, rounds=1000, evaluation={"every": 1000})
    deployed(settings, tmp_path)  # writes the schema
    (tmp_path / "my.yaml").write_text(
        write_settings({**settings, "silos": list(SILOS), "schema": "schema.json"})
    )
    address = f"127.0.0.1:{free_port()}"
    init_keys(tmp_path / "keys", "127.0.0.1", ["north", "south"])
    assert idiolect.silo_add(["west"], keys=tmp_path / "keys") == ["north", "south"]

    def log(name: str) -> str:
        path = tmp_path / f"{name}.log"
        return path.read_text() if path.is_file() else ""

    def played() -> int:
        newest = newest_checkpoint(tmp_path / "served" / "checkpoints")
        return 0 if newest is None else int(newest.name.removeprefix("round-"))

    def audited(words: str) -> bool:
        return any(words in entry["outcome"] for entry in idiolect.silo_audit(tmp_path / "served").entries)

    def more_rounds(number: int) -> None:
        goal = played() + number
        wait_for(lambda: played() >= goal, 120, f"{number} rounds more; serve: {log('serve')}")

    with ExitStack() as stack:
        keys = ["--keys", "keys/coordinator", "--listen", address]
        serve = stack.enter_context(started(tmp_path, "serve", "serve", "my.yaml", *keys, "--out", "served"))
        silos = {
            name: stack.enter_context(started(tmp_path, name, *joining(tmp_path, name, address)))
            for name in SILOS
        }
        wait_for(lambda: played() >= 1, 180, "a round")
        assert idiolect.silo_health(tmp_path / "silo-state" / "north").healthy
        assert idiolect.silo_health(tmp_path / "served").healthy

        idiolect.silo_revoke(["south"], keys=tmp_path / "keys")
        wait_for(lambda: "south: shut out: its key was revoked" in log("serve"), 10, "that it is out")
        more_rounds(2)  # by two of three, though all answers are needed by default
        wait_for(lambda: "revoked it" in log("south"), 60, "that south is told")
        wait_for(lambda: audited("a key of south that was revoked"), 60, "its login in the audit")
        sick = idiolect.silo_health(tmp_path / "silo-state" / "south")
        assert not sick.healthy
        assert f"no connection to {address}" in sick.sentence
        asked = [e for e in idiolect.silo_audit(tmp_path / "served").entries if e.get("silo") == "south"]
        assert asked[-1]["outcome"] == "no answer: its key was revoked"

        silos["south"].terminate()
        assert silos["south"].wait(timeout=30) == 0
        idiolect.silo_renew(["south"], keys=tmp_path / "keys")
        wait_for(lambda: "south: admitted with the new key" in log("serve"), 10, "its new key")
        stack.enter_context(started(tmp_path, "south", *joining(tmp_path, "south", address)))
        mark = len(idiolect.silo_audit(tmp_path / "served").entries)
        wait_for(
            lambda: any(
                entry.get("silo") == "south" and entry["outcome"] == "answered"
                for entry in idiolect.silo_audit(tmp_path / "served").entries[mark:]
            ),
            90,
            "an answer with the new key",
        )

        strangers_knock(tmp_path, address, stack)
        for words in ("unknown key", "without a key", "plain text"):
            wait_for(lambda: audited(words), 60, f"{words} in the audit")  # noqa: B023  (at once)

        node = supernode_of(silos["west"])
        assert node is not None
        os.kill(node, signal.SIGSTOP)  # it hangs
        wait_for(lambda: not idiolect.silo_health(tmp_path / "silo-state" / "west").healthy, 90, "the node")
        wait_for(lambda: supernode_of(silos["west"]) not in (None, node), 90, "another SuperNode")
        os.kill(silos["north"].pid, signal.SIGSTOP)
        wait_for(lambda: not idiolect.silo_health(tmp_path / "silo-state" / "north").healthy, 60, "the silo")
        assert "hanging" in idiolect.silo_health(tmp_path / "silo-state" / "north").sentence
        os.kill(silos["north"].pid, signal.SIGCONT)
        wait_for(
            lambda: idiolect.silo_health(tmp_path / "silo-state" / "north").healthy, 60, "that it is well"
        )
        more_rounds(1)
        serve.terminate()  # in the middle of a round
        assert serve.wait(timeout=60) == 0, log("serve")
    assert "ended; continue with `idiolect serve --resume served`" in log("serve")
    assert idiolect.silo_health(tmp_path / "served").sentence.startswith("ended")
    assert idiolect.silo_audit(tmp_path / "served").broken is None
    assert "Traceback" not in "".join(map(log, ("serve", *SILOS)))
    assert ServedRun(tmp_path / "served").progress()[-1].round == played()


def strangers_knock(folder: Path, address: str, stack: ExitStack) -> None:
    """No key, a key that nobody registered, plain text. (Who refuses our certificate leaves in silence.)"""
    init_keys(folder / "others", "127.0.0.1", ["stranger"])
    trusting = ["--root-certificates", str(folder / "keys" / "north" / "ca.pem")]
    own_key = ["--auth-supernode-private-key", str(folder / "others" / "stranger" / "silo.key")]
    for number, arguments in enumerate((trusting, [*trusting, *own_key], ["--insecure"])):
        where = ["--superlink", address, "--isolation", "process", "--max-retries", "1"]
        where += ["--clientappio-api-address", f"127.0.0.1:{free_port()}"]
        child = Child("flower-supernode", [*where, *arguments], folder / f"stranger-{number}")
        stack.enter_context(child)
