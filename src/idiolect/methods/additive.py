"""Additive personalised Local SGD. Spec 2.

Client m predicts with the sum of the shared part w and a personal part of its own, v_m = w + θ_m.

    client m:  w_m <- w;  repeat local_steps times, with ONE gradient g = ∇f_m(w_m + θ_m; ξ):
                   θ_m <- θ_m - η_θ g,   w_m <- w_m - η_w g                             (C1)
               send w_m - w                                                             (C2)
    server:    w <- w + β mean_m(w_m - w)                                                (S)

η_w is `learning_rate`, η_θ = α η_w is `personal_rate` (either may be 0), β is `outer_step`. θ_m never leaves
the client. Output options (2.6), T steps in all, t = 0 .. T-1:

    I    last:           w_T + θ_T^m
    II   average:        (1/T) Σ_t (w̄_t + θ_t^m),  w̄_t = mean_m w_t^m
    III  local_average:  (1/T) Σ_t (w_t^m + θ_t^m)

In a step that a client does not take, its w_m and θ_m stand still; III counts only steps that it takes. The θ
of a client that arrives later is averaged over the steps since its arrival. A newcomer trains θ alone, with w
as the run left it.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree


class Server(NamedTuple):
    """The shared part w."""

    w: Params


class Client(NamedTuple):
    """The personal part θ_m, and the last local copy w_m."""

    theta: Params
    w: Params


Down = core.SharedModel


class Up(NamedTuple):
    """From each client: how far its copy of w moved."""

    delta: Params


class Work(NamedTuple):
    """Changes with every local step: the sum v = w_m + θ_m, and w_m."""

    v: Params
    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Additive(core.Method, core.Exchange):
    """A shared part plus a personal part, trained by one gradient."""

    name: ClassVar[str] = "additive"
    aliases: ClassVar[tuple[str, ...]] = ("additive-local-sgd", "personalized-local-sgd")
    paper: ClassVar[str] = "additive personalised Local SGD"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    changes_of: ClassVar[dict[str, str]] = {"delta": "w"}

    learning_rate: core.Schedule = hyper(0.05, "step size of w", symbol="η", alias="lr", paper="1/(2(1+α)L)")
    personal_rate: core.Schedule | None = hyper(None, "step size of θ; None: η", symbol="αη", paper="α = 1")
    outer_step: float = hyper(
        1.0, "server's step along the mean move", symbol="β", paper="1; up to √M", ge=0, tune=(0.5, 2.0)
    )
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="K", paper="3; 10")
    output: Literal["last", "average", "local_average"] = hyper("last", "which personal model: I, II or III")
    weighting: core.Weighting = hyper("uniform", "weights of the replies")
    allow_unstable: bool = hyper(False, "keep an outer step above 2 + α, which can diverge")
    log_consensus_error: bool = hyper(False, "log ξ_t in every local step, for local_steps times the upload")

    @model_validator(mode="after")
    def _warn_if_clamped(self) -> Self:
        if self._stable_outer_step < self.outer_step:
            warnings.warn(
                f"outer_step={self.outer_step:g} can diverge above 2 + α = {self._stable_outer_step:g} "
                "and is lowered to it; allow_unstable=true keeps it",
                stacklevel=3,
            )
        return self

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """w + θ moves by both steps."""
        return {"learning_rate": 1 / (2 * smoothness)}

    @property
    def _personal_rate(self) -> core.Schedule:
        return self.learning_rate if self.personal_rate is None else self.personal_rate

    @property
    def _stable_outer_step(self) -> float:
        """β ≤ 2 + α (2.7), with α the ratio of the rates at the start."""
        start = core.Clock(0, 0, 1)
        shared, personal = float(self.learning_rate(start)), float(self._personal_rate(start))
        alpha = personal / shared if shared > 0 else math.inf
        return self.outer_step if self.allow_unstable else min(self.outer_step, 2 + alpha)

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """θ_m = 0."""
        return Client(tree.zeros_like(server.w), server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_m <- w; θ_m as it was."""
        return Work(tree.add(down.w, client.theta), down.w)

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """C1: both parts move along the one gradient at their sum, and so does the sum."""
        gradient = site.objective.gradient(work.v, batches[0])
        rate, own_rate = site.rate(self.learning_rate), site.rate(self._personal_rate)
        return Work(tree.step(work.v, rate + own_rate, gradient), tree.step(work.w, rate, gradient))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C2: keep θ_m and w_m, which make v; send w_m - w."""
        return Client(tree.subtract(work.v, work.w), work.w), Up(tree.subtract(work.w, down.w))

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """Uniform in the paper."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- w + β mean(w_m - w)."""
        return Server(tree.advance(server.w, self._stable_outer_step, replies.delta)), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """w alone, the client's sum after its local steps, and the sum with the shared w."""
        localized, personal = (tree.add(w, client.theta) for w in (client.w, brief.w))
        return {"global": brief.w, "localized": localized, "personal": personal}

    def step_average(self) -> core.StepAverage | None:
        """Options II and III."""
        match self.output:
            case "last":
                return None
            case "average":
                return core.StepAverage(
                    own=lambda work: tree.subtract(work.v, work.w),
                    still=lambda client: client.theta,
                    shared=lambda work: work.w,
                    model=lambda client, theta, w: tree.add(w, theta),
                )
            case "local_average":
                return core.StepAverage(
                    own=lambda work: work.v,
                    still=lambda client: client.w,
                    model=lambda client, v, _: v,
                    counts_absence=False,
                )

    def logged_path(self) -> Callable[[Work], Params] | None:
        """w_m, for ξ_t = mean_m |w_t^m - w̄_t|²."""
        return (lambda work: work.w) if self.log_consensus_error else None

    def newcomer(self, server: Server) -> tuple["Additive", Server]:
        """θ only: the same steps with w frozen."""
        frozen = replace(
            self,
            learning_rate=core.Constant(0.0),
            personal_rate=self._personal_rate,
            log_consensus_error=False,
        )
        return frozen, server
