"""The ways in which the vectorised engine can run, all of which must give the sequential engine's numbers."""

from collections.abc import Callable

from idiolect.engines.base import Engine, Setting
from idiolect.engines.vectorised import Vectorised

Mode = Callable[[Setting, int | None], Engine]

ALL_PASSES = "all passes"


def modes() -> dict[str, Mode]:
    """Each mode by name: an engine for a setting and for so many clients at once."""
    return {ALL_PASSES: Vectorised}
