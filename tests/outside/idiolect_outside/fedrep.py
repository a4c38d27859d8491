"""FedRep (Collins et al. 2021): a body θ that all clients share, and a head φ_i of each client's own.

    client i:  w_i <- (θ, φ_i)
               τ_h times:  φ_i <- φ_i - η ∇_φ f_i(w_i; ξ)        the body stands still
               τ_b times:  θ_i <- θ_i - η ∇_θ f_i(w_i; ξ)        the head stands still
    server:    θ <- Σ a_i θ_i

φ_i starts as the head φ⁰ of the server's first model and never leaves the client. The personal model is
(θ, φ_i), the newest body with the own head; the localized one is (θ_i, φ_i), as the client left its round.
A newcomer trains a head alone, on θ as it is.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core


class Model(NamedTuple):
    """At a client w_i = (θ_i, φ_i), at the server (θ, φ⁰)."""

    w: core.Params


class Body(NamedTuple):
    """What crosses: θ to the clients, to train and to predict with, and θ_i from each."""

    body: core.Params


@dataclass(frozen=True, kw_only=True, config=core.STRICT)
class FedRep(core.Method, core.Exchange):
    """A shared body and personal heads, trained one after the other."""

    name: ClassVar[str] = "ownrep"
    paper: ClassVar[str] = "Collins et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"body": "body"}

    learning_rate: core.Schedule = core.hyper(0.1, "step size", symbol="η", alias="lr", paper="0.01")
    local_steps: int = core.hyper(20, "local steps in a round", symbol="τ_h + τ_b", ge=1)
    body_steps: int | None = core.hyper(
        None, "the last of them, which train the body; None: half", symbol="τ_b", paper="1 of 11 passes", ge=0
    )
    head: tuple[str, ...] = core.hyper((), "names of the head, as output.*; none: the last layer")
    weighting: core.Weighting = core.hyper("uniform", "weights of the replies", symbol="a_i")

    def __post_init__(self) -> None:
        if self.head_steps < 0:
            raise ValueError(f"body_steps={self.body_steps} must be at most local_steps={self.local_steps}")

    @property
    def head_steps(self) -> int:
        """τ_h: the first steps, which train the head."""
        return self.local_steps - (self.local_steps // 2 if self.body_steps is None else self.body_steps)

    def parts(self, w: core.Params) -> core.Parts:
        """Which parameters are the head's, and which the body's."""
        return core.Parts.of(w, {"head": self.head or core.last_layer(w)}, rest="body")

    def server_init(self, params: core.Params, population: core.Population, key: Tensor) -> Model:
        """(θ⁰, φ⁰)."""
        self.parts(params)  # a head that the model does not have is refused before the first round
        return Model(params)

    def client_init(self, server: Model, client_id: Tensor) -> Model:
        """φ_i <- φ⁰."""
        return server

    def down(self, server: Model, ids: Tensor) -> Body:
        """θ."""
        return Body(self.parts(server.w).take(server.w, "body"))

    def begin(self, client: Model, down: Body, site: core.Site) -> Model:
        """w_i <- (θ, φ_i)."""
        return Model(self.parts(client.w).replace(client.w, body=down.body))

    def step(self, work: Model, client: Model, down: Body, batches: core.Batches, site: core.Site) -> Model:
        """φ_i or θ_i moves, the other keeps its bits."""
        slopes = site.objective.gradient(work.w, batches[0])
        moved = self.parts(work.w).split(core.tree.step(work.w, site.rate(self.learning_rate), slopes))
        head, body = (self.parts(work.w).replace(work.w, **{part: moved[part]}) for part in ("head", "body"))
        return Model(core.tree.where(torch.as_tensor(site.clock.step) < self.head_steps, head, body))

    def finish(self, work: Model, client: Model, down: Body, site: core.Site) -> tuple[Model, Body]:
        """Keep w_i, send θ_i."""
        return work, self.down(work, site.client_id)

    def weights(self, server: Model, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Model, replies: Body, cohort: core.Cohort) -> tuple[Model, core.Info]:
        """θ <- Σ a_i θ_i."""
        return Model(self.parts(server.w).replace(server.w, body=replies.body)), {}

    def predictors(self, client: Model, brief: Body) -> core.Predictors:
        """(θ_i, φ_i) and (θ, φ_i)."""
        return {"localized": client.w, "personal": self.parts(client.w).replace(client.w, body=brief.body)}

    def newcomer(self, server: Model) -> tuple["FedRep", Model]:
        """φ from φ⁰, on θ as it is."""
        return replace(self, body_steps=0), server
