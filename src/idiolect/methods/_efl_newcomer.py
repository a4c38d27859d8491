"""How a client that was not there in training gets an EFL model: local steps from the shared one.

x <- ω;  repeat:  x <- x - η (∇f(x; ξ) + λ (U ⊙ x - V))   with all of U and V: none of the terms is its own
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Site
from idiolect.core.objective import Batch
from idiolect.core.tree import Params

if TYPE_CHECKING:
    from idiolect.methods.efl import Client, Down, Round, Server


@dataclass(frozen=True)
class Newcomer(Exchange):
    """The local steps of a round, of which nothing is sent."""

    training: "Round"
    local_steps: LocalWork

    def down(self, server: "Server", ids: Tensor) -> "Down":
        """ω, U and V."""
        return self.training.down_to_strangers(server)

    def begin(self, client: "Client", down: "Down", site: Site) -> Params:
        """x <- ω."""
        return down.w

    def step(
        self, work: Params, client: "Client", down: "Down", batches: tuple[Batch, ...], site: Site
    ) -> Params:
        """C2."""
        return self.training.step(work, client, down, batches, site)

    def finish(self, work: Params, client: "Client", down: "Down", site: Site) -> tuple["Client", tuple[()]]:
        """Keep x; nothing is sent, so nothing is left out of it."""
        return client._replace(localized=work), ()

    def absorb(self, server: "Server", replies: tuple[()], cohort: Cohort) -> tuple["Server", Info]:
        """The server learns nothing from a newcomer."""
        return server, {}
