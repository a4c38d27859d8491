"""The exchange of gradients, which gives PERM its weights and trains w. Spec 5.4, 5.6, 5.7.

    client i:  g_i = ∇f_i(w)                                  (m_i ⊙ ∇f_i(m_i ⊙ w), where sizes differ)
               σ̂_i², t̂_i: how the gradients of its rows differ, where λ is automatic
    server:    α_i for all i from all g, by eq. 2;    w <- Π_W(w - γ mean g)

The last known gradient of a client stands in for one that is missing.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Params, Site, tree
from idiolect.core.device import to_device
from idiolect.methods.perm.distances import GradientDistances
from idiolect.methods.perm.matrix import MixingMatrix, mixing_matrix
from idiolect.methods.perm.noise import GradientNoise, drawn, gradient_variance
from idiolect.methods.perm.server import Server
from idiolect.methods.perm.sizes import ModelSizes, compared_kinds, each_held, held, held_by
from idiolect.methods.perm.weights import WeightRule
from idiolect.methods.submodels.chain import Chain, average_of_holders

LOGGED_CLIENTS = 100  # up to so many the whole matrix is among the diagnostics


class Down(NamedTuple):
    """To every client: the global model (or its part of it)."""

    w: Params


class Up(NamedTuple):
    """From client i: ∇f_i(w), and of one row's gradient the traces of its covariance and of that squared.

    Nothing of the latter where λ is given, or where no weights are computed.
    """

    g: Params
    variance: Tensor | tuple[()]  # σ̂²: [kinds]
    square: Tensor | tuple[()]  # t̂


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GradientExchange(core.Exchange):
    """g_i = ∇f_i(w); then the weights of all, and a step of w, where they are asked for."""

    personal_down: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True

    weight_rule: WeightRule | None  # None: no weights, as in a warm-up
    model_sizes: ModelSizes | None
    rows: int | None = None  # M; None: all
    once: bool = False  # ask only those whose gradient is not known yet
    global_rate: core.Schedule | None = None  # γ; None: w stays
    ball_radius: float | None = None  # of W

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """Everybody who is there, or those not heard yet."""
        return cohort.select(~server.heard[cohort.ids]) if self.once else cohort

    def down(self, server: Server, ids: Tensor) -> Down:
        """w, for a client of small capacity m_i ⊙ w."""
        return Down(each_held(tree.repeat(server.w, len(ids)), held_by(self.model_sizes, ids)))

    def begin(self, client: core.ClientState, down: Down, site: Site) -> Up:
        """g_i, for a client of small capacity m_i ⊙ ∇f_i(m_i ⊙ w); with its noise, where that is needed."""
        batch = site.all_rows if self.rows is None else drawn(site, self.rows, tag=self.rows)
        ratio = held_by(self.model_sizes, site.client_id)
        g = held(site.objective.gradient(down.w, batch), ratio)
        if self.weight_rule is None or not self.weight_rule.is_automatic:
            return Up(g, (), ())
        kinds = to_device(compared_kinds(self.model_sizes), site.size.device)
        return Up(g, *gradient_variance(site, down.w, self.rows, ratio, kinds))

    def finish(
        self, work: Up, client: core.ClientState, down: Down, site: Site
    ) -> tuple[core.ClientState, Up]:
        """Send it."""
        return client, work

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """The new weights and the first visits that they ask for; the step of w."""
        gradients = tree.map_tree(
            lambda all_, new: all_.index_copy(0, cohort.ids, new), server.gradients, replies.g
        )
        heard = server.heard.index_fill(0, cohort.ids, True)
        server = server._replace(gradients=gradients, heard=heard, gradients_at=server.w)
        if isinstance(replies.variance, Tensor) and isinstance(replies.square, Tensor):
            variances = server.variances.index_copy(0, cohort.ids, replies.variance)
            squares = server.squares.index_copy(0, cohort.ids, replies.square)
            server = server._replace(variances=variances, squares=squares)
        next_w = self._next_global(server.w, replies.g, cohort, server.round)
        if self.weight_rule is None:
            return server._replace(w=next_w), {}
        server, info = self._reweighted(server, cohort, self.weight_rule)
        return server._replace(w=next_w).following(heard, self.model_sizes), info

    def held_parts(self, message: Down | Up, ids: Tensor) -> dict[str, Tensor]:
        """What each client can hold."""
        ratios = held_by(self.model_sizes, ids)
        whole = "w" if isinstance(message, Down) else "g"
        return {whole: ratios} if isinstance(ratios, Tensor) else {}

    def _next_global(self, w: Params, gradients: Params, cohort: core.Cohort, round_number: Tensor) -> Params:
        """Π_W(w - γ mean g_i), each parameter averaged over the clients that hold it."""
        if self.global_rate is None:
            return w
        weights = core.plain_mean(cohort)
        mean = tree.weighted_sum(gradients, weights)
        ratios = held_by(self.model_sizes, cohort.ids)
        if isinstance(ratios, Tensor):
            chain = Chain.of(w)
            mean = average_of_holders(mean, chain, chain.first_units(ratios), weights, tree.zeros_like(mean))
        return core.onto_ball(
            tree.step(w, self.global_rate(core.Clock(round_number, 0, 1)), mean), self.ball_radius
        )

    def _reweighted(self, server: Server, cohort: core.Cohort, rule: WeightRule) -> tuple[Server, core.Info]:
        active = server.heard & cohort.population.present & (server.sizes > 0)
        noise = None
        if rule.is_automatic:
            noise = GradientNoise.of(server.variances, server.squares, server.sizes, self.rows, active)
        distances = GradientDistances(server.gradients, server.sizes, self.model_sizes, noise)
        mixing, change = mixing_matrix(distances, active, rule, server.mixing)
        info = _diagnostics(mixing, server.clients) | {"mixing_change": change}
        if self.model_sizes is None:  # a visit: model and factor down, model up
            visit_bits = 2 * tree.count_bits(server.w) + tree.count_bits(mixing.weights[:1])
            info["saved_bits"] = info["skipped_visits"] * visit_bits
        return server._replace(mixing=mixing, route=server.route.planned(mixing)), info


def _diagnostics(mixing: MixingMatrix, clients: int) -> core.Info:
    """A's entropy and effective helpers (means over rows), and the visits that an epoch saves."""
    rows = len((mixing.places // clients).unique())
    info = {
        "mixing_entropy": mixing.row_entropy(clients).sum() / max(rows, 1),
        "effective_helpers": mixing.effective_helpers(clients).sum() / max(rows, 1),
        "skipped_visits": torch.tensor(clients * clients - len(mixing.places)),
    }
    if clients <= LOGGED_CLIENTS:
        info["mixing_matrix"] = mixing.rows(0, clients, clients)
    return info
