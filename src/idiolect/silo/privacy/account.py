"""One run in a silo's ledger: what its answers cost is paid before the work is done, or it is not done."""

from dataclasses import dataclass, replace

from idiolect.errors import UserError
from idiolect.privacy.accounting import Spending
from idiolect.privacy.settings import PrivacyChoice
from idiolect.silo.privacy.demands import Demands
from idiolect.silo.privacy.ledger import Ledger, Unit


@dataclass(frozen=True)
class Account:
    """The silo's ledger and what it demands, for one run."""

    ledger: Ledger
    demands: Demands
    run: str
    unit: Unit | None = None  # whose presence the run hides

    def opened(self, privacy: PrivacyChoice | None) -> "Account":
        """That of a run as it was agreed; refuse one that hides less than the silo demands."""
        unit = None if privacy is None or not privacy.multiplier else privacy.unit  # no noise hides nobody
        self.demands.admit(unit)
        before = self.ledger.runs.get(self.run)
        if before is not None and before.unit != unit:
            raise UserError(
                f"the ledger has a run {self.run!r} that hid {before.unit or 'nothing'}, and this one hides "
                f"{unit or 'nothing'}: a run needs a name of its own"
            )
        return replace(self, unit=unit)

    def pay(self, origin: str, cost: Spending, what: str) -> None:
        """Spend what an answer costs, unless it was paid for; refuse if it is too much."""
        if not cost or self.ledger.is_paid(self.run, origin):
            return
        after = self.ledger.with_answer(self.run, self.unit, origin, cost)
        self.demands.require_left(self.ledger.runs, after, what)
        self.ledger.keep(after)
