"""Whether `join` or `serve` is well, from what they wrote down."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import idiolect
from idiolect.silo import health
from idiolect.silo.health import Pulse, _judge
from silo.test_commands import run

NOW = 1_000_000.0
WELL = {"beat": NOW - 3, "turn": NOW - 1, "trouble": "", "answered": NOW - 12}
CASES: list[tuple[dict[str, Any], bool, str]] = [
    ({}, True, "connected; last answer 12 s ago"),
    ({"answered": None}, True, "connected; no answer yet"),
    ({"what": "round 3 of 20: silos at work"}, True, "round 3 of 20: silos at work; last answer 12 s ago"),
    ({"trouble": "no connection to x"}, False, "no connection to x"),
    ({"beat": NOW - 31}, False, "killed or hanging: the last sign of life was 31 s ago"),
    ({"turn": NOW - 40}, False, "hanging: it looked for messages 40 s ago the last time"),
    ({"turn": NOW - 4000, "busy": NOW - 4000}, True, "at work since 4000 s; last answer 12 s ago"),
    ({"turn": NOW - 4000, "busy": NOW - 4000, "beat": NOW - 50}, False, "killed or hanging"),
    ({"turn": None}, True, "connected"),  # `serve` waits for silos, and has no loop that must turn
    ({"ended": NOW - 7}, False, "ended 7 s ago"),
]


@pytest.mark.parametrize(("changes", "healthy", "sentence"), CASES, ids=[str(case[0]) for case in CASES])
def test_what_is_well_and_what_is_not(changes: dict[str, Any], healthy: bool, sentence: str) -> None:
    found = _judge({**WELL, **changes}, NOW)
    assert found.healthy is healthy
    assert found.sentence.startswith(sentence)


def test_the_command_says_it_by_its_exit_code(tmp_path: Path) -> None:
    code, text = run("silo", "health", str(tmp_path))
    assert code == 1
    assert "nothing runs, or ever ran" in text
    with Pulse(tmp_path, "has not reached the coordinator yet") as pulse:
        wait_until_written(tmp_path)
        assert run("silo", "health", str(tmp_path)) == (1, "not well: has not reached the coordinator yet\n")
        pulse.say(trouble="")
        with pulse.busy():
            pass
        pulse._write()
        code, text = run("silo", "health", str(tmp_path), "--json")
        assert (code, json.loads(text)["healthy"]) == (0, True)
    assert idiolect.silo_health(tmp_path).sentence.startswith("ended")
    (tmp_path / "health.json").write_text("[]")
    assert not idiolect.silo_health(tmp_path).healthy


def test_the_watchdog_of_systemd_is_told_unless_the_loop_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "BEAT_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Pulse(tmp_path) as pulse:
            assert notify.recv(100) == b"WATCHDOG=1"
            pulse.say(turn=time.time() - 100)
            time.sleep(0.2)
            notify.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while notify.recv(100):
                    pass
            time.sleep(0.3)
            with pytest.raises(BlockingIOError):
                notify.recv(100)


def wait_until_written(folder: Path) -> None:
    end = time.monotonic() + 10
    while not (folder / "health.json").is_file() and time.monotonic() < end:
        time.sleep(0.02)
