"""How a client that was not there in training gets an APFL model (eq. 7). Spec 1.6.

v <- v - rate ∇_v f_k(α v + (1 - α) ŵ; ξ)   from v = ŵ, with the run's shared model ŵ frozen

Where α is learned it moves in every step, also with `mixing_update=round`: a newcomer has one round only, in
whose first step v = ŵ, so that eq. 6 would leave α where it is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Site
from idiolect.core.objective import Batch
from idiolect.core.projection import onto_ball
from idiolect.core.tree import Params

if TYPE_CHECKING:
    from idiolect.methods.apfl import APFL, Client, Server


class Down(NamedTuple):
    """To the newcomer: ŵ."""

    w: Params


@dataclass(frozen=True)
class Newcomer(Exchange):
    """Train v, and α where it is learned, on one's own rows."""

    method: "APFL"
    local_steps: LocalWork

    def down(self, server: "Server", ids: Tensor) -> Down:
        """ŵ."""
        return Down(server.w)

    def begin(self, client: "Client", down: Down, site: Site) -> "Client":
        """Start from v = ŵ."""
        return client

    def step(
        self, work: "Client", client: "Client", down: Down, batches: tuple[Batch, ...], site: Site
    ) -> "Client":
        """Only v (and α, where it is learned) moves."""
        method, objective = self.method, site.objective
        v_gradient, alpha_gradient = method._mixed_gradients(
            objective, work.v, work.alpha, down.w, batches[0]
        )
        v = onto_ball(tree.step(work.v, site.rate(method.learning_rate), v_gradient), method.ball_radius)
        return work._replace(v=v, alpha=method._moved_alpha(work.alpha, alpha_gradient, site))

    def finish(self, work: "Client", client: "Client", down: Down, site: Site) -> tuple["Client", tuple[()]]:
        """Keep v and α; nothing is sent."""
        return work, ()

    def absorb(self, server: "Server", replies: tuple[()], cohort: Cohort) -> tuple["Server", Info]:
        """The server learns nothing from a newcomer."""
        return server, {}
