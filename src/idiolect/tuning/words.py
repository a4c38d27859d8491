"""A tuning's choice as people read it, the same in terminals and on the page."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from idiolect.quantities import show_value

STATES = ("complete", "stopped", "late", "diverged", "failed")


def show_settings(settings: Mapping[str, Any], prefix: str = "") -> str:
    """Settings in one line, as they can be typed; of a schedule the start.

    >>> show_settings({"learning_rate": {"name": "constant", "initial": 0.5}, "weights": {"factor": 2.0}})
    'learning_rate=0.5 weights.factor=2'
    """
    words = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and "initial" in value:
            value = value["initial"]
        if isinstance(value, Mapping):
            words.append(show_settings(value, f"{prefix}{name}."))
        else:
            words.append(
                f"{prefix}{name}={value:g}" if isinstance(value, float) else f"{prefix}{name}={value}"
            )
    return " ".join(words)


def show_default(row: "pd.Series[Any]", metric: str) -> str:
    """The value without tuning, or what became of that trial."""
    return show_value(row["default"], metric) if row.default_state == "complete" else str(row.default_state)


def show_trials(row: "pd.Series[Any]") -> str:
    """How many trials there were, and what became of them."""
    states = ", ".join(f"{row[state]} {state}" for state in STATES if row[state])
    return f"{row.trials}: {states}"
