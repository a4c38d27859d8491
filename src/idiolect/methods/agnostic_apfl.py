"""Agnostic APFL: APFL whose shared model is DRFA's, good for the worst mixture of clients. Spec 6.12.

    server problem:  min over w, max over q on the simplex, of  Σ_i q_i f_i(w)
    client problem:  min over v of  f_i(α_i v + (1 - α_i) w)

A round is DRFA's (drfa.py); beside each step of w_i a drawn client steps v_i and α_i as in APFL (apfl.py):

    α <- clip(α - rate <v - w, g_m>, 0, 1),   v <- v - rate α g_m,    g_m = ∇f_i(α v + (1 - α) w; ξ)
"""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.methods import apfl
from idiolect.methods.apfl import APFL, Client
from idiolect.methods.drfa import DRFA, Down, DRFALosses, Server, Up


class Work(NamedTuple):
    """Changes with every local step: APFL's v_i, α_i and w_i, and DRFA's u_i."""

    mixture: apfl.Client
    snapshot: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AgnosticAPFL(core.Method, core.Exchange):
    """Adaptive mixture of a local model and a shared one that is robust to who is asked."""

    name: ClassVar[str] = "agnostic-apfl"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi 2020, appendix C"
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    gradients_per_step: ClassVar[int] = 2
    passes: ClassVar[dict[core.PredictorKind, int]] = {"personal": 1}
    relative_to: ClassVar[dict[str, str]] = {"w": "w", "snapshot": "w"}

    learning_rate: core.Schedule = hyper(
        {"name": "per_round", "initial": 0.1}, "step size of w and v", symbol="η", alias="lr"
    )
    local_steps: int = hyper(10, "local steps in a round", symbol="τ", ge=1)
    shares_rate: core.Schedule = hyper(
        0.01, "step size of the clients' shares", symbol="γ_q", tune=(0.001, 0.1)
    )
    mixing: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = hyper(
        "adaptive", "weight of the local model: a fixed number, or learned", symbol="α",
        tune=["adaptive", 0.25, 0.5, 0.75],
    )  # fmt: skip
    initial_mixing: float = hyper(0.5, "first weight where it is learned", symbol="α⁰", ge=0, le=1)

    @property
    def shared(self) -> DRFA:
        """The method of w and q."""
        return DRFA(
            learning_rate=self.learning_rate, local_steps=self.local_steps, shares_rate=self.shares_rate
        )

    @property
    def mixture(self) -> APFL:
        """The method of v and α."""
        return APFL(
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            mixing=self.mixing,
            initial_mixing=self.initial_mixing,
        )

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0, q^0."""
        return self.shared.server_init(params, population, key)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """v_i^0 = w^0, α_i^0."""
        return self.mixture.client_init(apfl.Server(server.w), client_id)

    def exchanges(self, server: Server) -> Sequence[core.Exchange]:
        """Training, then losses."""
        return (self, DRFALosses(self.shared))

    def ask(self, server: Server, cohort: core.Cohort, key: Tensor) -> core.Cohort:
        """Draws ∝ q."""
        return self.shared.ask(server, cohort, key)

    def down(self, server: Server, ids: Tensor) -> Down:
        """w and t'."""
        return self.shared.down(server, ids)

    def begin(self, client: Client, down: Down, site: Site) -> Work:
        """w_i <- w; v and α as they were."""
        return Work(self.mixture.begin(client, core.SharedModel(down.w), site), down.w)

    def step(self, work: Work, client: Client, down: Down, batches: Batches, site: Site) -> Work:
        """APFL's step, whose step of w_i is DRFA's; u_i follows w_i until t'."""
        moved = self.mixture.step(work.mixture, client, core.SharedModel(down.w), batches, site)
        return Work(moved, tree.where(site.clock.step < down.snapshot_step, moved.w, work.snapshot))

    def finish(self, work: Work, client: Client, down: Down, site: Site) -> tuple[Client, Up]:
        """Keep v, α and w_i; send w_i and u_i."""
        kept, _ = self.mixture.finish(work.mixture, client, core.SharedModel(down.w), site)
        return kept, Up(kept.w, work.snapshot)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """1/m for each draw."""
        return self.shared.weights(server, cohort)

    def absorb(self, server: Server, replies: Up, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """w and u."""
        return self.shared.absorb(server, replies, cohort)

    def end_round(self, server: Server) -> Server:
        """DRFA's clock."""
        return self.shared.end_round(server)

    def brief(self, server: Server, ids: Tensor) -> core.SharedModel:
        """w."""
        return core.SharedModel(server.w)

    def predictors(self, client: Client, brief: core.SharedModel) -> core.Predictors:
        """w, w_i and α v + (1 - α) w."""
        return self.mixture.predictors(client, brief)

    def client_facts(self) -> Callable[[Client], dict[str, Tensor]] | None:
        """α_i."""
        return self.mixture.client_facts()

    def newcomer(self, server: Server) -> tuple[core.Method, apfl.Server]:
        """As with APFL."""
        return self.mixture.newcomer(apfl.Server(server.w))
