"""FedRep (Collins et al. 2021): a shared body θ and personal heads φ_i, trained in turn. Spec 8.2.

    client i:  w_i <- (θ, φ_i)
               τ_h times:  φ_i <- φ_i - η ∇_φ f_i(w_i; ξ)        the body stands still
               τ_b times:  θ_i <- θ_i - η ∇_θ f_i(w_i; ξ)        the head stands still
    server:    θ <- Σ a_i θ_i

for min over θ, φ_1, .. φ_N of Σ a_i f_i(θ, φ_i). φ_i never leaves the client. What stands still keeps its
bits: weight decay and the optimizer's memory do not touch it. The personal model is (θ, φ_i), the newest body
with the own head; the localized one is (θ_i, φ_i), as the client left its round.
"""

from typing import Any, ClassVar, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods._parts import First, NewcomerTrains, PersonalPart, Start, divide
from idiolect.methods._phases import BodySteps, head_steps, require_some_of_all


class Server(NamedTuple):
    """The body θ, and where heads begin."""

    shared: Params
    start: Start


class Client(NamedTuple):
    """The model w_i = (θ_i, φ_i), and what the optimizers of body and head remember."""

    w: Params
    body_memory: Any
    head_memory: Any


class Part(NamedTuple):
    """Body or head, and what its optimizer remembers."""

    params: Params
    memory: Any


class Work(NamedTuple):
    """θ_i and φ_i, one of which changes with a local step."""

    body: Part
    head: Part


class Shared(NamedTuple):
    """What crosses: θ to every client, θ_i from each."""

    shared: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedRep(core.Method, core.Exchange):
    """A shared body and personal heads, trained one after the other."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2  # one in each part, of which one is taken
    passes: ClassVar[dict[core.PredictorKind, tuple[int, ...]]] = {"localized": (0, 1), "personal": (0, 1)}
    relative_to: ClassVar[dict[str, str]] = {"shared": "shared"}
    part_choices: ClassVar[tuple[str, ...]] = ("personal",)

    personal: core.PartChoice = hyper("head", "the part that stays at each client", symbol="φ_i")
    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr", paper="0.01")
    local_steps: core.LocalWork = hyper(
        10, "local steps in a round, of head and body", symbol="τ_h + τ_b", paper="11 or 15 passes"
    )
    body_steps: BodySteps = hyper(
        None, "the last of them, which train the body; None: half", symbol="τ_b", paper="1 or 5 passes"
    )
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")
    optimizer: core.Optimizer = hyper("sgd", "what turns gradients into steps", paper="momentum 0.5")
    first: First = hyper("equal", "whether heads begin alike or each with a draw of its own")
    newcomer_trains: NewcomerTrains = hyper("personal", "what a newcomer trains: its head or all")

    @model_validator(mode="after")
    def _body_steps_are_some_of_all(self) -> Self:
        require_some_of_all(self.body_steps, self.local_steps)
        return self

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """θ⁰ and φ⁰."""
        body, head = divide(params, self.personal)
        return Server(body, Start(head, key))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """(θ, φ_i⁰)."""
        body, head = server.shared, server.start.of_client(client_id, self.first)
        return Client({**body, **head}, self.optimizer.init(body), self.optimizer.init(head))

    def down(self, server: Server, ids: Tensor) -> Shared:
        """θ."""
        return Shared(server.shared)

    def begin(self, client: Client, down: Shared, site: Site) -> Work:
        """w_i <- (θ, φ_i)."""
        head = {name: value for name, value in client.w.items() if name not in down.shared}
        return Work(Part(down.shared, client.body_memory), Part(head, client.head_memory))

    def step(self, work: Work, client: Client, down: Shared, batches: Batches, site: Site) -> Work:
        """φ_i or θ_i moves, the other keeps its bits."""
        first_steps = head_steps(site, self.local_steps, self.body_steps, share=1 / 2)
        trains_head = torch.as_tensor(site.clock.step) < first_steps
        head = self._moved(work.head, work.body.params, trains_head, batches[0], site)
        body = self._moved(work.body, work.head.params, ~trains_head, batches[0], site)
        return Work(body, head)

    def finish(self, work: Work, client: Client, down: Shared, site: Site) -> tuple[Client, Shared]:
        """Keep w_i, send θ_i."""
        w = {**work.body.params, **work.head.params}
        return Client(w, work.body.memory, work.head.memory), Shared(work.body.params)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Shared, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """θ <- Σ a_i θ_i."""
        return server._replace(shared=replies.shared), {}

    def predictors(self, client: Client, brief: Shared) -> core.Predictors:
        """(θ_i, φ_i) and (θ, φ_i)."""
        return {"localized": client.w, "personal": {**client.w, **brief.shared}}

    def newcomer(self, server: Server) -> tuple[PersonalPart, Server]:
        """φ from φ⁰, on θ as it is."""
        newcomer = PersonalPart(
            self, self.learning_rate, self.optimizer, self.newcomer_trains, self.local_steps
        )
        return newcomer, server

    def _moved(self, part: Part, fixed: Params, taken: Tensor, batch: core.Batch, site: Site) -> Part:
        """One step on a part of the model, if it is taken."""
        slopes = site.objective.when(taken).gradient(part.params, batch, fixed=fixed)
        moved = self.optimizer.apply(part.params, slopes, part.memory, site.rate(self.learning_rate))
        return tree.where(taken, Part(*moved), part)
