"""Keeps an eye on a coordinator's run: who answers what, where time and bytes go, what the log warns of.

The coordinator says what it is about to do, the loop over rounds, the link and the log are listened to, and
every view is shown the status whenever it changes. What is needed after a crash is in the run's folder.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol

import pandas as pd

from idiolect.runs.config import build_method
from idiolect.runs.privacy import ALL
from idiolect.silo.health import Pulse
from idiolect.silo.requests import Link, Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.status import PHASES, Phase, RoundRecord, SiloStatus, Status, Warned

MOST_WARNINGS = 50  # the log has them all

log = logging.getLogger(__name__)


class View(Protocol):
    """Something that shows the status to people; it is called at every change."""

    def show(self, status: Status) -> None:
        """Show it, or leave it for a better moment."""
        ...


class PulseView:
    """Lets a health check know where the run is; that it waits, for hours perhaps, is no illness."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse

    def show(self, status: Status) -> None:
        """Pass it on."""
        heard = [silo.heard for silo in status.silos if silo.heard is not None]
        self.pulse.say(what=status.headline, answered=max(heard, default=None))


@dataclass
class _Meter:
    """What the round that is being played has taken so far."""

    down_bytes: int = 0
    up_bytes: int = 0
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Monitor:
    """Collects what happens; a context from the beginning of a run, or of its continuation, to its end."""

    def __init__(self, run: ServedRun, views: Sequence[View] = ()) -> None:
        self.run = run
        self.views = views
        silos, self._warnings, self._metric = run.last_known()
        self._judged_by = build_method(run.settings.config.method).judged_by
        self._silos = {name: silos.get(name, SiloStatus(name)) for name in run.settings.silos}
        self._history = run.progress()
        self._state: Literal["running", "finished", "stopped"] = "running"
        self._reason = ""
        self._phase: Phase = "greeting"
        self._phase_since = time.time()
        self._entered = time.monotonic()
        self._what = ""
        self._open: dict[str, int] = {}  # bytes of requests that are not answered yet
        self._answered: set[str] = set()
        self._meter = _Meter()

    def __enter__(self) -> "Monitor":
        self._listener = _Listener(self)
        logging.getLogger("idiolect").addHandler(self._listener)
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("idiolect").removeHandler(self._listener)
        self._state = "finished" if error is None else "stopped"
        if isinstance(error, Exception):
            self._reason = str(error) or type(error).__name__
        elif error is not None:
            self._reason = "interrupted"
        self._silos = {name: dataclasses.replace(silo, asked=None) for name, silo in self._silos.items()}
        self.run.write_status(self.status())
        self._show()

    def status(self) -> Status:
        """The run at this moment."""
        return Status(
            run=self.run.name,
            method=self.run.settings.config.method_name,
            metric=self._metric,
            judged_by=self._judged_by,
            rounds=self.run.settings.config.pace.rounds,
            state=self._state,
            reason=self._reason,
            phase=self._phase,
            phase_since=self._phase_since,
            now=time.time(),
            silos=tuple(self._silos.values()),
            history=tuple(self._history),
            warnings=tuple(self._warnings),
        )

    # What the coordinator says.

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Time in the block counts for a phase, and no longer for the one around it."""
        around = self._phase
        self._enter(phase)
        try:
            yield
        finally:
            self._enter(around)

    @contextmanager
    def asking(self, phase: Phase, what: str) -> Iterator[None]:
        """In the block silos are asked for something, which is named as a reader would."""
        self._what = what
        self._answered.clear()
        with self.phase(phase):
            yield

    def usable(self, names: Collection[str]) -> None:
        """Whose answers were of use, of those that came."""
        for name in self._answered - set(names):
            self._change(name, answer=f"{self._what}: not usable")

    def greeted(self, rows: Mapping[str, int]) -> None:
        """All silos have joined: how many rows they train on. What is not a phase of its own is saving."""
        self._enter("saving")
        self._metric = self.run.settings.main_metric
        for name, count in rows.items():
            self._change(name, rows=count)

    def continued(self, done: int) -> None:
        """A run goes on after this round; what a crash left of a later one is dropped."""
        self._history = [record for record in self._history if record.round <= done]

    def advanced(self, done: int, down_bits: int, up_bits: int) -> None:
        """A round is over; noted before the checkpoint, so that every saved round is in the table."""
        self._enter(self._phase)
        meter = self._meter
        record = RoundRecord(done, down_bits, up_bits, meter.down_bytes, meter.up_bytes, dict(meter.seconds))
        self._history = [*(earlier for earlier in self._history if earlier.round < done), record]
        self.run.write_progress(self._history)
        if done:
            line = "round %d of %d: %.1f s, %.3g kB down, %.3g kB up"
            rounds = self.run.settings.config.pace.rounds
            log.info(line, done, rounds, record.own_seconds, down_bits / 8e3, up_bits / 8e3)

    # What the loop over rounds tells its watchers.

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        """What silos shared in an evaluation; who answered without metrics keeps them to itself."""
        judged = metrics[metrics.metric == self._metric]
        shared: dict[str, dict[str, dict[str, float]]] = {}
        for name, part, kind, value in judged[["client", "part", "kind", "value"]].itertuples(index=False):
            own = shared.setdefault(name, {})
            if not math.isnan(value):
                own.setdefault(part, {})[kind] = value
        for name in self._answered:
            self._change(name, shares=name in shared, metrics=shared.get(name, {}))
        told = judged[(judged.part == "validation") & (judged.kind == self._judged_by)]
        if len(told):
            values = ", ".join(f"{row.client} {row.value:.4g}" for row in told.itertuples())
            log.info("validation %s of %s models: %s", self._metric, self._judged_by, values)
        if round_number == 0:  # no round comes before the first
            self.advanced(0, 0, 0)
            self.played(0)

    def played(self, round_number: int) -> None:
        """A round is evaluated and saved: its time and bytes are final."""
        self._enter(self._phase)
        final = dataclasses.replace(self._history[-1], **vars(self._meter))
        self._history = [*self._history[:-1], final]
        self._meter = _Meter()
        spent = self.run.folder.spent_by(round_number)
        for name in self._silos:
            if (epsilon := spent.get(name, spent.get(ALL))) is not None:
                self._change(name, epsilon=epsilon)
        self.run.write_progress(self._history)
        self.run.write_status(self.status())
        self._show()

    # What the link and the log tell.

    def watch(self, link: Link) -> Link:
        """The link, listened to."""
        return _WatchedLink(link, self)

    def sent(self, sizes: Mapping[str, int]) -> None:
        """Requests are on their way."""
        self._open = dict(sizes)
        now = time.time()
        for name in sizes:
            self._silos[name] = dataclasses.replace(self._silos[name], asked=now)
        self._show()

    def received(self, name: str, reply: bytes | Unreachable) -> None:
        """A silo answered, or will not."""
        if name not in self._silos:
            return
        size = self._open.pop(name, 0)
        if isinstance(reply, Unreachable):
            self._change(name, asked=None, trouble=str(reply))
            return
        self._answered.add(name)
        self._meter.down_bytes += size
        self._meter.up_bytes += len(reply)
        silo = self._silos[name]
        self._change(
            name,
            asked=None,
            trouble="",
            heard=time.time(),
            answer=self._what,
            down_bytes=silo.down_bytes + size,
            up_bytes=silo.up_bytes + len(reply),
        )

    def warned(self, line: str) -> None:
        """The log has a warning."""
        self._warnings = [*self._warnings, Warned(time.time(), line)][-MOST_WARNINGS:]
        self._show()

    def _enter(self, phase: Phase) -> None:
        now = time.monotonic()
        self._meter.seconds[self._phase] += now - self._entered
        self._entered = now
        if phase != self._phase:
            self._phase, self._phase_since = phase, time.time()
            self._show()

    def _change(self, name: str, **changes: object) -> None:
        self._silos[name] = dataclasses.replace(self._silos[name], **changes)  # type: ignore[arg-type]
        self._show()

    def _show(self) -> None:
        status = self.status()
        for view in self.views:
            view.show(status)


class _WatchedLink:
    """Tells the monitor what passes."""

    def __init__(self, link: Link, monitor: Monitor) -> None:
        self.link = link
        self.monitor = monitor

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        """Replies as they come in."""
        self.monitor.sent({name: len(message) for name, message in requests.items()})
        for name, reply in self.link.ask(requests, seconds):
            self.monitor.received(name, reply)
            yield name, reply


class _Listener(logging.Handler):
    """Passes warnings of the log on."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(logging.WARNING)
        self.monitor = monitor

    def emit(self, record: logging.LogRecord) -> None:
        self.monitor.warned(record.getMessage())
