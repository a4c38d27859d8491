"""PERM, single loop: personal weights over clients, and models that travel (Deng et al. 2023). Spec 5.

Client i's model minimises its own mixture of all clients' losses,  Φ(α_i, v) = Σ_j α_i(j) f_j(v),

    α_i = argmin over the simplex of  Σ_j α(j) |∇f_i(w) - ∇f_j(w)|² + λ Σ_j α(j)² / n_j    (eq. 2)

Algorithm 2 (spec 5.6), one epoch of N rounds:

    g_i = ∇f_i(w);  α_i from all g for all i;  w <- Π_W(w - γ mean g)             GradientExchange
    round j, all i at once: client c = σ((i + j) mod N) trains v_i for K steps    Visit
        v <- v - η N α_i(c) ∇f_c(v; ξ)

A round of the engine is one such round j; the gradient exchange comes before the visits of round 0. In the
warm-up only w moves, one gradient step a round, and then v_i <- w.
"""

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import (
    STRICT,
    Exchange,
    LocalWork,
    Method,
    Nothing,
    Params,
    Population,
    Predictor,
    PredictorKind,
    Schedule,
    hyper,
    tree,
)
from idiolect.methods import _perm_server
from idiolect.methods._mixing import ModelSizes, WeightRule
from idiolect.methods._perm_comparison import GradientExchange
from idiolect.methods._perm_newcomer import PERMNewcomer
from idiolect.methods._perm_server import Brief, Server
from idiolect.methods._perm_visits import GradientVisit, StepRule, Visit
from idiolect.methods._submodel_transport import HeldOnly


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PERM(Method):
    """Personal mixtures of all clients' losses, with weights learned along the way."""

    name: ClassVar[str] = "perm"
    aliases: ClassVar[tuple[str, ...]] = ("perm-single-loop",)
    paper: ClassVar[str] = "Deng, Kamani, Mahdavinia, Mahdavi 2023"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("global", "personal")
    judged_by: ClassVar[PredictorKind] = "personal"
    personal_brief: ClassVar[bool] = True

    learning_rate: Schedule = hyper(0.1, "step size of personal models", symbol="η", alias="lr")
    local_steps: LocalWork = hyper(20, "local steps of a visit", symbol="K", paper="20")
    global_learning_rate: Schedule = hyper(0.1, "step size of the global model", symbol="γ")
    warmup_rounds: int = hyper(0, "rounds in which only the global model is trained", paper="10", ge=0)
    gradient_rows: int | None = hyper(
        None, "rows of the gradients that are compared; None: all", symbol="M", ge=1
    )
    refresh_every: int | None = hyper(None, "rounds between new weights; None: once an epoch", ge=1)
    step_rule: StepRule = hyper(
        "per_model",
        "applied rate of a visit: η α_i(c) / max α_i, or η N α_i(c) as written in the paper",
    )
    step_cap: float | None = hyper(
        None, "largest applied rate; 2 / L keeps a visit stable", symbol="2/L", gt=0
    )
    epochs: int | None = hyper(None, "epochs after which the models rest; None: never", symbol="R", ge=1)
    final_step: float | None = hyper(
        None, "size of a last full step on Φ after all epochs; None: no such step", symbol="1/L", gt=0
    )
    ball_radius: float | None = hyper(None, "keep every model in a ball of this radius", symbol="W", gt=0)
    weights: WeightRule = hyper(WeightRule(), "how the weights are found")
    model_sizes: ModelSizes | None = hyper(None, "sub-models for clients of small capacity; None: all whole")

    @model_validator(mode="after")
    def _final_step_needs_an_end(self) -> Self:
        if self.final_step is not None and self.epochs is None:
            raise ValueError("final_step needs epochs: it comes after the last one")
        return self

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """w^0 and v_i^0 = w^0."""
        summing = self.final_step is not None
        return _perm_server.start(params, population, key, self.model_sizes, sums_gradients=summing)

    def client_init(self, server: Server, client_id: Tensor) -> Nothing:
        """Clients hold data only."""
        return Nothing()

    def exchanges(self, server: Server) -> Sequence[Exchange]:
        """Gradients in the warm-up and when weights are due; then the visits of this round."""
        if server.round < self.warmup_rounds:
            return (self._gradients(personal=False),)
        if self.epochs is not None and server.route.epoch >= self.epochs:
            last = self.final_step is not None and server.route.epoch == self.epochs
            return (GradientVisit(model_sizes=self.model_sizes),) if last else ()
        visit = self._visit()
        return (self._gradients(personal=True), visit) if self._weights_are_due(server) else (visit,)

    def end_round(self, server: Server) -> Server:
        """Count the round; visits that could not take place wait for the end of the epoch."""
        if server.round >= self.warmup_rounds:
            server = _perm_server.end_visits(server, self.ball_radius, self.epochs, self.final_step)
        return server._replace(round=server.round + 1)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """w and v_i."""
        return Brief(tree.repeat(server.w, len(ids)), tree.select(server.v, ids))

    def predictors(self, client: Nothing, brief: Brief) -> dict[PredictorKind, Predictor]:
        """The global model and v_i."""
        return {"global": brief.w, "personal": brief.v}

    def newcomer(self, server: Server) -> tuple[PERMNewcomer, Server]:
        """Weights from its gradient."""
        return PERMNewcomer(
            method=self,
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            weight_rule=self.weights,
        ), server

    def transport(self, exchange: Exchange) -> HeldOnly:
        """Of sub-models only what is held travels."""
        return HeldOnly(exchange)

    def _weights_are_due(self, server: Server) -> bool:
        if self.refresh_every is None:
            return server.route.starts_epoch or not server.heard.any()
        return (int(server.round) - self.warmup_rounds) % self.refresh_every == 0

    def _visit(self) -> Visit:
        return Visit(
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            step_rule=self.step_rule,
            step_cap=self.step_cap,
            model_sizes=self.model_sizes,
        )

    def _gradients(self, *, personal: bool) -> GradientExchange:
        return GradientExchange(
            rows=self.gradient_rows,
            once=False,
            personal=personal,
            global_rate=self.global_learning_rate,
            ball_radius=self.ball_radius,
            weight_rule=self.weights,
            model_sizes=self.model_sizes,
        )
