"""Training alone: what every client could do without the others. Spec 6.3.

    client i:  v_i <- v_i - rate * grad f_i(v_i; batch)

Nothing crosses. A client trains in the rounds in which it is asked, so that its number of steps is that
of the other methods.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper


class Server(NamedTuple):
    """Only the common initial model."""

    initial: Params


class Client(NamedTuple):
    """The client's own model v_i, and what its optimizer remembers."""

    v: Params
    optimizer: Any


class Empty(NamedTuple):
    """A message without content."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Local(core.Method, core.Exchange):
    """Every client trains alone."""

    name: ClassVar[str] = "local"
    aliases: ClassVar[tuple[str, ...]] = ("local-only",)
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("personal",)
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    models_may_differ: ClassVar[bool] = True

    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    optimizer: core.Optimizer = hyper("sgd", "what turns gradients into steps")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """The common initial model."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Everybody starts from the common initial model."""
        return Client(server.initial, self.optimizer.init(server.initial))

    def down(self, server: Server, ids: Tensor) -> Empty:
        """Nothing."""
        return Empty()

    def begin(self, client: Client, down: Empty, site: Site) -> Client:
        """Go on with v_i."""
        return client

    def step(self, work: Client, client: Client, down: Empty, batches: Batches, site: Site) -> Client:
        """v_i <- v_i - rate * grad f_i(v_i; batch)."""
        gradient = site.objective.gradient(work.v, batches[0])
        rate = site.rate(self.learning_rate)
        return Client(*self.optimizer.apply(work.v, gradient, work.optimizer, rate))

    def finish(self, work: Client, client: Client, down: Empty, site: Site) -> tuple[Client, Empty]:
        """Keep v_i, send nothing."""
        return work, Empty()

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """There is nothing to sum."""
        return torch.ones(len(cohort), dtype=torch.float64)

    def absorb(self, server: Server, replies: Empty, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """The server learns nothing."""
        return server, {}

    def brief(self, server: Server, ids: Tensor) -> Empty:
        """Nothing."""
        return Empty()

    def predictors(self, client: Client, brief: Empty) -> core.Predictors:
        """The client's own model."""
        return {"personal": client.v}
