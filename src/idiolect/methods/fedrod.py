"""FedRoD (Chen, Chao 2022): a generic model, and personal heads that add to its logits. Spec 8.6.

    g(x) = h(z), z = b(x):  body b and generic head h are the shared model θ; h_i is client i's head on z

    client i, with θ received, each step on one batch and both at the old values:
        θ_i <- θ_i - η ∇ mean of -log( n_{i,y}^κ e^{g_y} / Σ_c n_{i,c}^κ e^{g_c} )    balanced softmax
        h_i <- h_i - η_p ∇ mean of -log softmax(g + h_i(z))_y                         g and z stand still
    server:    θ <- Σ a_i θ_i

n_{i,c} are the client's training rows of class c. What it has few of counts more, so clients with different
shares of the classes pull θ to the same place. h_i starts at zero and never leaves the client. The layer is
linear, so g + h_i(z) is the model with the head h + h_i: the personal model, with the newest θ.
"""

from typing import ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods._classes import class_counts

_NEVER = -1e30  # log 0, but finite: times the weight of a row that only pads it must be zero


class Server(NamedTuple):
    """The shared model θ."""

    w: Params


class Client(NamedTuple):
    """The last local copy θ_i, and the personal head h_i."""

    w: Params
    head: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its copy of θ after the local steps."""

    w: Params


class Work(NamedTuple):
    """θ_i and h_i, and what balances the logits."""

    w: Params
    head: Params
    offsets: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedRoD(core.Method, core.Exchange):
    """A generic model trained for balanced classes, and personal heads beside its own."""

    name: ClassVar[str] = "fedrod"
    paper: ClassVar[str] = "Chen, Chao 2022"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}
    part_choices: ClassVar[tuple[str, ...]] = ("personal",)

    learning_rate: core.Schedule = hyper(0.1, "step size of the shared model", symbol="η", alias="lr")
    personal_rate: core.Schedule | None = hyper(
        None, "step size of the personal head; None: that of the shared model", symbol="η_p"
    )
    balance: float = hyper(
        1.0, "power of the class counts in the shared model's loss; 0: plain softmax", symbol="κ", paper="1",
        ge=0, tune=[0.0, 0.5, 1.0],
    )  # fmt: skip
    local_steps: core.LocalWork = hyper(10, "local steps in a round, of both", symbol="τ")
    weighting: core.Weighting = hyper("samples", "weights of the replies", symbol="a_i", paper="n_i / n")
    personal: core.PartChoice = hyper("head", "the linear layer that clients have beside the shared one")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """θ^0."""
        self._parts(params)  # a layer that the model does not have is refused before the first round
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """h_i <- 0: the personal model is the shared one."""
        return Client(server.w, tree.zeros_like(self._parts(server.w).take(server.w, "head")))

    def down(self, server: Server, ids: Tensor) -> Down:
        """θ."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """θ_i <- θ; h_i as it was; κ log n_{i,c}."""
        return Work(down.w, client.head, self._offsets(site))

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """θ_i and h_i move, each along the gradient of its own loss."""
        task = site.objective.task

        def balanced(seen: core.Pass, batch: core.Batch) -> Tensor:
            return (task.row_losses(seen.outputs + work.offsets, batch.targets) * batch.weights).sum()

        slopes = site.objective.gradient(work.w, batches[0], loss=balanced)
        return Work(
            tree.step(work.w, site.rate(self.learning_rate), slopes),
            self.personal_step(work.head, work.w, batches[0], site),
            work.offsets,
        )

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep both, send θ_i."""
        return Client(work.w, work.head), Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """θ <- Σ a_i θ_i."""
        return Server(replies.w), {}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The generic model, the client's last copy of it, and the generic model with the head h + h_i."""
        parts = self._parts(brief.w)
        head = tree.add(parts.take(brief.w, "head"), client.head)
        return {"global": brief.w, "localized": client.w, "personal": parts.replace(brief.w, head=head)}

    def newcomer(self, server: Server) -> tuple["FedRoDNewcomer", Server]:
        """h_i from zero, on θ as it is."""
        return FedRoDNewcomer(self, self.local_steps), server

    def personal_step(self, head: Params, w: Params, batch: core.Batch, site: Site) -> Params:
        """h_i <- h_i - η_p ∇f_i at the head h + h_i, in the head alone."""
        shared = self._parts(w).split(w)
        slopes = site.objective.gradient(tree.add(shared["head"], head), batch, fixed=shared["body"])
        rate = self.learning_rate if self.personal_rate is None else self.personal_rate
        return tree.step(head, site.rate(rate), slopes)

    def _offsets(self, site: Site) -> Tensor:
        """κ log n_{i,c} for each output; their difference where one output stands for two classes."""
        task = site.objective.task
        offsets = self.balance * class_counts(site.all_rows, task).log().clamp_min(_NEVER)
        return offsets[1:] - offsets[:1] if task.kind == "binary" else offsets

    def _parts(self, w: Params) -> core.Parts:
        assert not isinstance(self.personal, str), "Method.for_model has put names in place of rules"
        return core.Parts.of(w, {"head": self.personal}, rest="body")


@dataclass(frozen=True, config=STRICT)
class FedRoDNewcomer(core.TrainedNewcomer):
    """Newcomers train a personal head beside the shared model."""

    method: FedRoD
    local_steps: core.LocalWork

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """h_i moves."""
        return work._replace(head=self.method.personal_step(work.head, down.w, batches[0], site))
