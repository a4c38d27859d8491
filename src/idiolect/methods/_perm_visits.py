"""A model's visit to a client, to be trained there (spec 5.5) or to collect a gradient for the last step."""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from idiolect.core import (
    STRICT,
    Batches,
    ClientState,
    Cohort,
    Exchange,
    Info,
    LocalWork,
    Params,
    Schedule,
    Site,
    tree,
)
from idiolect.core.submodel import Chain, fit
from idiolect.methods._mixing import ModelSizes
from idiolect.methods._perm_server import Server
from idiolect.methods._shuffling import NOBODY

StepRule = Literal["per_model", "literal"]


class Down(NamedTuple):
    """To client c: the model i that visits it and the factor of its rate, N α_i(c) or α_i(c) / max α_i."""

    v: Params
    factor: Tensor
    ratio: Tensor | tuple[()]  # the part of every hidden layer that travels, where sizes differ


class Up(NamedTuple):
    """From client c: the model after its local steps, or α_i(c) ∇f_c(v_i)."""

    v: Params
    ratio: Tensor | tuple[()]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Visit(Exchange):
    """K steps v <- v - η N α_i(c) ∇f_c(v; ξ) of model i at client c."""

    personal_down: ClassVar[bool] = True
    # No `relative_to`: what a codec leaves out of one model would be added to the next model that visits.

    learning_rate: Schedule
    local_steps: LocalWork
    step_rule: StepRule
    step_cap: float | None
    model_sizes: ModelSizes | None

    def ask(self, server: Server, cohort: Cohort, key: Tensor) -> Cohort:
        """Those whom a model visits in this round."""
        return cohort.select(server.route.visitors[cohort.ids] != NOBODY)

    def down(self, server: Server, ids: Tensor) -> Down:
        """v_i and its factor for each client."""
        models, clients = server.route.visitors[ids], server.clients
        weight = server.mixing.at(models, ids, clients)
        if self.step_rule == "per_model":
            factor = weight / server.mixing.largest(clients)[models]
        else:
            factor = clients * weight
        return _sent(server, models, ids, factor, self.model_sizes)

    def begin(self, client: ClientState, down: Down, site: Site) -> Params:
        """v_i."""
        return down.v

    def step(self, work: Params, client: ClientState, down: Down, batches: Batches, site: Site) -> Params:
        """v <- v - η N α_i(c) ∇f_c(v; ξ), with the applied rate capped."""
        rate = site.rate(self.learning_rate) * down.factor
        if self.step_cap is not None:
            rate = rate.clamp_max(self.step_cap)
        return tree.step(work, rate, _held(site.objective.gradient(work, batches[0]), down.ratio))

    def finish(self, work: Params, client: ClientState, down: Down, site: Site) -> tuple[ClientState, Up]:
        """Send the model back; nothing stays."""
        return client, Up(work, down.ratio)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """v_i <- the returned model; outside of what travelled it stays as it was."""
        models = server.route.visitors[cohort.ids]
        returned = replies.v
        if isinstance(replies.ratio, Tensor):
            returned = _inserted(returned, tree.select(server.v, models), replies.ratio)
        v = tree.map_tree(lambda all_models, new: all_models.index_copy(0, models, new), server.v, returned)
        info = {
            "visits": torch.tensor(len(cohort)),
            "waiting_visits": torch.tensor(len(server.route.waiting)),
        }
        return server._replace(v=v, route=server.route.back_from(cohort.ids)), info

    def held_parts(self, message: Down | Up, ids: Tensor) -> dict[str, Tensor]:
        """What travels of the model."""
        return {"v": message.ratio} if isinstance(message.ratio, Tensor) else {}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GradientVisit(Exchange):
    """One part of Σ_j α_i(j) ∇f_j(v_i): client c's full gradient at the model i that visits it."""

    personal_down: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True

    model_sizes: ModelSizes | None

    def ask(self, server: Server, cohort: Cohort, key: Tensor) -> Cohort:
        """Those whom a model visits in this round."""
        return cohort.select(server.route.visitors[cohort.ids] != NOBODY)

    def down(self, server: Server, ids: Tensor) -> Down:
        """v_i and α_i(c) for each client."""
        models = server.route.visitors[ids]
        weight = server.mixing.at(models, ids, server.clients)
        return _sent(server, models, ids, weight, self.model_sizes)

    def begin(self, client: ClientState, down: Down, site: Site) -> Params:
        """α_i(c) ∇f_c(v_i)."""
        return tree.scale(_held(site.objective.gradient(down.v, site.all_rows), down.ratio), down.factor)

    def finish(self, work: Params, client: ClientState, down: Down, site: Site) -> tuple[ClientState, Up]:
        """Send it."""
        return client, Up(work, down.ratio)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """Add it to the sum of its model."""
        models = server.route.visitors[cohort.ids]
        total = tree.map_tree(
            lambda sums, new: sums.index_add(0, models, new), server.final_gradient, replies.v
        )
        return server._replace(final_gradient=total, route=server.route.back_from(cohort.ids)), {}

    def held_parts(self, message: Down | Up, ids: Tensor) -> dict[str, Tensor]:
        """What travels of the gradient."""
        return {"v": message.ratio} if isinstance(message.ratio, Tensor) else {}


def _sent(server: Server, models: Tensor, ids: Tensor, factor: Tensor, sizes: ModelSizes | None) -> Down:
    """The visiting models, cut to what owner and host both hold: nested, so the smaller of the two."""
    v = tree.select(server.v, models)
    if sizes is None:
        return Down(v, factor, ())
    ratios = sizes.ratios(server.clients)
    ratio = torch.minimum(ratios[models], ratios[ids])
    return Down(vmap(_held)(v, ratio), factor, ratio)


def _held(values: Params, ratio: Tensor | tuple[()]) -> Params:
    """Zero outside of the sub-model."""
    if not isinstance(ratio, Tensor):
        return values
    chain = Chain.of(values)
    return chain.restrict(values, chain.first_units(ratio))


def _inserted(returned: Params, before: Params, ratio: Tensor) -> Params:
    """The models as before, with what came back in its place; all stacked."""
    chain = Chain.of(tree.row(before, 0))

    def one(new: Params, old: Params, ratio: Tensor) -> Params:
        masks = chain.masks(chain.first_units(ratio))
        return {name: torch.where(fit(masks[name], old[name]), new[name], old[name]) for name in old}

    return vmap(one)(returned, before, ratio)
