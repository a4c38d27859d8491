"""EFL: elastic federated learning with partial work and sparse ternary messages. Spec 3.

One shared model ω for all clients, pulled towards where the clients' last models ω^i agree and where their
predictions depend on it (u^i: diagonal Fisher information at ω^i, v^i = u^i ⊙ ω^i):

    client k:  x <- ω;  repeat s_k times:  x <- x - η (∇f_k(x; ξ) + λ (U ⊙ x - V))            (C1, C2)
               Δ_k = R_k + (x - ω);  send T_k = ST(Δ_k), u_k, v_k, s_k;  R_k <- Δ_k - T_k      (C4, C5)
    server:    A = Σ_k p_τ^k T_k,    p_τ^k = (E / s_k) p^k / π_k,   p^k = n_k / n              (S3, 3.7)
               Δ_G = R_G + A;  T_G = ST(Δ_G);  R_G <- Δ_G - T_G;  ω <- ω + T_G                 (S4)
               U = Σ u_k,  V = Σ v_k   over the reporters of the round                         (S5)

All clients hold ω, because only T_G ever moves it: one that missed rounds gets every T_G that it missed, or
the dense ω where that is shorter. π_k is the chance with which k was asked, E the full local work.
"""

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.codecs.feedback import Broadcast, Channel
from idiolect.codecs.sparse import SparseTernary
from idiolect.codecs.trees import Scope
from idiolect.core import tree
from idiolect.core.fisher import FisherKind, diagonal_fisher
from idiolect.core.hyper import STRICT, hyper
from idiolect.core.method import (
    Bits,
    Cohort,
    Epochs,
    Exchange,
    Info,
    Journals,
    LocalWork,
    Method,
    Population,
    PredictorKind,
    Site,
    plain_bits,
)
from idiolect.core.objective import Batch, Predictor
from idiolect.core.schedule import Schedule
from idiolect.core.tree import Params
from idiolect.methods._efl_newcomer import Newcomer
from idiolect.methods._elastic_terms import Activity, Elastic, ReplyWeighting, Terms, elastic_weights


class Server(NamedTuple):
    """ω with the account of who holds it, R_G, U and V, who was heard how often, and the round."""

    broadcast: Broadcast
    residual: Params | tuple[()]
    elastic: Elastic | tuple[()]
    activity: Activity
    literal: Params | tuple[()]  # the model that also adds what was left out of the messages
    round: Tensor


class Client(NamedTuple):
    """The synchronised copy ω_k, the residual R_k, and x: the model after the last local steps."""

    w: Params
    residual: Params | tuple[()]
    localized: Params


class Down(NamedTuple):
    """ω (as missed changes or dense), and U, V (nothing while they are zero, before the first report)."""

    w: Params
    fisher: Terms | tuple[()]


class Up(NamedTuple):
    """The compressed change T_k, the Fisher terms u_k, v_k where they are due, the completed steps s_k."""

    delta: Params
    fisher: Terms | tuple[()]
    steps: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EFL(Method):
    """Elastic term, partial work and sparse ternary messages."""

    name: ClassVar[str] = "efl"
    aliases: ClassVar[tuple[str, ...]] = ("elastic",)
    paper: ClassVar[str] = "Elastic federated learning"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("localized", "global")
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
        "unbiased",
        "weights of the replies: divided by the chance of being asked; as printed; or by the shares' sum",
        symbol="p_τ^k",
    )
    fisher: FisherKind = hyper("empirical", "whose targets the Fisher information is taken over", symbol="I")
    fisher_rows: int | None = hyper(None, "rows that it is estimated on; None: all training rows", ge=1)
    fisher_every: int = hyper(1, "rounds from one report of Fisher terms to the next", ge=1)
    fisher_norm: Literal["sum", "mean"] = hyper(
        "sum", "U and V as sums over clients, or means: then λ does not depend on how many there are"
    )
    stale_terms: bool = hyper(False, "keep each client's last terms, not only those of the last round")
    exclude_self: bool = hyper(False, "send each client U and V without its own terms")
    scale_before_compress: bool = hyper(False, "apply E / s before the compression, not after it")
    server_apply: Literal["compressed", "literal", "debiased"] = hyper(
        "compressed",
        "the global model: what the clients hold; as printed (it drifts away); or with the residual added",
    )
    abandon_above: float | None = hyper(
        None, "advise to drop clients that are inactive more often than this", symbol="y^a", ge=0, le=1
    )

    @model_validator(mode="after")
    def _scaling_needs_common_steps(self) -> Self:
        if self.scale_before_compress and isinstance(self.local_steps, Epochs):
            raise ValueError("scale_before_compress needs local_steps to be a number, the same for all")
        return self

    @property
    def channel(self) -> Channel:
        """What compresses the messages."""
        return Channel(None if self.keep is None else SparseTernary(keep=self.keep), self.scope)

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """R_G = U = V = 0."""
        clients = len(population.sizes)
        keeps_table = self.stale_terms or self.exclude_self
        return Server(
            Broadcast.begin(params, population),
            self.channel.no_residual(params),
            Elastic.begin(params, clients, keeps_table=keeps_table) if self.elasticity else (),
            Activity.begin(clients),
            params if self.server_apply == "literal" else (),
            torch.tensor(0),
        )

    def client_init(self, server: Server, client: Tensor) -> Client:
        """ω_k = ω, R_k = 0."""
        w = server.broadcast.model
        return Client(w, self.channel.no_residual(w), w)

    def exchanges(self, server: Server) -> tuple["Round"]:
        """One exchange; Fisher terms are reported in every `fisher_every`-th round."""
        return (self._round(self.elasticity > 0 and int(server.round) % self.fisher_every == 0),)

    def end_round(self, server: Server) -> Server:
        """τ + 1."""
        return server._replace(round=server.round + 1)

    def predictors(self, server: Server, client: Client, number: Tensor) -> dict[PredictorKind, Predictor]:
        """x after the client's last local steps, and the shared model."""
        shared = server.broadcast.model
        if isinstance(server.literal, dict):
            shared = server.literal
        elif self.server_apply == "debiased" and isinstance(server.residual, dict):
            shared = tree.add(shared, server.residual)
        return {"localized": client.localized, "global": shared}

    def newcomer(self, server: Server) -> Newcomer:
        """The local work of a round, of which nothing is reported."""
        return Newcomer(self._round(False), self.local_steps)

    def _round(self, reports: bool) -> "Round":
        return Round(method=self, local_steps=self.local_steps, reports=reports)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Round(Exchange):
    """What a client and the server do in a round that reports Fisher terms, or in one that does not."""

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
            return self.down_to_strangers(server)
        return Down(tree.repeat(server.broadcast.model, len(ids)), self._terms(server, without=ids))

    def down_to_strangers(self, server: Server) -> Down:
        """ω, U and V for those who have no terms of their own in them."""
        return Down(server.broadcast.model, self._terms(server, without=None))

    def _terms(self, server: Server, without: Tensor | None) -> Terms | tuple[()]:
        """U and V, or, stacked, each `without` the terms of one client; nothing while they are zero."""
        if not isinstance(server.elastic, Elastic) or not server.elastic.contributors.any():
            return ()
        return server.elastic.sent(without, mean=self.method.fisher_norm == "mean")

    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """C1: x <- ω."""
        return down.w

    def step(
        self, work: Params, client: Client, down: Down, batches: tuple[Batch, ...], site: Site
    ) -> Params:
        """C2: x <- x - η (∇f_k(x; ξ) + λ (U ⊙ x - V)), as (1 - ηλU) ⊙ x + ηλV - η∇f_k(x; ξ): fewer passes."""
        rate = site.rate(self.method.learning_rate)
        gradient = site.objective.gradient(work, batches[0])
        if isinstance(down.fisher, Terms):
            pull = rate * self.method.elasticity
            work = tree.map_tree(lambda x, u, v: (1 - pull * u) * x + pull * v, work, *down.fisher)
        return tree.step(work, rate, gradient)

    def finish(self, work: Params, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C4, C5: keep ω, not x, for the next round; x is the localized model."""
        change = tree.subtract(work, down.w)
        if self.method.scale_before_compress:
            completed = site.steps.to(tree.scalar_of(work).dtype)
            change = tree.scale(change, site.clock.local_steps / completed)
        sent, residual = self.method.channel.send(client.residual, change, site.key)
        terms: Terms | tuple[()] = ()
        if self.reports:
            u = diagonal_fisher(self.method.fisher, work, site, self.method.fisher_rows)
            terms = Terms(u, tree.map_tree(torch.mul, u, work))
        return Client(down.w, residual, work), Up(sent, terms, site.steps.to(torch.int32))

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """S3 to S5."""
        weights = elastic_weights(
            replies.steps, cohort, self.method.weighting, scaled=self.method.scale_before_compress
        )
        change = tree.weighted_sum(replies.delta, weights)
        sent, residual = self.method.channel.send(server.residual, change, server.round)
        broadcast = server.broadcast.confirmed(cohort.ids).moved(sent, self.method.channel)
        elastic, literal = server.elastic, server.literal
        if isinstance(elastic, Elastic) and isinstance(replies.fisher, Terms):
            elastic = elastic.reported(replies.fisher, cohort, stale=self.method.stale_terms)
        if isinstance(literal, dict):
            literal = tree.add(literal, tree.add(sent, residual) if residual else sent)  # Δ_G, not T_G
        activity = server.activity.heard(cohort)
        server = Server(broadcast, residual, elastic, activity, literal, server.round)
        return server, self._diagnostics(server, weights)

    def journals(self, server: Server, before: Journals) -> Journals:
        """Every T_G that somebody may have missed."""
        return {"w": server.broadcast.noted(before.get("w"), self.method.channel)}

    def send_down(self, server: Server, down: Down, client: Tensor, journals: Journals) -> Down:
        """ω as every T_G that the client missed, or dense."""
        return down._replace(w=server.broadcast.told(journals["w"], client))

    def receive_down(self, sent: Down, client: Client) -> Down:
        """ω from the copy ω_k and the changes."""
        return sent._replace(w=self.method.channel.follow(sent.w, client.w))

    def send_up(self, upload: Up) -> Up:
        """T_k encoded."""
        return upload._replace(delta=self.method.channel.encode(upload.delta))

    def receive_up(self, sent: Up, like: Up) -> Up:
        """T_k decoded."""
        return sent._replace(delta=self.method.channel.decode(sent.delta, like.delta))

    def down_bits(self, server: Server, down: Down, ids: Tensor) -> Bits:
        """Missed changes or the dense model, whichever is shorter; U and V in full."""
        bits = plain_bits(down, len(ids), stacked=self.personal_down)
        del bits["w"]
        return bits | {"delta": server.broadcast.catch_up_bits(ids)}

    def up_bits(self, uploads: Up, ids: Tensor) -> Bits:
        """The encoded change; u and v in full."""
        bits = plain_bits(uploads, len(ids), stacked=True)
        return bits | {"delta": self.method.channel.bits(uploads.delta)}

    def _diagnostics(self, server: Server, weights: Tensor) -> Info:
        """Σ p, |R_G|, λ max U (stable if rate * (L + λ max U) < 2), and who is often inactive."""
        info: Info = {"weight_sum": weights.sum(), "inactive_rate": server.activity.inactive_rate}
        if server.residual:
            info["residual_norm"] = tree.squared_norm(server.residual).sqrt()
        if isinstance(server.elastic, Elastic):
            largest = torch.stack([leaf.max() for leaf in tree.leaves(server.elastic.sums.u)]).max()
            info["elastic_strength"] = self.method.elasticity * largest
        if self.method.abandon_above is not None:
            info["abandon"] = server.activity.inactive_rate > self.method.abandon_above
        return info
