"""FedBABU (Oh, Kim, Yun 2022): federated averaging of the body alone, and fine-tuning to predict. Spec 8.3.

    client i:    θ_i <- θ;  repeat local_steps times:  θ_i <- θ_i - η ∇_θ f_i(θ_i, φ; ξ)
    server:      θ <- Σ a_i θ_i
    to predict:  w <- (θ, φ);  repeat fine_tune_steps times:  w <- w - η ∇f_i(w), on all training rows

The head φ is drawn once, is the same everywhere and is trained by nobody before a client fine-tunes its copy,
of which nothing is fed back. (θ, φ) is the shared model ("global"), the copy the client's "personal" one.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper
from idiolect.methods._parts import divide


class Server(NamedTuple):
    """The body θ, and the head φ that everybody has."""

    shared: Params
    head: Params


class Client(NamedTuple):
    """The head φ, the model that the client predicts with, and what the body's optimizer remembers."""

    head: Params
    personal: Params
    memory: Any


class Shared(NamedTuple):
    """What crosses: θ to every client, θ_i from each."""

    shared: Params


class Work(NamedTuple):
    """Changes with every local step: θ_i, and what its optimizer remembers."""

    body: Params
    memory: Any


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedBABU(core.Method, core.Exchange):
    """A shared body under a head that nobody trains, fine-tuned to predict."""

    name: ClassVar[str] = "fedbabu"
    aliases: ClassVar[tuple[str, ...]] = ("fed-babu",)
    paper: ClassVar[str] = "Oh, Kim, Yun 2022"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    relative_to: ClassVar[dict[str, str]] = {"shared": "shared"}
    adapts: ClassVar[bool] = True
    part_choices: ClassVar[tuple[str, ...]] = ("head",)

    head: core.PartChoice = hyper("head", "the part that is not trained before fine-tuning", symbol="φ")
    head_init: Literal["default", "orthogonal"] = hyper(
        "default", "the head as the model has it, or the nearest one with orthonormal rows"
    )
    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr", paper="0.1")
    local_steps: core.LocalWork = hyper(
        10, "local steps in a round", symbol="τ", paper="1, 4 or 10 passes in 320, 80 or 32 rounds"
    )
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i", paper="uniform")
    optimizer: core.Optimizer = hyper("sgd", "what turns gradients into steps", paper="momentum 0.9")
    fine_tune_steps: int = hyper(
        10, "steps on all training rows before a client predicts", paper="5 passes", ge=0
    )
    fine_tune_part: Literal["all", "head", "body"] = hyper("all", "what these steps train", paper="all")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """θ⁰ and φ."""
        body, head = divide(params, self.head)
        return Server(body, _orthogonal(head) if self.head_init == "orthogonal" else head)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Nothing is fine-tuned yet."""
        w = {**server.shared, **server.head}
        return Client(server.head, w, self.optimizer.init(server.shared))

    def down(self, server: Server, ids: Tensor) -> Shared:
        """θ."""
        return Shared(server.shared)

    def begin(self, client: Client, down: Shared, site: Site) -> Work:
        """θ_i <- θ."""
        return Work(down.shared, client.memory)

    def step(self, work: Work, client: Client, down: Shared, batches: Batches, site: Site) -> Work:
        """θ_i <- θ_i - η ∇_θ f_i(θ_i, φ; ξ)."""
        slopes = site.objective.gradient(work.body, batches[0], fixed=client.head)
        return Work(*self.optimizer.apply(work.body, slopes, work.memory, site.rate(self.learning_rate)))

    def finish(self, work: Work, client: Client, down: Shared, site: Site) -> tuple[Client, Shared]:
        """Send θ_i."""
        return client._replace(memory=work.memory), Shared(work.body)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Shared, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """θ <- Σ a_i θ_i."""
        return server._replace(shared=replies.shared), {}

    def adapt(self, client: Client, brief: Shared, site: Site) -> Client:
        """Fine-tune a copy of (θ, φ), or a part of it, with a fresh optimizer."""
        body, head = brief.shared, client.head
        part, fixed = {"all": ({**body, **head}, {}), "head": (head, body), "body": (body, head)}[
            self.fine_tune_part
        ]
        memory: Any = self.optimizer.init(part)
        for _ in range(self.fine_tune_steps):
            slopes = site.objective.gradient(part, site.all_rows, fixed=fixed)
            part, memory = self.optimizer.apply(part, slopes, memory, site.rate(self.learning_rate))
        return client._replace(personal={**part, **fixed})

    def predictors(self, client: Client, brief: Shared) -> core.Predictors:
        """The shared model, and the fine-tuned copy."""
        return {"global": {**brief.shared, **client.head}, "personal": client.personal}

    def newcomer(self, server: Server) -> tuple[core.AdaptedNewcomer, Server]:
        """Fine-tuning is all that a newcomer needs."""
        return core.AdaptedNewcomer(self), server


def _orthogonal(head: Params) -> Params:
    """The nearest tensors whose rows are orthonormal, or whose columns are, if these are fewer."""

    def nearest(value: Tensor) -> Tensor:
        if value.ndim < 2:
            return value
        left, _, right = torch.linalg.svd(value.flatten(1), full_matrices=False)
        return (left @ right).reshape(value.shape)

    return {name: nearest(value) for name, value in head.items()}
