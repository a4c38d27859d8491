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

from idiolect.core import (
    STRICT,
    Batch,
    Batches,
    Cohort,
    Exchange,
    Info,
    LocalWork,
    Method,
    Nothing,
    Params,
    Population,
    Predictor,
    PredictorKind,
    Schedule,
    Site,
    TrainedNewcomer,
    Weighting,
    hyper,
    rng,
    tree,
)
from idiolect.methods._moreau import approach, descend
from idiolect.methods.groups import best_group, regroup

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
    """θ_i and ω_i, which every step changes."""

    theta: Params
    omega: Params


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
    judged_by: ClassVar[PredictorKind] = "personal"
    gradients_per_step: ClassVar[int] = 5
    personal_down: ClassVar[bool] = True
    personal_brief: ClassVar[bool] = True
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

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Both models are the group's."""
        model = tree.row(server.models, server.labels[client_id])
        return Client(model, model)

    def down(self, server: Server, ids: Tensor) -> Down:
        """Ω[c_i]."""
        return Down(tree.select(server.models, server.labels[ids]))

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """C1: ω <- Ω[c_i], θ <- ω."""
        return Client(down.omega, down.omega)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """C2."""
        return Client(*self.local_round(work.theta, work.omega, batches[0], site))

    def local_round(self, theta: Params, omega: Params, batch: Batch, site: Site) -> tuple[Params, Params]:
        """C2: θ approaches the minimum of h on one batch, then ω takes a step towards it."""
        theta = approach(
            site.objective,
            batch,
            theta if self.inner_start == "warm" else omega,
            omega,
            attraction=self.moreau_weight,
            steps=self.inner_steps,
            rate=site.rate(self.inner_rate),
            tolerance=self.inner_tolerance,
        )
        rate = site.rate(self.learning_rate)
        return theta, descend(omega, theta, attraction=self.moreau_weight, rate=rate)

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

    def predictors(self, client: Client, brief: Down) -> dict[PredictorKind, Predictor]:
        """ω_i, Ω[c_i] and θ_i."""
        return {"localized": client.omega, "group": brief.omega, "personal": client.theta}

    def newcomer(self, server: Server) -> tuple["PFedKMNewcomer", Server]:
        """The group of least loss, then local rounds from its model."""
        return PFedKMNewcomer(self, self.local_steps), server

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
                model = tree.advance(model, self.server_mixing, change)
            moved.append(model)
        return tree.stack(moved)


class NewcomerClient(NamedTuple):
    """θ and ω, and the model of the group that the newcomer has chosen."""

    theta: Params
    omega: Params
    group: Params


class Groups(NamedTuple):
    """To a newcomer: all group models."""

    models: Params


@dataclass(frozen=True, config=STRICT)
class PFedKMNewcomer(TrainedNewcomer):
    """A newcomer chooses the group whose model has the least loss on its rows, and goes on from there.

    ω <- Ω[argmin_k f(Ω_k)],  θ <- ω,  then local rounds                                     (spec 4.9)
    """

    sees_all_rows: ClassVar[bool] = True

    method: PFedKM
    local_steps: LocalWork

    def client_init(self, server: Server, client_id: Tensor) -> NewcomerClient:
        """Some group's, until it has looked at all of them."""
        first = tree.row(server.models, 0)
        return NewcomerClient(first, first, first)

    def down(self, server: Server, ids: Tensor) -> Groups:
        """All group models."""
        return Groups(server.models)

    def begin(self, client: NewcomerClient, down: Groups, site: Site) -> NewcomerClient:
        """The best group."""
        group = tree.row(down.models, best_group(site.objective, down.models, site.all_rows))
        return NewcomerClient(group, group, group)

    def step(
        self,
        work: NewcomerClient,
        client: NewcomerClient,
        down: Groups,
        batches: Batches,
        site: Site,
    ) -> NewcomerClient:
        """C2."""
        theta, omega = self.method.local_round(work.theta, work.omega, batches[0], site)
        return work._replace(theta=theta, omega=omega)

    def brief(self, server: Server, ids: Tensor) -> Nothing:
        """Nothing: the newcomer has kept its group's model."""
        return Nothing()

    def predictors(self, client: NewcomerClient, brief: Nothing) -> dict[PredictorKind, Predictor]:
        """ω, the group's model, and θ."""
        return {"localized": client.omega, "group": client.group, "personal": client.theta}
