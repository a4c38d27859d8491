"""Requests to silos and what may come back: nothing, too late, the wrong thing, or a usable reply.

| what happens                                     | what is done                                          |
|--------------------------------------------------|-------------------------------------------------------|
| no answer in time, or the silo is not connected  | asked again while replies are below the minimum       |
| its key was revoked, before or meanwhile         | not asked again; the minimum is of those that are left |
| it refuses, or Flower reports an error           | logged; not counted                                   |
| NaN, wrong shapes, too large, malformed          | logged; not counted                                   |
| an answer to another request (twice, too late)   | logged; ignored                                       |
| too few usable replies when patience is over     | the run stops; `idiolect serve --resume` goes on      |
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from idiolect.core import tree
from idiolect.core.exchange import Message
from idiolect.core.transport import Transport
from idiolect.errors import UserError
from idiolect.silo.checks import require_alike, require_finite
from idiolect.silo.plain_text import one_line
from idiolect.silo.wire import Packet, describe, modules_in, pack, unpack

HEARING_SECONDS = 30.0  # for silos that are away, when it is clear that a run does not begin

log = logging.getLogger(__name__)


class Unreachable(Exception):  # noqa: N818  (it is an outcome, not a fault)
    """A silo gave no answer; it may be asked again."""


class NotConnected(Unreachable):
    """A silo that is not there: it was sent nothing."""


class ShutOut(Unreachable):
    """A silo that is no longer admitted: nobody waits for it, and it is not asked again."""


class Link(Protocol):
    """Carries requests to silos by name."""

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        """Replies as they come in; those that do not come within the time are left out."""
        ...


class TooFewAnswersError(UserError):
    """Why a run stops: too few silos gave a usable answer; those that did are here."""

    def __init__(self, sentence: str, answers: Mapping[str, Any]) -> None:
        super().__init__(sentence)
        self.answers = answers


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

    @property
    def modules(self) -> set[str]:
        """In which an upload's parts are written."""
        return modules_in(self.like)

    def read(self, packet: Packet) -> Message:
        """The upload as the method has it, from what was sent."""
        sent = packet.trees.get("upload")
        rehearsed = self.transport.send_up(tree.zeros_like(self.like))
        upload = self.transport.receive_up(sent, self.like) if _alike(sent, rehearsed) else None
        require_alike(upload, self.like, "its upload")
        require_finite(upload, "its upload")
        return upload


def _alike(sent: Message | None, rehearsed: Message) -> bool:
    """Whether two messages have the same parts; an encoded one has no length that could be foreseen."""
    return sent is not None and describe(sent) == describe(rehearsed)


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """A request to one silo, and how its answer is read; what cannot be read is refused in one sentence."""

    header: dict[str, Any]
    trees: dict[str, Any]
    read: Callable[[Packet], Answer]
    modules: Collection[str] = ()  # whose classes the answer may name, besides this package's own


def ask_all(
    link: Link,
    requests: Mapping[str, Request[Answer]],
    patience: Patience,
    minimum: int | None,
) -> dict[str, Answer]:
    """Usable replies by name; at least `minimum`, or the run stops with a clear sentence.

    minimum: of those who are still admitted; None: everybody's, whoever is admitted. Then, at the beginning
        of a run, those who are about to come are heard too before it stops: what is wrong is told at once.
    """
    replies: dict[str, Answer] = {}
    bad: dict[str, str] = {}  # why an answer is of no use
    shut_out: dict[str, str] = {}  # why somebody is no longer admitted; said when it happened
    said: set[str] = set()

    def say(line: str) -> None:  # once, however often it is tried
        line = one_line(line)
        if line not in said:
            said.add(line)
            log.warning("%s", line)

    give_up = time.monotonic() + patience.total_seconds
    while True:
        missing = {
            name: request
            for name, request in requests.items()
            if name not in replies.keys() | bad.keys() | shut_out.keys()
        }
        replies.update(_once(link, missing, patience, bad, shut_out, say))
        admitted = len(requests) - len(shut_out)
        needed = _needed(minimum, len(requests), len(shut_out))
        if len(replies) >= needed:
            for name in requests.keys() - replies.keys() - bad.keys() - shut_out.keys():
                log.warning("%s: no answer in time; the round goes on without it", name)
            return replies
        waited_for = sorted(missing.keys() - replies.keys() - bad.keys() - shut_out.keys())
        in_vain = admitted - len(bad) < needed
        if in_vain:
            give_up = min(give_up, time.monotonic() + (0 if minimum is not None else HEARING_SECONDS))
        if time.monotonic() >= give_up or (in_vain and not waited_for):
            raise TooFewAnswersError(
                f"{len(replies)} of {len(requests)} silos gave a usable answer and at least {needed} are "
                f"needed{_reasons({**bad, **shut_out})}; see the log, then continue with "
                "`idiolect serve --resume`",
                replies,
            )
        say(f"{len(replies)} of at least {needed} answers; asking again: {', '.join(waited_for)}")
        time.sleep(patience.pause_seconds)


def _reasons(bad: Mapping[str, str]) -> str:
    """Why answers were of no use, for all silos."""
    return "".join(f"; {name}: {reason}" for name, reason in sorted(bad.items()))


def _needed(minimum: int | None, asked: int, shut_out: int) -> int:
    """How many answers there must be: nobody waits for who was shut out, and no others are let off."""
    if minimum is None:
        return asked
    return min(minimum, max(minimum - shut_out, asked - shut_out, 1))


def _once(
    link: Link,
    requests: Mapping[str, Request[Answer]],
    patience: Patience,
    bad: dict[str, str],
    shut_out: dict[str, str],
    say: Callable[[str], None],
) -> Iterator[tuple[str, Answer]]:
    """One attempt: each silo is asked, usable replies are passed on, others are logged."""
    marks = {name: secrets.token_hex(8) for name in requests}
    messages = {
        name: pack({**request.header, "request": marks[name]}, request.trees)
        for name, request in requests.items()
    }
    done: set[str] = set()
    for name, message in link.ask(messages, patience.answer_seconds):
        if isinstance(message, ShutOut):
            shut_out[name] = str(message)
            continue
        if isinstance(message, Unreachable):
            say(f"{name}: {message}")
            continue
        if name not in requests or name in done:
            say(f"{name}: answered twice or unasked; ignored")
            continue
        try:
            packet = unpack(message, int(patience.megabytes * 2**20), requests[name].modules)
            if packet.header.get("request", marks[name]) != marks[name]:
                say(f"{name}: answered another request; ignored")
                continue
            _require_answer(packet, requests[name])
            answer = requests[name].read(packet)
        except UserError as error:
            bad[name] = one_line(error)
        except Exception as error:  # whatever one silo sends, the others go on
            log.debug("what an answer made", exc_info=True)
            bad[name] = one_line(f"sent what cannot be read: {type(error).__name__}: {error}")
        else:
            done.add(name)
            yield name, answer
            continue
        say(f"{name}: {bad[name]}")


def _require_answer(packet: Packet, request: Request[Any]) -> None:
    """Refuse a refusal, and what is no answer to this request."""
    header = packet.header
    if "refused" in header:
        raise UserError(f"refused: {header['refused']}")
    for key in ("ask", "run", "round", "place"):
        if header.get(key) != request.header.get(key):
            raise UserError(f"answered for {key}={header.get(key)} instead of {request.header.get(key)}")
