"""How a client that was not there in training gets a pFedKM model: the best group's, then local rounds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from idiolect.core import tree
from idiolect.core.clustering import best_group
from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Site
from idiolect.core.objective import Batch
from idiolect.core.tree import Params

if TYPE_CHECKING:
    from idiolect.methods.pfedkm import Client, Server


@dataclass(frozen=True)
class Newcomer(Exchange):
    """The local rounds of `training`, from the group model that has the least loss on the client's rows."""

    training: Exchange
    local_steps: LocalWork
    sees_all_rows: ClassVar[bool] = True

    def down(self, server: "Server", ids: Tensor) -> Params:
        """All group models."""
        return server.models

    def begin(self, client: "Client", down: Params, site: Site) -> "Client":
        """ω <- the best group's model, θ <- ω."""
        chosen = best_group(site.objective, down, site.all_rows)
        model = tree.row(down, chosen)
        return client._replace(theta=model, omega=model, chosen=chosen)

    def step(
        self, work: "Client", client: "Client", down: Params, batches: tuple[Batch, ...], site: Site
    ) -> "Client":
        """C2, which looks at no message."""
        moved: Client = self.training.step(work, client, down, batches, site)
        return moved

    def finish(
        self, work: "Client", client: "Client", down: Params, site: Site
    ) -> tuple["Client", tuple[()]]:
        """Keep all, send nothing."""
        return work, ()

    def absorb(self, server: "Server", replies: tuple[()], cohort: Cohort) -> tuple["Server", Info]:
        """The server learns nothing from a newcomer."""
        return server, {}
