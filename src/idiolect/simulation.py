"""A method on a federation in this process: the states, and rounds that move them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import rng, tree
from idiolect.core.method import ClientState, Method, Population, PredictorKind, ServerState, Site
from idiolect.core.objective import Objective, Predictor, in_precision, seeded_module
from idiolect.data.federation import Federation, Rows
from idiolect.engines.base import Engine, Setting
from idiolect.engines.build import EngineName, HereEngine, RayEngineChoice, build_engine
from idiolect.engines.loop import RoundResult, play_round
from idiolect.errors import UserError
from idiolect.participation.sampling import Plan, Uniform
from idiolect.store.base import Store
from idiolect.store.memory import MemoryStore

__all__ = ["EngineName", "Simulation"]


class Simulation:
    """All that changes in a run is `server`, `round` and the client states in the store."""

    def __init__(
        self,
        method: Method,
        model: nn.Module | Callable[[], nn.Module],
        federation: Federation,
        *,
        plan: Plan | None = None,
        seed: int = 0,
        batch_size: int | None = 20,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
        engine: EngineName | HereEngine | RayEngineChoice = "vectorised",
        store: Store | None = None,
    ) -> None:
        if not federation.train.sizes.all():
            empty = federation.names[int(federation.train.sizes.argmin())]
            raise UserError(f"client {empty!r} has no training rows; every client needs at least one")
        federation = federation.to(dtype)
        module = (
            in_precision(model, dtype) if isinstance(model, nn.Module) else seeded_module(model, seed, dtype)
        )
        objective = Objective(module, federation.task, weight_decay)
        self.method = method
        self.plan: Plan = plan or Uniform()
        population = Population(federation.train.sizes, self.plan.present(0, len(federation)))
        self.server: ServerState = method.server_init(
            objective.initial_params(), population, rng.key(seed, "server")
        )
        self.round = 0
        setting = Setting(
            method,
            objective,
            federation,
            store or MemoryStore(len(federation)),
            seed=seed,
            batch_size=batch_size,
            founding=self.server,
        )
        self.engine: Engine = build_engine(engine, setting)

    @property
    def federation(self) -> Federation:
        """The data."""
        return self.engine.setting.federation

    def advance(self) -> RoundResult:
        """Play one round."""
        result = play_round(self.engine, self.plan, self.server, self.round)
        self.server = result.server
        self.round += 1
        return result

    def play(self, rounds: int) -> "Simulation":
        """Play some rounds."""
        for _ in range(rounds):
            self.advance()
        return self

    def clients(self, ids: Tensor | None = None) -> ClientState:
        """The stacked states of some clients, or of all."""
        return self.engine.setting.states(self._ids(ids))

    def predictors(self, ids: Tensor | None = None) -> dict[PredictorKind, Predictor]:
        """The stacked models of some clients, or of all, by kind."""

        def look(client: ClientState, site: Site) -> Any:
            return self.method.predictors(self.server, client, site.client)

        return self._survey(look, self.federation.train, self._ids(ids))

    def predictor(self, client: int) -> dict[PredictorKind, Predictor]:
        """The models of one client, by kind."""
        return tree.row(self.predictors(torch.tensor([client])), 0)

    def survey(self, look: Callable[[ClientState, Site], Any], part: Rows) -> Any:
        """Apply a pure function to every client and its rows in one part of the data; stacked.

        Rows are padded, with weight zero, to as many as another client has: results have no axis of rows.
        """
        return self._survey(look, part, self._ids(None))

    def _survey(self, look: Callable[[ClientState, Site], Any], part: Rows, ids: Tensor) -> Any:
        """Look at clients as they predict: adapted to the server's latest model where the method says so."""
        if not self.method.adapts:
            return self.engine.survey(look, part, ids, self.round)

        def adapt(client: ClientState, site: Site) -> ClientState:
            return self.method.adapt(self.server, client, site)

        def look_adapted(client: ClientState, site: Site) -> Any:
            place = (ids == site.client).to(torch.int64).argmax()
            return look(tree.row(adapted, place), site)

        adapted = self.engine.survey(adapt, self.federation.train, ids, self.round)
        return self.engine.survey(look_adapted, part, ids, self.round)

    def _ids(self, ids: Tensor | None) -> Tensor:
        return torch.arange(len(self.federation)) if ids is None else ids
