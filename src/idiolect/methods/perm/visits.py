"""The visits of personal models at clients: to be trained there, or to collect gradients. Spec 5.5, 5.7.

    model i at client c, K steps:          v <- v - η N α_i(c) ∇f_c(v; ξ)
    for the last step, on all rows of c:   α_i(c) ∇f_c(v_i)

Where models have different sizes, what owner and host both hold travels, and the rest stays as it was.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, tree
from idiolect.methods.perm.route import NOBODY
from idiolect.methods.perm.server import Server
from idiolect.methods.perm.sizes import Held, ModelSizes, each_held, held

StepRule = Literal["per_model", "literal"]


class Down(NamedTuple):
    """To client c: the model i that visits it, and a factor: of its rate, or of its gradient."""

    v: Params
    factor: Tensor
    ratio: Held  # the part of every hidden layer that travels


class Up(NamedTuple):
    """From client c: the model after its local steps, or α_i(c) ∇f_c(v_i)."""

    v: Params
    ratio: Held


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Visits(core.Exchange, ABC):
    """What all visits have in common: which model goes where, and that nothing stays there."""

    personal_down: ClassVar[bool] = True

    model_sizes: ModelSizes | None

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """Those whom a model visits in this round."""
        return cohort.select(server.route.visitors[cohort.ids] != NOBODY)

    def down(self, server: Server, ids: Tensor) -> Down:
        """v_i and its factor for each client."""
        models = server.route.visitors[ids]
        ratio: Held = ()
        if self.model_sizes:
            ratios = self.model_sizes.ratios(server.clients)
            ratio = torch.minimum(ratios[models], ratios[ids])
        return Down(each_held(tree.select(server.v, models), ratio), self._factor(server, models, ids), ratio)

    @abstractmethod
    def _factor(self, server: Server, models: Tensor, ids: Tensor) -> Tensor:
        """The factor for each model at its client."""

    def finish(
        self, work: Params, client: core.ClientState, down: Down, site: Site
    ) -> tuple[core.ClientState, Up]:
        """Send back what was made of the model; nothing stays."""
        return client, Up(work, down.ratio)

    def held_parts(self, message: Down | Up, ids: Tensor) -> dict[str, Tensor]:
        """What travels of the model, or of the gradient."""
        return {"v": message.ratio} if isinstance(message.ratio, Tensor) else {}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainingVisits(_Visits):
    """K steps v <- v - η N α_i(c) ∇f_c(v; ξ) of model i at client c."""

    # No `relative_to`: what a codec leaves out of one model would be added to the next model that visits.

    learning_rate: core.Schedule
    local_steps: core.LocalWork
    step_rule: StepRule
    step_cap: float | None

    def _factor(self, server: Server, models: Tensor, ids: Tensor) -> Tensor:
        """N α_i(c), or α_i(c) / max α_i."""
        weights = server.mixing.at(models, ids, server.clients)
        if self.step_rule == "literal":
            return server.clients * weights
        return weights / server.mixing.largest(server.clients)[models]

    def begin(self, client: core.ClientState, down: Down, site: Site) -> Params:
        """v_i."""
        return down.v

    def step(
        self, work: Params, client: core.ClientState, down: Down, batches: Batches, site: Site
    ) -> Params:
        """v <- v - η N α_i(c) ∇f_c(v; ξ), with the applied rate capped."""
        rate = site.rate(self.learning_rate) * down.factor
        if self.step_cap is not None:
            rate = rate.clamp_max(self.step_cap)
        return tree.step(work, rate, held(site.objective.gradient(work, batches[0]), down.ratio))

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """v_i <- the returned model; outside of what travelled it stays as it was."""
        models = server.route.visitors[cohort.ids]
        returned = replies.v
        if isinstance(replies.ratio, Tensor):
            travelled = each_held(tree.map_tree(torch.ones_like, returned), replies.ratio)
            before = tree.select(server.v, models)
            returned = tree.map_tree(
                lambda there, new, old: torch.where(there > 0, new, old), travelled, returned, before
            )
        v = tree.map_tree(lambda all_models, new: all_models.index_copy(0, models, new), server.v, returned)
        info = {
            "visits": torch.tensor(len(cohort)),
            "waiting_visits": torch.tensor(len(server.route.waiting)),
        }
        return server._replace(v=v, route=server.route.back_from(cohort.ids)), info


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GradientVisits(_Visits):
    """One part of Σ_j α_i(j) ∇f_j(v_i): client c's full gradient at the model i that visits it."""

    sees_all_rows: ClassVar[bool] = True

    def _factor(self, server: Server, models: Tensor, ids: Tensor) -> Tensor:
        """α_i(c)."""
        return server.mixing.at(models, ids, server.clients)

    def begin(self, client: core.ClientState, down: Down, site: Site) -> Params:
        """α_i(c) ∇f_c(v_i)."""
        return tree.scale(held(site.objective.gradient(down.v, site.all_rows), down.ratio), down.factor)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """Add it to the sum of its model."""
        models = server.route.visitors[cohort.ids]
        total = tree.map_tree(
            lambda sums, new: sums.index_add(0, models, new), server.final_gradient, replies.v
        )
        return server._replace(final_gradient=total, route=server.route.back_from(cohort.ids)), {}
