"""What both variants of PERM have in common. Spec 5.1, 5.5.

Client i's model minimises its own mixture of all clients' losses,  Φ(α_i, v) = Σ_j α_i(j) f_j(v).

    first:     w alone is trained, v_i <- w                                      the variant's own
    epoch:     g_i = ∇f_i(w);  α_i from all g for all i, by eq. 2                GradientExchange
               round j, all i at once: client c = σ((i + j) mod N) trains v_i    TrainingVisits
                   for K steps  v <- v - η N α_i(c) ∇f_c(v; ξ)
               after N rounds  v_i <- Π_W(v_i)
    at last:   v_i <- Π_W(v_i - (1/L) Σ_j α_i(j) ∇f_j(v_i))                      GradientVisits

A round of the engine is one round of visits (the first of an epoch with gradients before it), or of w alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from idiolect import core
from idiolect.core import STRICT, Params, hyper, tree
from idiolect.methods.perm.gradients import GradientExchange
from idiolect.methods.perm.newcomer import PERMNewcomer
from idiolect.methods.perm.server import Server
from idiolect.methods.perm.sizes import ModelSizes
from idiolect.methods.perm.visits import GradientVisits, StepRule, TrainingVisits
from idiolect.methods.perm.weights import WeightRule
from idiolect.methods.submodels.chain import Chain
from idiolect.methods.submodels.held_only import HeldOnly


class Brief(NamedTuple):
    """To client i, to predict with: the global model and v_i."""

    w: Params
    v: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PersonalMixtures(core.Method, ABC):
    """Models that visit the clients whose losses they are mixtures of."""

    paper: ClassVar[str] = "Deng, Kamani, Mahdavinia, Mahdavi 2023"
    judged_by: ClassVar[core.PredictorKind] = "personal"
    personal_brief: ClassVar[bool] = True

    learning_rate: core.Schedule = hyper(0.1, "step size of personal models", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(
        20, "local steps of a visit (and, in two stages, of a round of stage 1)", symbol="K", paper="20"
    )
    global_learning_rate: core.Schedule = hyper(0.1, "step size of the global model", symbol="γ")
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
        None,
        "keep personal models, and w where it takes gradient steps, in a ball of this radius",
        symbol="W",
        gt=0,
    )
    weights: WeightRule = hyper(WeightRule(), "how the weights are found")
    model_sizes: ModelSizes | None = hyper(None, "sub-models for clients of small capacity; None: all whole")

    @model_validator(mode="after")
    def _final_step_needs_an_end(self) -> Self:
        if self.final_step is not None and self.epochs is None:
            raise ValueError("final_step needs epochs: it comes after the last one")
        return self

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """1/L for both kinds of models; as written in the paper, α_i(c) of a visit counts N times."""
        visit = 1 if self.step_rule == "per_model" else clients
        return {"learning_rate": 1 / (visit * smoothness), "global_learning_rate": 1 / smoothness}

    @property
    @abstractmethod
    def rounds_before_visits(self) -> int:
        """Rounds in which only the global model is trained."""

    @abstractmethod
    def global_training(self) -> core.Exchange:
        """How it is trained in these rounds."""

    @abstractmethod
    def gradient_exchange(self) -> GradientExchange:
        """How the weights are found."""

    def weights_are_due(self, server: Server) -> bool:
        """Whether an epoch begins, or nobody has been heard yet."""
        return server.route.starts_epoch or not server.heard.any()

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0 and v_i^0 = w^0."""
        server = Server.start(
            params,
            population.sizes,
            key,
            takes_last_step=self.final_step is not None,
            model_sizes=self.model_sizes,
        )
        if self.model_sizes is None:
            return server
        Chain.of(params).refuse_empty_layers(self.model_sizes.capacities)
        return server.following(server.heard, self.model_sizes)

    def exchanges(self, server: Server) -> Sequence[core.Exchange]:
        """The training of w; then the visits of this round, after the gradients if weights are due."""
        if server.round < self.rounds_before_visits:
            return (self.global_training(),)
        if self.epochs is not None and server.route.epoch >= self.epochs:
            last = self.final_step is not None and server.route.epoch == self.epochs
            return (GradientVisits(model_sizes=self.model_sizes),) if last else ()
        visits = TrainingVisits(
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            step_rule=self.step_rule,
            step_cap=self.step_cap,
            model_sizes=self.model_sizes,
        )
        return (self.gradient_exchange(), visits) if self.weights_are_due(server) else (visits,)

    def end_round(self, server: Server) -> Server:
        """Count the round: personal models follow w, or go on to the clients of the next round."""
        if server.round < self.rounds_before_visits:
            server = server.following(torch.zeros_like(server.heard), self.model_sizes)
        else:
            server = self._travelled(server)
        return server._replace(round=server.round + 1)

    def _travelled(self, server: Server) -> Server:
        """After a round of visits; at the end of an epoch v_i <- Π_W(v_i), of the last one with its step."""
        route, v = server.route.advanced(server.mixing), server.v
        if route.epoch > server.route.epoch:
            if self.final_step is not None and server.route.epoch == self.epochs:
                v = tree.step(v, self.final_step, server.final_gradient)
            if self.ball_radius is not None:
                v = vmap(lambda one: core.onto_ball(one, self.ball_radius))(v)
        return server._replace(v=v, route=route)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """w and v_i."""
        return Brief(tree.repeat(server.w, len(ids)), tree.select(server.v, ids))

    def transport(self, exchange: core.Exchange) -> HeldOnly:
        """Of sub-models only what is held travels."""
        return HeldOnly(exchange)

    def newcomer(self, server: Server) -> tuple[PERMNewcomer, Server]:
        """Weights from its gradient."""
        return PERMNewcomer(
            method=self,
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            weight_rule=self.weights,
            gradient_rows=self.gradient_exchange().rows,
        ), server
