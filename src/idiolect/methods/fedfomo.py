"""FedFomo (Zhang et al. 2021): each client takes from others what helps on its validation rows. Spec 8.11.

The server keeps everybody's last model and T, which adds up how much each model helped whom. For client i:

    K_i: the M others with the largest T_ij; each place instead drawn at random with probability ε_r      (S1)
    g_j = (L_i(w_i) - L_i(w_j)) / |w_j - w_i|  for j in K_i;  L_i: mean loss on validation rows           (C1)
    ω_j = max(g_j, 0) / Σ_k max(g_k, 0);   w_i <- w_i + Σ_j ω_j (w_j - w_i), if any g_j > 0               (C2)
    w_i <- w_i - η ∇f_i(w_i; batch)   local_steps times;   send w_i and g                                 (C3)
    T_ij <- T_ij + g_j                                                                                    (S2)

ε_r = max(0, ε_0 - r ε_d) in round r. Candidates of one client are different; where fewer than M have sent a
model, all of them. baseline="before": w_i is a candidate too, and what it was before its last local steps
takes its place in C1 and C2, so a round that made it worse on validation rows is undone.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, rng, tree

_SHORTEST = 1e-12  # a distance that equal models are taken to have


class Server(NamedTuple):
    """The first model, everybody's last one, from whom there is one, and who helped whom."""

    first: Params
    w: Params  # stacked by client
    heard: Tensor  # bool[clients]
    affinity: Tensor  # float64[clients, clients]: T
    round: Tensor
    key: Tensor


class Client(NamedTuple):
    """The client's model w_i, and the one before its last local steps, if it is the baseline."""

    w: Params
    before: Params | tuple[()]


class Candidates(NamedTuple):
    """Other clients' models, for one client; places that stay empty are not `known`."""

    models: Params  # [places, ...]
    known: Tensor  # bool[places]


class Up(NamedTuple):
    """From each client: its model, and how much each candidate would have helped, in losses on its rows."""

    w: Params
    loss_gains: Tensor  # [places]


class Work(NamedTuple):
    """The client's next state, and what C1 found."""

    client: Client
    gains: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedFomo(core.Method, core.Exchange):
    """Models of others, weighed by what they gain on the client's validation rows."""

    name: ClassVar[str] = "fedfomo"
    paper: ClassVar[str] = "Zhang et al. 2021"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("personal",)
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    personal_down: ClassVar[bool] = True
    sees_validation_rows: ClassVar[bool] = True

    learning_rate: core.Schedule = hyper(0.1, "step size", symbol="η", alias="lr", paper="0.1")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="5 epochs")
    candidates: int = hyper(5, "other models that a client gets in a round", symbol="M", paper="4; 9", ge=1)
    exploration: float = hyper(0.3, "probability of random candidates", symbol="ε_0", paper="0.3", ge=0, le=1)
    exploration_decay: float = hyper(
        0.05, "by how much it falls in a round", symbol="ε_d", paper="0.05", ge=0
    )
    baseline: Literal["own", "before"] = hyper("own", "compare with w_i, or with w_i before its last steps")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """Nobody has sent anything."""
        clients = len(population.sizes)
        copies = tree.map_tree(torch.clone, tree.repeat(params, clients))
        heard = torch.zeros(clients, dtype=torch.bool)
        affinity = torch.zeros(clients, clients, dtype=torch.float64)
        return Server(params, copies, heard, affinity, torch.tensor(0), key)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The first model."""
        return Client(server.first, server.first if self.baseline == "before" else ())

    def down(self, server: Server, ids: Tensor) -> Candidates:
        """S1: the models of K_i, not whose they are."""
        chosen, known = self.choose(server, ids)
        return Candidates(tree.select(server.w, chosen), known)

    def begin(self, client: Client, down: Candidates, site: Site) -> Work:
        """C1 and C2."""
        (models, known), base = down, client.w
        if client.before:
            base = client.before
            models = tree.map_tree(lambda others, own: torch.cat([others, own[None]]), models, client.w)
            known = torch.cat([known, torch.ones_like(known[:1])])
        gains = torch.where(known, gains_of(site.objective, base, models, site.validation_rows), 0)
        total = gains.clamp_min(0).sum()
        shares = gains.clamp_min(0) / torch.where(total > 0, total, 1)
        w = tree.add(base, tree.weighted_sum(tree.subtract(models, base), shares))
        return Work(Client(w, w if client.before else ()), gains[: len(down.known)])

    def step(self, work: Work, client: Client, down: Candidates, batches: Batches, site: Site) -> Work:
        """C3."""
        w = work.client.w
        w = tree.step(w, site.rate(self.learning_rate), site.objective.gradient(w, batches[0]))
        return work._replace(client=work.client._replace(w=w))

    def finish(self, work: Work, client: Client, down: Candidates, site: Site) -> tuple[Client, Up]:
        """Keep w_i, send it with g."""
        return work.client, Up(work.client.w, work.gains)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """S2; the last models are these."""
        chosen, known = self.choose(server, cohort.ids)
        rows = server.affinity[cohort.ids].scatter_add(1, chosen, (replies.loss_gains * known).double())
        return server._replace(
            w=tree.map_tree(lambda old, new: old.index_copy(0, cohort.ids, new), server.w, replies.w),
            heard=server.heard.index_fill(0, cohort.ids, True),
            affinity=server.affinity.index_copy(0, cohort.ids, rows),
        ), {"helpers": (replies.loss_gains > 0).sum(1).double().mean()}

    def end_round(self, server: Server) -> Server:
        """Exploration fades."""
        return server._replace(round=server.round + 1)

    def choose(self, server: Server, ids: Tensor) -> tuple[Tensor, Tensor]:
        """K_i of some clients, int64[ids, places], and which of the places are taken."""
        clients = len(server.heard)
        free = server.heard & (ids[:, None] != torch.arange(clients))
        exploration = max(0.0, self.exploration - int(server.round) * self.exploration_decay)
        chosen, known = [], []
        for place in range(max(1, min(self.candidates, clients - 1))):
            key = rng.fold(server.key, server.round, ids, place)
            explores = rng.uniform(key) < exploration
            lots = rng.uniform(rng.fold(key, 1), clients)
            scores = torch.where(explores[:, None], lots, server.affinity[ids])
            best = scores.masked_fill(~free, -torch.inf).argmax(1)  # of equal ones the first
            chosen.append(best)
            known.append(free.any(1))
            free = free.scatter(1, best[:, None], False)
        return torch.stack(chosen, 1), torch.stack(known, 1)

    def brief(self, server: Server, ids: Tensor) -> core.Nothing:
        """Nothing: the client has its model."""
        return core.Nothing()

    def predictors(self, client: Client, brief: core.Nothing) -> core.Predictors:
        """w_i."""
        return {"personal": client.w}

    def newcomer(self, server: Server) -> tuple["FedFomoNewcomer", Server]:
        """A first round with the models that helped most."""
        return FedFomoNewcomer(self, self.local_steps), server


def gains_of(objective: core.Objective, base: Params, models: Params, rows: core.Batch) -> Tensor:
    """g_j = (L(base) - L(w_j)) / |w_j - base| on some rows, for a stack of models."""
    each = [tree.row(models, place) for place in range(len(next(iter(models.values()))))]
    losses = torch.stack([objective.data_loss(model, rows) for model in each])
    squares = torch.stack([tree.squared_norm(tree.subtract(model, base)) for model in each])
    return (objective.data_loss(base, rows) - losses) / squares.sqrt().clamp_min(_SHORTEST)


@dataclass(frozen=True, config=STRICT)
class FedFomoNewcomer(core.TrainedNewcomer):
    """The M models of largest mean T, then C1 to C3 from the first model."""

    method: FedFomo
    local_steps: core.LocalWork

    def down(self, server: Server, ids: Tensor) -> Candidates:
        """The models that helped the others most."""
        places = min(self.method.candidates, len(server.heard))
        scores = server.affinity.mean(0).masked_fill(~server.heard, -torch.inf)
        chosen = scores.sort(descending=True, stable=True).indices[:places]
        return Candidates(tree.select(server.w, chosen), server.heard[chosen])

    def begin(self, client: Client, down: Candidates, site: Site) -> Work:
        """C1 and C2."""
        return self.method.begin(client, down, site)

    def step(self, work: Work, client: Client, down: Candidates, batches: Batches, site: Site) -> Work:
        """C3."""
        return self.method.step(work, client, down, batches, site)

    def keep(self, work: Work, client: Client, down: Candidates, site: Site) -> Client:
        """w."""
        return work.client
