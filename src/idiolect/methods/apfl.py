"""APFL: adaptive personalized federated learning (Deng, Kamani, Mahdavi 2020). Spec 1.

Client i mixes its own model v_i with the shared model w:  v̄_i = α_i v_i + (1 - α_i) w     (eq. 1)

One local step on a batch ξ, everything at the old iterates (spec 1.5, C2):

    g_w = ∇f_i(w; ξ),  g_m = ∇f_i(v̄; ξ)
    α  <- clip(α - rate_α <v - w, g_m>, 0, 1)          once per round, or in every step     (eq. 6)
    w  <- Π(w - rate g_w)                                                                    (eq. 5)
    v  <- Π(v - rate α g_m)            since ∇_v f(αv + (1-α)w) = α ∇f(v̄)
    server:  w <- mean of the clients' w                                                     (S3)

v_i and α_i never leave the client; a round costs the traffic of FedAvg. A newcomer (eq. 7, spec 1.6) trains v
from v = ŵ, the run's shared model, which stays as it is:  v <- Π(v - rate ∇_v f(α v + (1 - α) ŵ; ξ)).
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The local model v_i, its weight α_i, and the last local copy of w; all change with every step."""

    v: Params
    alpha: Tensor
    w: Params


Down = core.SharedModel
Up = core.LocalModel


@dataclass(frozen=True, kw_only=True, config=STRICT)
class APFL(core.Method, core.Exchange):
    """Adaptive mixture of a local and the shared model."""

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    passes: ClassVar[dict[core.PredictorKind, int]] = {"personal": 1}
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(core.PerRound(0.1), "step size of w and v", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="10; 20; 1 epoch")
    mixing: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = hyper(
        "adaptive", "weight of v: a number, or learned", symbol="α", paper="0.25, 0.5, 0.75, adaptive",
        tune=["adaptive", 0.25, 0.5, 0.75],
    )  # fmt: skip
    initial_mixing: float = hyper(0.5, "first weight if learned", symbol="α⁰", paper="0.01; 0.5", ge=0, le=1)
    mixing_rate: core.Schedule | None = hyper(None, "step size of the weight; None: that of w", symbol="η_α")
    mixing_update: Literal["round", "step"] = hyper("round", "learn the weight once a round, or in each step")
    mixture_of: Literal["parameters", "outputs"] = hyper("parameters", "mix models (eq. 1), or predictions")
    order: Literal["simultaneous", "shared_first"] = hyper("simultaneous", "v sees the old w, or the new one")
    mix_with: Literal["global", "local_copy"] = hyper("global", "mix with the server's w, or the last copy")
    weighting: core.Weighting = hyper("uniform", "weights of the replies")
    ball_radius: float | None = hyper(None, "keep w and v in a ball of this radius", symbol="W", gt=0)
    average_offset: float | None = hyper(None, "judge the mean of all steps, p_t = (t+a)²", symbol="a", ge=0)

    @model_validator(mode="after")
    def _average_needs_fixed_mixing(self) -> Self:
        if self.average_offset is not None and (self.mixing == "adaptive" or self.mixture_of == "outputs"):
            raise ValueError("average_offset needs mixing to be a number and mixture_of=parameters")
        return self

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """v_i^0 = w^0, α_i^0."""
        start = self.initial_mixing if self.mixing == "adaptive" else self.mixing
        return Client(server.w, torch.full_like(tree.scalar_of(server.w), start), server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """C1: w <- the shared model; v and α as they were."""
        return client._replace(w=down.w)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """C2."""
        batch, rate = batches[0], site.rate(self.learning_rate)
        w = core.onto_ball(tree.step(work.w, rate, site.objective.gradient(work.w, batch)), self.ball_radius)
        mixed_with = w if self.order == "shared_first" else work.w
        v, alpha = self.personal_step(work.v, work.alpha, mixed_with, batch, site)
        if self.mixing == "adaptive" and self.mixing_update == "round":
            alpha = torch.where(torch.as_tensor(site.clock.step) == 0, alpha, work.alpha)
        return Client(v, alpha, w)

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C3: keep v, α and the local copy; send w."""
        return work, Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """Uniform in the paper."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """S3: w <- the mean of the clients' w."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, the local copy, and α v + (1 - α) w."""
        w = brief.w if self.mix_with == "global" else client.w
        personal: core.Predictor = tree.interpolate(client.v, w, client.alpha)
        if self.mixture_of == "outputs":
            personal = core.Mixture((client.v, w), (client.alpha, 1 - client.alpha))
        return {"global": brief.w, "localized": client.w, "personal": personal}

    def step_average(self) -> core.StepAverage | None:
        """The theorem's v̂_i = Σ_t p_t (α v_i^t + (1 - α) mean_j w_j^t) / Σ_t p_t, p_t = (t + a)²."""
        offset = self.average_offset
        return (
            None
            if offset is None
            else core.StepAverage(
                own=lambda at: at.v,
                shared=lambda work: work.w,
                model=lambda client, v, w: tree.interpolate(v, w, client.alpha),
                weight=lambda time: (time + offset) ** 2,
            )
        )

    def client_facts(self) -> Callable[[Client], dict[str, Tensor]]:
        """α_i."""
        return lambda client: {"mixing": client.alpha}

    def newcomer(self, server: Server) -> tuple["APFLNewcomer", Server]:
        """Eq. 7."""
        return APFLNewcomer(self, self.local_steps), server

    def personal_step(
        self, v: Params, alpha: Tensor, w: Params, batch: core.Batch, site: Site
    ) -> tuple[Params, Tensor]:
        """v after its step (eq. 5) against some w, and α after its own (eq. 6) where it is learned."""
        rate = site.rate(self.learning_rate)
        v_slope, alpha_slope = self.mixed_gradients(site.objective, v, alpha, w, batch)
        if self.mixing == "adaptive":
            own_rate = rate if self.mixing_rate is None else site.rate(self.mixing_rate)
            alpha = (alpha - own_rate * alpha_slope).clamp(0, 1)
        return core.onto_ball(tree.step(v, rate, v_slope), self.ball_radius), alpha

    def mixed_gradients(
        self, objective: core.Objective, v: Params, alpha: Tensor, w: Params, batch: core.Batch
    ) -> tuple[Params, Tensor]:
        """The gradients of the mixed model's loss in v and in α."""
        if self.mixture_of == "parameters":
            slopes = objective.gradient(tree.interpolate(v, w, alpha), batch)
            return tree.scale(slopes, alpha), tree.dot(tree.subtract(v, w), slopes)

        def mixed_loss(at: tuple[Params, Tensor]) -> Tensor:
            mixed, mixture = tree.interpolate(at[0], w, at[1]), core.Mixture((at[0], w), (at[1], 1 - at[1]))
            return objective.training_loss(mixture, batch) + objective.penalty(mixed)

        return objective.derivative(mixed_loss, (v, alpha))


@dataclass(frozen=True, config=STRICT)
class APFLNewcomer(core.TrainedNewcomer):
    """Trains v against ŵ; α, where it is learned, in every step: in the first, v = ŵ, it would not move."""

    method: APFL
    local_steps: core.LocalWork

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """Eq. 7."""
        return Client(*self.method.personal_step(work.v, work.alpha, down.w, batches[0], site), work.w)
