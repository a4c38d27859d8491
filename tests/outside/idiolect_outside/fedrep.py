"""FedRep (Collins et al. 2021): a body θ that all clients share, and a head φ_i of each client's own.

    client i:  θ_i <- θ
               head_steps times:  φ_i <- φ_i - η ∇_φ f_i(θ_i, φ_i; ξ)        the body stands still
               body_steps times:  θ_i <- θ_i - η ∇_θ f_i(θ_i, φ_i; ξ)        the head stands still
    server:    θ <- Σ a_i θ_i

φ_i starts as the head φ⁰ of the server's first model and never leaves the client. The personal model is
(θ, φ_i), the newest body with the own head; the localized one is (θ_i, φ_i), as the client left its round.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import Batch, Params, Site, hyper, tree


class Model(NamedTuple):
    """At a client (θ_i, φ_i), at the server (θ, φ⁰); what crosses is a model without a head."""

    body: Params
    head: Params | tuple[()] = ()


@dataclass(frozen=True, kw_only=True, config=core.STRICT)
class FedRep(core.Method, core.Exchange):
    """A shared body and personal heads, trained one after the other."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"body": "body"}

    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr", paper="0.01")
    head_steps: int = hyper(10, "steps on the head", symbol="τ_h", paper="10 passes", ge=0)
    body_steps: int = hyper(10, "steps on the body", symbol="τ_b", paper="1 or 5 passes", ge=0)
    head: tuple[str, ...] = hyper((), "names of the head's parameters, as output.*; none: the last layer")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")

    @property
    def local_steps(self) -> int:
        """Those of both parts."""
        return self.head_steps + self.body_steps

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Model:
        """(θ⁰, φ⁰)."""
        parts = core.Parts.of(params, {"head": self.head or core.last_layer(params)}, rest="body")
        return Model(**parts.split(params))

    def client_init(self, server: Model, client_id: Tensor) -> Model:
        """φ_i <- φ⁰."""
        return server

    def down(self, server: Model, ids: Tensor) -> Model:
        """θ, to train and to predict with."""
        return Model(server.body)

    def begin(self, client: Model, down: Model, site: Site) -> Model:
        """θ_i <- θ."""
        return client._replace(body=down.body)

    def step(self, work: Model, client: Model, down: Model, batches: tuple[Batch, ...], site: Site) -> Model:
        """φ_i or θ_i moves, the other keeps its bits."""
        slopes = core.gradient(lambda at: site.objective.loss({**at.body, **at.head}, batches[0]), work)
        moved = tree.step(work, site.rate(self.learning_rate), slopes)
        on_head = torch.as_tensor(site.clock.step) < self.head_steps
        return tree.where(on_head, Model(work.body, moved.head), Model(moved.body, work.head))

    def finish(self, work: Model, client: Model, down: Model, site: Site) -> tuple[Model, Model]:
        """Keep (θ_i, φ_i), send θ_i."""
        return work, Model(work.body)

    def weights(self, server: Model, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Model, replies: Model, cohort: core.Cohort) -> tuple[Model, core.Info]:
        """θ <- Σ a_i θ_i."""
        return server._replace(body=replies.body), {}

    def predictors(self, client: Model, brief: Model) -> dict[core.PredictorKind, core.Predictor]:
        """(θ_i, φ_i) and (θ, φ_i)."""
        return {"localized": {**client.body, **client.head}, "personal": {**brief.body, **client.head}}

    def newcomer(self, server: Model) -> tuple["Newcomer", Model]:
        """φ from φ⁰, on θ as it is."""
        return Newcomer(self, self.head_steps), server


@dataclass(frozen=True, config=core.STRICT)
class Newcomer(core.TrainedNewcomer):
    """A head for a body that stands still."""

    method: FedRep
    local_steps: int

    def step(self, work: Model, client: Model, down: Model, batches: tuple[Batch, ...], site: Site) -> Model:
        """φ <- φ - η ∇_φ f(θ, φ; ξ)."""
        slopes = core.gradient(lambda head: site.objective.loss({**work.body, **head}, batches[0]), work.head)
        return work._replace(head=tree.step(work.head, site.rate(self.method.learning_rate), slopes))
