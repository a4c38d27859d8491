"""FedGATE (Haddadpour et al. 2021): gradients corrected by what the last rounds averaged away. Spec 6.11.

    client i:  w_i <- w;  repeat local_steps times:  w_i <- w_i - η (∇f_i(w_i; ξ) - δ_i);  send w_i
    server:    w̄ = mean w_i;  w <- w + γ (w̄ - w);  send w̄ to those who replied
    client i:  δ_i <- δ_i + (w̄ - w_i) / Σ_k η_k            which is  δ_i + (Δ_i - Δ̄)/τ,  Δ_i = (w - w_i)/η

The second message makes Σ_i δ_i = 0 hold whoever takes part. Σ_k η_k are the rates of a whole round.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.core.schedule import round_total


class Server(NamedTuple):
    """The shared model w; within a round, the mean of the clients' models and whose replies are in it."""

    w: Params
    mean: Params
    heard: Tensor


class Client(NamedTuple):
    """The correction δ_i, the last local copy w_i, and Σ_k η_k of its round."""

    delta: Params
    w: Params
    rates: Tensor


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its model after the local steps."""

    w: Params


class Work(NamedTuple):
    """Changes with every local step."""

    w: Params


class MeanDown(NamedTuple):
    """To those who replied: the mean of their models."""

    mean: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedGATE(core.Method, core.Exchange):
    """Local steps with gradient tracking."""

    name: ClassVar[str] = "fedgate"
    paper: ClassVar[str] = "Haddadpour et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    stateful: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    outer_step: float = hyper(
        1.0, "server's step along the mean move", symbol="γ", paper="1", ge=0, tune=(0.5, 2.0)
    )
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params, params, torch.zeros_like(population.present))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """δ_i = 0."""
        return Client(tree.zeros_like(server.w), server.w, torch.ones_like(tree.scalar_of(server.w)))

    def exchanges(self, server: Server) -> Sequence[core.Exchange]:
        """Training, then the correction."""
        return (self, Correction())

    def end_round(self, server: Server) -> Server:
        """A correction never reaches into the next round."""
        return server._replace(heard=torch.zeros_like(server.heard))

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_i <- w."""
        return Work(down.w)

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """w_i <- w_i - η (∇f_i(w_i; ξ) - δ_i)."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(work.w, batches[0])
        w = tree.step(tree.advance(work.w, rate, client.delta), rate, gradient)
        return Work(w)

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep and send w_i."""
        rates = torch.zeros_like(client.rates) + round_total(self.learning_rate, site.clock)
        return Client(client.delta, work.w, rates), Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """The plain mean, for which the corrections sum to zero."""
        return core.plain_mean(cohort)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- w + γ (w̄ - w)."""
        heard = torch.zeros_like(server.heard).index_fill(0, cohort.ids, True)
        return Server(tree.interpolate(replies.w, server.w, self.outer_step), replies.w, heard), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}

    def newcomer(self, server: Server) -> tuple[core.FineTuning, Server]:
        """Ordinary local steps from w: a newcomer has nothing to be corrected by."""
        return core.FineTuning(self, self.learning_rate, self.local_steps), server


@dataclass(frozen=True, config=STRICT)
class Correction(core.Exchange):
    """δ_i <- δ_i + (w̄ - w_i) / Σ_k η_k."""

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """Those whose models are in the mean."""
        return cohort.select(server.heard[cohort.ids])

    def down(self, server: Server, ids: Tensor) -> MeanDown:
        """w̄."""
        return MeanDown(server.mean)

    def begin(self, client: Client, down: MeanDown, site: Site) -> Params:
        """The new δ_i."""
        return tree.add_multiple(client.delta, 1 / client.rates, tree.subtract(down.mean, client.w))

    def finish(self, work: Params, client: Client, down: MeanDown, site: Site) -> tuple[Client, core.Nothing]:
        """Keep it; nothing is sent."""
        return client._replace(delta=work), core.Nothing()

    def absorb(self, server: Server, replies: core.Nothing, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """There is nothing to learn."""
        return server, {}
