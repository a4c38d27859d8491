"""EFL: elastic federated learning with partial work and sparse ternary messages. Spec 3.

One shared model ω for all clients, pulled towards where the clients' last models ω^i agree and where their
predictions depend on it (u^i: diagonal Fisher information at ω^i, v^i = u^i ⊙ ω^i):

    client k:  x <- ω;  repeat s_k times:  x <- x - η (∇f_k(x; ξ) + λ (U ⊙ x - V))            (C1, C2)
               send x - ω, u_k, v_k, s_k                                                        (C4, C5)
    server:    ω <- ω + Σ_k p_τ^k (x_k - ω),    p_τ^k = (E / s_k) p^k / π_k,   p^k = n_k / n    (S3, 3.7)
               U = Σ u_k,  V = Σ v_k   over the reporters of the round                          (S5)

Changes pass through a sparse ternary codec in both directions, with error feedback (`own_codec`; C4 and S4
are the equations of `idiolect.codecs.compressed`): clients send ST(R_k + (x - ω)), and hold what ST has told
them of the server's ω. π_k is the chance with which k was asked, E the full local work. A newcomer takes the
local steps of a round, with all of U and V, and reports nothing.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, tree
from idiolect.methods.efl.hyper_parameters import Settings
from idiolect.methods.efl.states import Client, Down, Server, Up
from idiolect.methods.efl.terms import Activity, Elastic, Terms, diagnostics, elastic_weights


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EFL(Settings, core.Method):
    """Elastic term, partial work and sparse ternary messages."""

    name: ClassVar[str] = "efl"
    aliases: ClassVar[tuple[str, ...]] = ("elastic",)
    paper: ClassVar[str] = "Elastic federated learning"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "global")
    judged_by: ClassVar[core.PredictorKind] = "global"
    stateful: ClassVar[bool] = True

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """λ U adds curvature: a client's Fisher information is about L, and U sums over clients."""
        summed = clients if self.fisher_norm == "sum" else 1
        return {"learning_rate": 1 / (smoothness * (1 + self.elasticity * summed))}

    def own_codec(self) -> core.OwnCodec | None:
        """ST, for the changes in both directions."""
        if self.keep is None:
            return None
        held = self.server_apply == "compressed"
        return core.OwnCodec("ternary", {"keep": self.keep}, self.scope, "held" if held else "server")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """U = V = 0."""
        clients, keeps_table = len(population.sizes), self.stale_terms or self.exclude_self
        elastic = Elastic.begin(params, clients, keeps_table=keeps_table)
        return Server(params, elastic, Activity.begin(clients), torch.tensor(0))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """x = ω."""
        return Client(server.w, Terms.zero(server.w) if self.keeps_terms else ())

    def exchanges(self, server: Server) -> tuple["Round"]:
        """One exchange; in every `fisher_every`-th round terms are reported, in the next U and V are told."""
        since_report = int(server.round) % self.fisher_every
        reports, tells = self.elasticity > 0 and since_report == 0, since_report == 1 % self.fisher_every
        return (Round(method=self, local_steps=self.local_steps, reports=reports, tells=tells),)

    @property
    def keeps_terms(self) -> bool:
        """Whether clients remember U and V."""
        return self.elasticity > 0 and self.fisher_every > 1

    def end_round(self, server: Server) -> Server:
        """τ + 1."""
        return server._replace(round=server.round + 1)

    def brief(self, server: Server, ids: Tensor) -> core.SharedModel:
        """ω."""
        return core.SharedModel(server.w)

    def predictors(self, client: Client, brief: core.SharedModel) -> core.Predictors:
        """x after the client's last local steps, and the shared model."""
        return {"localized": client.localized, "global": brief.w}

    def newcomer(self, server: Server) -> tuple["EFLNewcomer", Server]:
        """The local work of a round, of which nothing is reported."""
        return EFLNewcomer(self, self.local_steps), server

    def downlink(self, server: Server, without: Tensor | None) -> Down:
        """S1: ω, U and V; or, stacked, each `without` the terms of one client."""
        w = server.w if without is None else tree.repeat(server.w, len(without))
        return Down(w, server.elastic.sent(without, mean=self.fisher_norm == "mean"))

    def local_step(self, x: Params, terms: Terms | tuple[()], batch: core.Batch, site: Site) -> Params:
        """C2, as (1 - ηλU) ⊙ x + ηλV - η∇f_k(x; ξ): fewer passes over the parameters."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(x, batch)
        if isinstance(terms, Terms):
            pull = rate * self.elasticity
            x = tree.map_tree(lambda x, u, v: (1 - pull * u) * x + pull * v, x, *terms)
        return tree.step(x, rate, gradient)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Round(core.Exchange):
    """What a client and the server do in a round that reports Fisher terms, or in one that does not."""

    changes_of: ClassVar[dict[str, str]] = {"delta": "w"}
    common_fields: ClassVar[frozenset[str]] = frozenset({"w"})

    method: EFL
    local_steps: core.LocalWork
    reports: bool
    tells: bool

    @property
    def personal_down(self) -> bool:  # type: ignore[override]
        """Whether each client gets U and V without its own terms."""
        return self.method.exclude_self and self.method.elasticity > 0

    @property
    def sees_all_rows(self) -> bool:  # type: ignore[override]
        """Fisher information is taken over the training rows."""
        return self.reports and self.method.fisher != "unit"

    def down(self, server: Server, ids: Tensor) -> Down:
        """S1: ω, U and V."""
        down = self.method.downlink(server, ids if self.personal_down else None)
        return down if self.tells else down._replace(fisher=())

    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """C1: x <- ω."""
        return down.w

    def step(self, work: Params, client: Client, down: Down, batches: Batches, site: Site) -> Params:
        """C2."""
        return self.method.local_step(work, down.fisher or client.terms, batches[0], site)

    def finish(self, work: Params, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C4, C5: the next round starts from ω, not from x."""
        change = tree.subtract(work, down.w)
        if self.method.scale_before_compress:
            completed = site.steps.to(tree.scalar_of(work).dtype)
            change = tree.scale(change, site.clock.local_steps / completed)
        terms = Terms.of(self.method.fisher, work, site, self.method.fisher_rows) if self.reports else ()
        kept = (down.fisher or client.terms) if self.method.keeps_terms else ()
        return Client(work, kept), Up(change, terms, site.steps.to(torch.int32))

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """S3 and S5."""
        efl, elastic = self.method, server.elastic
        weights = elastic_weights(replies.steps, cohort, efl.weighting, scaled=efl.scale_before_compress)
        w = tree.add(server.w, tree.weighted_sum(replies.delta, weights))
        if isinstance(replies.fisher, Terms):
            elastic = elastic.reported(replies.fisher, cohort, stale=efl.stale_terms)
        server = Server(w, elastic, server.activity.heard(cohort), server.round)
        info = diagnostics(server.activity, server.elastic, efl.elasticity, efl.abandon_above)
        return server, {"weight_sum": weights.sum(), **info}


@dataclass(frozen=True, config=STRICT)
class EFLNewcomer(core.TrainedNewcomer):
    """The local steps of a round from x = ω; none of the terms is the newcomer's own."""

    method: EFL
    local_steps: core.LocalWork

    def down(self, server: Server, ids: Tensor) -> Down:
        """ω, U and V."""
        return self.method.downlink(server, None)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """C2."""
        return Client(self.method.local_step(work.localized, down.fisher, batches[0], site), client.terms)
