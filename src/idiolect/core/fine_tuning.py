"""How a newcomer gets a model where the server has one for all: it trains its own copy of it. Spec 6.2.

    w_i <- w;  repeat local_steps times:  w_i <- w_i - rate * grad f_i(w_i; batch)

For methods whose server and client states both call that model `w`.
"""

from typing import Any

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.hyper import STRICT
from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Site
from idiolect.core.objective import Batch
from idiolect.core.schedule import Schedule
from idiolect.core.tree import Params


@dataclass(frozen=True, config=STRICT)
class FineTuning(Exchange):
    """Plain local steps from the shared model; the client keeps the result and sends nothing."""

    learning_rate: Schedule
    local_steps: LocalWork

    def down(self, server: Any, ids: Tensor) -> Params:
        """w."""
        return server.w

    def begin(self, client: Any, down: Params, site: Site) -> Params:
        """w_i <- w."""
        return down

    def step(self, work: Params, client: Any, down: Params, batches: tuple[Batch, ...], site: Site) -> Params:
        """w_i <- w_i - rate * grad f_i(w_i; batch)."""
        return tree.step(work, site.rate(self.learning_rate), site.objective.gradient(work, batches[0]))

    def finish(self, work: Params, client: Any, down: Params, site: Site) -> tuple[Any, tuple[()]]:
        """Keep w_i."""
        return client._replace(w=work), ()

    def absorb(self, server: Any, replies: Any, cohort: Cohort) -> tuple[Any, Info]:
        """The server learns nothing from a newcomer."""
        return server, {}
