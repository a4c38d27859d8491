"""kNN-Per (Marfoq et al. 2022): FedAvg's model, and beside it the client's own nearest rows. Spec 8.12.

    training as FedAvg:  w_i <- w;  w_i <- w_i - η ∇f_i(w_i; batch) local_steps times;   w <- Σ a_i w_i
    prediction of client i, with z(x) the features that enter w's last layer:
        q_c(x) = Σ_{j: y_j = c} s_j / Σ_j s_j  over the k nearest stored rows
        s_j = exp(-|z(x) - z(x_j)|² / (d σ))
        p(x) = (1 - λ_i) softmax(w; x) + λ_i q(x)

Features are those of the newest w, so that they are computed anew for every evaluation; d is their number.
λ_i is the one of 0, 0.01, .., 1 with the least loss on the client's validation rows, of equal ones the
smallest; 1/2 without such rows. In a regression q is the weighted mean of the neighbours' targets.
"""

import math
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from idiolect import core
from idiolect.core import STRICT, Batches, Neighbours, Params, Site, Store, hyper, rng, tree
from idiolect.core.inputs import take_rows
from idiolect.core.neighbours import mixed_answer, values_of, votes

_GRID = 101  # values of λ that are tried


class Server(NamedTuple):
    """The shared model w, and a mark for every place of a client's store."""

    w: Params
    places: Tensor  # bool[places]: as many as the largest client fills


class Client(NamedTuple):
    """The last local copy w_i; while it predicts, its stored rows."""

    w: Params
    store: Store | tuple[()]


class Brief(NamedTuple):
    """To every client, to predict with: the shared model, and how many places a store has."""

    w: Params
    places: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KNNPer(core.Method, core.Exchange):
    """A shared model interpolated with a client's nearest training rows."""

    name: ClassVar[str] = "knn-per"
    aliases: ClassVar[tuple[str, ...]] = ("knnper",)
    paper: ClassVar[str] = "Marfoq et al. 2022"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}
    adapts: ClassVar[bool] = True
    sees_validation_rows: ClassVar[bool] = True

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")
    neighbours: int = hyper(10, "stored rows that are asked", symbol="k", paper="10", ge=1, tune=[5, 10, 20])
    bandwidth: float = hyper(
        1.0, "of distances in feature space", symbol="σ", paper="1", gt=0, tune=(0.01, 10.0)
    )
    kernel: Literal["squared", "plain"] = hyper(
        "squared", "s_j from |z - z_j|² / (d σ), as the authors' code, or from |z - z_j| / σ, as the paper"
    )
    mixing: float | None = hyper(
        None, "the neighbours' share in a prediction; None: chosen on validation rows", symbol="λ", ge=0, le=1
    )
    store_share: float = hyper(1.0, "share of the training rows that is stored", paper="1", gt=0, le=1)

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        largest = math.ceil(self.store_share * int(population.sizes.max()))
        return Server(params, torch.ones(largest, dtype=torch.bool))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w, ())

    def down(self, server: Server, ids: Tensor) -> core.SharedModel:
        """w."""
        return core.SharedModel(server.w)

    def begin(self, client: Client, down: core.SharedModel, site: Site) -> Params:
        """w_i <- w."""
        return down.w

    def step(
        self, work: Params, client: Client, down: core.SharedModel, batches: Batches, site: Site
    ) -> Params:
        """w_i <- w_i - η ∇f_i(w_i; batch)."""
        return tree.step(work, site.rate(self.learning_rate), site.objective.gradient(work, batches[0]))

    def finish(
        self, work: Params, client: Client, down: core.SharedModel, site: Site
    ) -> tuple[Client, core.LocalModel]:
        """Keep and send w_i."""
        return Client(work, ()), core.LocalModel(work)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(
        self, server: Server, replies: core.LocalModel, cohort: core.Cohort
    ) -> tuple[Server, core.Info]:
        """w <- Σ a_i w_i."""
        return server._replace(w=replies.w), {}

    def brief(self, server: Server, ids: Tensor) -> Brief:
        """w."""
        return Brief(server.w, server.places)

    def adapt(self, client: Client, brief: Brief, site: Site) -> Client:
        """Store rows by the features that w gives them, and choose λ_i."""
        rows, dtype, device = site.all_rows, site.objective.dtype, site.size.device
        chosen, taken = self._chosen(rows, site, len(brief.places))
        features = site.objective.features(brief.w, take_rows(rows.inputs, chosen)).flatten(1)
        size = features.shape[1] * self.bandwidth if self.kernel == "squared" else self.bandwidth
        store = Store(
            features=features * taken[:, None],  # nothing of what only pads
            values=values_of(site.objective.task, rows.targets[chosen], dtype) * taken[:, None],
            taken=taken,
            asked=torch.tensor(self.neighbours, device=device),
            scale=torch.tensor(size, dtype=dtype, device=device),
            power=torch.tensor(1.0 if self.kernel == "squared" else 0.5, dtype=dtype, device=device),
            share=torch.tensor(0.5 if self.mixing is None else self.mixing, dtype=dtype, device=device),
        )
        if self.mixing is None:
            store = store._replace(share=_best_share(store, brief.w, site))
        return client._replace(store=store)

    def predictors(self, client: Client, brief: Brief) -> core.Predictors:
        """The shared model, the client's last local copy of it, and the shared model with stored rows."""
        personal = Neighbours(brief.w, client.store) if client.store else brief.w
        return {"global": brief.w, "localized": client.w, "personal": personal}

    def newcomer(self, server: Server) -> tuple[core.AdaptedNewcomer, Server]:
        """To store its rows is all that a newcomer needs."""
        return core.AdaptedNewcomer(self), server

    def _chosen(self, rows: core.Batch, site: Site, places: int) -> tuple[Tensor, Tensor]:
        """The numbers of the rows that are stored, in their order, and which places they take."""
        numbers = torch.arange(len(rows.weights), device=site.size.device)
        place = torch.arange(places, device=site.size.device)
        rank = rng.permute(numbers % site.size, site.size, site.key)
        kept = (numbers < site.size) & (rank < torch.ceil(self.store_share * site.size))
        first = (~kept).to(torch.int8).argsort(stable=True)
        return first[place.clamp_max(len(numbers) - 1)], place < kept.sum()


def _best_share(store: Store, w: Params, site: Site) -> Tensor:
    """The λ of a grid with the least loss on validation rows; as it was where there are none."""
    rows, task = site.validation_rows, site.objective.task
    seen = site.objective.evaluation_pass(w, rows.inputs)
    said = votes(store, seen.features.flatten(1))

    def loss(share: Tensor) -> Tensor:
        answers = mixed_answer(task, seen.outputs, said, share)
        return (task.row_losses(answers, rows.targets) * rows.weights).sum()

    grid = torch.linspace(0, 1, _GRID, dtype=store.share.dtype, device=store.share.device)
    return torch.where(rows.weights.sum() > 0, tree.row(grid, vmap(loss)(grid).argmin()), store.share)
