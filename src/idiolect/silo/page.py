"""The status as a page in the run's folder: written anew as the run goes on, read in any browser."""

import logging
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from idiolect.reports.rendering import render
from idiolect.runs.settings import write_settings
from idiolect.silo.serving import ServeFolder
from idiolect.silo.status import PHASE_NAMES, PHASES, Status
from idiolect.store.files import write_bytes
from idiolect.text import amount, duration

REFRESH_SECONDS = 5  # how often browsers look, and the least time between two writes within a round

log = logging.getLogger(__name__)


class PageView:
    """Writes the page after each round, and in between when enough time has passed."""

    def __init__(self, path: Path, config: str) -> None:
        self.path = path
        self.config = config  # shown as it is
        self._shown: tuple[object, ...] = ()
        self._written = 0.0
        self._failed = False

    def show(self, status: Status) -> None:
        """Write the page if it is time to; what goes wrong is said once, and the run goes on."""
        milestone = (status.state, len(status.history))
        if milestone == self._shown and time.monotonic() < self._written + REFRESH_SECONDS:
            return
        self._shown, self._written = milestone, time.monotonic()
        try:
            write_bytes(self.path, draw(status, self.config).encode())
        except Exception as error:  # a page is never worth a run
            if not self._failed:
                self._failed = True
                log.warning("the page %s could not be written (%s); the run goes on", self.path, error)


def page_view(folder: ServeFolder) -> PageView | None:
    """A view that writes the page of a run; None, with one line in the log, where it cannot be."""
    if find_spec("jinja2") is None:
        log.info("no report page: it needs pip install 'idiolect[report]'")
        return None
    path = folder.path / "report.html"
    log.info("page: %s", path)
    settings = folder.settings
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
        clock=_clock,
        amount=lambda count: amount(8 * count),
        duration=duration,
        share=_share,
    )


def _clock(seconds: float | None) -> str:
    """A time of day that means the same everywhere."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _share(part: float, whole: float) -> float:
    """In per cent."""
    return 100 * part / whole if whole else 0.0
