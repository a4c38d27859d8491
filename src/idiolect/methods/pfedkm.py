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

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, rng, tree
from idiolect.methods._moreau import envelope_rates, local_round
from idiolect.methods.groups import GroupModels, LastUploads, best_group, moved_to_means, regroup


class Up(NamedTuple):
    """From each client: ω_i after the local rounds (and θ_i, where that is clustered)."""

    omega: Params
    theta: Params | tuple[()]


class Server(NamedTuple):
    """The group models Ω, everybody's label c, and the last uploads."""

    models: Params  # [groups, ...]
    labels: Tensor  # int64[clients]
    last: LastUploads
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
class PFedKM(core.Method, core.Exchange):
    """Personal models around group models found by k-means."""

    name: ClassVar[str] = "pfedkm"
    aliases: ClassVar[tuple[str, ...]] = ("cgpfl",)
    paper: ClassVar[str] = "pFedKM 2022"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "group", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    gradients_per_step: ClassVar[int] = 5
    passes: ClassVar[dict[core.PredictorKind, int]] = {"personal": -1}
    personal_down: ClassVar[bool] = True
    personal_brief: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"omega": "omega"}

    groups: int = hyper(3, "number of groups", symbol="K", paper="1, 2, 3, 4", ge=1, tune=[1, 2, 3, 4])
    moreau_weight: float = hyper(
        15.0, "pull of the personal model to the group's", symbol="λ", ge=0, tune=(0.1, 100.0)
    )
    learning_rate: core.Schedule = hyper(0.005, "step size of ω", symbol="η", alias="lr", paper="0.005; 0.03")
    local_steps: core.LocalWork = hyper(10, "local rounds, each on one batch", symbol="R", paper="10")
    inner_rate: core.Schedule = hyper(0.03, "step size of θ; times (L + λ) it must be below 2", symbol="η_p")
    inner_steps: int = hyper(5, "steps of θ in a local round", symbol="K_in", ge=1)
    inner_tolerance: float | None = hyper(None, "stop inner steps at this gradient norm", symbol="ν", gt=0)
    inner_start: Literal["warm", "cold"] = hyper("warm", "start at the last θ (the authors' code), or at ω")
    server_mixing: float = hyper(1.0, "step of a group model to its mean", symbol="β", paper="1", ge=0, le=2)
    cluster_on: Literal["omega", "theta"] = hyper("omega", "cluster ω_i, or θ_i, which is then sent too")
    cache_age: int | None = hyper(None, "rounds that an absentee's upload counts; None: always", ge=0)
    restarts: int = hyper(10, "k-means++ starts besides the one from the group models", ge=1)
    weighting: core.Weighting = hyper("uniform", "weights inside a group", paper="uniform")

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """Those of the Moreau envelope."""
        return envelope_rates(smoothness, self.moreau_weight)

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """All group models equal; so labels do not matter yet."""
        labels = torch.zeros_like(population.sizes)
        upload = Up(params, params if self.cluster_on == "theta" else ())
        last = LastUploads.begin(upload, len(labels), keeps=self.cache_age != 0)
        return Server(tree.stack([params] * self.groups), labels, last, torch.tensor(0), key)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Both models are the group's."""
        return Client(*[tree.row(server.models, server.labels[client_id])] * 2)

    def down(self, server: Server, ids: Tensor) -> Down:
        """Ω[c_i]."""
        return Down(tree.select(server.models, server.labels[ids]))

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """C1: ω <- Ω[c_i], θ <- ω."""
        return Client(down.omega, down.omega)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """C2."""
        return Client(*local_round(self, work.theta, work.omega, batches[0], site))

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """C3: keep θ_i and ω_i, send ω_i."""
        return work, Up(work.omega, work.theta if self.cluster_on == "theta" else ())

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """S1 to S3, on the uploads of all who were heard of lately."""
        last = server.last.after(replies, cohort, server.round)
        ids, uploads = last.counted(replies, cohort, server.round, self.cache_age)
        points = uploads.omega if self.cluster_on == "omega" else uploads.theta
        seed = rng.generator_seed(server.key)
        grouping = regroup(points, uploads.omega, server.models, server.labels[ids], seed, self.restarts)
        counts = cohort.population.sizes[ids] if self.weighting == "samples" else torch.ones_like(ids)
        models = moved_to_means(server.models, uploads.omega, grouping.labels, counts, self.server_mixing)
        labels = server.labels.index_copy(0, ids, grouping.labels)
        return server._replace(models=models, labels=labels, last=last), {"labels": labels, **grouping.info}

    def end_round(self, server: Server) -> Server:
        """Cached uploads age."""
        return server._replace(round=server.round + 1)

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """ω_i, Ω[c_i] and θ_i."""
        return {"localized": client.omega, "group": brief.omega, "personal": client.theta}

    def newcomer(self, server: Server) -> tuple["PFedKMNewcomer", Server]:
        """The group of least loss, then local rounds from its model."""
        return PFedKMNewcomer(self, self.local_steps), server


class NewcomerClient(NamedTuple):
    """θ and ω, and the model of the group that the newcomer has chosen."""

    theta: Params
    omega: Params
    group: Params


@dataclass(frozen=True, config=STRICT)
class PFedKMNewcomer(core.TrainedNewcomer):
    """ω <- Ω[argmin_k f(Ω_k)], the group of least loss on the newcomer's rows; θ <- ω; then local rounds."""

    personal_brief: ClassVar[bool] = False
    sees_all_rows: ClassVar[bool] = True

    method: PFedKM
    local_steps: core.LocalWork

    def client_init(self, server: Server, client_id: Tensor) -> NewcomerClient:
        """Some group's, until it has looked at all of them."""
        return NewcomerClient(*[tree.row(server.models, 0)] * 3)

    def down(self, server: Server, ids: Tensor) -> GroupModels:
        """All group models."""
        return GroupModels(server.models)

    def begin(self, client: NewcomerClient, down: GroupModels, site: Site) -> NewcomerClient:
        """The best group."""
        best = best_group(site.objective, down.models, site.all_rows)
        return NewcomerClient(*[tree.row(down.models, best)] * 3)

    def step(
        self, work: NewcomerClient, client: NewcomerClient, down: GroupModels, batches: Batches, site: Site
    ) -> NewcomerClient:
        """C2."""
        return NewcomerClient(*local_round(self.method, work.theta, work.omega, batches[0], site), work.group)

    def brief(self, server: Server, ids: Tensor) -> core.Nothing:
        """Nothing: the newcomer has kept its group's model."""
        return core.Nothing()

    def predictors(self, client: NewcomerClient, brief: core.Nothing) -> core.Predictors:
        """ω, the group's model, and θ."""
        return {"localized": client.omega, "group": client.group, "personal": client.theta}
