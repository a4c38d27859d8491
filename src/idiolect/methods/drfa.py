"""DRFA: distributionally robust federated averaging (Deng, Kamani, Mahdavi 2020). Spec 6.12.

    min over w, max over q on the simplex, of  Σ_i q_i f_i(w),    q⁰_i = n_i / n

A round has two exchanges; m is the number of clients that the plan asks, t' a common random step in 1..τ:

    1. m draws ∝ q with replacement:  w_i <- w_i - γ_w ∇f_i(w_i; ξ), τ times from w;  u_i = w_i after t' steps
       server:  w <- mean of w_i,  u <- mean of u_i           (a client drawn twice counts twice)
    2. m clients, uniform without replacement, report ℓ_i = f_i(u) on all their training rows
       server:  q <- Π(q + τ γ_q v),  v_i = (N/m) ℓ_i, 0 for all others,   Π: projection onto the simplex
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, rng, tree
from idiolect.methods._shares import ascend, drawn_by_share, drawn_uniformly, initial_shares


class Server(NamedTuple):
    """The shared model w, its snapshot u, the clients' shares q, the round and the key of t'."""

    w: Params
    snapshot: Params
    shares: Tensor  # float64[clients]
    round: Tensor
    key: Tensor


class Client(NamedTuple):
    """The last local copy w_i."""

    w: Params


class Down(NamedTuple):
    """To every drawn client: the shared model and t'."""

    w: Params
    snapshot_step: Tensor


class Up(NamedTuple):
    """From each drawn client: its model after the local steps and after t' of them. Also its work."""

    w: Params
    snapshot: Params


class Brief(NamedTuple):
    """To predict with: the shared model."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DRFA(core.Method, core.Exchange):
    """Local steps of clients drawn by shares that rise with their losses."""

    name: ClassVar[str] = "drfa"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    relative_to: ClassVar[dict[str, str]] = {"w": "w", "snapshot": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="γ_w", alias="lr")
    local_steps: int = hyper(10, "local steps in a round", symbol="τ", ge=1)
    shares_rate: core.Schedule = hyper(
        0.01, "step size of the clients' shares", symbol="γ_q", paper="0.1, x 0.9 per round (authors' code)",
        tune=(0.001, 0.1),
    )  # fmt: skip

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0, q^0."""
        return Server(params, params, initial_shares(population), torch.tensor(0), key)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w)

    def exchanges(self, server: Server) -> Sequence[core.Exchange]:
        """Training, then losses."""
        return (self, DRFALosses(self))

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """As many draws as the plan asks clients, ∝ q, with replacement."""
        return drawn_by_share(server.shares, cohort, rng.fold(key, 1))

    def down(self, server: Server, ids: Tensor) -> Down:
        """w and t'."""
        return Down(server.w, 1 + rng.below(rng.fold(server.key, server.round), self.local_steps))

    def begin(self, client: Client, down: Down, site: Site) -> Up:
        """w_i <- w."""
        return Up(down.w, down.w)

    def step(self, work: Up, client: Client, down: Down, batches: Batches, site: Site) -> Up:
        """w_i <- w_i - γ_w ∇f_i(w_i; ξ)."""
        gradient = site.objective.gradient(work.w, batches[0])
        w = tree.step(work.w, site.rate(self.learning_rate), gradient)
        # The snapshot follows w_i until t': who completes fewer steps gives its last model.
        return Up(w, tree.where(site.clock.step < down.snapshot_step, w, work.snapshot))

    def finish(self, work: Up, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep w_i; send it and u_i."""
        return Client(work.w), work

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """1/m for each draw."""
        return core.reply_weights(cohort, "uniform")

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w and u."""
        return server._replace(w=replies.w, snapshot=replies.snapshot), {}

    def end_round(self, server: Server) -> Server:
        """The next t', and the clock of the shares' step size."""
        return server._replace(round=server.round + 1)

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """w."""
        return Brief(server.w)

    def predictors(self, client: Client, brief: Brief) -> core.Predictors:
        """The shared model, and the client's last copy of it."""
        return {"global": brief.w, "localized": client.w}

    def newcomer(self, server: Server) -> tuple[core.FineTuning, Server]:
        """Local steps from the shared model."""
        return core.FineTuning(self, self.learning_rate, self.local_steps), server


class LossRequest(NamedTuple):
    """To each client of the second sample: the snapshot u."""

    snapshot: Params


class LossReport(NamedTuple):
    """From each: its loss there. Also its work."""

    loss: Tensor


@dataclass(frozen=True, config=STRICT)
class DRFALosses(core.Exchange):
    """The second exchange: losses at the snapshot, and the ascent in q. Clients stay as they are."""

    method: DRFA
    sees_all_rows: ClassVar[bool] = True

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """As many clients as the plan asks, uniform without replacement."""
        return drawn_uniformly(cohort, rng.fold(key, 2))

    def down(self, server: Server, ids: Tensor) -> LossRequest:
        """u."""
        return LossRequest(server.snapshot)

    def begin(self, client: Any, down: LossRequest, site: Site) -> LossReport:
        """ℓ_i = f_i(u)."""
        return LossReport(site.objective.loss(down.snapshot, site.all_rows))

    def finish(self, work: LossReport, client: Any, down: LossRequest, site: Site) -> tuple[Any, LossReport]:
        """Send ℓ_i."""
        return client, work

    def absorb(self, server: Server, replies: LossReport, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """q <- Π(q + τ γ_q v)."""
        method = self.method
        rate = method.local_steps * method.shares_rate(core.Clock(int(server.round), 0, method.local_steps))
        slope = torch.zeros_like(server.shares)
        slope[cohort.ids] = rate * cohort.population.count / len(cohort) * replies.loss.double()
        shares = ascend(server.shares, slope, cohort.population)
        return server._replace(shares=shares), {"shares": shares, "worst_loss": replies.loss.max()}
