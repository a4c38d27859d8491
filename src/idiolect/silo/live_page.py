"""The status as a page in the run's folder: written anew as the run goes on, read in any browser."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

from idiolect.quantities import amount, duration, show_value
from idiolect.reports.html import render
from idiolect.runs.settings import write_settings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.status import PHASE_NAMES, PHASES, Status
from idiolect.store.files import write_bytes

REFRESH_SECONDS = 5  # how often browsers look again
WRITE_SECONDS = 1.0  # how often the page is written, if there is news

log = logging.getLogger(__name__)


class PageView:
    """Writes the page beside the run, so that nobody waits for it."""

    def __init__(self, path: Path, config: str) -> None:
        self.path = path
        self.config = config  # shown as it is
        self._last: Status | None = None
        self._written: Status | None = None
        self._failed = False

    def show(self, status: Status) -> None:
        """Write it next time."""
        self._last = status

    @contextmanager
    def kept_up_to_date(self) -> Iterator[None]:
        """Write as long as the block lasts, and once more at its end."""
        over = Event()
        writer = Thread(target=self._keep_writing, args=(over,), name="page", daemon=True)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()
            self._write()

    def _keep_writing(self, over: Event) -> None:
        while not over.wait(WRITE_SECONDS):
            self._write()

    def _write(self) -> None:
        """What goes wrong is said once, and the run goes on."""
        status = self._last
        if status is None or status is self._written:
            return
        self._written = status
        try:
            write_bytes(self.path, draw(status, self.config).encode())
        except Exception as error:  # a page is never worth a run
            if not self._failed:
                self._failed = True
                log.warning("the page %s could not be written (%s); the run goes on", self.path, error)


def page_view(run: ServedRun) -> PageView | None:
    """A view that writes the page of a run; None, with one line in the log, where it cannot be."""
    if find_spec("jinja2") is None:
        log.info("no report page: it needs pip install 'idiolect[report]'")
        return None
    path = run.path / "report.html"
    log.info("page: %s", path)
    settings = run.settings
    return PageView(path, write_settings({"silos": list(settings.silos), **settings.shared_config()}))


def draw(status: Status, config: str) -> str:
    """The page."""
    silos = len(status.silos)
    return render(
        "serve.html",
        title=f"{status.method} between {silos} silos",
        status=status,
        config=config,
        refresh=REFRESH_SECONDS if status.state == "running" else None,
        phases=PHASES,
        phase_names=PHASE_NAMES,
        clock=lambda seconds: _clock(seconds, status.now),
        written=datetime.fromtimestamp(status.now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        amount=lambda count: amount(8 * count),
        duration=duration,
        share=_share,
        show_value=show_value,
    )


def _clock(seconds: float, now: float) -> str:
    """A time that means the same everywhere, with the day unless it is today."""
    moment, today = (datetime.fromtimestamp(time, UTC) for time in (seconds, now))
    return moment.strftime("%H:%M:%S UTC" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S UTC")


def _share(part: float, whole: float) -> float:
    """In per cent."""
    return 100 * part / whole if whole else 0.0
