"""FedProx (Li et al. 2020): FedAvg whose local steps are held back to the shared model. Spec 6.6.

    client i:  w_i <- w;  repeat, as often as it can:  w_i <- w_i - η (∇f_i(w_i; ξ) + μ (w_i - w))
    server:    w <- Σ a_i w_i

Clients that complete only part of their steps are welcome. With μ = 0 it is FedAvg.
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
    """The last local copy w_i."""

    w: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its model after the local steps."""

    w: Params


class Work(NamedTuple):
    """Changes with every local step."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedProx(core.Method, core.Exchange):
    """FedAvg with a proximal term in the local objective."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    proximal: float = hyper(
        0.002, "weight of the pull to the shared model", symbol="μ", alias="mu", paper="0.001 to 1", ge=0,
        tune=(0.001, 1.0),
    )  # fmt: skip
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="E")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """The pull adds its weight to the curvature."""
        return {"learning_rate": 1 / (smoothness + self.proximal)}

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_i <- w."""
        return Work(down.w)

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """w_i <- w_i - η (∇f_i(w_i; ξ) + μ (w_i - w))."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(work.w, batches[0])
        pulled = tree.pull(work.w, down.w, rate * self.proximal)
        return Work(tree.step(pulled, rate, gradient))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep and send w_i."""
        return Client(work.w), Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- Σ a_i w_i."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}
