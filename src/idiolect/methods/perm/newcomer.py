"""How a client that was not there in training gets a PERM model: weights from its own gradient. Spec 5.11.

    g = ∇f(w°),  z_j = |g - g_j|²,  z_self = 0;  α solves eq. 2 over the clients and itself
    (where λ is automatic, z_j counts as far as it does among the others)
    v <- α_self w + Σ_j α(j) v_j;  then repeat:  v <- v - η (α_self / max α) ∇f(v; ξ)

w° is the model at which the others' gradients were taken, w the global model as it is by now. While nobody
has sent a gradient (stage 1 of the two-stage variant) α_self = 1: the newcomer trains w.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, tree
from idiolect.methods.perm.distances import GradientDistances, squared_distance
from idiolect.methods.perm.noise import GradientNoise
from idiolect.methods.perm.server import Server
from idiolect.methods.perm.weights import WeightRule, optimal_weights


class Down(NamedTuple):
    """To the newcomer: w, w°, everybody's gradient at w°, personal model and rows; what counts, λ."""

    w: Params
    gradients_at: Params
    gradients: Params
    v: Params
    sizes: Tensor
    difference: Tensor  # how much of the distances counts
    regulariser: Tensor


class Client(NamedTuple):
    """The newcomer's own model."""

    v: Params


class Work(NamedTuple):
    """The newcomer's model, and its own weight relative to the largest."""

    v: Params
    factor: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PERMNewcomer(core.TrainedNewcomer):
    """Mix the personal models of clients with similar gradients, then train on one's own rows."""

    personal_brief: ClassVar[bool] = False
    sees_all_rows: ClassVar[bool] = True

    method: core.Method
    learning_rate: core.Schedule
    local_steps: core.LocalWork
    weight_rule: WeightRule
    gradient_rows: int | None

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The global model, until it has looked at the others'."""
        return Client(server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """What is known of everybody who has sent a gradient."""
        known = server.heard & (server.sizes > 0)
        noise = None
        if self.weight_rule.is_automatic:
            variances, squares = server.variances, server.squares
            noise = GradientNoise.of(variances, squares, server.sizes, self.gradient_rows, known)
        distances = GradientDistances(server.gradients, server.sizes, None, noise)
        regulariser = torch.tensor(distances.regulariser(known, self.weight_rule), dtype=torch.float64)
        gradients, v = tree.select(server.gradients, known), tree.select(server.v, known)
        return Down(
            w=server.w,
            gradients_at=server.gradients_at,
            gradients=gradients,
            v=v,
            sizes=server.sizes[known],
            difference=torch.tensor(distances.difference, dtype=torch.float64),
            regulariser=regulariser,
        )

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """The mix of the others' models."""
        gradient = site.objective.gradient(down.gradients_at, site.all_rows)
        own = tree.flatten(gradient, like=down.gradients).to(torch.float64)
        others = tree.flatten_rows(down.gradients).to(torch.float64)
        # By products: the differences of many newcomers and many clients would not fit into memory.
        costs = squared_distance(others.square().sum(1) + own.square().sum(), others @ own)
        costs = torch.cat([torch.zeros(1, dtype=torch.float64), down.difference * costs])
        sizes = torch.cat([site.size[None], down.sizes])
        weights = optimal_weights(costs, sizes, down.regulariser)
        helpers = tree.weighted_sum(down.v, weights[1:])
        share = weights[0].to(tree.scalar_of(down.w).dtype)
        return Work(tree.add(tree.scale(down.w, share), helpers), share / weights.max().to(share.dtype))

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """v <- v - η (α_self / max α) ∇f(v; ξ)."""
        rate = site.rate(self.learning_rate) * work.factor
        return work._replace(v=tree.step(work.v, rate, site.objective.gradient(work.v, batches[0])))

    def keep(self, work: Work, client: Client, down: Down, site: Site) -> Client:
        """The model."""
        return Client(work.v)

    def brief(self, server: Server, ids: Tensor) -> core.SharedModel:
        """w."""
        return core.SharedModel(server.w)

    def predictors(self, client: Client, brief: core.SharedModel) -> core.Predictors:
        """The global model, of which a newcomer has no copy of its own, and v."""
        predictors: core.Predictors = dict.fromkeys(self.kinds, brief.w)
        return predictors | {"personal": client.v}
