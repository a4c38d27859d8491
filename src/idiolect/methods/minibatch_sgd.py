"""Distributed mini-batch SGD. Spec 6.4.

    w <- w - γ (1/M) Σ_i (1/K) Σ_k ∇f_i(w; ξ_ik)

All K gradients of a round are taken at the server's w, so nobody drifts and a round is one step. The
client's "localized" model is the step it would take alone: w - γ (1/K) Σ_k ∇f_i(w; ξ_ik).
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
    """w after the client's own step."""

    w: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its step, γ times the mean of its gradients."""

    step: Params


class Work(NamedTuple):
    """Σ_k γ ∇f_i(w; ξ_ik) so far."""

    total: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MiniBatchSGD(core.Method, core.Exchange):
    """One step in a round, along the mean of all gradients."""

    name: ClassVar[str] = "minibatch-sgd"
    aliases: ClassVar[tuple[str, ...]] = ("mb-sgd", "fedsgd")
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    changes_of: ClassVar[dict[str, str]] = {"step": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of a round", symbol="γ", alias="lr")
    local_steps: core.LocalWork = hyper(10, "gradients of each client in a round", symbol="K")
    weighting: core.Weighting = hyper("uniform", "weights of the replies")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """No step yet."""
        return Client(server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """No gradient yet."""
        return Work(tree.zeros_like(down.w))

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """One more gradient at the server's w."""
        gradient = site.objective.gradient(down.w, batches[0])
        return Work(tree.step(work.total, -site.rate(self.learning_rate), gradient))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Send the mean over the steps that were taken."""
        step = tree.map_tree(lambda leaf: leaf / site.steps, work.total)
        return Client(tree.subtract(down.w, step)), Up(step)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """Of the mean step."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- w - mean step."""
        return Server(tree.subtract(server.w, replies.step)), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's own step from it."""
        return {"global": brief.w, "localized": client.w}

    def newcomer(self, server: Server) -> tuple[core.FineTuning, Server]:
        """Ordinary local steps from w."""
        return core.FineTuning(self, self.learning_rate, self.local_steps), server
