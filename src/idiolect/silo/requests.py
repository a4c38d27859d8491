"""Requests to silos and what may come back: nothing, too late, the wrong thing, or a usable reply.

| what happens                                     | what is done                                          |
|--------------------------------------------------|-------------------------------------------------------|
| no answer in time, or the silo is not connected  | asked again while replies are below the minimum       |
| it refuses, or Flower reports an error           | logged; not counted                                   |
| NaN, wrong shapes, too large, unreadable         | logged; not counted                                   |
| an answer to another request (twice, too late)   | logged; ignored                                       |
| too few usable replies when patience is over     | the run stops; `idiolect serve --resume` goes on      |
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from idiolect.core import tree
from idiolect.core.exchange import Message
from idiolect.core.transport import Transport
from idiolect.errors import UserError
from idiolect.silo.wire import Packet, describe, modules_in, pack, signature, unpack

log = logging.getLogger(__name__)


class Unreachable(Exception):  # noqa: N818  (it is an outcome, not a fault)
    """A silo gave no answer; it may be asked again."""


class Link(Protocol):
    """Carries requests to silos by name."""

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        """Replies as they come in; those that do not come within the time are left out."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long the coordinator waits, and for how many."""

    answer_seconds: float = 600.0  # for one answer
    total_seconds: float = 3600.0  # for enough of them
    pause_seconds: float = 1.0  # before a silo is asked again
    megabytes: float = 512.0  # of one reply


@dataclass(frozen=True)
class Expected:
    """What an upload must be: like a rehearsed one in structure, shapes and types, as a transport has it."""

    transport: Transport
    like: Message

    def read(self, sent: Message | None) -> Message:
        """The upload as the method has it, from what was sent."""
        rehearsed = self.transport.send_up(tree.zeros_like(self.like))
        upload = self.transport.receive_up(sent, self.like) if _alike(sent, rehearsed) else None
        if upload is None or signature(upload) != signature(self.like):
            raise UserError("sent an upload of another structure, shape or type than the method has")
        if not all(bool(leaf.isfinite().all()) for leaf in tree.leaves(upload)):
            raise UserError("sent an upload with NaN or infinite numbers")
        return upload


def _alike(sent: Message | None, rehearsed: Message) -> bool:
    """Whether two messages have the same parts; an encoded one has no length that could be foreseen."""
    return sent is not None and describe(sent) == describe(rehearsed)


@dataclass(frozen=True)
class Request:
    """A request to one silo."""

    header: dict[str, Any]
    trees: dict[str, Any]
    expected: Expected | None = None  # what comes back as the tree "upload"


def ask_all(
    link: Link,
    requests: Mapping[str, Request],
    patience: Patience,
    minimum: int,
) -> dict[str, Packet]:
    """Usable replies by name; at least `minimum`, or the run stops with a clear sentence."""
    replies: dict[str, Packet] = {}
    bad: set[str] = set()
    said: set[str] = set()

    def say(line: str) -> None:  # once, however often it is tried
        if line not in said:
            said.add(line)
            log.warning(line)

    give_up = time.monotonic() + patience.total_seconds
    while True:
        missing = {name: request for name, request in requests.items() if name not in replies.keys() | bad}
        replies.update(_once(link, missing, patience, bad, say))
        left = len(requests) - len(bad)
        if len(replies) >= minimum:
            for name in requests.keys() - replies.keys() - bad:
                log.warning("%s: no answer in time; the round goes on without it", name)
            return replies
        if left < minimum or time.monotonic() > give_up:
            raise UserError(
                f"{len(replies)} of {len(requests)} silos gave a usable answer and at least {minimum} are "
                "needed; see the log, then continue with `idiolect serve --resume`"
            )
        waited_for = ", ".join(sorted(missing.keys() - replies.keys() - bad))
        say(f"{len(replies)} of at least {minimum} answers; asking again: {waited_for}")
        time.sleep(patience.pause_seconds)


def _once(
    link: Link,
    requests: Mapping[str, Request],
    patience: Patience,
    bad: set[str],
    say: Callable[[str], None],
) -> Iterator[tuple[str, Packet]]:
    """One attempt: each silo is asked, usable replies are passed on, others are logged."""
    marks = {name: secrets.token_hex(8) for name in requests}
    messages = {
        name: pack({**request.header, "request": marks[name]}, request.trees)
        for name, request in requests.items()
    }
    done: set[str] = set()
    for name, message in link.ask(messages, patience.answer_seconds):
        if isinstance(message, Unreachable):
            say(f"{name}: {message}")
            continue
        if name not in requests or name in done:
            say(f"{name}: answered twice or unasked; ignored")
            continue
        try:
            expected = requests[name].expected
            modules = set() if expected is None else modules_in(expected.like)
            packet = unpack(message, int(patience.megabytes * 2**20), modules)
            if packet.header.get("request", marks[name]) != marks[name]:
                say(f"{name}: answered another request; ignored")
                continue
            packet = _checked(packet, requests[name])
        except UserError as error:
            say(f"{name}: {error}")
            bad.add(name)
            continue
        done.add(name)
        yield name, packet


def _checked(packet: Packet, request: Request) -> Packet:
    """The answer to this request, its upload decoded; anything else is refused."""
    header = packet.header
    if "refused" in header:
        raise UserError(f"refused: {header['refused']}")
    for key in ("ask", "run", "round", "place"):
        if header.get(key) != request.header.get(key):
            raise UserError(f"answered for {key}={header.get(key)} instead of {request.header.get(key)}")
    if request.expected is None:
        return packet
    return Packet(header, {"upload": request.expected.read(packet.trees.get("upload"))})
