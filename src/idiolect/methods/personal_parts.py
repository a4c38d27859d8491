"""One model, a part θ of it shared and a part φ_i personal, trained together. Spec 8.1, 8.4, 8.5.

    client i:  w_i <- (θ, φ_i);  repeat local_steps times:  w_i <- w_i - η ∇f_i(w_i; ξ)
    server:    θ <- Σ a_i θ_i

for min over θ, φ_1, .. φ_N of Σ a_i f_i(θ, φ_i). φ_i never leaves the client:

    FedPer (Arivazhagan et al. 2019)    the last layers
    LG-FedAvg (Liang et al. 2020)       all but the last layers
    FedBN (Li et al. 2021)              batch normalisation, whose statistics stay at home too
    SiloBN (Andreux et al. 2020)        the statistics of batch normalisation alone, which are no parameters

The four differ in nothing but what is personal. The personal model is (θ, φ_i), the newest shared part with
the own personal one; the localized one is (θ_i, φ_i), as the client left its round. With nothing personal it
is FedAvg, with everything personal local training. There is no global model: statistics stay at the clients.
"""

from abc import ABC
from typing import Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper
from idiolect.methods._parts import First, NewcomerTrains, PersonalPart, Start, divide


class Server(NamedTuple):
    """The shared part θ, and where personal parts begin."""

    shared: Params
    start: Start


class Client(NamedTuple):
    """The model w_i = (θ_i, φ_i), and what the client's optimizer remembers."""

    w: Params
    optimizer: Any


class Shared(NamedTuple):
    """What crosses: θ to every client, θ_i from each."""

    shared: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _SharedPartFedAvg(core.Method, core.Exchange, ABC):
    """All but the choice of the personal part."""

    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("localized", "personal")
    judged_by: ClassVar[core.PredictorKind] = "personal"
    stateful: ClassVar[bool] = True
    relative_to: ClassVar[dict[str, str]] = {"shared": "shared"}
    part_choices: ClassVar[tuple[str, ...]] = ("personal",)

    personal: core.PartChoice = hyper((), "the part that stays at each client", symbol="φ_i")
    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")
    optimizer: core.Optimizer = hyper("sgd", "what turns gradients into steps")
    first: First = hyper("equal", "whether personal parts begin alike or each with a draw of its own")
    newcomer_trains: NewcomerTrains = hyper("personal", "what a newcomer trains: its personal part or all")

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """θ⁰ and φ⁰."""
        shared, personal = divide(params, self.personal)
        return Server(shared, Start(personal, key))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """(θ, φ_i⁰)."""
        w = {**server.shared, **server.start.of_client(client_id, self.first)}
        return Client(w, self.optimizer.init(w))

    def down(self, server: Server, ids: Tensor) -> Shared:
        """θ."""
        return Shared(server.shared)

    def begin(self, client: Client, down: Shared, site: Site) -> Client:
        """w_i <- (θ, φ_i)."""
        return Client({**client.w, **down.shared}, client.optimizer)

    def step(self, work: Client, client: Client, down: Shared, batches: Batches, site: Site) -> Client:
        """w_i <- w_i - η ∇f_i(w_i; ξ)."""
        slopes = site.objective.gradient(work.w, batches[0])
        return Client(*self.optimizer.apply(work.w, slopes, work.optimizer, site.rate(self.learning_rate)))

    def finish(self, work: Client, client: Client, down: Shared, site: Site) -> tuple[Client, Shared]:
        """Keep w_i, send θ_i."""
        return work, Shared({name: work.w[name] for name in down.shared})

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(self, server: Server, replies: Shared, cohort: core.Cohort) -> tuple[Server, core.Info]:
        """θ <- Σ a_i θ_i."""
        return server._replace(shared=replies.shared), {}

    def predictors(self, client: Client, brief: Shared) -> core.Predictors:
        """(θ_i, φ_i) and (θ, φ_i)."""
        return {"localized": client.w, "personal": {**client.w, **brief.shared}}

    def newcomer(self, server: Server) -> tuple[PersonalPart, Server]:
        """φ from φ⁰, on θ as it is."""
        newcomer = PersonalPart(
            self, self.learning_rate, self.optimizer, self.newcomer_trains, self.local_steps
        )
        return newcomer, server


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedPer(_SharedPartFedAvg):
    """A shared body and personal last layers, trained together."""

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al. 2019"

    personal: core.PartChoice = hyper(
        "head", "the part that stays at each client", symbol="φ_i", paper="the last 1 to 4 layers"
    )
    weighting: core.Weighting = hyper("samples", "weights of the replies", symbol="a_i", paper="n_i / n")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LGFedAvg(_SharedPartFedAvg):
    """Personal bodies under a shared last layer, trained together."""

    name: ClassVar[str] = "lg-fedavg"
    aliases: ClassVar[tuple[str, ...]] = ("lgfedavg",)
    paper: ClassVar[str] = "Liang et al. 2020"

    personal: core.PartChoice = hyper(
        "body", "the part that stays at each client", symbol="φ_i", paper="all but the last 2 or 3 layers"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedBN(_SharedPartFedAvg):
    """A shared model with batch normalisation of each client's own."""

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = "Li et al. 2021"

    personal: core.PartChoice = hyper("norm", "the part that stays at each client", symbol="φ_i")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SiloBN(_SharedPartFedAvg):
    """A shared model with statistics of batch normalisation of each client's own."""

    name: ClassVar[str] = "silobn"
    paper: ClassVar[str] = "Andreux et al. 2020"
