"""The ways in which the vectorised engine can run, all of which must give the sequential engine's numbers."""

from collections.abc import Callable, Iterable
from functools import partial

from idiolect.engines.chunks import MOST_CLIENTS
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.engine import Setting
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.ways import Way

Mode = Callable[[Setting, int | None], Vectorised]

ALL_PASSES, NOT_RECORDED = "all passes", "not recorded"


def modes() -> dict[str, Mode]:
    """Each mode by name: an engine for a setting and for so many clients at once."""
    return {
        ALL_PASSES: partial(_engine, passes=PASSES),
        **{f"the pass {name} alone": partial(_engine, passes=_alone(name)) for name in PASSES},
        "recorded without a pass": partial(_engine, passes=()),
        NOT_RECORDED: partial(_engine, passes=None),
    }


def _alone(name: str) -> tuple[str, ...]:
    """A pass by itself, or after the one without which it finds nothing to do."""
    return ("simplify", name) if name in ("shrink", "distribute", "combine") else (name,)


def _engine(setting: Setting, clients: int | None, passes: Iterable[str] | None) -> Vectorised:
    return Vectorised(setting, Way(clients or MOST_CLIENTS, is_recorded=True), passes)
