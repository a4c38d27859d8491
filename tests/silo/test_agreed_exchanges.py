"""A silo works on the exchanges of the method that it agreed to, with the settings that it agreed to."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect.core import tree
from idiolect.core.around import innermost
from idiolect.core.exchange import Exchange, Message
from idiolect.engines.round import rehearse_round
from idiolect.errors import UserError
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.ditto import Ditto
from idiolect.methods.drfa import DRFA, DRFALosses
from idiolect.methods.fedavg import FedAvg
from idiolect.participation.sampling import Uniform
from idiolect.runs.config import resolve
from idiolect.silo.coordinator import coordinate
from idiolect.silo.rehearsal import AgreedExchanges, _Rehearsal
from idiolect.silo.requests import Unreachable
from idiolect.silo.schema import Schema
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import describe_object, pack, rebuild_object, signature, unpack
from silo.problem import Direct, config, deployed, silos_in, simulate

FURTHER: list[dict[str, Any]] = [
    {"name": "perm", "epochs": 1, "final_step": 0.1, "warmup_rounds": 1},
    {"name": "perm-two-stage", "epochs": 1, "final_step": 0.1, "global_rounds": 1},
    {"name": "efl", "fisher_every": 2},
    {"name": "apfl", "mixing": 0.5, "average_offset": 1.0},
    {"name": "additive", "output": "average"},
    {"name": "fedavg", "local_steps": {"epochs": 1}},
]
CASES = [({"name": kind.name}, 2) for kind in METHODS] + [(method, 6) for method in FURTHER]


def exchanges(method: dict[str, Any], rounds: int) -> Iterator[tuple[Exchange, Message]]:
    """Those of some rounds, as the engines have them, with their messages before the round."""
    simulation = simulate(config(method))
    for _ in range(rounds):
        for exchange in simulation.method.exchanges(simulation.server):
            down = exchange.down(simulation.server, torch.tensor([1]))
            yield exchange, tree.row(down, 0) if exchange.personal_down else down
        simulation.advance()


def agreed(method: dict[str, Any], rounds: int, **options: Any) -> AgreedExchanges:
    """Those that a silo knows of the same method."""
    preprocessing = simulate(config(method)).federation.preprocessing
    assert preprocessing is not None
    resolved = resolve({**config(method, rounds=rounds, **options), "data": {"name": "at-silos"}})
    return AgreedExchanges(resolved, Schema(preprocessing), 3, 100, weights={})


@pytest.mark.parametrize(("method", "rounds"), CASES, ids=str)
def test_every_exchange_of_a_method_is_its_own_on_the_other_side_too(
    method: dict[str, Any], rounds: int
) -> None:
    known = agreed(method, rounds)
    for exchange, down in exchanges(method, rounds):
        found = known.find(rebuild_object(describe_object(innermost(exchange))))
        assert found.exchange == exchange
        known.require_usual(found, down)


@pytest.mark.parametrize(
    ("exchange", "method"),
    [
        (APFL(local_steps=3), {"name": "apfl", "local_steps": 2}),
        (APFL(mixing=0.9), {"name": "apfl"}),
        (Ditto(), {"name": "apfl"}),
        (DRFALosses(DRFA(local_steps=3)), {"name": "drfa", "local_steps": 2}),
        (DRFALosses(DRFA()), {"name": "apfl"}),
        (FedAvg(), {"name": "local"}),
        ("fedavg", {"name": "fedavg"}),
        (None, {"name": "fedavg"}),
    ],
    ids=str,
)
def test_other_exchanges_are_not(exchange: Any, method: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"is no exchange of the agreed method {method['name']}"):
        agreed(method, 2).find(exchange)


def test_a_message_that_no_round_has_is_refused() -> None:
    """In EFL's first round no terms are known yet; a scaled model looks as it must, half of one does not."""
    known = agreed({"name": "efl"}, 3)
    (exchange, first), (_, second) = list(exchanges({"name": "efl"}, 2))
    found = known.find(innermost(exchange))
    assert signature(first) != signature(second)
    for down in (first, second, tree.scale(first, 3.0)):
        known.require_usual(found, down)
    for down in (first.w, tree.map_tree(lambda leaf: leaf[:1], first), (), {}):
        with pytest.raises(UserError, match="another structure, shape or type"):
            known.require_usual(found, down)


class Keeping(Direct):
    """A link that keeps the last work that north was asked for."""

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        if unpack(requests["north"]).header["ask"] == "work":
            self.asked = requests["north"]
        return super().ask(requests, seconds)


def test_a_silo_refuses_work_that_it_did_not_agree_to_and_stays(tmp_path: Path) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(config({"name": "apfl"}, rounds=1), tmp_path))
    link = Keeping(silos_in(tmp_path / "silos"))
    coordinate(served, link)
    north, (header, trees) = link.silos["north"], unpack(link.asked)
    agreed = rebuild_object(header["exchange"])
    for exchange in (dataclasses.replace(agreed, local_steps=agreed.local_steps + 1), Ditto()):
        asked = pack({**header, "exchange": describe_object(exchange)}, trees)
        assert unpack(north.answer(asked)).header["refused"] == (
            f"a message asks for {type(exchange).__name__}, which is no exchange of the agreed method apfl "
            "with its agreed settings"
        )
    assert "refused" not in unpack(north.answer(link.asked)).header


def test_a_silo_rehearses_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """That a robust sum left out one of the stand-ins would tell the silo of somebody who does not exist."""
    method = {"name": "fedavg"}
    with caplog.at_level(logging.INFO, logger="idiolect"):
        known = agreed(method, 2, robust={"name": "krum", "attackers": 0, "keep": 1})
        rehearsal = rehearse_round(_Rehearsal(known.setting), Uniform(), known.server, 1)
    assert rehearsal.info["left_out"].any()
    assert caplog.messages == []
