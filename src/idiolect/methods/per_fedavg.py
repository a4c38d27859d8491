"""Per-FedAvg (Fallah et al. 2020): a shared model that is good one gradient step later. Spec 6.8.

    min over w of (1/N) Σ_i f_i(w - α ∇f_i(w))

One local step with three fresh batches D, D', D'':   w̃ = w - α ∇f(w; D),   g = ∇f(w̃; D'),

    first_order:   w <- w - β g
    hessian_free:  w <- w - β (g - α [∇f(w + δg; D'') - ∇f(w - δg; D'')] / (2δ))
    exact:         w <- w - β (g - α ∇²f(w; D'') g)

The server averages as FedAvg. The personal model is w - α ∇f_i(w) on all training rows of the client, from
the server's latest w, so a newcomer needs no training.
"""

from typing import ClassVar, Literal, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import grad

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree


class Server(NamedTuple):
    """The shared model w."""

    w: Params


class Client(NamedTuple):
    """The last local copy w_i, and the model adapted to the client's rows."""

    w: Params
    personal: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its model after the local steps."""

    w: Params


class Work(NamedTuple):
    """Changes with every local step."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PerFedAvg(core.Method, core.Exchange):
    """Meta-learning: train the point from which one step adapts best."""

    name: ClassVar[str] = "per-fedavg"
    aliases: ClassVar[tuple[str, ...]] = ("perfedavg", "fed-maml")
    paper: ClassVar[str] = "Fallah et al. 2020"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    gradients_per_step: ClassVar[int] = 4
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}
    batches_per_step: ClassVar[int] = 3
    adapts: ClassVar[bool] = True

    learning_rate: core.Schedule = hyper(
        0.1, "step size of the shared model", symbol="β", alias="lr", paper="0.001 in APFL's comparison"
    )
    adaptation_rate: float = hyper(
        0.01, "step size of the adaptation", symbol="α", paper="0.01 in APFL's comparison", ge=0
    )
    hessian: Literal["first_order", "hessian_free", "exact"] = hyper(
        "hessian_free", "the second-order term: left out, by a difference of gradients, or exact"
    )
    difference: float = hyper(1e-3, "half the width of that difference", symbol="δ", paper="1e-3", gt=0)
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")

    def suited_rates(self, smoothness: float, clients: int) -> dict[str, float]:
        """f(w - α ∇f(w)) is no less smooth than f as long as α ≤ 1/L."""
        return {"learning_rate": 1 / smoothness, "adaptation_rate": 1 / smoothness}

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        return Server(params)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """Nothing is adapted yet."""
        return Client(server.w, server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_i <- w."""
        return Work(down.w)

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """One step along the gradient of f(w - α ∇f(w)), or an approximation of it."""
        support, query, third = batches
        adapted = self._adapted(site.objective, work.w, support)
        direction = site.objective.gradient(adapted, query)
        if self.hessian != "first_order":
            curved = self._hessian_product(site.objective, work.w, direction, third)
            direction = tree.step(direction, self.adaptation_rate, curved)
        return Work(tree.step(work.w, site.rate(self.learning_rate), direction))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep and send w_i."""
        return client._replace(w=work.w), Up(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w <- Σ a_i w_i."""
        return Server(replies.w), {}

    def adapt(self, client: Client, brief: Down, site: Site) -> Client:
        """w - α ∇f_i(w)."""
        return client._replace(personal=self._adapted(site.objective, brief.w, site.all_rows))

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, the client's last local copy of it, and the adapted model."""
        return {"global": brief.w, "localized": client.w, "personal": client.personal}

    def newcomer(self, server: Server) -> tuple[core.AdaptedNewcomer, Server]:
        """Adaptation is all that a newcomer needs."""
        return core.AdaptedNewcomer(self), server

    def _adapted(self, objective: core.Objective, w: Params, batch: core.Batch) -> Params:
        """w - α ∇f(w; batch)."""
        return tree.step(w, self.adaptation_rate, objective.gradient(w, batch))

    def _hessian_product(self, objective: core.Objective, w: Params, g: Params, batch: core.Batch) -> Params:
        """∇²f(w; batch) g, exactly or by a central difference."""
        if self.hessian == "exact":
            return grad(lambda at: tree.dot(objective.gradient(at, batch), g))(w)
        ahead = objective.gradient(tree.advance(w, self.difference, g), batch)
        behind = objective.gradient(tree.step(w, self.difference, g), batch)
        return tree.scale(tree.subtract(ahead, behind), 1 / (2 * self.difference))
