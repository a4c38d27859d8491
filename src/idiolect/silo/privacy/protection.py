"""What hides a silo, or each of its rows, in one run: randomness of its own, noise, and what that costs."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from idiolect.core import tree
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import ClientState, Exchange, Message
from idiolect.engines.engine import Setting
from idiolect.errors import UserError
from idiolect.participation.sampling import Uniform
from idiolect.privacy.accounting import Spending
from idiolect.privacy.settings import PrivacyChoice, RowPrivacy, SiloPrivacy
from idiolect.runs.privacy import Prices
from idiolect.silo.privacy.ledger import ALL_THAT_THERE_IS
from idiolect.silo.privacy.own_randomness import OwnRandomness
from idiolect.silo.privacy.upload_noise import as_told, noised, require_fine, share_of_noise
from idiolect.silo.rehearsal import AgreedExchange, AgreedExchanges
from idiolect.silo.secure.summands import own_weight
from idiolect.silo.wire import digest

if TYPE_CHECKING:
    from idiolect.silo.secure.silo_side import SiloSums


class Price(NamedTuple):
    """What an answer costs, and for how many gradients that is."""

    cost: Spending
    gradients: int = 0

    def require_enough(self, taken: int) -> None:
        """Refuse to tell what was made of more gradients than were paid for."""
        if taken > self.gradients:
            raise UserError(
                f"the local work took {taken} private gradients, and {self.gradients} were accounted for: "
                "some of its steps take more than the first"
            )


class Protection:
    """Of one run; `privacy` None: nothing is hidden, and answers cost everything."""

    def __init__(
        self, privacy: PrivacyChoice | None, setting: Setting, folder: Path, sums: "SiloSums | None"
    ) -> None:
        self.privacy = privacy
        self._setting = setting
        self._folder = folder
        self._is_summed = sums is not None
        self._stand_ins: Prices | None = None  # who tell what an exchange takes
        self._deviation = 0.0
        if isinstance(privacy, SiloPrivacy):
            self._deviation = share_of_noise(privacy, 1 if sums is None else sums.rule.threshold)
            if sums is not None:
                require_fine(self._deviation, sums.fixed_point)

    @property
    def sentence(self) -> str:
        """What is hidden, for the silo's people."""
        if self.privacy is None:
            return "no noise hides rows"
        whose = "each row" if isinstance(self.privacy, RowPrivacy) else "this silo"
        return f"noise {self.privacy.multiplier:g} times clip {self.privacy.clip:g} hides {whose}"

    def origin(self, question: str, client: ClientState) -> str:
        """What an answer follows from: the question, the state before it and, if there is one, the secret.

        A folder that was removed takes its secret with it: the same question then gets other noise.
        """
        secret = "" if self.privacy is None else OwnRandomness.kept_in(self._folder).of("mark").secret.hex()
        return digest({"message": question, "secret": secret}, {"state": client})

    @contextmanager
    def own_randomness(self, origin: str) -> Iterator[None]:
        """What is drawn in the block is drawn for what an answer follows from; nobody else can draw it."""
        if self.privacy is None:
            yield
        else:
            with OwnRandomness.kept_in(self._folder).of(origin).used_in(self._setting):
                yield

    def hidden(self, upload: Message) -> Message:
        """What is told of an upload: with this silo's share of the noise, if the silo is to be hidden."""
        if not self._deviation:
            return upload
        noisy = noised(upload, self._deviation)
        return noisy if self._is_summed else as_told(noisy, upload)

    def price(self, agreed: AgreedExchange, exchanges: AgreedExchanges, cohort: Cohort) -> Price:
        """What the answer to an exchange costs; how many gradients a step takes, stand-ins tell once."""
        if self.privacy is None:
            return Price(ALL_THAT_THERE_IS if tree.leaves(agreed.upload) else {})
        self._stand_ins = self._stand_ins or Prices(exchanges.setting, Uniform(), self.privacy)
        counts = self._stand_ins.of_exchange(agreed.exchange, exchanges.server, 0)
        if isinstance(self.privacy, RowPrivacy):
            steps = int(cohort.steps)
            counts = Counter({gradients: steps * batches for gradients, batches in counts.items()})
        name = self._setting.federation.names[int(cohort.ids)]
        own = Prices(self._setting, Uniform(), self.privacy)
        spending = own.spending(name, counts, self.privacy.multiplier)
        return Price(spending, sum(gradients * batches for gradients, batches in counts.items()))

    def own_weight(self, exchange: Exchange, cohort: Cohort) -> float:
        """How much this silo counts in a sum; where it is hidden, as much as any other: so does its noise."""
        weight = own_weight(exchange, cohort)
        if self._deviation and weight != 1:
            raise UserError(
                f"privacy.unit=silo needs replies of equal weights, and this silo's would be {weight:g}"
            )
        return weight
