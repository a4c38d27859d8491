"""What a silo demands of runs before it takes part, and where it stops."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from idiolect.errors import UserError
from idiolect.silo.privacy.ledger import Entry, Unit, epsilon_in_all

log = logging.getLogger(__name__)
USUAL_DELTA = 1e-5


@dataclass(frozen=True)
class Demands:
    """`join --require-private UNIT --max-epsilon 3 --delta 1e-5`; whoever has a budget spends it on noise."""

    unit: Unit | None = None  # None: runs without privacy are taken part in, too
    epsilon: float | None = None  # in all runs with this state folder together
    delta: float = USUAL_DELTA

    def __post_init__(self) -> None:
        if self.unit not in (None, "row", "silo"):
            raise UserError(f"--require-private {self.unit} is not possible: it is row or silo")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise UserError(f"--max-epsilon {self.epsilon:g} is not possible: it must be above 0")
        if not 0 < self.delta < 1:
            raise UserError(f"--delta {self.delta:g} is not possible: it must be between 0 and 1")

    @property
    def protects(self) -> Unit:
        """Whose budget it is: a row's, unless the silo as a whole is to be hidden."""
        return self.unit or "row"

    @property
    def insists(self) -> bool:
        """Whether runs without privacy are refused."""
        return self.unit is not None or self.epsilon is not None

    def admit(self, unit: Unit | None) -> None:
        """Refuse a run that hides less than is demanded; of a silo that is hidden so is every row."""
        if not self.insists:
            return
        why = f"--require-private {self.unit}" if self.unit else f"--max-epsilon {self.epsilon:g}"
        if unit is None:
            raise UserError(
                f"this silo takes part in private runs only ({why}); set privacy.unit: {self.protects} and "
                "privacy.noise"
            )
        if self.protects == "silo" and unit != "silo":
            raise UserError(
                f"privacy.unit={unit} hides rows, and this silo is to be hidden as a whole ({why}); set "
                "privacy.unit: silo"
            )

    def require_left(self, before: Mapping[str, Entry], after: Mapping[str, Entry], what: str) -> None:
        """Refuse what would cost more than there is left; how much that is stays here."""
        if self.epsilon is None:
            return
        spent, would_be = (epsilon_in_all(runs, self.protects, self.delta) for runs in (before, after))
        if not would_be <= self.epsilon:  # also what is no number
            log.warning("%s: ε is %.3g and would be %.3g at δ = %g", what, spent, would_be, self.delta)
            raise UserError(f"{what} would spend more than this silo's budget (--max-epsilon): it stops here")
