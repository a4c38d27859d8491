"""SCAFFOLD (Karimireddy et al. 2020): control variates against client drift. Spec 6.7.

    client i:  w_i <- w;  repeat local_steps times:  w_i <- w_i - η (∇f_i(w_i; ξ) - c_i + c)
               I:   c_i⁺ = ∇f_i(w), on all rows             II:  c_i⁺ = c_i - c + (w - w_i) / Σ_k η_k
               send w_i - w and c_i⁺ - c_i
    server:    w <- w + η_g mean_S(w_i - w)
               c <- c + (1/N) Σ_{i ∈ S} (c_i⁺ - c_i)

c and c_i start at zero. Σ_k η_k are the rates that were applied: local_steps η where η is constant and the
work complete. While every reply arrives, c is the mean of all c_i.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree


class Server(NamedTuple):
    """The shared model w and the shared control c."""

    w: Params
    c: Params


class Client(NamedTuple):
    """The client's control c_i and its last local copy w_i."""

    c: Params
    w: Params


class Down(NamedTuple):
    """To every client: the shared model and the shared control."""

    w: Params
    c: Params


class Up(NamedTuple):
    """From each client: how far its model and its control moved."""

    w_delta: Params
    c_delta: Params


class Work(NamedTuple):
    """The local model, and the sum of the rates so far."""

    w: Params
    rates: Tensor


class Brief(NamedTuple):
    """To predict with: the shared model."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Scaffold(core.Method, core.Exchange):
    """Local steps corrected by the difference of the shared and the own gradient."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    stateful: ClassVar[bool] = True
    changes_of: ClassVar[dict[str, str]] = {"w_delta": "w", "c_delta": "c"}
    relied_on: ClassVar[frozenset[str]] = frozenset({"c"})  # the mean of all c_i

    learning_rate: core.Schedule = hyper(
        0.1, "step size of the local steps", symbol="η_l", alias="lr", paper="APFL: 0.1; 0.05 on CIFAR10"
    )
    outer_step: float = hyper(
        1.0, "server's step along the mean move", symbol="η_g", paper="1", ge=0, tune=(0.5, 2.0)
    )
    control: Literal["gradient", "steps"] = hyper(
        "steps", "the new c_i: the gradient at the shared model (I), or the mean of the local steps (II)"
    )
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")

    @property
    def sees_all_rows(self) -> bool:  # type: ignore[override]  # a constant for each instance
        """Option I takes a gradient on all rows."""
        return self.control == "gradient"

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0 and c = 0."""
        return Server(params, tree.zeros_like(params))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """c_i = 0."""
        return Client(tree.zeros_like(server.w), server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w and c."""
        return Down(server.w, server.c)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_i <- w."""
        return Work(down.w, torch.zeros_like(tree.scalar_of(down.w)))

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """w_i <- w_i - η (∇f_i(w_i; ξ) - c_i + c)."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(work.w, batches[0])
        correction = tree.subtract(down.c, client.c)
        w = tree.step(tree.step(work.w, rate, correction), rate, gradient)
        return Work(w, work.rates + rate)

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """c_i⁺ by option I or II; send both moves."""
        w_delta = tree.subtract(work.w, down.w)
        if self.control == "gradient":
            c = site.objective.gradient(down.w, site.all_rows)
            c_delta = tree.subtract(c, client.c)
        else:
            c_delta = tree.add_multiple(tree.scale(down.c, -1), -1 / work.rates, w_delta)
            c = tree.add(client.c, c_delta)
        return Client(c, work.w), Up(w_delta, c_delta)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """1 / |S|: the controls are defined for the plain mean."""
        return core.plain_mean(cohort)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- w + η_g mean(w_i - w); c <- c + (|S|/N) mean(c_i⁺ - c_i)."""
        share = len(cohort) / cohort.population.count
        return Server(
            tree.advance(server.w, self.outer_step, replies.w_delta),
            tree.advance(server.c, share, replies.c_delta),
        ), {}

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """w."""
        return Brief(server.w)

    def predictors(self, client: Client, brief: Brief) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}

    def newcomer(self, server: Server) -> tuple[core.FineTuning, Server]:
        """Ordinary local steps from w: a newcomer has no control of its own to set against c."""
        return core.FineTuning(self, self.learning_rate, self.local_steps), server
