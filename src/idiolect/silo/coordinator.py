"""The coordinator's half of a run: silos are greeted, then its rounds are played like a simulation's."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from torch import Tensor

from idiolect.core.exchange import ServerState
from idiolect.core.method import Method
from idiolect.core.tree import Params
from idiolect.data.federation import Federation
from idiolect.engines.local_view import stand_in
from idiolect.engines.round import PlayedRound, play_round
from idiolect.errors import UserError
from idiolect.evaluation.metrics import Measures
from idiolect.models import CATALOGUE as MODELS
from idiolect.models import outline_model
from idiolect.participation.sampling import Plan
from idiolect.runs.config import RunConfig
from idiolect.runs.decisions import decide_noise
from idiolect.runs.folder import RunFolder
from idiolect.runs.lifecycle import play
from idiolect.runs.privacy import Prices, planned
from idiolect.runs.setup import bound_plan, build_setting, preparation_of
from idiolect.silo.audit import AuditedLink, AuditLog
from idiolect.silo.checks import whole_number
from idiolect.silo.history import History
from idiolect.silo.monitor import Monitor, View
from idiolect.silo.rates import decide_rates
from idiolect.silo.requests import Link, Request, ask_all
from idiolect.silo.schema_search import agree_on_schema
from idiolect.silo.secure.admission import UNTOLD_ROWS
from idiolect.silo.serve_settings import ServeSettings
from idiolect.silo.served_run import ServedRun
from idiolect.silo.silos import Silos
from idiolect.silo.versions import VERSION, require_same_version
from idiolect.silo.wire import Packet
from idiolect.store.roster import Roster

if TYPE_CHECKING:
    from idiolect.secure.signing import KnownKeys
    from idiolect.silo.secure.coordinator_side import CoordinatorSums

_MOST_ROWS = 2**40  # of one silo: beyond it sums of rows would not be whole numbers


class Coordination:
    """A training whose clients are silos: the server and its rounds are here, the states are there."""

    def __init__(self, engine: Silos, plan: Plan, monitor: Monitor) -> None:
        self.engine = engine
        self.plan = plan
        self.monitor = monitor
        self.server: ServerState = engine.setting.found(plan)
        self.round = 0

    @property
    def method(self) -> Method:
        """The method, with what stands around it."""
        return self.engine.setting.method

    @property
    def federation(self) -> Federation:
        """What is known of the silos' tables."""
        return self.engine.setting.federation

    @property
    def knows_rows(self) -> bool:
        """Unless sums are secure: then silos tell nobody."""
        return self.engine.sums is None

    @property
    def briefed(self) -> Tensor:
        """The ids of the silos that are there: they are sent a brief when they are evaluated."""
        return self.plan.present(max(self.round - 1, 0), len(self.federation)).nonzero()[:, 0]

    def advance(self) -> PlayedRound:
        """Play one round."""
        with self.monitor.phase("server"):
            result = play_round(self.engine, self.plan, self.server, self.round)
        self.server = result.server
        self.round += 1
        self.monitor.advanced(self.round, int(result.down_bits.sum()), int(result.up_bits.sum()))
        return result

    def client_facts(self) -> dict[str, Tensor]:
        """Nothing: states stay at the silos."""
        return {}

    def evaluate(self, measures: Measures) -> pd.DataFrame:
        """The metrics that silos agreed to compute, of those that share them."""
        return self.engine.evaluate(self.server, self.briefed, self.round)


def coordinate(
    run: ServedRun,
    link: Link,
    views: Sequence[View] = (),
    known: "KnownKeys | None" = None,
    audit: AuditLog | None = None,
) -> RunFolder:
    """Greet the silos and play the rounds that are left of a run, to its finished folder.

    known: the silos' public keys, for secure sums.
    audit: where it is noted who is asked what; by default in the run's folder.
    """
    with Monitor(run, views) as monitor:
        audited = AuditedLink(link, audit or AuditLog(run.path))
        coordination = _begin(run, monitor.watch(audited), monitor, known)
        return play(run.folder, coordination, [monitor, History(run)])


def _begin(run: ServedRun, link: Link, monitor: Monitor, known: "KnownKeys | None") -> Coordination:
    """What is to be played, in the state of the last checkpoint."""
    run.folder.require_same_weights()
    with monitor.asking("greeting", "summary of its columns"):
        agree_on_schema(run, link)
    settings = run.settings
    if settings.config.open_rates:
        run.decide(decide_rates(settings.config, settings.agreed_schema.preprocessing, settings.silos))
    _agree_on_privacy(run)
    with monitor.asking("greeting", "greeting"):
        weights = _weights_to_send(run.settings)
        sums = _secure_sums(run, link, monitor, known, weights)
        greetings = _greet(run, link, weights)
    federation = run.federation_of({name: greeting.rows for name, greeting in greetings.items()})
    monitor.greeted({} if sums else {name: greeting.rows["train"] for name, greeting in greetings.items()})
    config, roster = run.settings.config, Roster(len(federation))
    engine = Silos(build_setting(config, federation, roster), roster, link, run, monitor, sums)
    coordination = Coordination(engine, config.participation.bind(federation.names), monitor)
    run.folder.restore(coordination)
    for number, name in enumerate(federation.names):
        if name in greetings:  # who has a state is known best by the silos: one may have lost its disk
            roster.has_state[number] = greetings[name].has_state
    monitor.continued(coordination.round)
    return coordination


def _agree_on_privacy(run: ServedRun) -> None:
    """Find the noise that was left open; and refuse what cannot be hidden, before silos are asked."""
    config = run.settings.config
    if config.privacy is None:
        return
    stand_ins = _stand_ins(run.settings)
    if config.privacy.noise is None:
        run.decide(decide_noise(config, stand_ins))
    else:
        planned(Prices(build_setting(config, stand_ins), bound_plan(config, stand_ins), config.privacy), 1)


def _secure_sums(
    run: ServedRun, link: Link, monitor: Monitor, known: "KnownKeys | None", weights: Params
) -> "CoordinatorSums | None":
    if run.settings.secure is None:
        return None
    assert known is not None, "asked for where keys are chosen"
    from idiolect.silo.secure.coordinator_side import begin_sums  # it needs an extra

    return begin_sums(run, link, monitor, known, weights)


class _Greeting(NamedTuple):
    """What a silo tells when it agrees to a run."""

    rows: dict[str, int]  # in each part of its data
    has_state: bool


def _greet(run: ServedRun, link: Link, weights: Params) -> dict[str, _Greeting]:
    """Agree with every silo on configuration and schema; with enough of them where a run goes on."""
    settings = run.settings
    before = run.known_rows()
    requests = {}
    for number, name in enumerate(settings.silos):
        header = {
            "ask": "hello",
            "run": run.name,
            "version": VERSION,
            "name": name,
            "number": number,
            "clients": len(settings.silos),
            "config": settings.shared_config(),
            "schema": settings.agreed_schema.plain(),
        }
        read = partial(_read_greeting, before.get(name)) if settings.secure is None else _read_silent_greeting
        trees = {"weights": weights} if weights else {}
        requests[name] = Request(header, trees, read)
    minimum = settings.minimum(len(requests)) if before else None
    return ask_all(link, requests, settings.patience, minimum)


def _read_greeting(before: int | None, packet: Packet) -> _Greeting:
    """What a silo tells; its training rows must be as many as before: weights and batches depend on them."""
    header = packet.header
    require_same_version(header, "the coordinator", "this silo")
    rows, known = header.get("rows"), header.get("known")
    if not isinstance(rows, dict) or not isinstance(known, bool):
        raise UserError("sent a greeting that cannot be read: it must tell rows and whether it has a state")
    counts = {part: whole_number(rows, part, 0, _MOST_ROWS) for part in ("train", "validation", "test")}
    if not counts["train"]:
        raise UserError("has no training rows; every silo needs at least one")
    if before is not None and counts["train"] != before:
        raise UserError(
            f"its training rows changed since the run began ({before} before, {counts['train']} now); "
            "start a new run"
        )
    return _Greeting(counts, known)


def _read_silent_greeting(packet: Packet) -> _Greeting:
    """What a silo tells where sums are secure: that it is there, and not how many rows it has."""
    require_same_version(packet.header, "the coordinator", "this silo")
    return _Greeting(dict(UNTOLD_ROWS), packet.header.get("known") is True)


def _weights_to_send(settings: ServeSettings) -> Params:
    """What silos cannot make of the configuration, sent when they agree and never again.

    The fixed part of the model, which must be equal everywhere, and all first weights if they are of a file.
    """
    federation = _stand_ins(settings)
    if _follows_from_seed(settings.config, federation):  # a large model is not made to find that out
        return {}
    objective = build_setting(settings.config, federation).objective
    is_from_file = preparation_of(settings.config).weights is not None
    return objective.module.state_dict() if is_from_file else objective.fixed_params()


def _stand_ins(settings: ServeSettings) -> Federation:
    """In place of silos of which nothing is known yet."""
    rows = pd.DataFrame(1, index=list(settings.silos), columns=["train", "validation", "test"])
    return stand_in(settings.agreed_schema.preprocessing, rows)


def _follows_from_seed(config: RunConfig, federation: Federation) -> bool:
    """Whether silos can make all of the model by themselves: nothing of it is fixed or of a file."""
    options = dict(config.model)
    name = options.pop("name")
    if config.train is not None or preparation_of(config).weights is not None or MODELS.is_own(name):
        return False
    return all(
        parameter.requires_grad for parameter in outline_model(name, federation, **options).parameters()
    )
