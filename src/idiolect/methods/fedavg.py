"""FedAvg (McMahan et al. 2017) and its localized model. Spec 6.1, 6.2.

    client i:  w_i <- w;  repeat local_steps times:  w_i <- w_i - rate * grad f_i(w_i; batch)
    server:    w <- sum over replies of a_i w_i,   a_i = 1/m  or  n_i / sum of n

Replies of clients that completed only part of their steps count like the others, or are dropped.
w is the shared model ("global"); w_i after the local steps is the client's "localized" model.
"""

from typing import Any, ClassVar, Literal, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The last local copy w_i, and what the client's optimizer remembers."""

    w: Params
    optimizer: Any


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its model after the local steps."""

    w: Params


class Work(NamedTuple):
    """Changes with every local step."""

    w: Params
    optimizer: Any


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAvg(core.Method, core.Exchange):
    """Average of locally trained models."""

    name: ClassVar[str] = "fedavg"
    aliases: ClassVar[tuple[str, ...]] = ("fedavg-ft",)
    paper: ClassVar[str] = "McMahan et al. 2017"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")
    incomplete: Literal["keep", "drop"] = hyper(
        "keep", "whether replies of clients that completed only some of their steps count"
    )
    optimizer: core.Optimizer = hyper("sgd", "what turns gradients into steps")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w, self.optimizer.init(server.w))

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_i <- w."""
        return Work(down.w, client.optimizer)

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """w_i <- w_i - rate * grad f_i(w_i; batch)."""
        gradient = site.objective.gradient(work.w, batches[0])
        rate = site.rate(self.learning_rate)
        return Work(*self.optimizer.apply(work.w, gradient, work.optimizer, rate))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep and send w_i."""
        return Client(work.w, work.optimizer), Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        weights = core.reply_weights(cohort, self.weighting)
        if self.incomplete == "keep" or not cohort.complete.any():
            return weights
        kept = weights * cohort.complete
        return kept / kept.sum()

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- sum a_i w_i; w stays if nobody is left to count."""
        if self.incomplete == "drop" and not cohort.complete.any():
            return server, {}
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}
