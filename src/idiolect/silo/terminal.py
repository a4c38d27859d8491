"""The status in a terminal, in place: a table of silos under the lines of the log."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from idiolect.quantities import amount, duration
from idiolect.silo.status import PHASE_NAMES, PHASES, SiloStatus, Status

MOST_SILOS = 20  # those in trouble come first
_COLOURS = {"good": "green", "busy": "cyan", "bad": "bold red", "unknown": "dim"}


class TerminalView:
    """Redraws the last status twice a second, so that times go on while nothing happens."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last: Status | None = None

    def show(self, status: Status) -> None:
        """Draw it next time."""
        self._last = status

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        """Draw as long as the block lasts; the last picture stays."""
        with Live(get_renderable=self._draw, console=self.console, refresh_per_second=2):
            yield

    def _draw(self) -> Any:
        return Text("starting") if self._last is None else draw(self._last, time.time())


class ConsoleHandler(logging.Handler):
    """Lines of the log above a picture that is drawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        self.console.print(Text(self.format(record)))


def draw(status: Status, now: float) -> Group:
    """The status as a picture, at a time that may be later than when it was taken."""
    return Group(*_headline(status, now), _silos(status, now), *_sums(status))


def _headline(status: Status, now: float) -> Iterator[Any]:
    colour = {"running": "bold", "finished": "bold green", "stopped": "bold red"}[status.state]
    line = Text(f"{status.run}  ", "dim").append(status.headline, colour)
    if status.state == "running":
        line.append(f"  {duration(max(0.0, now - status.phase_since))}", "dim")
    if (left := status.seconds_left) is not None:
        line.append(f"  about {duration(left)} left", "dim")
    yield line
    bar = Table.grid()
    bar.add_row(ProgressBar(total=status.rounds, completed=status.done, width=60))
    yield bar


def _silos(status: Status, now: float) -> Table:
    """Who is there and how far; 80 columns are enough for it, and the page has more."""
    parts = status.parts[:1]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("silo", "connection", "silent for", "last answer"):
        table.add_column(name, overflow="fold", vertical="bottom")
    for name in ("down", "up", *(f"{part}\n{status.metric}" for part in parts)):
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    shown = sorted(status.silos, key=lambda silo: not silo.trouble)[:MOST_SILOS]
    for silo in sorted(shown, key=status.silos.index):
        table.add_row(
            silo.name,
            Text(_connection(silo, now), _COLOURS[silo.mood]),
            "" if silo.heard is None else duration(max(0.0, now - silo.heard)),
            silo.answer,
            amount(8 * silo.down_bytes),
            amount(8 * silo.up_bytes),
            *(status.show_metric(silo, part, status.judged_by) for part in parts),
        )
    if (more := len(status.silos) - len(shown)) > 0:
        table.add_row(f"and {more} more", style="dim")
    return table


def _connection(silo: SiloStatus, now: float) -> str:
    if silo.asked is None or silo.trouble:
        return silo.connection
    return f"{silo.connection} for {duration(max(0.0, now - silo.asked))}"


def _sums(status: Status) -> Iterator[Text]:
    if status.history:
        last = status.history[-1]
        phases = ", ".join(f"{PHASE_NAMES[phase]} {duration(last.seconds[phase])}" for phase in PHASES)
        label = f"round {last.round}" if last.round else "before round 1"
        yield Text(f"{label}: {duration(last.total_seconds)} ({phases})", "dim")
        yield Text(
            f"on the wire: {amount(8 * last.down_bytes)} down, {amount(8 * last.up_bytes)} up; in all "
            f"{amount(8 * status.down_bytes)} down, {amount(8 * status.up_bytes)} up",
            "dim",
        )
    if status.warnings:
        yield Text(f"{len(status.warnings)} warnings; the last: {status.warnings[-1].line}", "yellow")
