"""A method on a federation in this process: the states, and rounds that move them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from idiolect.core import rng, tree
from idiolect.core.around import MethodAround
from idiolect.core.device import find_device, to_device, to_host
from idiolect.core.exchange import ClientState, LocalWork, Message, ServerState, Site
from idiolect.core.method import Method, PredictorKind
from idiolect.core.objective import Predictor
from idiolect.core.parts import PartRule, Patterns
from idiolect.core.statistics import Variant
from idiolect.data.federation import Federation, Rows, fingerprint
from idiolect.engines.assembly import EngineName, HereEngine, RayEngineChoice, build_engine, set_up
from idiolect.engines.engine import LocalEngine, Look, Setting
from idiolect.engines.round import PlayedRound, play_round
from idiolect.engines.ways import Way
from idiolect.evaluation.metrics import Measures, evaluate
from idiolect.participation.sampling import Plan, Uniform
from idiolect.privacy.row_private import row_privacy_of
from idiolect.store.store import Store

__all__ = ["EngineName", "Simulation"]


class Simulation:
    """All that changes in a run is `server`, `round` and the client states in the store."""

    knows_rows = True

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
        clip: float | None = None,
        engine: EngineName | HereEngine | RayEngineChoice = "vectorised",
        store: Store | None = None,
        round_steps: int | None = None,
        statistics: Variant | None = None,
        train: PartRule | Patterns | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        setting = set_up(
            method,
            model,
            federation,
            seed=seed,
            batch_size=batch_size,
            weight_decay=weight_decay,
            dtype=dtype,
            clip=clip,
            store=store,
            round_steps=round_steps,
            statistics=statistics,
            train=train,
            device=find_device(str(device)),
        )
        self._begin(setting, plan or Uniform(), engine)

    @classmethod
    def of(
        cls,
        setting: Setting,
        plan: Plan,
        engine: EngineName | HereEngine | RayEngineChoice,
        way: Way | None = None,
    ) -> "Simulation":
        """A simulation of what is set up already; `way` is how clients were computed before, if they were."""
        simulation = cls.__new__(cls)
        simulation._begin(setting, plan, engine, way)
        return simulation

    def _begin(
        self,
        setting: Setting,
        plan: Plan,
        engine: EngineName | HereEngine | RayEngineChoice,
        way: Way | None = None,
    ) -> None:
        self.plan = plan
        self.server: ServerState = setting.found(plan)
        self.round = 0
        self._engine_choice = engine
        self.engine: LocalEngine = build_engine(engine, setting, way)

    @property
    def way(self) -> Way | None:
        """How clients are computed; None where that is the engine's definition."""
        return getattr(self.engine, "way", None)

    @property
    def method(self) -> Method:
        """The method, with what stands around it."""
        return self.engine.setting.method

    @property
    def federation(self) -> Federation:
        """The data."""
        return self.engine.setting.federation

    def advance(self) -> PlayedRound:
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

    def evaluate(self, measures: Measures | None = None) -> pd.DataFrame:
        """All metrics of all clients now; without `measures` the task's own."""
        return evaluate(self, measures)

    @property
    def briefed(self) -> Tensor:
        """The ids of the clients that are sent a brief when they are evaluated: all."""
        return self._ids(None)

    def client_facts(self) -> dict[str, Tensor]:
        """What the method tells of each client's state, by name; a number for each client."""
        facts = self.method.client_facts()
        if facts is None:
            return {}

        def look(client: ClientState, brief: Message, site: Site) -> dict[str, Tensor]:
            return facts(client)

        told = self.engine.survey(look, self.server, self.federation.train, self._ids(None), self.round)
        return dict(told)

    def newcomers(
        self,
        federation: Federation,
        *,
        steps: LocalWork | None = None,
        round_number: int | None = None,
        trained: bool = True,
    ) -> "Simulation":
        """Clients that were not there in training, after what the method has for them; this one stays.

        `steps` replaces the local steps that they take, and `round_number` the round whose batches they see.
        If they are not to be `trained`, they are as they arrive.
        """
        setting = self.engine.setting
        method, server = self.method.newcomer(self.server)
        exchanges = method.exchanges(server)
        # Past rounds have the steps that they had, however long the newcomers train.
        round_steps = max((setting.clock_steps(exchange) for exchange in exchanges), default=None)
        if steps is not None and exchanges:
            method = _with_steps(method, steps)
        simulation = self.with_others(method, federation, round_steps)
        simulation.server = simulation.engine.setting.founding = server
        simulation.round = self.round if round_number is None else round_number
        cohort = simulation.plan.cohort(setting.seed, simulation.round, federation.train.sizes)
        for exchange in simulation.method.exchanges(server) if trained else ():
            simulation.engine.carry_out(exchange, server, cohort, simulation.round)
        return simulation

    def with_others(
        self, method: Method, federation: Federation, round_steps: int | None = None
    ) -> "Simulation":
        """Another method on other clients, before its first round; first model, seed and engine are these.

        Where rows are hidden, so are theirs. Each of their trainings then draws batches of its own: what it
        costs is counted as if none of the others had the same.

        They are few, and computed in this process: where Ray's workers have all processors, others would wait
        for these for ever.
        """
        setting, choice = self.engine.setting, self._engine_choice
        if (private := row_privacy_of(self.method)) is not None:
            method = private = private.for_others(method, fingerprint(federation))
        if isinstance(choice, RayEngineChoice):
            choice = HereEngine(optimise=choice.optimise)
        others = Simulation(
            method,
            setting.objective.module,
            federation,
            seed=setting.seed,
            batch_size=setting.batches.batch_size,
            weight_decay=setting.objective.weight_decay,
            dtype=setting.objective.dtype,
            clip=setting.objective.clip,
            engine="vectorised" if choice == "ray" else choice,
            round_steps=round_steps,
            device=setting.device,
        )
        if private is not None:
            others.engine.setting.draw_by(rng.generator_seed(rng.key(setting.seed, private.origin)))
        return others

    def clients(self, ids: Tensor | None = None) -> ClientState:
        """The stacked states of some clients, or of all."""
        return to_host(self.engine.setting.states(self._ids(ids)))

    def predictors(self, ids: Tensor | None = None) -> dict[PredictorKind, Predictor]:
        """The stacked models of some clients, or of all, by kind."""

        def look(client: ClientState, brief: Message, site: Site) -> Any:
            return self.method.predictors(client, brief)

        return self._survey(look, self.federation.train, self._ids(ids))

    def predictor(self, client: int) -> dict[PredictorKind, Predictor]:
        """The models of one client, by kind."""
        return tree.row(self.predictors(torch.tensor([client])), 0)

    def global_model(self) -> Predictor:
        """The model of the kind "global": the server's own, for which no client's state is needed."""
        setting, ids = self.engine.setting, torch.tensor([0])
        brief = self.method.brief(self.server, ids)
        brief = tree.row(brief, 0) if self.method.personal_brief else brief
        anybody = tree.row(setting.arrivals(setting.founding, ids), 0)
        return self.method.predictors(anybody, brief)["global"]

    def survey(self, look: Look, part: Rows) -> Any:
        """Look at every client, with its brief and its rows in one part of the data; the results are stacked.

        Rows are padded, with weight zero, to as many as another client has: results have no axis of rows.
        """
        return self._survey(look, part, self._ids(None))

    def _survey(self, look: Look, part: Rows, ids: Tensor) -> Any:
        """Look at clients as they predict: adapted to the server's latest model where the method says so."""
        if not self.method.adapts:
            return self.engine.survey(look, self.server, part, ids, self.round)

        def look_adapted(client: ClientState, brief: Message, site: Site) -> Any:
            place = (everybody == site.client_id).to(torch.int64).argmax()
            return look(tree.row(adapted, place), brief, site)

        adapted = self.engine.survey(self.method.adapt, self.server, self.federation.train, ids, self.round)
        adapted, everybody = to_device((adapted, ids), self.engine.setting.device)
        return self.engine.survey(look_adapted, self.server, part, ids, self.round)

    def _ids(self, ids: Tensor | None) -> Tensor:
        return torch.arange(len(self.federation)) if ids is None else ids


def _with_steps(method: Method, steps: LocalWork) -> Method:
    """The method with other local steps, also where something stands around it."""
    if isinstance(method, MethodAround):
        return replace(method, method=_with_steps(method.method, steps))  # type: ignore[type-var]
    return replace(method, local_steps=steps)  # type: ignore[type-var]
