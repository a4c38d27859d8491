"""A round of FedAvg in which every client trains the sub-model that it can hold. Spec 6.13.

    client i:  w_i <- m_i ⊙ w;  repeat:  w_i <- w_i - rate * m_i ⊙ ∇f_i(w_i; batch)
    server:    each parameter <- its average over the clients that held it, unchanged if nobody did

For methods whose server has a model `w`, a counter `round` and a `key`, and whose clients have a `w`.
"""

from typing import Any, ClassVar, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, rng, tree
from idiolect.methods.submodels.chain import (
    Chain,
    Ratio,
    Selection,
    Units,
    average_of_holders,
    client_ratios,
)


class Down(NamedTuple):
    """To client i: its part of the shared model and which hidden units it has (nothing: all)."""

    w: Params
    units: Units


class Up(NamedTuple):
    """From client i: its part after the local steps."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SubmodelTraining(core.Exchange):
    """Local steps on sub-models, averaged where they were held."""

    personal_down: ClassVar[bool] = True
    # No `relative_to`: what a codec leaves out may belong to units that the client no longer holds.

    learning_rate: core.Schedule
    local_steps: core.LocalWork
    capacities: tuple[Ratio, ...] = Field(min_length=1)
    selection: Selection = "static"
    roll: int = 1  # units by which a rolling window moves in a round
    weighting: core.Weighting = "uniform"

    @property
    def whole(self) -> bool:
        """Whether everybody holds the whole model."""
        return min(self.capacities) == 1

    def down(self, server: Any, ids: Tensor) -> Down:
        """m_i ⊙ w."""
        w = tree.repeat(server.w, len(ids))
        if self.whole:
            return Down(w, ())
        units = self._units(server, ids)
        return Down(vmap(Chain.of(server.w).restrict)(w, units), units)

    def begin(self, client: Any, down: Down, site: Site) -> Params:
        """w_i <- m_i ⊙ w."""
        return down.w

    def step(self, work: Params, client: Any, down: Down, batches: Batches, site: Site) -> Params:
        """w_i <- w_i - rate * m_i ⊙ ∇f_i(w_i; batch)."""
        gradient = site.objective.gradient(work, batches[0])
        if not self.whole:
            gradient = Chain.of(work).restrict(gradient, down.units)
        return tree.step(work, site.rate(self.learning_rate), gradient)

    def finish(self, work: Params, client: Any, down: Down, site: Site) -> tuple[Any, Up]:
        """Keep and send w_i."""
        return client._replace(w=work), Up(work)

    def weights(self, server: Any, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Any, replies: Up, cohort: core.Cohort) -> tuple[Any, core.Info]:
        """Each parameter averaged over those who held it."""
        if self.whole:
            return server._replace(w=replies.w), {}
        weights, units = core.reply_weights(cohort, self.weighting), self._units(server, cohort.ids)
        return server._replace(
            w=average_of_holders(replies.w, Chain.of(server.w), units, weights, server.w)
        ), {}

    def held_parts(self, message: Down | Up, ids: Tensor) -> dict[str, Tensor]:
        """What each client holds."""
        return {} if self.whole else {"w": client_ratios(self.capacities, ids)}

    def _units(self, server: Any, ids: Tensor) -> Units:
        """The kept units of some clients in this round, stacked: a pure function of the server's state."""
        ratios, keys = client_ratios(self.capacities, ids), rng.fold(server.key, server.round, ids)
        return Chain.of(server.w).units(ratios, self.selection, server.round * self.roll, keys)
