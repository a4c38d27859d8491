"""Ditto (Li et al. 2021): a personal model that stays near the shared one. Spec 6.14.

    client i, with w received and local_steps batches ξ, each used by both:
        w_i <- w;  w_i <- w_i - η ∇f_i(w_i; ξ)                          the shared model's FedAvg step
        v_i <- v_i - η_v (∇f_i(v_i; ξ) + λ (v_i - w))                   min over v of f_i(v) + (λ/2)|v - w|²
    server:    w <- Σ a_i w_i

v_i never leaves the client. With λ = 0 it is local training beside FedAvg; w does not depend on λ.
"""

from typing import ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The personal model v_i and the last local copy w_i."""

    v: Params
    w: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its copy of w after the local steps."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ditto(core.Method, core.Exchange):
    """FedAvg, and a personal model held near its result."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    passes: ClassVar[dict[core.PredictorKind, int]] = {"personal": 1}
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the shared model", symbol="η", alias="lr")
    personal_rate: core.Schedule | None = hyper(
        None, "step size of the personal model; None: that of the shared model", symbol="η_v"
    )
    proximal: float = hyper(
        0.1, "weight of the pull to the shared model", symbol="λ", alias="lambda", paper="0.05 to 2", ge=0,
        tune=(0.01, 10.0),
    )  # fmt: skip
    local_steps: core.LocalWork = hyper(10, "local steps in a round, of both models", symbol="s")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """The pull adds its weight to the curvature."""
        return {"learning_rate": 1 / (smoothness + self.proximal)}

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """v_i starts at the shared model."""
        return Client(server.w, server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """w_i <- w; v_i as it was."""
        return Client(client.v, down.w)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """Both models move, each along its own gradient on the same batch."""
        w = tree.step(work.w, site.rate(self.learning_rate), site.objective.gradient(work.w, batches[0]))
        return Client(self._personal_step(work.v, down.w, batches[0], site), w)

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep v_i, send w_i."""
        return work, Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- Σ a_i w_i."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, the client's last local copy of it, and v_i."""
        return {"global": brief.w, "localized": client.w, "personal": client.v}

    def newcomer(self, server: Server) -> tuple["DittoNewcomer", Server]:
        """v from the run's w, held near it."""
        return DittoNewcomer(self, self.local_steps), server

    def _personal_step(self, v: Params, w: Params, batch: core.Batch, site: Site) -> Params:
        """v - η_v (∇f_i(v; ξ) + λ (v - w))."""
        rate = site.rate(self.personal_rate or self.learning_rate)
        gradient = site.objective.gradient(v, batch)
        return tree.step(tree.pull(v, w, rate * self.proximal), rate, gradient)


@dataclass(frozen=True, config=STRICT)
class DittoNewcomer(core.TrainedNewcomer):
    """The personal half of the steps, with w frozen."""

    method: Ditto
    local_steps: core.LocalWork

    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """v <- w."""
        return down.w

    def step(self, work: Params, client: Client, down: Down, batches: Batches, site: Site) -> Params:
        """Only v moves."""
        return self.method._personal_step(work, down.w, batches[0], site)

    def keep(self, work: Params, client: Client, down: Down, site: Site) -> Client:
        """v."""
        return client._replace(v=work)
