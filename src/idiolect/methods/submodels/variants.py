"""FedAvg with sub-models for clients of small capacity: HeteroFL, FedRolex, federated dropout. Spec 6.13.

Of a hidden layer with H units, client i with capacity ρ_i holds floor(ρ_i H) in round r:

    HeteroFL (Diao et al. 2021)             the first ones: {0, .., floor(ρH) - 1}
    FedRolex (Alam et al. 2022)             a window that moves: {r, .., r + floor(ρH) - 1} mod H
    federated dropout (Caldas et al. 2018)  a uniform set, drawn anew for each client and round

A weight is held iff its input unit and its output unit are. Each parameter is averaged over the clients that
held it and stays as it is if nobody did. The three differ in nothing but the choice of units.
"""

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from idiolect import core
from idiolect.core import STRICT, Params, hyper
from idiolect.methods.submodels.chain import Chain, Ratio, Selection
from idiolect.methods.submodels.held_only import HeldOnly
from idiolect.methods.submodels.training import SubmodelTraining


class Server(NamedTuple):
    """The shared model w, the number of rounds played, and what draws random units."""

    w: Params
    round: Tensor
    key: Tensor


class Client(NamedTuple):
    """The last trained sub-model w_i, zero where it holds nothing."""

    w: Params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _SubmodelFedAvg(core.Method, ABC):
    """All but the choice of units."""

    paper: ClassVar[str]
    selection: ClassVar[Selection]
    kinds: ClassVar[tuple[core.PredictorKind, ...]] = ("global", "localized")
    judged_by: ClassVar[core.PredictorKind] = "localized"

    learning_rate: core.Schedule = hyper(0.1, "step size of the local steps", symbol="η", alias="lr")
    local_steps: core.LocalWork = hyper(10, "local steps in a round", symbol="τ")
    weighting: core.Weighting = hyper("uniform", "weights of the replies", symbol="a_i")
    capacities: tuple[Ratio, ...] = Field(
        default=(1.0, 0.5, 0.25),
        min_length=1,
        description="part of every hidden layer that each client holds, given to the clients in turn",
        json_schema_extra={"symbol": "ρ_i", "paper": "1, 1/2, 1/4, 1/8, 1/16", "alias": ""},
    )

    def server_init(self, params: Params, population: core.Population, key: Tensor) -> Server:
        """w^0."""
        if min(self.capacities) < 1:
            Chain.of(params).refuse_empty_layers(self.capacities)
        return Server(params, torch.tensor(0), key)

    def client_init(self, server: Server, client_id: Tensor) -> Client:
        """The shared model is the first local copy."""
        return Client(server.w)

    def exchanges(self, server: Server) -> Sequence[SubmodelTraining]:
        """Train sub-models, average where they were held."""
        return (self._training(),)

    def end_round(self, server: Server) -> Server:
        """Count the round."""
        return server._replace(round=server.round + 1)

    def brief(self, server: Server, ids: Tensor) -> core.SharedModel:
        """w."""
        return core.SharedModel(server.w)

    def predictors(self, client: Client, brief: core.SharedModel) -> core.Predictors:
        """The shared model, and the client's last sub-model."""
        return {"global": brief.w, "localized": client.w}

    def transport(self, exchange: core.Exchange) -> HeldOnly:
        """Of sub-models only what is held travels."""
        return HeldOnly(exchange)

    def newcomer(self, server: Server) -> tuple[core.FineTuning, Server]:
        """Its own copy of the whole shared model, trained."""
        return core.FineTuning(self, self.learning_rate, self.local_steps), server

    def _training(self, roll: int = 1) -> SubmodelTraining:
        return SubmodelTraining(
            learning_rate=self.learning_rate,
            local_steps=self.local_steps,
            capacities=self.capacities,
            selection=self.selection,
            roll=roll,
            weighting=self.weighting,
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeteroFL(_SubmodelFedAvg):
    """Sub-models of the first units."""

    name: ClassVar[str] = "heterofl"
    aliases: ClassVar[tuple[str, ...]] = ("submodel-static",)
    paper: ClassVar[str] = "Diao, Ding, Tarokh 2021"
    selection: ClassVar[Selection] = "static"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedRolex(_SubmodelFedAvg):
    """Sub-models of a rolling window of units."""

    name: ClassVar[str] = "fedrolex"
    aliases: ClassVar[tuple[str, ...]] = ("submodel-rolling",)
    paper: ClassVar[str] = "Alam et al. 2022"
    selection: ClassVar[Selection] = "rolling"

    roll: int = hyper(1, "units by which the window moves in a round", paper="1", ge=0)

    def exchanges(self, server: Server) -> Sequence[SubmodelTraining]:
        """The same, with a window that moves."""
        return (self._training(self.roll),)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FederatedDropout(_SubmodelFedAvg):
    """Sub-models of random units."""

    name: ClassVar[str] = "federated-dropout"
    aliases: ClassVar[tuple[str, ...]] = ("submodel-random",)
    paper: ClassVar[str] = "Caldas et al. 2018"
    selection: ClassVar[Selection] = "random"
