"""pFedKM: Moreau envelopes around group models that k-means finds (2022). Spec 4.

    min over ω_1..ω_K, c of  (1/N) Σ_i F_i(ω_c(i)),   F_i(ω) = min_θ f_i(θ) + (λ/2) |θ - ω|²

Client i (spec 4.5), with its group's model ω and θ = ω at the start; one local step is one local round r:

    θ <- θ - η_p (∇f_i(θ; batch) + λ (θ - ω))     inner_steps times on one batch             (C2)
    ω <- ω - η λ (ω - θ)
    keep θ_i, send ω_i                                                                       (C3)

Server: k-means on the uploads gives groups C_1..C_K (S1), named after the models they are nearest to (S2);

    Ω_k <- (1 - β) Ω_k + β mean over C_k of ω_i;   an empty group keeps its model            (S3)
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect.core import rng, tree
from idiolect.core.clustering import regroup
from idiolect.core.hyper import STRICT, hyper
from idiolect.core.method import Cohort, Exchange, Info, LocalWork, Method, Population, PredictorKind, Site
from idiolect.core.moreau import approach, descend
from idiolect.core.objective import Batch, Predictor
from idiolect.core.schedule import Schedule
from idiolect.core.tree import Params
from idiolect.core.weighting import Weighting
from idiolect.methods._pfedkm_newcomer import Newcomer

NEVER = -1


class Up(NamedTuple):
    """From each client: ω_i after the local rounds (and θ_i, where that is clustered)."""

    omega: Params
    theta: Params | tuple[()]


class Server(NamedTuple):
    """The group models Ω, everybody's label c, and the last uploads with the rounds they came in."""

    models: Params  # [groups, ...]
    labels: Tensor  # int64[clients]
    uploads: Up | tuple[()]  # [clients, ...]; nothing where only those of the same round count
    heard: Tensor  # int64[clients]: the round of the last upload, or NEVER
    round: Tensor
    key: Tensor


class Client(NamedTuple):
    """θ_i and ω_i, which every step changes, and a newcomer's group (NEVER: the server's label counts)."""

    theta: Params
    omega: Params
    chosen: Tensor


class Down(NamedTuple):
    """To each client: the model of its group."""

    omega: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PFedKM(Method, Exchange):
    """Personal models around group models found by k-means."""

    name: ClassVar[str] = "pfedkm"
    aliases: ClassVar[tuple[str, ...]] = ("cgpfl",)
    paper: ClassVar[str] = "pFedKM 2022"
    kinds: ClassVar[tuple[PredictorKind, ...]] = ("localized", "group", "personal")
    gradients_per_step: ClassVar[int] = 5
    personal_down: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"omega": "omega"}

    groups: int = hyper(3, "number of groups", symbol="K", paper="1, 2, 3, 4", ge=1)
    moreau_weight: float = hyper(15.0, "pull of the personal model to the group's", symbol="λ", ge=0)
    learning_rate: Schedule = hyper(
        0.005, "step size of ω on the envelope", symbol="η", alias="lr", paper="0.005; 0.03 CIFAR10"
    )
    local_steps: LocalWork = hyper(10, "local rounds, each on one batch", symbol="R", paper="10")
    inner_rate: Schedule = hyper(
        0.03, "step size of θ; inner_rate (L + moreau_weight) must be below 2", symbol="η_p"
    )
    inner_steps: int = hyper(5, "steps of θ in a local round", symbol="K_in", ge=1)
    inner_tolerance: float | None = hyper(
        None, "stop the inner steps at this norm of their gradient", symbol="ν", gt=0
    )
    inner_start: Literal["warm", "cold"] = hyper(
        "warm", "start a local round at the last θ (the authors' code), or at ω"
    )
    server_mixing: float = hyper(1.0, "step of a group model to its mean", symbol="β", paper="1", ge=0, le=2)
    cluster_on: Literal["omega", "theta"] = hyper(
        "omega", "what is clustered: ω_i (the algorithm) or θ_i (the objective), which is then sent too"
    )
    cache_age: int | None = hyper(
        None, "rounds for which an absent client's last upload still counts; 0: none, None: all", ge=0
    )
    restarts: int = hyper(10, "k-means++ starts besides the one from the group models", ge=1)
    weighting: Weighting = hyper("uniform", "weights inside a group", paper="uniform")

    def server_init(self, params: Params, population: Population, key: Tensor) -> Server:
        """All group models equal; so labels do not matter yet."""
        clients = len(population.sizes)
        uploads: Up | tuple[()] = ()
        if self.cache_age != 0:
            nothing = tree.map_tree(lambda leaf: leaf.new_zeros(clients, *leaf.shape), params)
            uploads = Up(nothing, nothing if self.cluster_on == "theta" else ())
        labels = torch.zeros(clients, dtype=torch.int64)
        models = tree.stack([params] * self.groups)
        return Server(models, labels, uploads, torch.full_like(labels, NEVER), torch.tensor(0), key)

    def client_init(self, server: Server, client: Tensor) -> Client:
        """Both models are the group's."""
        model = tree.row(server.models, _label(server, client))
        return Client(model, model, torch.full_like(client, NEVER))

    def down(self, server: Server, ids: Tensor) -> Down:
        """Ω[c_i]."""
        return Down(tree.select(server.models, server.labels[ids]))

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """C1: ω <- Ω[c_i], θ <- ω."""
        return Client(down.omega, down.omega, client.chosen)

    def step(
        self, work: Client, client: Client, down: Down, batches: tuple[Batch, ...], site: Site
    ) -> Client:
        """C2: one local round."""
        theta = approach(
            site.objective,
            batches[0],
            work.theta if self.inner_start == "warm" else work.omega,
            work.omega,
            attraction=self.moreau_weight,
            steps=self.inner_steps,
            rate=site.rate(self.inner_rate),
            tolerance=self.inner_tolerance,
        )
        rate = site.rate(self.learning_rate)
        omega = descend(work.omega, theta, attraction=self.moreau_weight, rate=rate)
        return Client(theta, omega, work.chosen)

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C3: keep θ_i and ω_i, send ω_i."""
        return work, Up(work.omega, work.theta if self.cluster_on == "theta" else ())

    def absorb(self, server: Server, replies: Up, cohort: Cohort) -> tuple[Server, Info]:
        """S1 to S3, on the uploads of all who were heard of lately."""
        heard = server.heard.index_fill(0, cohort.ids, int(server.round))
        uploads, counted, ids = server.uploads, replies, cohort.ids
        if isinstance(uploads, Up):  # absentees count too
            uploads = tree.map_tree(lambda kept, new: kept.index_copy(0, ids, new), uploads, replies)
            ids = self._counted(heard, server.round, cohort.population).nonzero()[:, 0]
            counted = tree.select(uploads, ids)
        points = counted.omega if self.cluster_on == "omega" else counted.theta
        seed = rng.generator_seed(server.key)
        grouping = regroup(points, counted.omega, server.models, server.labels[ids], seed, self.restarts)
        labels = server.labels.index_copy(0, ids, grouping.labels)
        sizes = cohort.population.sizes[ids]
        models = self._moved(server.models, counted.omega, grouping.labels, sizes)
        info = {"labels": labels, **grouping.info}
        return server._replace(models=models, labels=labels, uploads=uploads, heard=heard), info

    def end_round(self, server: Server) -> Server:
        """Cached uploads age."""
        return server._replace(round=server.round + 1)

    def predictors(self, server: Server, client: Client, number: Tensor) -> dict[PredictorKind, Predictor]:
        """ω_i, Ω[c_i] and θ_i."""
        label = torch.where(client.chosen == NEVER, _label(server, number), client.chosen)
        return {"localized": client.omega, "group": tree.row(server.models, label), "personal": client.theta}

    def newcomer(self, server: Server) -> Newcomer:
        """The group of least loss, then local rounds from its model."""
        return Newcomer(self, self.local_steps)

    def _counted(self, heard: Tensor, now: Tensor, population: Population) -> Tensor:
        """Whose last upload is clustered, bool[clients]."""
        fresh = heard != NEVER if self.cache_age is None else heard >= now - self.cache_age
        return fresh & (heard != NEVER) & population.present

    def _moved(self, models: Params, uploads: Params, labels: Tensor, sizes: Tensor) -> Params:
        """S3. By differences, so that groups whose uploads equal their model stay bitwise as they are."""
        moved = []
        for group in range(self.groups):
            model, members = tree.row(models, group), labels == group
            if members.any():
                shares = sizes[members].double() if self.weighting == "samples" else members[members].double()
                changes = tree.subtract(tree.select(uploads, members), model)
                change = tree.weighted_sum(changes, shares / shares.sum())
                model = tree.step(model, -self.server_mixing, change)
            moved.append(model)
        return tree.stack(moved)


def _label(server: Server, number: Tensor) -> Tensor:
    """c_i. A newcomer's number may be beyond all of the run's; it gets some label, and chooses its own."""
    return server.labels[number.clamp_max(len(server.labels) - 1)]
