"""Local SGD with an outer step. Spec 6.5: Additive without its personal part.

    client i:  w_i <- w;  repeat local_steps times:  w_i <- w_i - η ∇f_i(w_i; ξ)
    server:    w <- w + β mean_i(w_i - w)

With β = 1 it is FedAvg; with small η and βη local_steps = γ it approaches mini-batch SGD with rate γ.
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
    """From each client: how far its copy moved, w_i - w."""

    delta: Params


class Work(NamedTuple):
    """Changes with every local step."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LocalSGD(core.Method, core.Exchange):
    """Local steps, then a server's step along their mean."""

    name: ClassVar[str] = "local-sgd"
    paper: ClassVar[str] = "Stich 2019"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    changes_of: ClassVar[dict[str, str]] = {"delta": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    outer_step: float = hyper(1.0, "server's step along the mean move", symbol="β", ge=0, tune=(0.5, 2.0))
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="K")
    weighting: core.Weighting = hyper("uniform", "weights of the replies")

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
        """w_i <- w_i - η ∇f_i(w_i; ξ)."""
        gradient = site.objective.gradient(work.w, batches[0])
        return Work(tree.step(work.w, site.rate(self.learning_rate), gradient))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep w_i, send its move."""
        return Client(work.w), Up(tree.subtract(work.w, down.w))

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """Of the mean move."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- w + β mean(w_i - w)."""
        return Server(tree.advance(server.w, self.outer_step, replies.delta)), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}
