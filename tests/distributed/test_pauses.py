"""Pauses grow while nothing happens, ours and Flower's, and Flower is still written as they need it."""

import ast
import inspect
import time

import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from flwr.supernode import start_client_internal

from idiolect.silo.pauses import (
    GrowingPause,
    shorten_pauses_of_pulls,
    shorten_pauses_of_supernode,
)

pytestmark = pytest.mark.distributed


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pause was to be."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower is as it was afterwards."""
    monkeypatch.setattr(start_client_internal, "time", time)
    monkeypatch.setattr(pull_objects, "__kwdefaults__", dict(pull_objects.__kwdefaults__))


def test_a_pause_doubles_up_to_the_longest_and_begins_anew(slept: list[float]) -> None:
    pause = GrowingPause(4.0)
    for _ in range(7):
        pause.sleep()
    pause.restart()
    pause.sleep()
    assert slept == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 0.125]


def test_a_supernode_looks_soon_after_each_message(slept: list[float], flower: None) -> None:
    """It waits for a message, for our answer, and for the next message."""
    shorten_pauses_of_supernode()
    for seconds in (3, 3, 3, 0.5, 0.5, 3):
        start_client_internal.time.sleep(seconds)
    assert slept == [3 / 32, 3 / 16, 3 / 8, 1 / 64, 1 / 32, 3 / 32]


def test_a_supernode_needs_no_other_time_than_pauses_of_two_lengths() -> None:
    """Whatever else it took from the module `time` would be missing."""
    used = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(start_client_internal)))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("time.")
    ]
    assert sorted(used) == ["time.sleep(0.5)", "time.sleep(0.5)", "time.sleep(3)"]


def test_what_is_on_its_way_is_pulled_soon(flower: None) -> None:
    """It is there at the third attempt: by Flower's own pauses, give or take a fifth, after 1 + 2 seconds."""
    shorten_pauses_of_pulls()
    attempts = 0

    def pull(name: str) -> bytes:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ObjectUnavailableError(name)
        return b"content"

    begin = time.monotonic()
    assert pull_objects(["name"], pull) == {"name": b"content"}
    assert time.monotonic() - begin < 0.8 * (1 + 2)
