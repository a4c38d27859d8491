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
of a client that arrives later is averaged over the steps since its arrival.
"""

import dataclasses
import math
import warnings
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import tree
from idiolect.core.averaging import Average
from idiolect.core.hyper import STRICT, hyper
from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Method, Population, PredictorKind, Site
from idiolect.core.objective import Batch, Predictor
from idiolect.core.schedule import Clock, Constant, Schedule
from idiolect.core.spread import Path
from idiolect.core.tree import Params
from idiolect.core.weighting import Weighting, reply_weights


class Server(NamedTuple):
    """The shared part w; Σ_t w̄_t and the round for option II."""

    w: Params
    average: Average | tuple[()]
    round: Tensor | tuple[()]


class Client(NamedTuple):
    """The personal part θ_m, the last local copy w_m; Σ_t θ_t^m (II) or Σ_t w_t^m + θ_t^m (III).

    For option II also the round in which the client arrived.
    """

    theta: Params
    w: Params
    average: Average | tuple[()]
    arrival: Tensor | tuple[()]


class Down(NamedTuple):
    """To every client: the shared part."""

    w: Params


class Up(NamedTuple):
    """From each client: how far its copy of w moved (and, only when asked, Σ_k w_m^k; its whole path)."""

    delta: Params
    average: Average | tuple[()]
    path: Path | tuple[()]


class Work(NamedTuple):
    """Changes with every local step: the sum v = w_m + θ_m, and w_m where v does not tell its moves."""

    v: Params
    w: Params | tuple[()]
    own_average: Average | tuple[()]
    shared_average: Average | tuple[()]
    path: Path | tuple[()]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Additive(Method, Exchange):
    """A shared part plus a personal part, trained by one gradient."""

    name: ClassVar[str] = "additive"
    aliases: ClassVar[tuple[str, ...]] = ("additive-local-sgd", "personalized-local-sgd")
    paper: ClassVar[str] = "additive personalised Local SGD"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("global", "localized", "personal")
    stateful: ClassVar[bool] = True
    changes_of: ClassVar[dict[str, str]] = {"delta": "w"}

    learning_rate: Schedule = hyper(
        0.05, "step size of the shared part", symbol="η", alias="lr", paper="0.05; 1/(2(1+α)L)"
    )
    personal_rate: Schedule | None = hyper(
        None, "step size of the personal part; None: that of the shared part", symbol="αη", paper="α = 1"
    )
    outer_step: float = hyper(1.0, "server's step along the mean move", symbol="β", paper="1; up to √M", ge=0)
    local_steps: LocalWork = hyper(10, "local steps in a round", symbol="K", paper="3; 10")
    output: Literal["last", "average", "local_average"] = hyper(
        "last", "the personal model: the last iterate (I), or the average of all (II, III)"
    )
    weighting: Weighting = hyper("uniform", "weights of the replies")
    allow_unstable: bool = hyper(False, "keep an outer step above 2 + α, which can diverge")
    log_consensus_error: bool = hyper(
        False, "log ξ_t in every local step; uploads the whole path of w_m: local_steps times the traffic"
    )

    @model_validator(mode="after")
    def _warn_if_clamped(self) -> Self:
        if self._stable_outer_step < self.outer_step:
            warnings.warn(
                f"outer_step={self.outer_step:g} can diverge above 2 + α = {self._stable_outer_step:g} "
                "and is lowered to it; allow_unstable=true keeps it",
                stacklevel=3,
            )
        return self

    @property
    def _personal_rate(self) -> Schedule:
        return self.learning_rate if self.personal_rate is None else self.personal_rate

    @property
    def _stable_outer_step(self) -> float:
        """β ≤ 2 + α (2.7), with α the ratio of the rates at the start."""
        start = Clock(0, 0, 1)
        shared, personal = float(self.learning_rate(start)), float(self._personal_rate(start))
        alpha = personal / shared if shared > 0 else math.inf
        return self.outer_step if self.allow_unstable else min(self.outer_step, 2 + alpha)

    @property
    def _shared_part(self) -> float | None:
        """η_w / (η_w + η_θ) = 1 / (1 + α), the part of v's moves that is w_m's, if it is always the same."""
        shared, personal = self.learning_rate, self._personal_rate
        if shared == personal:
            return 0.5
        if isinstance(shared, Constant) and isinstance(personal, Constant):
            return shared.initial / (shared.initial + personal.initial)
        return None

    @property
    def _follows_w(self) -> bool:
        """Whether w_m is needed in every step; one update less saves a pass over the parameters."""
        return self._shared_part is None or self.output != "last" or self.log_consensus_error

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """w^0."""
        average = self._empty_average(params)
        return Server(params, average, torch.tensor(0) if isinstance(average, Average) else ())

    def client_init(self, server: Server, client: Tensor) -> Client:
        """θ_m = 0."""
        average = () if self.output == "last" else Average.empty(server.w)
        return Client(tree.zeros_like(server.w), server.w, average, server.round)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_m <- w; θ_m as it was."""
        own = client.average
        if isinstance(own, Average) and isinstance(client.arrival, Tensor):
            here = torch.as_tensor(site.clock.time) - client.arrival * site.clock.local_steps
            own = own.caught_up(client.theta, here)  # it stood still meanwhile
        path = Path.empty(down.w, site.clock.local_steps) if self.log_consensus_error else ()
        w = down.w if self._follows_w else ()
        return Work(tree.add(down.w, client.theta), w, own, self._empty_average(down.w), path)

    def step(self, work: Work, client: Client, down: Down, batches: tuple[Batch, ...], site: Site) -> Work:
        """C1: both parts move along the one gradient at their sum, and so does the sum."""
        gradient = site.objective.gradient(work.v, batches[0])
        rate, own_rate = site.rate(self.learning_rate), site.rate(self._personal_rate)
        v = tree.step(work.v, rate + own_rate, gradient)
        if not isinstance(work.w, dict):
            return work._replace(v=v)
        own, shared, path = work.own_average, work.shared_average, work.path
        if isinstance(own, Average):
            own = own.plus(work.v if self.output == "local_average" else tree.subtract(work.v, work.w), 1)
        if isinstance(shared, Average):
            shared = shared.plus(work.w, 1)
        if isinstance(path, Path):
            path = path.at(site.clock.step, tree.subtract(work.w, down.w))
        return Work(v, tree.step(work.w, rate, gradient), own, shared, path)

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C2: keep θ_m and w_m, which make v; send w_m - w."""
        if not isinstance(work.w, dict):
            assert self._shared_part is not None
            moved = tree.subtract(work.v, tree.add(down.w, client.theta))
            delta = tree.scale(moved, self._shared_part)
            theta = tree.step(client.theta, self._shared_part - 1, moved)
            return Client(theta, tree.subtract(work.v, theta), (), client.arrival), Up(delta, (), ())
        delta = tree.subtract(work.w, down.w)
        shared, path = work.shared_average, work.path
        if isinstance(shared, Average):
            shared = shared.caught_up(work.w, torch.tensor(site.clock.local_steps))
        if isinstance(path, Path):
            path = path.stopped(site.steps, delta)
        theta = tree.subtract(work.v, work.w)
        return Client(theta, work.w, work.own_average, client.arrival), Up(delta, shared, path)

    def weights(self, server: Server, cohort: Cohort) -> Tensor:
        """Uniform in the paper."""
        return reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """w <- w + β mean(w_m - w)."""
        w = tree.step(server.w, -self._stable_outer_step, replies.delta)
        average = server.average
        if isinstance(average, Average):
            average = tree.add(average, replies.average)
        info = {"consensus_error": replies.path.spread()} if isinstance(replies.path, Path) else {}
        return server._replace(w=w, average=average), info

    def end_round(self, server: Server) -> Server:
        """Count the round, for those who arrive later."""
        return server._replace(round=server.round + 1) if isinstance(server.round, Tensor) else server

    def predictors(self, server: Server, client: Client, number: Tensor) -> dict[PredictorKind, Predictor]:
        """w alone, the client's sum after its local steps, and the sum that the output option names."""
        last = tree.add(server.w, client.theta)
        personal = last
        if self.output == "local_average":
            assert isinstance(client.average, Average)
            personal = client.average.mean(last)
        elif isinstance(server.average, Average):
            personal = tree.add(server.average.mean(server.w), self._mean_theta(server, client))
        return {"global": server.w, "localized": tree.add(client.w, client.theta), "personal": personal}

    def newcomer(self, server: Server) -> "Additive":
        """θ only: the same steps with w frozen."""
        return dataclasses.replace(
            self, learning_rate=Constant(0.0), personal_rate=self._personal_rate, log_consensus_error=False
        )

    def _mean_theta(self, server: Server, client: Client) -> Params:
        """The mean of θ_t over the steps since the client's arrival; since its last step θ stood still."""
        assert isinstance(server.average, Average)
        assert isinstance(server.round, Tensor)
        assert isinstance(client.average, Average)
        assert isinstance(client.arrival, Tensor)
        part = 1 - client.arrival / server.round.clamp_min(1).to(server.average.weight.dtype)
        here = torch.maximum(server.average.weight * part, client.average.weight)
        return client.average.caught_up(client.theta, here).mean(client.theta)

    def _empty_average(self, params: Params) -> Average | tuple[()]:
        return Average.empty(params) if self.output == "average" else ()
