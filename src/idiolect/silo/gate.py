"""The coordinator's gate: whose key is admitted now, and who was turned away.

The folder of keys is looked at every second while a run is on. A key that was revoked, whose time is over, or
in whose place there is another one, is taken from Flower's SuperLink, which then refuses every call that is
signed with it; a new key of one of the run's silos is given to it. Who was refused is read from the
SuperLink's own log and noted in the audit: once, and then how often, so that knocking fills no disk.
"""

import logging
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from idiolect.errors import UserError
from idiolect.silo.audit import AuditLog
from idiolect.silo.key_cycle import ends_to_come, why_shut_out
from idiolect.silo.keys import SiloKey, admitted_keys, good_keys, revoked_keys
from idiolect.silo.logins import FailedLogins
from idiolect.silo.plain_text import one_line

LOOK_SECONDS = 1.0
_DAY = 86_400.0

log = logging.getLogger(__name__)


class Registry(Protocol):
    """What a SuperLink lets its own machine do with keys."""

    def register(self, key: SiloKey) -> int:
        """Admit a key; the number of its node."""
        ...

    def unregister(self, node: int) -> None:
        """Refuse the key of a node from now on."""
        ...


class Gate:
    """Keeps a SuperLink's keys as the folder has them, for the silos of a run.

    nodes, shut_out: which node is which silo, and why somebody is out; kept up to date for a link to look at.
    """

    def __init__(
        self,
        registry: Registry,
        keys: Path,
        names: tuple[str, ...],
        nodes: MutableMapping[str, int],
        shut_out: MutableMapping[str, str],
        audit: AuditLog,
        logins: FailedLogins,
    ) -> None:
        self.registry = registry
        self.keys = keys
        self.names = names
        self.nodes = nodes
        self.shut_out = shut_out
        self.audit = audit
        self.logins = logins
        self._marks: dict[str, str] = {}  # of the keys that are registered
        self._told = ""
        self._warn_again = 0.0

    def open(self) -> None:
        """Admit the run's silos; one without a key is refused, one that is no longer good stays out."""
        keys = admitted_keys(self.keys)
        for name in self.names:
            if name not in keys and not why_shut_out(self.keys, name):
                raise UserError(
                    f"silo {name!r} has no key {self.keys / 'silos' / name!s}.pub; make one with "
                    "`idiolect silo add`"
                )
        self.look()

    def look(self) -> None:
        """Do what the folder says, and note who was refused."""
        good = good_keys(self.keys)
        for name in self.names:
            if name in good:
                if self._marks.get(name) != good[name].mark:
                    self._admit(good[name])
            # A file that is gone and not revoked changes nothing: it may be a disk that is away.
            elif name not in self.shut_out and (reason := why_shut_out(self.keys, name)):
                self._shut_out(name, reason)
        everybody = admitted_keys(self.keys).values()
        for sentence in self.logins.new(everybody, revoked_keys(self.keys), self.names):
            log.warning("refused: %s", sentence)
            self.audit.note("login", f"refused: {sentence}")
        self._warn()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The folder is looked at as long as the block lasts."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_SECONDS):
                self._look_again()

        thread = threading.Thread(target=watch, name="gate", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=5)

    def _look_again(self) -> None:
        """Half a file that is being copied, or a busy SuperLink, is no reason to end: keys stay as is."""
        try:
            self.look()
        except Exception as error:
            if str(error) != self._told:
                log.warning("the keys could not be looked at: %s", one_line(error, 300))
            self._told = str(error)
        else:
            self._told = ""

    def _admit(self, key: SiloKey) -> None:
        renewed = key.name in self._marks or key.name in self.shut_out
        self._forget(key.name)
        self.nodes[key.name] = self.registry.register(key)
        self._marks[key.name] = key.mark
        self.shut_out.pop(key.name, None)
        if renewed:
            self._tell(key.name, "admitted", f"admitted with the new key {key.mark}")

    def _shut_out(self, name: str, reason: str) -> None:
        self.shut_out[name] = reason  # first: whoever waits for it stops waiting
        self._forget(name)
        self._tell(name, "revoked", f"shut out: {reason}; what it was working on is a lost reply")

    def _forget(self, name: str) -> None:
        self._marks.pop(name, None)
        if (node := self.nodes.pop(name, None)) is not None:
            self.registry.unregister(node)

    def _tell(self, name: str, what: str, sentence: str) -> None:
        log.warning("%s: %s", name, sentence)
        self.audit.note(what, sentence, silo=name)

    def _warn(self) -> None:
        """Once a day, of what ends soon."""
        if time.monotonic() < self._warn_again:
            return
        self._warn_again = time.monotonic() + _DAY
        for sentence in ends_to_come(self.keys, [name for name in self.names if name not in self.shut_out]):
            log.warning("%s", sentence)
