"""What is to be known about reported numbers, in sentences: who diverged, what is spent."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.core.around import innermost_method
from idiolect.core.method import Method
from idiolect.core.schedule import Clock
from idiolect.runs.config import build_method
from idiolect.runs.folder import RunFolder
from idiolect.runs.privacy import privacy_of, privacy_sentence

MOST_NAMED = 5
# Divergence is no matter of these rates: what they move is projected onto shares or a weight.
_HARMLESS_RATES = ("shares_rate", "mixing_rate")
_SMALLER = 10
_SUITED = "(rates that are left open suit the data)"
_NOISY = "(noise moves models too: it is less with larger batches, fewer rounds or a larger privacy.epsilon)"
_LARGEST = 0.1  # that is worth trying after a divergence: inputs are standardised


def run_notes(summary: Mapping[str, Any], method: Method, prefix: str = "") -> list[str]:
    """Sentences about a run; in a comparison `prefix` is the method's name, for whose settings it stands."""
    spent = privacy_sentence(summary)
    return [*training_notes(summary, method, prefix), *([spent] if spent else [])]


def training_notes(summary: Mapping[str, Any], method: Method, prefix: str = "") -> list[str]:
    """Those of them that are a reason to train again in another way."""
    kinds = summary["kinds"]
    notes = []
    if summary["diverged"]:
        told = "; ".join(_diverged(kind, kinds[kind]) for kind in summary["diverged"])
        is_private = "privacy" in summary or privacy_of(method) is not None
        hint = " ".join([*smaller_rates(method, prefix), _NOISY if is_private else _SUITED])
        notes.append(f"{summary['ended'] or 'diverged'}: {told}; try {hint}")
    elif summary["ended"]:
        notes.append(f"ended before all rounds were played: {summary['ended']}")
    if untrained := [kind for kind, numbers in kinds.items() if numbers["untrained"]]:
        told = f"for {_listed(untrained)} the model before training is reported"
        notes.append(f"untrained: {told}{_why(summary)}")
    if improving := [kind for kind, numbers in kinds.items() if numbers["still_improving"]]:
        notes.append(f"still improving at the last evaluation: {_listed(improving)}; more rounds may help")
    return notes


def comparison_notes(runs: Sequence[RunFolder]) -> list[str]:
    """Sentences about all runs of a comparison: whose they are is said first."""
    seeds: dict[tuple[str, str], list[str]] = {}  # of which runs of a method something is to be said
    for run in runs:
        config = run.config
        for note in run_notes(run.summary(), build_method(config.method), config.method_name):
            seeds.setdefault((config.method_name, note), []).append(str(config.seed))
    return [
        f"{method} seed{'s' * (len(which) > 1)} {', '.join(which)}: {note}"
        for (method, note), which in seeds.items()
    ]


def mark(*, diverged: bool, untrained: bool) -> str:
    """What stands after a number that must not be read without it.

    >>> mark(diverged=True, untrained=True), mark(diverged=False, untrained=False)
    (' (diverged, untrained)', '')
    """
    words = ["diverged"] * diverged + ["untrained"] * untrained
    return f" ({', '.join(words)})" if words else ""


def smaller_rates(method: Method, prefix: str = "") -> list[str]:
    """Settings to try after a divergence, as they can be typed: a tenth of each rate of the method."""
    method = innermost_method(method)
    steps = getattr(method, "local_steps", 1)
    clock = Clock(0, 0, steps if isinstance(steps, int) else 1)
    settings = []
    for name, value in vars(method).items():
        if not name.endswith("rate") or name in _HARMLESS_RATES or value is None:
            continue
        rate = float(value(clock) if callable(value) else value)
        if rate > 0 and math.isfinite(rate):
            smaller = min(rate / _SMALLER, _LARGEST)
            settings.append(f"{_typed(name, prefix)}={smaller:.6g}")
    return settings or ["a smaller learning rate"]


def _typed(name: str, prefix: str) -> str:
    if prefix:
        return f"{prefix}.{name}"
    return "lr" if name == "learning_rate" else f"method.{name}"


def _diverged(kind: str, numbers: Mapping[str, Any]) -> str:
    clients = numbers["diverged"]
    if not clients:
        return kind
    if len(clients) >= numbers["clients"]:
        return f"{kind} (all {len(clients)} clients)"
    return f"{kind} ({len(clients)} of {numbers['clients']} clients: {_listed(clients)})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _why(summary: Mapping[str, Any]) -> str:
    by_validation = summary["chosen_by"] == "validation"
    return ", because no later one was better on validation rows" if by_validation else ""
