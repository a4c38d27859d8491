"""IFCA: each client joins the group whose model fits its data best (Ghosh et al. 2020). Spec 6.10.

    client i:  j = argmin over groups of f_i(θ_j) on its training rows
               w_i <- θ_j;  repeat local_steps times:  w_i <- w_i - rate * ∇f_i(w_i; batch)
    server:    θ_j <- mean of w_i over the clients that chose j                    (model averaging)
               θ_j <- θ_j + (1/m) Σ over these of (w_i - θ_j)                      (gradient averaging)

m is the number of all replies; with one local step w_i - θ_j is -rate * ∇f_i(θ_j). A group that nobody
chooses keeps its model. The groups' initial models must differ: the first is the model's own, the others
have noise added.
"""

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, rng, tree
from idiolect.methods.groups import GroupModels, best_group


class Server(NamedTuple):
    """The group models θ_1..θ_K, and which of them each client chose last."""

    models: Params  # [groups, ...]
    labels: Tensor  # int64[clients]


class Client(NamedTuple):
    """The group that the client chose last, and its copy of the model after the local steps.

    Also what changes with every local step.
    """

    label: Tensor
    w: Params


class Up(NamedTuple):
    """From each client: the group it chose, and its model after the local steps."""

    label: Tensor
    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class IFCA(core.Method, core.Exchange):
    """Groups that clients choose by their loss."""

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh, Chung, Yin, Ramchandran 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "group")
    judged_by: ClassVar[core.PredictorKind] = "group"
    sees_all_rows: ClassVar[bool] = True

    groups: int = hyper(3, "number of groups", symbol="K", paper="2, 4", ge=1, tune=[2, 3, 4])
    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="γ", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    averaging: Literal["models", "gradients"] = hyper(
        "models", "what the server averages; gradients need local_steps=1"
    )
    initial_spread: float = hyper(
        0.5, "noise of the initial models, in units of 1 / sqrt(a tensor's fan-in)", gt=0
    )
    weighting: core.Weighting = hyper("uniform", "weights inside a group, or of all gradients")

    @model_validator(mode="after")
    def _gradients_are_single_steps(self) -> Self:
        if self.averaging == "gradients" and self.local_steps != 1:
            raise ValueError(f"averaging=gradients needs local_steps=1, not {self.local_steps}")
        return self

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """Different models; nobody has chosen yet."""
        others = [self._perturbed(params, rng.fold(key, group)) for group in range(1, self.groups)]
        return Server(tree.stack([params, *others]), torch.zeros_like(population.sizes))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The first group, until the client looks at all of them."""
        return Client(torch.zeros_like(client_id), tree.row(server.models, 0))

    def down(self, server: Server, ids: Tensor) -> GroupModels:
        """All group models."""
        return GroupModels(server.models)

    def begin(self, client: Client, down: GroupModels, site: Site) -> Client:
        """j = argmin f_i(θ_j);  w_i <- θ_j."""
        label = best_group(site.objective, down.models, site.all_rows)
        return Client(label, tree.row(down.models, label))

    def step(self, work: Client, client: Client, down: GroupModels, batches: Batches, site: Site) -> Client:
        """w_i <- w_i - rate * ∇f_i(w_i; batch)."""
        gradient = site.objective.gradient(work.w, batches[0])
        return Client(work.label, tree.step(work.w, site.rate(self.learning_rate), gradient))

    def finish(self, work: Client, client: Client, down: GroupModels, site: Site) -> tuple[Client, Up]:
        """Keep and send j and w_i."""
        return work, Up(work.label, work.w)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """Each group's model, from the replies of those who chose it."""
        labels = server.labels.index_copy(0, cohort.ids, replies.label)
        changed = [self._next_model(server, replies, cohort, group) for group in range(self.groups)]
        same = replies.label == server.labels[cohort.ids]
        info = {"labels": labels, "label_agreement": same.double().mean()}
        return Server(tree.stack(changed), labels), info

    def brief(self, server: Server, ids: Tensor) -> GroupModels:
        """All group models: a client knows best which is its own."""
        return GroupModels(server.models)

    def predictors(self, client: Client, brief: GroupModels) -> core.Predictors:
        """The client's own copy, and its group's model."""
        return {"localized": client.w, "group": tree.row(brief.models, client.label)}

    def _next_model(self, server: Server, replies: Up, cohort: core.Cohort, group: int) -> Params:
        model, members = tree.row(server.models, group), replies.label == group
        if not members.any():
            return model
        uploads = tree.select(replies.w, members)
        if self.averaging == "models":
            return tree.weighted_sum(uploads, core.reply_weights(cohort.select(members), self.weighting))
        shares = core.reply_weights(cohort, self.weighting)[members]
        return tree.add(model, tree.weighted_sum(tree.subtract(uploads, model), shares))

    def _perturbed(self, params: Params, key: Tensor) -> Params:
        generator = torch.Generator().manual_seed(rng.generator_seed(key))

        def perturb(leaf: Tensor) -> Tensor:
            fan_in = leaf.numel() / leaf.shape[0] if leaf.ndim > 1 else max(leaf.numel(), 1)
            noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
            return leaf + self.initial_spread / fan_in**0.5 * noise

        return tree.map_tree(perturb, params)
