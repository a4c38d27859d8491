"""How much each method may be tuned: the same time, or the same number of trials."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from idiolect.errors import UserError
from idiolect.quantities import duration

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_HOW = "give a time with its unit, as budget=20m, 90s or 2h"


class Budget(NamedTuple):
    """Of all methods together, in seconds; or of each method, in trials."""

    seconds: float | None = None
    trials: int | None = None

    def of_each(self, methods: int) -> "Budget":
        """What one of so many methods has."""
        return self if self.seconds is None else Budget(seconds=self.seconds / methods)

    @property
    def words(self) -> str:
        """In a sentence."""
        return f"{self.trials} trials" if self.seconds is None else duration(self.seconds)


def read_budget(settings: Mapping[str, Any]) -> Budget:
    """The budget that settings give.

    >>> read_budget({"budget": "1.5m"}), read_budget({"trials": 30})
    (Budget(seconds=90.0, trials=None), Budget(seconds=None, trials=30))
    """
    budget, trials = settings.get("budget"), settings.get("trials")
    if (budget is None) == (trials is None):
        both = "budget and trials are both given" if trials is not None else "budget is missing"
        raise UserError(f"{both}: {_HOW}, or trials=30 for each method")
    if trials is not None:
        if not isinstance(trials, int) or isinstance(trials, bool) or trials < 1:
            raise UserError(f"trials={trials} is not possible: it must be a whole number of at least 1")
        return Budget(trials=trials)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)", str(budget).strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UserError(f"budget={budget} is not possible: {_HOW}")
    return Budget(seconds=seconds)
