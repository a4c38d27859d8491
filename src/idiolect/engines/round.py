"""A round, for every engine: arrivals are admitted, then each exchange asks, works and is absorbed."""

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core.exchange import Info, ServerState
from idiolect.core.transport import Bits
from idiolect.engines.compiler.doubt import Doubt
from idiolect.engines.engine import Engine
from idiolect.participation.sampling import Plan, in_order

logger = logging.getLogger("idiolect")


class PlayedRound(NamedTuple):
    """The server after a round, the diagnostics, and the bits that each client moved."""

    server: ServerState
    info: Info
    down_bits: Tensor  # int64[clients]
    up_bits: Tensor  # int64[clients]: of the replies that arrived
    down_parts: Bits  # the same by named part of the messages: part -> int64[clients]
    up_parts: Bits
    doubts: tuple[Doubt, ...] = ()  # rewritten steps that were found to differ from the plain ones


def play_round(engine: Engine, plan: Plan, server: ServerState, round_number: int) -> PlayedRound:
    """One round; what is odd about it is in the log."""
    played = rehearse_round(engine, plan, server, round_number)
    left_out = played.info.get("left_out", torch.zeros(0)).nonzero()[:, 0].tolist()
    if left_out:
        names = ", ".join(engine.setting.federation.names[place] for place in left_out)
        logger.warning("round %d: the robust sum left out %s", round_number + 1, names)
    for doubt in played.doubts:
        logger.warning("%s; the run goes on with plain steps", doubt.sentence)
    return played


def rehearse_round(engine: Engine, plan: Plan, server: ServerState, round_number: int) -> PlayedRound:
    """The same in silence: the plan says who takes part, the method which exchanges there are."""
    setting = engine.setting
    sizes = setting.federation.train.sizes
    cohort = in_order(plan.cohort(setting.seed, round_number, sizes), len(sizes))
    admit_arrivals(engine, plan, server, round_number)
    info: Info = {}
    doubts: tuple[Doubt, ...] = ()
    down, up = _Ledger(sizes), _Ledger(sizes)
    for exchange in setting.method.exchanges(server):
        outcome = engine.carry_out(exchange, server, cohort, round_number)
        doubts += outcome.doubts
        down.add(outcome.asked, outcome.traffic.down)
        up.add(outcome.asked, outcome.traffic.up)
        if outcome.replies is not None:
            server, diagnostics = exchange.absorb(server, outcome.replies, outcome.arrived)
            info |= diagnostics
    server = setting.method.end_round(server)
    return PlayedRound(server, info, down.total, up.total, down.parts, up.parts, doubts)


class _Ledger:
    """Bits of all exchanges of a round in one direction, for each client there is."""

    def __init__(self, clients: Tensor) -> None:
        self.total = torch.zeros_like(clients)
        self.parts: Bits = {}

    def add(self, asked: Tensor, traffic: Bits) -> None:
        for part, bits in traffic.items():
            self.parts.setdefault(part, torch.zeros_like(self.total)).index_add_(0, asked, bits)
            self.total.index_add_(0, asked, bits)


def admit_arrivals(engine: Engine, plan: Plan, server: ServerState, round_number: int) -> None:
    """Give clients that arrive in this round their first state, from the server as it is now.

    Founding clients need none: theirs follows from the server before the first round.
    """
    if round_number == 0:
        return
    clients = len(engine.setting.federation)
    arriving = plan.present(round_number, clients) & ~plan.present(round_number - 1, clients)
    ids = arriving.nonzero()[:, 0]
    ids = ids[~engine.setting.store.known(ids)]
    if len(ids):
        engine.setting.store.put(ids, engine.setting.arrivals(server, ids))
