"""A round, for every engine: newcomers are admitted, then each exchange asks, works and is absorbed."""

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core.method import Info, ServerState
from idiolect.engines.base import Engine
from idiolect.participation.sampling import Plan


class RoundResult(NamedTuple):
    """The server after a round, the diagnostics, and the bits that each client moved."""

    server: ServerState
    info: Info
    down_bits: Tensor  # int64[clients]
    up_bits: Tensor  # int64[clients]


def play_round(engine: Engine, plan: Plan, server: ServerState, round_number: int) -> RoundResult:
    """One round: the plan says who takes part, the method which exchanges there are."""
    setting = engine.setting
    sizes = setting.federation.train.sizes
    cohort = plan.cohort(setting.seed, round_number, sizes)
    admit_newcomers(engine, plan, server, round_number)
    info: Info = {}
    down_bits, up_bits = torch.zeros_like(sizes), torch.zeros_like(sizes)
    for exchange in setting.method.exchanges(server):
        outcome = engine.run(exchange, server, cohort, round_number)
        down_bits.index_add_(0, outcome.asked, outcome.traffic.down)
        up_bits.index_add_(0, outcome.asked, outcome.traffic.up)
        if outcome.replies is not None:
            server, news = exchange.absorb(server, outcome.replies, outcome.arrived)
            info |= news
    return RoundResult(setting.method.end_round(server), info, down_bits, up_bits)


def admit_newcomers(engine: Engine, plan: Plan, server: ServerState, round_number: int) -> None:
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
