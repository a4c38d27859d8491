"""APFL: adaptive personalized federated learning (Deng, Kamani, Mahdavi 2020). Spec 1.

Client i mixes its own model v_i with the shared model w:  v̄_i = α_i v_i + (1 - α_i) w     (eq. 1)

One local step on a batch ξ, everything at the old iterates (spec 1.5, C2):

    g_w = ∇f_i(w; ξ),  g_m = ∇f_i(v̄; ξ)
    α  <- clip(α - rate_α <v - w, g_m>, 0, 1)          once per round, or in every step     (eq. 6)
    w  <- Π(w - rate g_w)                                                                    (eq. 5)
    v  <- Π(v - rate α g_m)            since ∇_v f(αv + (1-α)w) = α ∇f(v̄)
    server:  w <- mean of the clients' w                                                     (S3)

v_i and α_i never leave the client; a round costs the traffic of FedAvg.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.averaging import Average
from idiolect.core.gradient import gradient
from idiolect.core.hyper import STRICT, hyper
from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Method, Population, PredictorKind, Site
from idiolect.core.objective import Batch, Mixture, Objective, Predictor
from idiolect.core.projection import onto_ball
from idiolect.core.schedule import Schedule
from idiolect.core.tree import Params
from idiolect.core.weighting import Weighting, reply_weights
from idiolect.methods._apfl_newcomer import Newcomer


class Server(NamedTuple):
    """The shared model w; Σ_t p_t mean_j w_j^t for the theory average."""

    w: Params
    average: Average | tuple[()]


class Client(NamedTuple):
    """The local model v_i, its weight α_i, the last local copy of w; Σ_t p_t v_i^t."""

    v: Params
    alpha: Tensor
    w: Params
    average: Average | tuple[()]


class Down(NamedTuple):
    """To every client: the shared model (and how much weight its theory average has by now)."""

    w: Params
    weight: Tensor | tuple[()]


class Up(NamedTuple):
    """From each client: its copy of w after the local steps (and Σ_t p_t w_i^t of this round)."""

    w: Params
    average: Average | tuple[()]


class Work(NamedTuple):
    """Changes with every local step."""

    v: Params
    alpha: Tensor
    w: Params
    v_average: Average | tuple[()]
    w_average: Average | tuple[()]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class APFL(Method, Exchange):
    """Adaptive mixture of a local and the shared model."""

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi 2020"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("global", "localized", "personal")
    stateful: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: Schedule = hyper(
        {"name": "per_round", "initial": 0.1},
        "step size of w and v",
        symbol="η",
        alias="lr",
        paper="0.1, 1 % decay",
    )
    local_steps: LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="10; 20; 1 epoch")
    mixing: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = hyper(
        "adaptive",
        "weight of the local model: a fixed number, or learned",
        symbol="α",
        paper="0.25, 0.5, 0.75, adaptive",
    )
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
        None,
        "evaluate the theory's average over all steps, p_t = (t + offset)²; needs fixed mixing",
        symbol="a",
        ge=0,
    )

    @model_validator(mode="after")
    def _average_needs_fixed_mixing(self) -> Self:
        if self.average_offset is not None and (self.mixing == "adaptive" or self.mixture_of == "outputs"):
            raise ValueError("average_offset needs mixing to be a number and mixture_of=parameters")
        return self

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params, self._empty_average(params))

    def client_init(self, server: Server, client: Tensor) -> Client:
        """v_i^0 = w^0, α_i^0."""
        start = self.initial_mixing if self.mixing == "adaptive" else self.mixing
        alpha = torch.full_like(tree.scalar_of(server.w), start)
        return Client(server.w, alpha, server.w, self._empty_average(server.w))

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w, server.average.weight if isinstance(server.average, Average) else ())

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """C1: w <- the shared model; v and α as they were."""
        v_average = client.average
        if isinstance(v_average, Average) and isinstance(down.weight, Tensor):
            v_average = v_average.caught_up(client.v, down.weight)  # v stood still since its last round
        return Work(client.v, client.alpha, down.w, v_average, self._empty_average(down.w))

    def step(self, work: Work, client: Client, down: Down, batches: tuple[Batch, ...], site: Site) -> Work:
        """C2."""
        batch, rate, objective = batches[0], site.rate(self.learning_rate), site.objective
        w = onto_ball(tree.step(work.w, rate, objective.gradient(work.w, batch)), self.ball_radius)
        mix_w = w if self.order == "shared_first" else work.w
        v_gradient, alpha_gradient = self._mixed_gradients(objective, work.v, work.alpha, mix_w, batch)
        v = onto_ball(tree.step(work.v, rate, v_gradient), self.ball_radius)
        v_average, w_average = work.v_average, work.w_average
        if self.average_offset is not None:
            assert isinstance(v_average, Average)
            assert isinstance(w_average, Average)
            p = (site.clock.time + self.average_offset) ** 2
            v_average, w_average = v_average.plus(work.v, p), w_average.plus(work.w, p)
        return Work(v, self._next_alpha(work.alpha, alpha_gradient, site), w, v_average, w_average)

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C3: keep v, α and the local copy; send w."""
        return Client(work.v, work.alpha, work.w, work.v_average), Up(work.w, work.w_average)

    def weights(self, server: Server, cohort: Cohort) -> Tensor:
        """Uniform in the paper."""
        return reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """S3: w <- the mean of the clients' w."""
        average = server.average
        if isinstance(average, Average):
            average = tree.add(average, replies.average)
        return Server(replies.w, average), {}

    def predictors(self, server: Server, client: Client, number: Tensor) -> dict[PredictorKind, Predictor]:
        """The shared model, the local copy, and α v + (1 - α) w."""
        w = server.w if self.mix_with == "global" else client.w
        personal: Predictor
        if self.mixture_of == "outputs":
            personal = Mixture((client.v, w), (client.alpha, 1 - client.alpha))
        elif isinstance(client.average, Average) and isinstance(server.average, Average):
            v_average = client.average.caught_up(client.v, server.average.weight)
            personal = tree.interpolate(v_average.mean(client.v), server.average.mean(server.w), client.alpha)
        else:
            personal = tree.interpolate(client.v, w, client.alpha)
        return {"global": server.w, "localized": client.w, "personal": personal}

    def newcomer(self, server: Server) -> Newcomer:
        """Eq. 7: train v against the frozen shared model."""
        return Newcomer(self, self.local_steps)

    def _mixed_gradients(
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

    def _next_alpha(self, alpha: Tensor, gradient: Tensor, site: Site) -> Tensor:
        """Eq. 6 in every step, or in the first of a round."""
        moved = self._moved_alpha(alpha, gradient, site)
        if self.mixing != "adaptive" or self.mixing_update == "step":
            return moved
        return torch.where(torch.as_tensor(site.clock.step) == 0, moved, alpha)

    def _moved_alpha(self, alpha: Tensor, gradient: Tensor, site: Site) -> Tensor:
        """Eq. 6, clipped to [0, 1]."""
        if self.mixing != "adaptive":
            return alpha
        return (alpha - site.rate(self.mixing_rate or self.learning_rate) * gradient).clamp(0, 1)

    def _empty_average(self, params: Params) -> Average | tuple[()]:
        return () if self.average_offset is None else Average.empty(params)
