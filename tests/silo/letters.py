"""An honest run's messages to one silo, to be sent again with changes, as a dishonest coordinator would."""

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.silo.coordinator import coordinate
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import Packet, pack, unpack
from silo.problem import LENIENT, Direct, config, deployed, own_rows, silos_in

NAME = "north"


class _Recording(Direct):
    def __init__(self, silos: Mapping[str, Silo]) -> None:
        super().__init__(silos)
        self.sent: list[bytes] = []

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        if NAME in requests:
            self.sent.append(requests[NAME])
        return super().ask(requests, seconds)


@cache
def honest(method: str, rounds: int = 3, **options: Any) -> tuple[bytes, ...]:
    """What a coordinator sends to north: hello, evaluation, work, work, evaluation, ..."""
    return sent_in(config({"name": method, "local_steps": 2}, rounds=rounds, **options))


def sent_in(settings: dict[str, Any]) -> tuple[bytes, ...]:
    """The same in a run with whatever settings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        link = _Recording(silos_in(path / "silos"))
        coordinate(ServedRun.create(path / "run", deployed(settings, path)), link)
    return tuple(link.sent)


def asked(messages: tuple[bytes, ...], what: str, number: int = 0) -> bytes:
    """The n-th message of a kind."""
    return [message for message in messages if unpack(message).header["ask"] == what][number]


def changed(message: bytes, trees: Mapping[str, Any] | None = None, **header: Any) -> bytes:
    """The message with another header or other trees."""
    before = unpack(message)
    return pack({**before.header, **header}, {**before.trees, **(trees or {})})


def north(folder: Path, table: pd.DataFrame | None = None, **options: Any) -> Silo:
    """The silo, in whatever state its folder is."""
    rows = own_rows(NAME) if table is None else table
    return Silo(NAME, rows, folder, **{"limits": LENIENT, **options})


def answer(silo: Silo, message: bytes) -> Packet:
    """What it answers."""
    return unpack(silo.answer(message))


def refusal(silo: Silo, message: bytes) -> str:
    """Why it refuses; a test fails if it does not."""
    header = answer(silo, message).header
    assert "refused" in header, f"answered {header}"
    return str(header["refused"])
