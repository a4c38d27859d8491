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

from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import (
    STRICT,
    Batch,
    Batches,
    Cohort,
    Exchange,
    Info,
    LocalWork,
    Method,
    Mixture,
    Objective,
    Params,
    Population,
    Predictor,
    PredictorKind,
    Schedule,
    Site,
    StepAverage,
    TrainedNewcomer,
    Weighting,
    gradient,
    hyper,
    onto_ball,
    reply_weights,
    tree,
)


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The local model v_i, its weight α_i, and the last local copy of w; all change with every step."""

    v: Params
    alpha: Tensor
    w: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its copy of w after the local steps."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class APFL(Method, Exchange):
    """Adaptive mixture of a local and the shared model."""

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi 2020"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: Schedule = hyper(
        {"name": "per_round", "initial": 0.1}, "step size of w and v", symbol="η", alias="lr",
        paper="0.1, 1 % decay",
    )  # fmt: skip
    local_steps: LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="10; 20; 1 epoch")
    mixing: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = hyper(
        "adaptive", "weight of the local model: a fixed number, or learned", symbol="α",
        paper="0.25, 0.5, 0.75, adaptive",
    )  # fmt: skip
    initial_mixing: float = hyper(
        0.5, "first weight where it is learned", symbol="α⁰", paper="0.01; 0.5", ge=0, le=1
    )
    mixing_rate: Schedule | None = hyper(
        None, "step size of the weight; None: the learning rate", symbol="η_α"
    )
    mixing_update: Literal["round", "step"] = hyper(
        "round", "learn the weight in the first step of a round, or in every step"
    )
    mixture_of: Literal["parameters", "outputs"] = hyper(
        "parameters", "what is mixed: parameters (the equations) or predictions (the authors' code)"
    )
    order: Literal["simultaneous", "shared_first"] = hyper(
        "simultaneous", "whether v's step sees the old w (eq. 5) or the new one (the authors' code)"
    )
    mix_with: Literal["global", "local_copy"] = hyper(
        "global", "which w the personal model mixes with: the server's, or the client's last local copy"
    )
    weighting: Weighting = hyper("uniform", "weights of the replies")
    ball_radius: float | None = hyper(None, "keep w and v each in a ball of this radius", symbol="W", gt=0)
    average_offset: float | None = hyper(
        None, "evaluate the theory's average over all steps, p_t = (t + offset)²; needs fixed mixing",
        symbol="a", ge=0,
    )  # fmt: skip

    @model_validator(mode="after")
    def _average_needs_fixed_mixing(self) -> Self:
        if self.average_offset is not None and (self.mixing == "adaptive" or self.mixture_of == "outputs"):
            raise ValueError("average_offset needs mixing to be a number and mixture_of=parameters")
        return self

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
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
        batch, rate, objective = batches[0], site.rate(self.learning_rate), site.objective
        w = onto_ball(tree.step(work.w, rate, objective.gradient(work.w, batch)), self.ball_radius)
        mixed_with = w if self.order == "shared_first" else work.w
        v_gradient, alpha_gradient = self.mixed_gradients(objective, work.v, work.alpha, mixed_with, batch)
        v = onto_ball(tree.step(work.v, rate, v_gradient), self.ball_radius)
        alpha = self.moved_alpha(work.alpha, alpha_gradient, site)
        if self.mixing == "adaptive" and self.mixing_update == "round":
            alpha = torch.where(torch.as_tensor(site.clock.step) == 0, alpha, work.alpha)
        return Client(v, alpha, w)

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C3: keep v, α and the local copy; send w."""
        return work, Up(work.w)

    def weights(self, server: Server, cohort: Cohort) -> Tensor:
        """Uniform in the paper."""
        return reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """S3: w <- the mean of the clients' w."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> dict[PredictorKind, Predictor]:
        """The shared model, the local copy, and α v + (1 - α) w."""
        w = brief.w if self.mix_with == "global" else client.w
        personal: Predictor = tree.interpolate(client.v, w, client.alpha)
        if self.mixture_of == "outputs":
            personal = Mixture((client.v, w), (client.alpha, 1 - client.alpha))
        return {"global": brief.w, "localized": client.w, "personal": personal}

    def step_average(self) -> StepAverage | None:
        """The theorem's v̂_i = Σ_t p_t (α v_i^t + (1 - α) mean_j w_j^t) / Σ_t p_t, p_t = (t + a)²."""
        if (offset := self.average_offset) is None:
            return None
        return StepAverage(
            own=lambda work: work.v,
            still=lambda client: client.v,
            shared=lambda work: work.w,
            model=lambda client, v, w: tree.interpolate(v, w, client.alpha),
            weight=lambda time: (time + offset) ** 2,
        )

    def newcomer(self, server: Server) -> tuple["APFLNewcomer", Server]:
        """Eq. 7."""
        return APFLNewcomer(self, self.local_steps), server

    def mixed_gradients(
        self, objective: Objective, v: Params, alpha: Tensor, w: Params, batch: Batch
    ) -> tuple[Params, Tensor]:
        """The gradients of the mixed model's loss in v and in α."""
        if self.mixture_of == "parameters":
            slopes = objective.gradient(tree.interpolate(v, w, alpha), batch)
            return tree.scale(slopes, alpha), tree.dot(tree.subtract(v, w), slopes)

        def mixed_loss(at: tuple[Params, Tensor]) -> Tensor:
            v, alpha = at
            predictor = Mixture((v, w), (alpha, 1 - alpha))
            return objective.data_loss(predictor, batch) + objective.penalty(tree.interpolate(v, w, alpha))

        return gradient(mixed_loss, (v, alpha))

    def moved_alpha(self, alpha: Tensor, gradient: Tensor, site: Site) -> Tensor:
        """Eq. 6, clipped to [0, 1], where the weight is learned."""
        if self.mixing != "adaptive":
            return alpha
        return (alpha - site.rate(self.mixing_rate or self.learning_rate) * gradient).clamp(0, 1)


@dataclass(frozen=True, config=STRICT)
class APFLNewcomer(TrainedNewcomer):
    """Trains v against ŵ; α, where it is learned, in every step: in the first, v = ŵ, it would not move."""

    method: APFL
    local_steps: LocalWork

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """Eq. 7."""
        apfl = self.method
        slopes = apfl.mixed_gradients(site.objective, work.v, work.alpha, down.w, batches[0])
        v = onto_ball(tree.step(work.v, site.rate(apfl.learning_rate), slopes[0]), apfl.ball_radius)
        return work._replace(v=v, alpha=apfl.moved_alpha(work.alpha, slopes[1], site))
