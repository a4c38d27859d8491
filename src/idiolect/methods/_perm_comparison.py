"""The exchange that gives PERM its weights: gradients of all clients at one model. Spec 5.4, 5.6, 5.7."""

from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from idiolect.core import (
    STRICT,
    Batch,
    ClientState,
    Clock,
    Cohort,
    Exchange,
    Info,
    Params,
    Schedule,
    Site,
    onto_ball,
    rng,
    tree,
)
from idiolect.core.submodel import Chain, average_of_holders, client_ratios
from idiolect.methods._mixing import Comparison, ModelSizes, WeightRule, mixing_matrix
from idiolect.methods._mixing_matrix import MixingMatrix
from idiolect.methods._perm_server import Server, follow

LOGGED_CLIENTS = 100  # up to so many the whole matrix is among the diagnostics


class Down(NamedTuple):
    """To every client: the global model (or its part of it)."""

    w: Params


class Up(NamedTuple):
    """From client i: ∇f_i(w)."""

    g: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GradientExchange(Exchange):
    """g_i = ∇f_i(w); then w <- Π_W(w - γ mean g_i) where w is trained by it, and α_i for all i."""

    personal_down: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True

    rows: int | None  # M; None: all
    once: bool  # ask only those whose gradient is not known yet
    personal: bool  # compute weights; False in the warm-up
    global_rate: Schedule | None  # γ; None: w stays
    ball_radius: float | None
    weight_rule: WeightRule
    model_sizes: ModelSizes | None

    def ask(self, server: Server, cohort: Cohort, key: Tensor) -> Cohort:
        """Everybody who is there, or those not heard yet."""
        return cohort.select(~server.heard[cohort.ids]) if self.once else cohort

    def down(self, server: Server, ids: Tensor) -> Down:
        """w, for a client of small capacity m_i ⊙ w."""
        w = tree.repeat(server.w, len(ids))
        if self.model_sizes is None:
            return Down(w)
        chain = Chain.of(server.w)
        return Down(vmap(chain.restrict)(w, self._units(chain, ids)))

    def begin(self, client: ClientState, down: Down, site: Site) -> Params:
        """g_i, for a client of small capacity m_i ⊙ ∇f_i(m_i ⊙ w)."""
        batch = site.all_rows if self.rows is None else _drawn(site, self.rows)
        gradient = site.objective.gradient(down.w, batch)
        if self.model_sizes is None:
            return gradient
        chain = Chain.of(gradient)
        ratio = client_ratios(self.model_sizes.capacities, site.client_id)
        return chain.restrict(gradient, chain.first_units(ratio))

    def finish(self, work: Params, client: ClientState, down: Down, site: Site) -> tuple[ClientState, Up]:
        """Send it."""
        return client, Up(work)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """The step of w, the new weights and the first visits that they ask for."""
        gradients = tree.map_tree(
            lambda all_, new: all_.index_copy(0, cohort.ids, new), server.gradients, replies.g
        )
        heard = server.heard.index_fill(0, cohort.ids, True)
        server = server._replace(gradients=gradients, heard=heard, compared_at=server.w)
        info: Info = {}
        if self.personal:
            server, info = self._reweighted(server, cohort)
        server = server._replace(w=self._next_global(server, replies.g, cohort))
        return follow(server, heard & torch.tensor(self.personal), self.model_sizes), info

    def held_parts(self, message: Down | Up, ids: Tensor) -> dict[str, Tensor]:
        """What each client can hold."""
        if self.model_sizes is None:
            return {}
        return dict.fromkeys(message._fields, client_ratios(self.model_sizes.capacities, ids))

    def _next_global(self, server: Server, gradients: Params, cohort: Cohort) -> Params:
        if self.global_rate is None:
            return server.w
        rate = self.global_rate(Clock(server.round, 0, 1))
        weights = torch.full((len(cohort),), 1 / len(cohort), dtype=torch.float64)
        mean = tree.weighted_sum(gradients, weights)
        if self.model_sizes:
            chain = Chain.of(server.w)
            mean = average_of_holders(
                mean, chain, self._units(chain, cohort.ids), weights, tree.zeros_like(mean)
            )
        return onto_ball(tree.step(server.w, rate, mean), self.ball_radius)

    def _reweighted(self, server: Server, cohort: Cohort) -> tuple[Server, Info]:
        active = server.heard & cohort.population.present & (server.sizes > 0)
        comparison = Comparison(server.gradients, server.w, server.sizes, self.model_sizes)
        mixing, change = mixing_matrix(comparison, active, self.weight_rule, server.mixing)
        server = server._replace(mixing=mixing, route=server.route.planned(mixing))
        info = _diagnostics(mixing, server.clients, change)
        if self.model_sizes is None:  # a visit: model and factor down, model up
            visit_bits = 2 * tree.count_bits(server.w) + tree.count_bits(mixing.weights[:1])
            info["saved_bits"] = info["skipped_visits"] * visit_bits
        return server, info

    def _units(self, chain: Chain, ids: Tensor) -> tuple[Tensor, ...]:
        assert self.model_sizes is not None
        return chain.first_units(client_ratios(self.model_sizes.capacities, ids))


def _diagnostics(mixing: MixingMatrix, clients: int, change: Tensor) -> Info:
    """A's entropy and effective helpers (means over rows), its change, and the visits an epoch saves."""
    rows = len((mixing.places // clients).unique())
    info = {
        "mixing_entropy": mixing.row_entropy(clients).sum() / max(rows, 1),
        "effective_helpers": mixing.effective_helpers(clients).sum() / max(rows, 1),
        "mixing_change": change,
        "skipped_visits": torch.tensor(clients * clients - len(mixing.places)),
    }
    if clients <= LOGGED_CLIENTS:
        info["mixing_matrix"] = mixing.rows(0, clients, clients)
    return info


def _drawn(site: Site, count: int) -> Batch:
    """Some of a client's training rows, drawn without replacement; all if it has fewer."""
    rows, size, place = site.all_rows, site.size.clamp_min(1), torch.arange(count)
    chosen = rng.permute(place % size, size, rng.fold(site.key, count))
    weights = (place < size).to(rows.weights.dtype) / torch.minimum(size, torch.tensor(count))
    return Batch(rows.inputs[chosen], rows.targets[chosen], weights)
