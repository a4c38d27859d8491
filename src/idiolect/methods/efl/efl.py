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

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import (
    STRICT,
    Batch,
    Batches,
    Cohort,
    Epochs,
    Exchange,
    Info,
    LocalWork,
    Method,
    OwnCodec,
    Params,
    Population,
    Predictor,
    PredictorKind,
    Schedule,
    Scope,
    Site,
    TrainedNewcomer,
    hyper,
    tree,
)
from idiolect.methods.efl.fisher import FisherKind, diagonal_fisher
from idiolect.methods.efl.terms import Activity, Elastic, ReplyWeighting, Terms, elastic_weights


class Server(NamedTuple):
    """ω, U and V, who was heard how often, and the round."""

    w: Params
    elastic: Elastic | tuple[()]
    activity: Activity
    round: Tensor


class Client(NamedTuple):
    """x: the model after the last local steps."""

    localized: Params


class Down(NamedTuple):
    """ω, and U, V (nothing while they are zero, before the first report)."""

    w: Params
    fisher: Terms | tuple[()]


class Up(NamedTuple):
    """The change x - ω, the Fisher terms u_k, v_k where they are due, the completed steps s_k."""

    delta: Params
    fisher: Terms | tuple[()]
    steps: Tensor


class Brief(NamedTuple):
    """To predict with: ω."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EFL(Method):
    """Elastic term, partial work and sparse ternary messages."""

    name: ClassVar[str] = "efl"
    aliases: ClassVar[tuple[str, ...]] = ("elastic",)
    paper: ClassVar[str] = "Elastic federated learning"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("localized", "global")
    judged_by: ClassVar[PredictorKind] = "global"
    stateful: ClassVar[bool] = True

    learning_rate: Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: LocalWork = hyper(10, "full local work of a round", symbol="E")
    elasticity: float = hyper(
        0.01, "weight of the elastic term; useful values shrink as 1 / clients", symbol="λ", ge=0
    )
    keep: float | None = hyper(
        0.3, "fraction of the entries that a message keeps; None: no compression", symbol="q",
        paper="0.1, 0.3, 0.6", gt=0, le=1,
    )  # fmt: skip
    scope: Scope = hyper("per_tensor", "compress each tensor, or all parameters as one vector")
    weighting: ReplyWeighting = hyper(
        "unbiased", "weights of replies, divided by the chance of being asked, by nothing, by Σ p^k",
        symbol="p_τ^k",
    )  # fmt: skip
    fisher: FisherKind = hyper("empirical", "whose targets the Fisher information is taken over", symbol="I")
    fisher_rows: int | None = hyper(None, "rows that it is estimated on; None: all training rows", ge=1)
    fisher_every: int = hyper(1, "rounds from one report of Fisher terms to the next", ge=1)
    fisher_norm: Literal["sum", "mean"] = hyper(
        "sum", "U and V as sums over clients, or means: then λ does not depend on how many there are"
    )
    stale_terms: bool = hyper(False, "keep each client's last terms, not only those of the last round")
    exclude_self: bool = hyper(False, "send each client U and V without its own terms")
    scale_before_compress: bool = hyper(False, "apply E / s before the compression, not after it")
    server_apply: Literal["compressed", "debiased"] = hyper(
        "compressed", "the global model: as clients hold it, or with what they have not been told yet"
    )
    abandon_above: float | None = hyper(
        None, "advise to drop clients that are inactive more often than this", symbol="y^a", ge=0, le=1
    )

    @model_validator(mode="after")
    def _scaling_needs_common_steps(self) -> Self:
        if self.scale_before_compress and isinstance(self.local_steps, Epochs):
            raise ValueError("scale_before_compress needs local_steps to be a number, the same for all")
        return self

    def own_codec(self) -> OwnCodec | None:
        """ST, for the changes in both directions."""
        if self.keep is None:
            return None
        predicts_with: Literal["held", "server"] = "held" if self.server_apply == "compressed" else "server"
        return OwnCodec("ternary", {"keep": self.keep}, self.scope, predicts_with)

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """U = V = 0."""
        clients, keeps_table = len(population.sizes), self.stale_terms or self.exclude_self
        elastic = Elastic.begin(params, clients, keeps_table=keeps_table) if self.elasticity else ()
        return Server(params, elastic, Activity.begin(clients), torch.tensor(0))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """x = ω."""
        return Client(server.w)

    def exchanges(self, server: Server) -> tuple["Round"]:
        """One exchange; Fisher terms are reported in every `fisher_every`-th round."""
        reports = self.elasticity > 0 and int(server.round) % self.fisher_every == 0
        return (Round(method=self, local_steps=self.local_steps, reports=reports),)

    def end_round(self, server: Server) -> Server:
        """τ + 1."""
        return server._replace(round=server.round + 1)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """ω."""
        return Brief(server.w)

    def predictors(self, client: Client, brief: Brief) -> dict[PredictorKind, Predictor]:
        """x after the client's last local steps, and the shared model."""
        return {"localized": client.localized, "global": brief.w}

    def newcomer(self, server: Server) -> tuple["EFLNewcomer", Server]:
        """The local work of a round, of which nothing is reported."""
        return EFLNewcomer(self, self.local_steps), server

    def terms(self, server: Server, without: Tensor | None) -> Terms | tuple[()]:
        """U and V, or, stacked, each `without` the terms of one client; nothing while they are zero."""
        if not isinstance(server.elastic, Elastic) or not server.elastic.contributors.any():
            return ()
        return server.elastic.sent(without, mean=self.fisher_norm == "mean")

    def local_step(self, x: Params, down: Down, batch: Batch, site: Site) -> Params:
        """C2, as (1 - ηλU) ⊙ x + ηλV - η∇f_k(x; ξ): fewer passes over the parameters."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(x, batch)
        if isinstance(down.fisher, Terms):
            pull = rate * self.elasticity
            x = tree.map_tree(lambda x, u, v: (1 - pull * u) * x + pull * v, x, *down.fisher)
        return tree.step(x, rate, gradient)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Round(Exchange):
    """What a client and the server do in a round that reports Fisher terms, or in one that does not."""

    changes_of: ClassVar[dict[str, str]] = {"delta": "w"}
    common_fields: ClassVar[frozenset[str]] = frozenset({"w"})

    method: EFL
    local_steps: LocalWork
    reports: bool

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
        if not self.personal_down:
            return Down(server.w, self.method.terms(server, without=None))
        return Down(tree.repeat(server.w, len(ids)), self.method.terms(server, without=ids))

    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """C1: x <- ω."""
        return down.w

    def step(self, work: Params, client: Client, down: Down, batches: Batches, site: Site) -> Params:
        """C2."""
        return self.method.local_step(work, down, batches[0], site)

    def finish(self, work: Params, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C4, C5: the next round starts from ω, not from x."""
        change = tree.subtract(work, down.w)
        if self.method.scale_before_compress:
            completed = site.steps.to(tree.scalar_of(work).dtype)
            change = tree.scale(change, site.clock.local_steps / completed)
        terms: Terms | tuple[()] = ()
        if self.reports:
            u = diagonal_fisher(self.method.fisher, work, site, self.method.fisher_rows)
            terms = Terms(u, tree.map_tree(torch.mul, u, work))
        return Client(work), Up(change, terms, site.steps.to(torch.int32))

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """S3 and S5."""
        efl, elastic = self.method, server.elastic
        weights = elastic_weights(replies.steps, cohort, efl.weighting, scaled=efl.scale_before_compress)
        w = tree.add(server.w, tree.weighted_sum(replies.delta, weights))
        if isinstance(elastic, Elastic) and isinstance(replies.fisher, Terms):
            elastic = elastic.reported(replies.fisher, cohort, stale=efl.stale_terms)
        server = Server(w, elastic, server.activity.heard(cohort), server.round)
        return server, self._diagnostics(server, weights)

    def _diagnostics(self, server: Server, weights: Tensor) -> Info:
        """Σ p, λ max U (stable if rate * (L + λ max U) < 2), and who is often inactive."""
        info: Info = {"weight_sum": weights.sum(), "inactive_rate": server.activity.inactive_rate}
        if isinstance(server.elastic, Elastic):
            info["elastic_strength"] = self.method.elasticity * server.elastic.largest
        if self.method.abandon_above is not None:
            info["abandon"] = server.activity.inactive_rate > self.method.abandon_above
        return info


@dataclass(frozen=True, config=STRICT)
class EFLNewcomer(TrainedNewcomer):
    """The local steps of a round; none of the terms is the newcomer's own."""

    method: EFL
    local_steps: LocalWork

    def down(self, server: Server, ids: Tensor) -> Down:
        """ω, U and V."""
        return Down(server.w, self.method.terms(server, without=None))

    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """x <- ω."""
        return down.w

    def step(self, work: Params, client: Client, down: Down, batches: Batches, site: Site) -> Params:
        """C2."""
        return self.method.local_step(work, down, batches[0], site)

    def keep(self, work: Params, client: Client, down: Down, site: Site) -> Client:
        """x."""
        return Client(work)
