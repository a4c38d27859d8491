"""VRL-SGD (Liang et al. 2019): variance-reduced Local SGD, at the traffic of FedAvg. Spec 6.11.

    client i:  Δ_i <- Δ_i + (w - w_i) / Σ_k η_k        w: the mean of the last round, w_i: its part in it
               w_i <- w;  repeat local_steps times:  w_i <- w_i - η (∇f_i(w_i; ξ) - Δ_i);  send w_i
    server:    w <- mean w_i

Defined for full participation: the mean that a client was part of reaches it as the next round's w. A client
that is not asked in the next round never sees that mean and keeps its Δ_i (FedGATE has a message for it).
Σ_k η_k are the rates of a whole round.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.core.schedule import round_total

NEVER = -2  # a round that has no next one


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The correction Δ_i, the last local copy w_i, the round it is of, and Σ_k η_k of that round."""

    delta: Params
    w: Params
    round: Tensor
    rates: Tensor


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its model after the local steps."""

    w: Params


class Work(NamedTuple):
    """The local model, and the correction of this round."""

    w: Params
    delta: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class VRLSGD(core.Method, core.Exchange):
    """Local steps with gradient tracking, corrected one round later."""

    name: ClassVar[str] = "vrl-sgd"
    paper: ClassVar[str] = "Liang et al. 2019"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    stateful: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}
    relied_on: ClassVar[frozenset[str]] = frozenset({"w"})  # the mean of the last round's w_i

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="γ", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="k")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Δ_i = 0."""
        one = torch.ones_like(tree.scalar_of(server.w))
        return Client(tree.zeros_like(server.w), server.w, torch.full_like(client_id, NEVER), one)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """Δ_i <- Δ_i + (w - w_i) / Σ_k η_k where w is the mean of the client's last round; w_i <- w."""
        is_its_mean = client.round + 1 == site.clock.round
        share = torch.where(is_its_mean, 1 / client.rates, torch.zeros_like(client.rates))
        return Work(down.w, tree.add_multiple(client.delta, share, tree.subtract(down.w, client.w)))

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """w_i <- w_i - η (∇f_i(w_i; ξ) - Δ_i)."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(work.w, batches[0])
        w = tree.step(tree.advance(work.w, rate, work.delta), rate, gradient)
        return Work(w, work.delta)

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep and send w_i."""
        this_round = torch.zeros_like(client.round) + site.clock.round
        rates = torch.zeros_like(client.rates) + round_total(self.learning_rate, site.clock)
        return Client(work.delta, work.w, this_round, rates), Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """The plain mean, for which the corrections sum to zero."""
        return core.plain_mean(cohort)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- mean w_i."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}
