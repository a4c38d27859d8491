"""FedALA (Zhang et al. 2023): each client mixes the shared model into its own, entry by entry. Spec 8.7.

    client i, with w received, its own model w_i from its last round and weights A_i of the upper layers:
        ŵ = w_i + A_i (w - w_i) in the upper layers, w below them
        A_i <- clip(A_i - η_A ∇_ŵ f_i(ŵ; batch) (w - w_i), 0, 1)      in a pass over a share s of its rows
        w_i <- ŵ;  repeat local_steps times:  w_i <- w_i - η ∇f_i(w_i; ξ)
    server:    w <- Σ a_i w_i

A_i starts at 1, where ŵ = w. The first time that w_i ≠ w the passes go on until the standard deviation of the
last 10 losses is below δ, or for `start_passes`: in an exchange of its own, for those whom it concerns.
The personal model is ŵ with the newest w; its weights take one more pass, which is not remembered.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods._mixing import Blend, Learning, sample


class Server(NamedTuple):
    """The shared model w, whether it has moved, and whose weights have been learned."""

    w: Params
    moved: Tensor
    started: Tensor


class Client(NamedTuple):
    """The own model w_i, the weights A_i, and the round in which they were first learned, or -1."""

    w: Params
    weights: Params
    started: Tensor


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its model after the local steps."""

    w: Params


class Started(NamedTuple):
    """From a client that was to learn its weights for the first time: whether it has."""

    started: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedALA(core.Method, core.Exchange):
    """FedAvg, begun by each client from its own mixture of the shared and its last model."""

    name: ClassVar[str] = "fedala"
    paper: ClassVar[str] = "Zhang et al. 2023"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    sees_all_rows: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}
    part_choices: ClassVar[tuple[str, ...]] = ("mixed",)

    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr", paper="0.005")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="1 pass")
    weighting: core.Weighting = hyper("samples", "weights of the replies", symbol="a_i", paper="n_i / n")
    mixed: core.PartChoice = hyper("head", "the upper layers, which are mixed", symbol="p", paper="1 layer")
    mixing_rate: float = hyper(1.0, "step size of the mixing weights", symbol="η_A", paper="1", ge=0)
    mixing_share: float = hyper(
        0.8, "share of the rows that the weights are learned on", symbol="s", paper="0.8", gt=0, le=1
    )
    mixing_batch: int = hyper(10, "rows in a batch of them", paper="10", ge=1)
    start_passes: int = hyper(20, "passes at most when weights are first learned", paper="no bound", ge=1)
    start_spread: float = hyper(
        0.1, "spread of the last passes' losses that ends them", symbol="δ", paper="0.01; 0.1 in code", ge=0
    )

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        self.blend(params, params)  # layers that the model does not have are refused before the first round
        return Server(params, torch.tensor(False), torch.zeros_like(population.present))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """w_i <- w and A_i <- 1."""
        weights = tree.map_tree(torch.ones_like, self.blend(server.w, server.w).own)
        return Client(server.w, weights, torch.full_like(client_id, -1))

    def exchanges(self, server: Server) -> tuple["Start", "FedALA"]:
        """The first learning of those who have not had it, and the round of all."""
        return Start(self), self

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """A_i by a pass, unless it was learned just now; w_i <- ŵ."""
        learning = self.learning(client, down.w, site)
        has_started = (client.started >= 0) & (client.started < torch.as_tensor(site.clock.round))
        weights = tree.where(has_started, learning.one_pass(client.weights)[0], client.weights)
        return client._replace(w=learning.blend.model(weights), weights=weights)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """w_i <- w_i - η ∇f_i(w_i; ξ)."""
        slopes = site.objective.gradient(work.w, batches[0])
        return work._replace(w=tree.step(work.w, site.rate(self.learning_rate), slopes))

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep w_i and A_i, send w_i."""
        return work, Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- Σ a_i w_i."""
        return server._replace(w=replies.w, moved=torch.tensor(True)), {}

    def adapt(self, client: Client, brief: Down, site: Site) -> Client:
        """A_i by a pass with the newest w."""
        return client._replace(weights=self.learning(client, brief.w, site).one_pass(client.weights)[0])

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """w, w_i, and ŵ."""
        mixture = self.blend(client.w, brief.w).model(client.weights)
        return {"global": brief.w, "localized": client.w, "personal": mixture}

    def newcomer(self, server: Server) -> tuple["FedALANewcomer", Server]:
        """From w: there is nothing to mix it with."""
        return FedALANewcomer(self, self.learning_rate, self.local_steps), server

    def learning(self, client: Client, w: Params, site: Site) -> Learning:
        """How A_i is learned: between w_i and w, on some of the client's rows."""
        batches = sample(site, self.mixing_share, self.mixing_batch)
        return Learning(self.blend(client.w, w), batches, site.objective, self.mixing_rate)

    def blend(self, own: Params, shared: Params) -> Blend:
        """What there is to mix of two models."""
        assert not isinstance(self.mixed, str), "Method.for_model has put names in place of rules"
        return Blend.of(own, shared, self.mixed)


@dataclass(frozen=True, config=STRICT)
class Start(core.Exchange):
    """The first learning of a client's weights, as soon as the shared model is no longer its own."""

    method: FedALA
    sees_all_rows: ClassVar[bool] = True

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """Those of the round who have not had it."""
        return cohort.select(~server.started[cohort.ids] & server.moved)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Params:
        """A_i by many passes, if it was not learned yet."""
        learning = self.method.learning(client, down.w, site)
        learned = learning.until_still(client.weights, self.method.start_spread, self.method.start_passes)
        return tree.where(client.started < 0, learned, client.weights)

    def finish(self, work: Params, client: Client, down: Down, site: Site) -> tuple[Client, Started]:
        """Keep A_i; say whether there was anything to learn."""
        now = torch.as_tensor(site.clock.round).to(client.started.dtype)
        differs = self.method.blend(client.w, down.w).differs
        started = torch.where((client.started < 0) & differs, now, client.started)
        return client._replace(weights=work, started=started), Started(started >= 0)

    def absorb(self, server: Server, replies: Started, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """Remember who has had it."""
        return server._replace(started=server.started.index_copy(0, cohort.ids, replies.started)), {}


@dataclass(frozen=True, config=STRICT)
class FedALANewcomer(core.FineTuning):
    """A newcomer's own model is its copy of w after the local steps, also where others mix."""

    def adapt(self, client: Client, brief: Down, site: Site) -> Client:
        """Nothing is mixed."""
        return client

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """w and w_i."""
        return {"global": brief.w, "localized": client.w, "personal": client.w}
