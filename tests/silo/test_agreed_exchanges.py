"""A silo works on the exchanges of the method that it agreed to, with the settings that it agreed to."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from idiolect.core.around import as_in, innermost, innermost_method
from idiolect.core.exchange import Exchange
from idiolect.core.method import Method
from idiolect.methods.apfl import APFL
from idiolect.methods.catalogue import METHODS
from idiolect.methods.ditto import Ditto
from idiolect.methods.drfa import DRFA, DRFALosses
from idiolect.silo.coordinator import coordinate
from idiolect.silo.engagement import _belongs
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import describe_object, pack, rebuild_object, unpack
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


def exchanges(method: dict[str, Any], rounds: int) -> Iterator[tuple[Method, Exchange]]:
    """Those of some rounds, as the engines have them."""
    simulation = simulate(config(method))
    for _ in range(rounds):
        for exchange in simulation.method.exchanges(simulation.server):
            yield simulation.method, exchange
        simulation.advance()


@pytest.mark.parametrize(("method", "rounds"), CASES, ids=str)
def test_every_exchange_of_a_method_is_its_own_on_the_other_side_too(
    method: dict[str, Any], rounds: int
) -> None:
    for agreed, exchange in exchanges(method, rounds):
        sent = rebuild_object(describe_object(innermost(exchange)))
        assert sent == innermost(exchange)
        assert _belongs(sent, innermost_method(agreed))
        assert as_in(agreed, sent) == exchange


@pytest.mark.parametrize(
    ("exchange", "agreed"),
    [
        (APFL(local_steps=3), APFL(local_steps=2)),
        (APFL(mixing=0.9), APFL()),
        (Ditto(), APFL()),
        (DRFALosses(DRFA(local_steps=3)), DRFA(local_steps=2)),
        (DRFALosses(DRFA()), APFL()),
    ],
    ids=str,
)
def test_other_exchanges_are_not(exchange: Exchange, agreed: Method) -> None:
    assert not _belongs(exchange, agreed)


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
