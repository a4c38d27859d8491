"""What one silo can do to the others: nothing but to be left out, with one line in the log."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect.errors import UserError
from idiolect.silo.coordinator import coordinate
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.versions import VERSION
from idiolect.silo.wire import Packet, pack, unpack
from silo.problem import Direct, config, deployed, silos_in

APFL = {"name": "apfl", "local_steps": 2}
FAST = {"answer_seconds": 1, "patience_seconds": 1}
Change = Callable[[Packet], bytes]


class Lying(Direct):
    """A link that changes what silo `west` answers to one kind of request."""

    def __init__(self, silos: Mapping[str, Silo], ask: str, change: Change) -> None:
        super().__init__(silos)
        self.lies_to = ask
        self.change = change

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, answer in super().ask(requests, seconds):
            lies = name == "west" and unpack(requests[name]).header["ask"] == self.lies_to
            assert isinstance(answer, bytes)
            yield name, self.change(unpack(answer)) if lies else answer


def with_header(**changes: Any) -> Change:
    return lambda packet: pack({**packet.header, **changes}, packet.trees)


def without(key: str) -> Change:
    return lambda packet: pack({k: v for k, v in packet.header.items() if k != key}, packet.trees)


ROWS = {"train": 5, "validation": 1, "test": 1}
GREETINGS: dict[str, Change] = {
    "no rows": without("rows"),
    "rows as a list": with_header(rows=[1, 2, 3]),
    "rows as a text": with_header(rows="many"),
    "a part is missing": with_header(rows={"train": 5, "test": 1}),
    "negative": with_header(rows={**ROWS, "train": -3}),
    "none": with_header(rows={**ROWS, "train": 0}),
    "enormous": with_header(rows={**ROWS, "train": 10**30}),
    "a text": with_header(rows={**ROWS, "validation": "1"}),
    "a fraction": with_header(rows={**ROWS, "test": 0.5}),
    "a table": with_header(rows={**ROWS, "test": {"a": 1}}),
    "no state": without("known"),
    "odd state": with_header(known="perhaps"),
    "another version": with_header(version="9.9.9"),
    "nothing": lambda packet: pack({}),
    "a list for a header": lambda packet: b"\x08" * 20,
    "control characters": lambda packet: pack({"refused": "gone\x1b[2J\x07\r\n2026-01-01 all is well"}),
    "an endless sentence": lambda packet: pack({"refused": "a" * 10**6}),
}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "west" in record.getMessage()]


class Greeting:
    """A link on which every silo greets as it should, but west."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            header = unpack(message).header
            told = {key: header[key] for key in ("ask", "run", "request")}
            answer = pack({**told, "version": VERSION, "rows": ROWS, "known": False})
            yield name, self.change(unpack(answer)) if name == "west" else answer


@pytest.mark.parametrize("kind", GREETINGS)
def test_a_malformed_greeting_is_one_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **FAST))
    with (
        pytest.raises(UserError, match="2 of 3 silos") as caught,
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Greeting(GREETINGS[kind]))
    assert str(caught.value).isprintable()
    (line,) = warnings_of(caplog)
    assert line.isprintable()
    assert len(line) < 3000
    if kind == "another version":
        assert "9.9.9" in line
        assert VERSION in line


@pytest.mark.parametrize("kind", ["no rows", "enormous", "control characters"])
def test_a_run_that_has_begun_goes_on_without_a_malformed_greeting(kind: str, tmp_path: Path) -> None:
    """Before a run all silos are needed; what is known of their rows is kept."""
    options = {"minimum_replies": 2, **FAST}
    settings = config(APFL, rounds=1, evaluation={"every": 1})
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, **options))
    served.federation_of({name: {**ROWS, "train": rows} for name, rows in TRAINING.items()})
    coordinate(served, Lying(silos_in(tmp_path / "silos"), "hello", GREETINGS[kind]))
    assert served.folder.finished


TRAINING = {"north": 12, "south": 19, "west": 24}  # rows, as the split gives them


def metrics(content: Any) -> Change:
    return lambda packet: pack(packet.header, {"metrics": content})


NUMBER = torch.tensor(0.5, dtype=torch.float64)
METRICS: dict[str, Change] = {
    "a number": metrics(NUMBER),
    "a part that there is not": metrics({"train": {"personal": {"accuracy": NUMBER}}}),
    "a kind that there is not": metrics({"test": {"best": {"accuracy": NUMBER}}}),
    "a metric that there is not": metrics({"test": {"personal": {"beauty": NUMBER}}}),
    "a vector": metrics({"test": {"personal": {"accuracy": torch.zeros(3)}}}),
    "a whole number": metrics({"test": {"personal": {"accuracy": torch.tensor(1)}}}),
    "a tuple": metrics((NUMBER, NUMBER)),
    "a deep tree": metrics({"test": {"personal": {"accuracy": {"deeper": NUMBER}}}}),
    "control characters": metrics({"test\x1b[2J": {"personal": {"accuracy": NUMBER}}}),
}


@pytest.mark.parametrize("kind", METRICS)
def test_malformed_metrics_are_one_line(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL, rounds=1), tmp_path, **FAST))
    with caplog.at_level(logging.WARNING, logger="idiolect.silo"):
        run = coordinate(served, Lying(silos_in(tmp_path / "silos"), "evaluate", METRICS[kind]))
    assert set(run.metrics().client) == {"north", "south"}
    lines = warnings_of(caplog)
    assert lines
    assert all("sent metrics that cannot be read" in line and line.isprintable() for line in lines)


def test_an_unforeseen_answer_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever reading it makes go wrong."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    served = ServedRun.create(
        tmp_path / "run", deployed(config(APFL, rounds=1), tmp_path, minimum_replies=2, **FAST)
    )
    monkeypatch.setattr("idiolect.silo.silos.Silos._read_metrics", broken)
    with caplog.at_level(logging.WARNING, logger="idiolect.silo"):
        coordinate(served, Direct(silos_in(tmp_path / "silos")))
    assert "west: sent what cannot be read: ZeroDivisionError: of all things" in caplog.text
    assert "Traceback" not in caplog.text
