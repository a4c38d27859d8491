"""AFL: the shared model that is best for the worst mixture of clients (Mohri et al. 2019). Spec 6.12.

    min over w, max over q on the simplex, of  Σ_i q_i f_i(w),    q⁰_i = n_i / n

One step in a round, both at the old w, with the same batch ξ_i for gradient and loss:

    w <- w - γ_w Σ_i q_i ∇f_i(w; ξ_i)
    q <- Π(q + γ_q (f_i(w; ξ_i))_i)          Π: projection onto the simplex

Client i sends w_i = w - γ_w ∇f_i(w; ξ_i), so Σ q_i (w_i - w) is the step. The paper asks all clients; of
some, each asked with probability π_i, the sums count every reply 1/π_i times and are right on average.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods._shares import ascend, initial_shares


class Server(NamedTuple):
    """The shared model w, the clients' shares q, and the round."""

    w: Params
    shares: Tensor  # float64[clients]
    round: Tensor


class Client(NamedTuple):
    """The client's copy of w after its step."""

    w: Params


class Down(NamedTuple):
    """To every client: the shared model."""

    w: Params


class Up(NamedTuple):
    """From each client: its copy of w after one step, and the loss before it. Also its work."""

    w: Params
    loss: Tensor


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AFL(core.Method, core.Exchange):
    """Agnostic federated learning: descent in the model, ascent in the clients' shares."""

    name: ClassVar[str] = "afl"
    paper: ClassVar[str] = "Mohri, Sivek, Suresh 2019"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of w", symbol="γ_w", alias="lr")
    shares_rate: core.Schedule = hyper(
        0.01, "step size of the clients' shares", symbol="γ_q", tune=(0.001, 0.1)
    )
    local_steps: Literal[1] = hyper(1, "one step in a round")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0, q^0."""
        return Server(params, initial_shares(population), torch.tensor(0))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w."""
        return Down(server.w)

    def begin(self, client: Client, down: Down, site: Site) -> Up:
        """w_i <- w."""
        return Up(down.w, torch.zeros_like(tree.scalar_of(down.w)))

    def step(self, work: Up, client: Client, down: Down, batches: Batches, site: Site) -> Up:
        """w_i <- w - γ_w ∇f_i(w; ξ), and f_i(w; ξ)."""
        gradient = site.objective.gradient(work.w, batches[0])
        loss = site.objective.loss(work.w, batches[0])
        return Up(tree.step(work.w, site.rate(self.learning_rate), gradient), loss)

    def finish(self, work: Up, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep w_i; send it and the loss."""
        return Client(work.w), work

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """Descent in w, by Σ p_i (w_i - w) = Σ p_i w_i - (Σ p_i) w with p_i = q_i / π_i; ascent in q."""
        draws = 1.0 if cohort.multiplicity is None else cohort.multiplicity
        weights = server.shares[cohort.ids] * draws / cohort.inclusion
        w = tree.add(tree.scale(server.w, 1 - weights.sum()), tree.weighted_sum(replies.w, weights))
        rate = self.shares_rate(core.Clock(int(server.round), 0, self.local_steps))
        slope = torch.zeros_like(server.shares)
        slope[cohort.ids] = rate * replies.loss.double() * draws / cohort.inclusion
        shares = ascend(server.shares, slope, cohort.population)
        return server._replace(w=w, shares=shares), {"shares": shares, "worst_loss": replies.loss.max()}

    def end_round(self, server: Server) -> Server:
        """The clock of the shares' step size."""
        return server._replace(round=server.round + 1)

    def predictors(self, client: Client, brief: Down) -> core.Predictors:
        """The shared model, and the client's last copy of it."""
        return {"global": brief.w, "localized": client.w}

    def newcomer(self, server: Server) -> tuple[core.FineTuning, Server]:
        """Local steps from the shared model."""
        return core.FineTuning(self, self.learning_rate, self.local_steps), server
