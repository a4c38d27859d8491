"""FedPAC (Xu, Tong, Huang 2023): a shared body whose features agree, and combined personal heads. Spec 8.9.

    client i, with θ, φ_i and prototypes C̄ received; z: features, n_{i,c}: its rows of class c, n_i: all
        M_i = (1/n_i) Σ over rows of e_y ⊗ z,   V_i = (mean of |z|² - |M_i|²) / n_i         before training
        w_i <- (θ, φ_i)
        τ_h times:  φ_i <- φ_i - η_h ∇_φ f_i(w_i; ξ)
        τ_b times:  θ_i <- θ_i - η ∇_θ [ f_i(w_i; ξ) + (λ/(B d_f)) Σ over rows of |z - C̄_y|² ]
        C_i^c = mean of z over its rows of class c                                          after training
    server:    θ <- Σ a_i θ_i,    C̄^c <- Σ_i n_{i,c} C_i^c / Σ_i n_{i,c}
               α_i = argmin over the simplex of Σ_j α_j² V_j + |M_i - Σ_j α_j M_j|²,    φ_i <- Σ_j α_ij φ_j

over those who replied, from the heads as they were uploaded; whoever is absent keeps its φ_i. The pull begins
in the second round, for a class without prototype to the client's own mean from before its training. The
personal model is (θ, φ_i), the localized one (θ_i, φ_i) as the client left its round.
"""

from typing import ClassVar, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.core.optimizer import Sgd
from idiolect.methods._classes import ClassSums, Prototypes
from idiolect.methods._combination import Statistics, best_combinations
from idiolect.methods._parts import PersonalPart, divide
from idiolect.methods._phases import BodySteps, head_steps, require_some_of_all


class Server(NamedTuple):
    """θ, all clients' heads φ_i, stacked, the prototypes C̄, and the first head φ⁰."""

    shared: Params
    heads: Params
    prototypes: Prototypes
    first_head: Params


class Client(NamedTuple):
    """The model as it left its last round, (θ_i, φ_i)."""

    w: Params


class Down(NamedTuple):
    """To each client: θ, its own head φ_i, and C̄."""

    shared: Params
    head: Params
    prototypes: Prototypes


class Up(NamedTuple):
    """From each client: θ_i, φ_i, its statistics, and n_{i,c} C_i^c with n_{i,c}."""

    shared: Params
    head: Params
    statistics: Statistics
    classes: ClassSums


class Model(NamedTuple):
    """To each client, to predict with: θ and φ_i."""

    shared: Params
    head: Params


class Work(NamedTuple):
    """θ_i and φ_i, what features are pulled to, and the statistics from before."""

    body: Params
    head: Params
    anchors: Prototypes
    statistics: Statistics


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedPAC(core.Method, core.Exchange):
    """A shared body with aligned features, and heads combined for each client."""

    name: ClassVar[str] = "fedpac"
    paper: ClassVar[str] = "Xu, Tong, Huang 2023"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    gradients_per_step: ClassVar[int] = 2
    passes: ClassVar[dict[core.PredictorKind, tuple[int, ...]]] = {"localized": (0, 1), "personal": (0, 1)}
    needs_classes: ClassVar[bool] = True
    trains_head: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True
    personal_down: ClassVar[bool] = True
    personal_brief: ClassVar[bool] = True
    common_fields: ClassVar[frozenset[str]] = frozenset({"shared", "prototypes"})
    relative_to: ClassVar[dict[str, str]] = {"shared": "shared", "head": "head"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the body", symbol="η", alias="lr", paper="0.01")
    head_rate: core.Schedule | None = hyper(
        None, "step size of the head; None: that of the body", symbol="η_h", paper="0.1"
    )
    pull: float = hyper(
        1.0, "weight of the distance to the prototypes", symbol="λ", alias="lambda", paper="1", ge=0,
        tune=(0.01, 10.0),
    )  # fmt: skip
    local_steps: core.LocalWork = hyper(
        12, "local steps in a round, of head and body", symbol="τ_h + τ_b", paper="6 passes"
    )
    body_steps: BodySteps = hyper(
        None, "the last of them, which train the body; None: five sixths", symbol="τ_b", paper="5 passes"
    )
    smallest_weight: float = hyper(1e-3, "below this weight a head is left out", paper="1e-3", ge=0, lt=1)
    weighting: core.Weighting = hyper("samples", "weights of the bodies", symbol="a_i", paper="n_i / n")

    @model_validator(mode="after")
    def _body_steps_are_some_of_all(self) -> Self:
        require_some_of_all(self.body_steps, self.local_steps)
        return self

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """Everybody has the same head, and no prototype is known."""
        prototypes = Prototypes.none_yet(params)  # refuses a last layer that is not linear
        body, head = divide(params, core.last_layer(params))
        return Server(body, tree.repeat(head, len(population.sizes)), prototypes, head)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """(θ, φ⁰)."""
        return Client({**server.shared, **server.first_head})

    def down(self, server: Server, ids: Tensor) -> Down:
        """θ, φ_i, C̄."""
        shared, prototypes = tree.repeat((server.shared, server.prototypes), len(ids))
        return Down(shared, tree.select(server.heads, ids), prototypes)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """M_i and V_i with the received model; w_i <- (θ, φ_i)."""
        features = site.objective.features({**down.shared, **down.head}, site.all_rows.inputs)
        classes, known = ClassSums.of(features, site), down.prototypes.known
        anchors = torch.where(known[:, None], down.prototypes.means, classes.means)
        pulling = Prototypes(anchors, known.any().expand(known.shape))
        return Work(down.shared, down.head, pulling, Statistics.of(features, classes, site))

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """φ_i or θ_i moves, the other keeps its bits."""
        first_steps = head_steps(site, self.local_steps, self.body_steps, share=1 / 6)
        trains_head = torch.as_tensor(site.clock.step) < first_steps
        head = self._head_step(work, batches[0], site, trains_head)
        body = self._body_step(work, batches[0], site, ~trains_head)
        return work._replace(
            head=tree.where(trains_head, head, work.head), body=tree.where(trains_head, work.body, body)
        )

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep w_i; send it, the statistics, and the sums of its features for each class."""
        w = {**client.w, **work.body, **work.head}
        features = site.objective.features(w, site.all_rows.inputs)
        return Client(w), Up(work.body, work.head, work.statistics, ClassSums.of(features, site))

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """θ <- Σ a_i θ_i; C̄; φ_i <- Σ_j α_ij φ_j for those who replied, from what they sent."""
        shares = self.combinations(replies.statistics)
        combined = tree.map_tree(lambda leaf: torch.tensordot(shares.to(leaf.dtype), leaf, 1), replies.head)
        heads = tree.map_tree(lambda all_, new: all_.index_copy(0, cohort.ids, new), server.heads, combined)
        shared = tree.weighted_sum(replies.shared, core.reply_weights(cohort, self.weighting))
        prototypes = server.prototypes.renewed(tree.map_tree(lambda leaf: leaf.sum(0), replies.classes))
        info = {"own_share": shares.diagonal()}
        return server._replace(shared=shared, heads=heads, prototypes=prototypes), info

    def combinations(self, statistics: Statistics) -> Tensor:
        """α [replies, replies]."""
        return best_combinations(statistics.mean, statistics.variance, self.smallest_weight)

    def brief(self, server: Server, ids: Tensor) -> Model:
        """θ and φ_i."""
        return Model(tree.repeat(server.shared, len(ids)), tree.select(server.heads, ids))

    def predictors(self, client: Client, brief: Model) -> core.Predictors:
        """(θ_i, φ_i) as the client left it, and (θ, φ_i) as it is now."""
        return {"localized": client.w, "personal": {**client.w, **brief.shared, **brief.head}}

    def newcomer(self, server: Server) -> tuple[PersonalPart, Server]:
        """φ from φ⁰, on θ as it is; nobody combines it."""
        return PersonalPart(self, self._head_rate, Sgd(), "personal", self.local_steps), server

    @property
    def _head_rate(self) -> core.Schedule:
        return self.learning_rate if self.head_rate is None else self.head_rate

    def _head_step(self, work: Work, batch: core.Batch, site: Site, taken: Tensor) -> Params:
        """φ_i <- φ_i - η_h ∇_φ f_i."""
        slopes = site.objective.when(taken).gradient(work.head, batch, fixed=work.body)
        return tree.step(work.head, site.rate(self._head_rate), slopes)

    def _body_step(self, work: Work, batch: core.Batch, site: Site, taken: Tensor) -> Params:
        """θ_i <- θ_i - η ∇_θ [f_i + λ * distance]."""
        task = site.objective.task

        def loss(seen: core.Pass, batch: core.Batch) -> Tensor:
            own = (task.row_losses(seen.outputs, batch.targets) * batch.weights).sum()
            return own + self.pull * work.anchors.distance(seen, batch)

        slopes = site.objective.when(taken).gradient(work.body, batch, fixed=work.head, loss=loss)
        return tree.step(work.body, site.rate(self.learning_rate), slopes)
