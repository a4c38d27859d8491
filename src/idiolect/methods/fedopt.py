"""FedAvg whose server takes an outer step: FedAvgM, FedAdagrad, FedAdam, FedYogi. Spec 8.13.

    client i:  w_i <- w;  repeat local_steps times:  w_i <- w_i - η ∇f_i(w_i; ξ)
    server:    Δ = Σ a_i w_i - w,  entry by entry:

    FedAvgM (Hsu et al. 2019)        m <- β m + Δ,               w <- w + η_s m
    FedAdagrad (Reddi et al. 2021)   v <- v + Δ²
    FedAdam                          v <- β₂ v + (1 - β₂) Δ²
    FedYogi                          v <- v - (1 - β₂) Δ² sign(v - Δ²)
                                     m <- β₁ m + (1 - β₁) Δ,     w <- w + η_s m / (√v + κ)     for these three

The four differ in nothing but the step, which is in `core/outer_step.py`; as the setting `outer` it goes
around other methods too.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Batches, Params, Site, hyper, tree
from idiolect.core.outer_step import Adagrad, Adam, AvgM, Memory, OuterStep, Yogi


class Server(NamedTuple):
    """The shared model w, and what the outer step remembers."""

    w: Params
    memory: Memory


class Client(NamedTuple):
    """The last local copy w_i, and what the client's optimizer remembers."""

    w: Params
    optimizer: Any


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _FedOpt(core.Method, core.Exchange, ABC):
    """All but the outer step."""

    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"
    relative_to: ClassVar[dict[str, str]] = {"w": "w"}

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ", paper="1 pass")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i", paper="n_i / n")
    optimizer: core.Optimizer = hyper("sgd", "what turns gradients into steps")

    @abstractmethod
    def outer_step(self) -> OuterStep:
        """Where the server goes instead of to the average."""

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0; nothing has changed yet."""
        return Server(params, self.outer_step().init(params))

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w, self.optimizer.init(server.w))

    def down(self, server: Server, ids: Tensor) -> core.SharedModel:
        """w."""
        return core.SharedModel(server.w)

    def begin(self, client: Client, down: core.SharedModel, site: Site) -> Client:
        """w_i <- w."""
        return Client(down.w, client.optimizer)

    def step(
        self, work: Client, client: Client, down: core.SharedModel, batches: Batches, site: Site
    ) -> Client:
        """w_i <- w_i - η ∇f_i(w_i; ξ)."""
        slopes = site.objective.gradient(work.w, batches[0])
        return Client(*self.optimizer.apply(work.w, slopes, work.optimizer, site.rate(self.learning_rate)))

    def finish(
        self, work: Client, client: Client, down: core.SharedModel, site: Site
    ) -> tuple[Client, core.LocalModel]:
        """Keep and send w_i."""
        return work, core.LocalModel(work.w)

    def weights(self, server: Server, cohort: core.Cohort) -> Tensor:
        """a_i."""
        return core.reply_weights(cohort, self.weighting)

    def absorb(
        self, server: Server, replies: core.LocalModel, cohort: core.Cohort
    ) -> tuple[Server, core.Info]:
        """The outer step along Δ."""
        change = tree.subtract(replies.w, server.w)
        return Server(*self.outer_step().apply(server.w, change, server.memory)), {}

    def predictors(self, client: Client, brief: core.SharedModel) -> core.Predictors:
        """The shared model, and the client's last local copy of it."""
        return {"global": brief.w, "localized": client.w}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAvgM(_FedOpt):
    """FedAvg with momentum at the server."""

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu, Qi, Brown 2019"

    server_rate: float = hyper(1.0, "server's step along the momentum", symbol="η_s", paper="1", gt=0)
    momentum: float = hyper(
        0.9, "what is kept of past changes", symbol="β", paper="0 to 0.997", ge=0, lt=1, tune=[0.5, 0.9, 0.97]
    )

    def outer_step(self) -> AvgM:
        """w + η_s m."""
        return AvgM(rate=self.server_rate, momentum=self.momentum)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Adaptive(_FedOpt, ABC):
    """What the adaptive steps have in common."""

    paper: ClassVar[str] = "Reddi et al. 2021"

    server_rate: float = hyper(
        0.01, "server's step size", symbol="η_s", paper="0.001 to 10", gt=0, tune=(0.001, 1.0)
    )
    momentum: float = hyper(0.9, "what is kept of past changes", symbol="β₁", paper="0.9", ge=0, lt=1)
    floor: float = hyper(1e-3, "added to √v", symbol="κ", paper="1e-3", gt=0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAdagrad(_Adaptive):
    """FedAvg with Adagrad at the server."""

    name: ClassVar[str] = "fedadagrad"

    momentum: float = hyper(0.0, "what is kept of past changes", symbol="β₁", paper="0", ge=0, lt=1)

    def outer_step(self) -> Adagrad:
        """v + Δ²."""
        return Adagrad(rate=self.server_rate, momentum=self.momentum, floor=self.floor)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAdam(_Adaptive):
    """FedAvg with Adam at the server."""

    name: ClassVar[str] = "fedadam"

    decay: float = hyper(0.99, "what is kept of past squares", symbol="β₂", paper="0.99", ge=0, lt=1)

    def outer_step(self) -> Adam:
        """β₂ v + (1 - β₂) Δ²."""
        return Adam(rate=self.server_rate, momentum=self.momentum, floor=self.floor, decay=self.decay)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedYogi(_Adaptive):
    """FedAvg with Yogi at the server."""

    name: ClassVar[str] = "fedyogi"

    decay: float = hyper(
        0.99, "1 less this of Δ² is what v can change by", symbol="β₂", paper="0.99", ge=0, lt=1
    )

    def outer_step(self) -> Yogi:
        """v - (1 - β₂) Δ² sign(v - Δ²)."""
        return Yogi(rate=self.server_rate, momentum=self.momentum, floor=self.floor, decay=self.decay)
