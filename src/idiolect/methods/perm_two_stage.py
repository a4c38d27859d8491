"""PERM in two stages: weights at a trained global model, then models that travel (Deng et al. 2023). Spec 5.

Client i's model minimises its own mixture of all clients' losses,  Φ(α_i, v) = Σ_j α_i(j) f_j(v).

    stage 1 (Algorithm A1, spec 5.4):  R_w rounds of FedAvg with rate γ             SubmodelTraining
        g_i = ∇f_i(w), all rows, once;  α_i from all g by eq. 2                     GradientExchange
    stage 2 (Algorithm 1, spec 5.5):   v_i <- w, epochs of N rounds                 Visit
        round j, all i at once: client c = σ((i + j) mod N) trains v_i for K steps
        v <- v - η N α_i(c) ∇f_c(v; ξ)

A round of the engine is one round of either stage; the gradients come before the visits of stage 2's first.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import (
    STRICT,
    Exchange,
    LocalWork,
    Method,
    Params,
    Population,
    Predictor,
    PredictorKind,
    Schedule,
    hyper,
    tree,
)
from idiolect.core.submodel import Selection
from idiolect.methods import _perm_server
from idiolect.methods._mixing import ModelSizes, WeightRule
from idiolect.methods._perm_comparison import GradientExchange
from idiolect.methods._perm_newcomer import PERMNewcomer
from idiolect.methods._perm_server import Brief, Server
from idiolect.methods._perm_visits import GradientVisit, StepRule, Visit
from idiolect.methods._submodel_training import SubmodelTraining
from idiolect.methods._submodel_transport import HeldOnly


class Client(NamedTuple):
    """The last copy of w of stage 1 (personal models live at the server)."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PERMTwoStage(Method):
    """Personal mixtures of all clients' losses, with weights found once at a trained global model."""

    name: ClassVar[str] = "perm-two-stage"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavinia, Mahdavi 2023"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[PredictorKind] = "personal"
    personal_brief: ClassVar[bool] = True

    learning_rate: Schedule = hyper(0.1, "step size of personal models", symbol="η", alias="lr")
    local_steps: LocalWork = hyper(
        20, "local steps of a visit, and of a round of stage 1", symbol="K", paper="20"
    )
    global_learning_rate: Schedule = hyper(0.1, "step size of the global model", symbol="γ")
    global_rounds: int = hyper(10, "rounds of stage 1", symbol="R", ge=0)
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
    ball_radius: float | None = hyper(
        None, "keep every personal model in a ball of this radius", symbol="W", gt=0
    )
    weights: WeightRule = hyper(WeightRule(), "how the weights are found")
    model_sizes: ModelSizes | None = hyper(None, "sub-models for clients of small capacity; None: all whole")
    selection: Selection = hyper("static", "which units a sub-model of stage 1 holds, where sizes differ")

    @model_validator(mode="after")
    def _final_step_needs_an_end(self) -> Self:
        if self.final_step is not None and self.epochs is None:
            raise ValueError("final_step needs epochs: it comes after the last one")
        return self

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """w^0 and v_i^0 = w^0."""
        summing = self.final_step is not None
        return _perm_server.start(params, population, key, self.model_sizes, sums_gradients=summing)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Clients hold data, and their last copy of w."""
        return Client(server.w)

    def exchanges(self, server: Server) -> Sequence[Exchange]:
        """Stage 1, or gradients that are still missing and the visits of this round."""
        if server.round < self.global_rounds:
            return (self._global_training(),)
        if self.epochs is not None and server.route.epoch >= self.epochs:
            last = self.final_step is not None and server.route.epoch == self.epochs
            return (GradientVisit(model_sizes=self.model_sizes),) if last else ()
        visit = self._visit()
        asks = server.route.starts_epoch or not server.heard.any()
        return (self._gradients(), visit) if asks else (visit,)

    def end_round(self, server: Server) -> Server:
        """Count the round: personal models follow w in stage 1, and travel in stage 2."""
        if server.round < self.global_rounds:
            server = _perm_server.follow(server, torch.zeros_like(server.heard), self.model_sizes)
        else:
            server = _perm_server.end_visits(server, self.ball_radius, self.epochs, self.final_step)
        return server._replace(round=server.round + 1)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """w and v_i."""
        return Brief(tree.repeat(server.w, len(ids)), tree.select(server.v, ids))

    def predictors(self, client: Client, brief: Brief) -> dict[PredictorKind, Predictor]:
        """The global model, the client's last copy of it, and v_i."""
        return {"global": brief.w, "localized": client.w, "personal": brief.v}

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

    def _global_training(self) -> SubmodelTraining:
        return SubmodelTraining(
            learning_rate=self.global_learning_rate,
            local_steps=self.local_steps,
            capacities=self.model_sizes.capacities if self.model_sizes else (1.0,),
            selection=self.selection,
        )

    def _visit(self) -> Visit:
        return Visit(
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            step_rule=self.step_rule,
            step_cap=self.step_cap,
            model_sizes=self.model_sizes,
        )

    def _gradients(self) -> GradientExchange:
        return GradientExchange(
            rows=None,
            once=True,
            personal=True,
            global_rate=None,
            ball_radius=None,
            weight_rule=self.weights,
            model_sizes=self.model_sizes,
        )
