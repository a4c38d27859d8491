"""pFedMe: personal models in Moreau envelopes around one shared model (T. Dinh et al. 2020). Spec 6.9, 4.5.

    min over w of  (1/N) Σ_i F_i(w),   F_i(w) = min_θ f_i(θ) + (λ/2) |θ - w|²

Client i, from w_i = θ = w; one local step is one local round r:

    θ   <- θ - η_p (∇f_i(θ; batch) + λ (θ - w_i))     inner_steps times on one batch
    w_i <- w_i - η λ (w_i - θ)

    server:  w <- w + β · mean over replies of (w_i - w)

In the paper all clients train in every round and the plan only chooses whose models the server averages.
"""

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods._moreau import envelope_rates, local_round


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The personal model θ_i and the last local copy w_i; also what changes with every local step."""

    theta: Params
    w: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: w_i - w."""

    change: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PFedMe(core.Method, core.Exchange):
    """Personal models around one shared model."""

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "T. Dinh, Tran, Nguyen 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    gradients_per_step: ClassVar[int] = 5
    passes: ClassVar[dict[core.PredictorKind, int]] = {"personal": -1}
    changes_of: ClassVar[dict[str, str]] = {"change": "w"}

    moreau_weight: float = hyper(
        15.0, "pull of the personal model to the shared one", symbol="λ", paper="15", ge=0, tune=(0.1, 100.0)
    )
    learning_rate: core.Schedule = hyper(
        0.005, "step size of w_i on the envelope", symbol="η", alias="lr", paper="0.005; 0.01"
    )
    local_steps: core.LocalWork = hyper(10, "local rounds, each on one batch", symbol="R", paper="20")
    inner_rate: core.Schedule = hyper(
        0.03,
        "step size of θ; inner_rate (L + moreau_weight) must be below 2",
        symbol="η_p",
        paper="0.09; 0.01 synthetic",
    )
    inner_steps: int = hyper(5, "steps of θ in a local round", symbol="K_in", paper="5", ge=1)
    inner_tolerance: float | None = hyper(
        None, "stop the inner steps at this norm of their gradient", symbol="ν", gt=0
    )
    inner_start: Literal["warm", "cold"] = hyper(
        "warm", "start a local round at the last θ (the authors' code), or at w_i"
    )
    server_mixing: float = hyper(1.0, "step of w to the mean", symbol="β", paper="1; 2", ge=0)
    trains: Literal["everybody", "asked"] = hyper(
        "everybody",
        "who trains: all clients, of whom the asked ones are averaged, or only those",
        paper="all",
    )
    weighting: core.Weighting = hyper("uniform", "weights of the replies", paper="uniform")

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """Those of the Moreau envelope."""
        return envelope_rates(smoothness, self.moreau_weight)

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first personal one."""
        return Client(server.w, server.w)

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """Everybody trains, but only those whom the plan asks send their models."""
        if self.trains == "asked":
            return cohort
        present = cohort.population.present
        ids = present.nonzero()[:, 0]
        work, inclusion = torch.ones_like(present, dtype=torch.float64), torch.zeros(len(present)).double()
        replied, draws = torch.zeros_like(present), torch.ones_like(work)
        work[cohort.ids], inclusion[cohort.ids] = cohort.work, cohort.inclusion
        replied[cohort.ids] = cohort.replied
        if cohort.multiplicity is not None:
            draws[cohort.ids] = cohort.multiplicity
        everybody = core.Cohort(ids, work[ids], replied[ids], inclusion[ids], cohort.population)
        return replace(everybody, multiplicity=draws[ids])

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """w_i <- w, θ <- w."""
        return Client(down.w, down.w)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """One local round."""
        return Client(*local_round(self, work.theta, work.w, batches[0], site))

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep θ_i and w_i, send how far w_i moved."""
        return work, Up(tree.subtract(work.w, down.w))

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """Uniform in the paper."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- w + β · mean change."""
        return Server(tree.advance(server.w, self.server_mixing, replies.change)), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """w, w_i and θ_i."""
        return {"global": brief.w, "localized": client.w, "personal": client.theta}
