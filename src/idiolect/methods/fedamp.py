"""FedAMP and HeurFedAMP (Huang et al. 2021): each client is drawn to models like its own. Spec 8.10.

    min over w_1..w_N of  Σ_i f_i(w_i) + λ Σ_{i<j} A(|w_i - w_j|²),     A(t) = 1 - exp(-t / σ)

The server keeps the last model of every client that it has heard. For client i, in every round:

    FedAMP:      ξ_ij = (a / N) exp(-|w_i - w_j|² / σ),    ξ_ii = 1 - Σ_{j≠i} ξ_ij                    (S1)
    HeurFedAMP:  ξ_ij = (1 - ξ_ii) exp(σ cos(w_i, w_j)) / Σ_{h≠i} exp(σ cos(w_i, w_h)),  ξ_ii given
    u_i = Σ_j ξ_ij w_j                                                                               (S2)
    client:      w_i <- w_i - η (∇f_i(w_i; batch) + p (w_i - u_i))   local_steps times              (C1)

a = α N / σ is the paper's step α on the second sum, p = λ/α its pull. With p = 0 every client trains alone.
u_i is the client's "group" model, w_i its "personal" one.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods._attention import attention_by_cosine, attention_by_distance


class Server(NamedTuple):
    """The last model of every client, from whom there is one, and how each attends to the others."""

    w: Params  # stacked by client
    heard: Tensor  # bool[clients]
    attention: Tensor  # float64[clients, clients]: ξ


class Client(NamedTuple):
    """The client's own model w_i."""

    w: Params


class Down(NamedTuple):
    """To each client: its cloud model u_i."""

    u: Params


class Up(NamedTuple):
    """From each client: its model w_i."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MessagePassing(core.Method, core.Exchange, ABC):
    """What both variants have in common: all but how the attention ξ is found."""

    paper: ClassVar[str] = "Huang et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("group", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    personal_down: ClassVar[bool] = True
    personal_brief: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"w": "u"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    proximal: float = hyper(
        0.1, "weight of the pull to the cloud model", symbol="p = λ/α", ge=0, tune=(0.01, 10.0)
    )
    start: Literal["own", "cloud"] = hyper("own", "whether local steps start from w_i or from u_i")

    @abstractmethod
    def attention(self, models: Tensor) -> Tensor:
        """ξ among clients with these models, one in each row: float64[clients, clients]."""

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """The pull adds its weight to the curvature."""
        return {"learning_rate": 1 / (smoothness + self.proximal)}

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """Everybody has w^0, and attends to nobody else."""
        clients = len(population.sizes)
        copies = tree.map_tree(torch.clone, tree.repeat(params, clients))
        return Server(copies, torch.zeros(clients, dtype=torch.bool), torch.eye(clients, dtype=torch.float64))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """w^0; later, the mean of the models that there are."""
        return Client(_mean_model(server))

    def down(self, server: Server, ids: Tensor) -> Down:
        """S2: u_i."""
        return Down(
            tree.map_tree(lambda leaf: torch.tensordot(server.attention[ids].to(leaf), leaf, 1), server.w)
        )

    def begin(self, client: Client, down: Down, site: Site) -> Client:
        """w_i, or u_i."""
        return client if self.start == "own" else Client(down.u)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """C1."""
        rate = site.rate(self.learning_rate)
        gradient = site.objective.gradient(work.w, batches[0])
        return Client(tree.step(tree.pull(work.w, down.u, rate * self.proximal), rate, gradient))

    def finish(self, work: Client, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep and send w_i."""
        return work, Up(work.w)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """S1, among all clients that were heard and are there; one that was not attends to all of them."""
        w = tree.map_tree(lambda old, new: old.index_copy(0, cohort.ids, new), server.w, replies.w)
        heard = server.heard.index_fill(0, cohort.ids, True)
        among = (heard & cohort.population.present).nonzero()[:, 0]
        xi = self.attention(tree.flatten_rows(tree.select(w, among)))
        attention = torch.zeros_like(server.attention)
        attention[:, among] = 1 / len(among)
        attention[among[:, None], among] = xi
        return Server(w, heard, attention), {"own_attention": xi.diagonal().mean()}

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """u_i and w_i."""
        return {"group": brief.u, "personal": client.w}

    def newcomer(self, server: Server) -> tuple["MessagePassingNewcomer", Server]:
        """As a client in its first round: drawn to the mean of all models."""
        return MessagePassingNewcomer(self, self.local_steps), server


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAMP(MessagePassing):
    """Attention falls with the distance of models."""

    name: ClassVar[str] = "fedamp"

    width: Literal["median"] | Annotated[float, Field(gt=0)] = hyper(
        "median", "squared distance beyond which models ignore each other; median: of all pairs", symbol="σ"
    )
    share: float = hyper(
        1.0, "attention to near models: 1 is as much as to the own one", symbol="a = αN/σ", gt=0, le=1,
        tune=(0.1, 1.0),
    )  # fmt: skip

    def attention(self, models: Tensor) -> Tensor:
        """ξ_ij = (a / N) exp(-|w_i - w_j|² / σ)."""
        return attention_by_distance(models, self.width, self.share)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeurFedAMP(MessagePassing):
    """Attention grows with the cosine of models."""

    name: ClassVar[str] = "heur-fedamp"
    aliases: ClassVar[tuple[str, ...]] = ("heurfedamp",)

    own_weight: float | None = hyper(
        None, "a client's weight of its own; None: 1/N", symbol="ξ_ii", ge=0, le=1
    )
    sharpness: float = hyper(10.0, "how much more similar models count", symbol="σ", ge=0, tune=(0.1, 100.0))

    def attention(self, models: Tensor) -> Tensor:
        """(1 - ξ_ii) softmax over j ≠ i of σ cos(w_i, w_j)."""
        own = 1 / len(models) if self.own_weight is None else self.own_weight
        return attention_by_cosine(models, own, self.sharpness)


def _mean_model(server: Server) -> Params:
    """Of all who were heard; while there is nobody, w^0."""
    first = torch.arange(len(server.heard)) == 0
    counted = torch.where(server.heard.any(), server.heard, first).double()
    return tree.weighted_sum(server.w, counted / counted.sum())


@dataclass(frozen=True, config=STRICT)
class MessagePassingNewcomer(core.TrainedNewcomer):
    """u is the mean of all models; w starts there and takes the steps of a round, drawn to u."""

    personal_brief: ClassVar[bool] = False

    method: MessagePassing
    local_steps: core.LocalWork

    def down(self, server: Server, ids: Tensor) -> Down:
        """u."""
        return Down(_mean_model(server))

    def brief(self, server: Server, ids: Tensor) -> Down:
        """u."""
        return self.down(server, ids)

    def step(self, work: Client, client: Client, down: Down, batches: Batches, site: Site) -> Client:
        """C1."""
        return self.method.step(work, client, down, batches, site)
