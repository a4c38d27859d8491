"""Silos that drop out, and a simulation in which their replies are lost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from idiolect.silo.requests import Unreachable
from idiolect.silo.service import Silo
from idiolect.silo.wire import unpack
from idiolect.simulation import Simulation
from silo.problem import Direct


class Lossy(Direct):
    """Loses a silo in a round's sum of uploads from some stage on; notes what crosses."""

    def __init__(self, silos: Mapping[str, Silo], lost: Mapping[tuple[int, str], str]) -> None:
        super().__init__(silos)
        self.lost = dict(lost)
        self.gone = ""
        self.replies: list[bytes] = []

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            header = unpack(message).header
            of_uploads = "/work/" in header.get("sum", "")
            if of_uploads and (header["round"], header["stage"]) in self.lost:
                self.gone = self.lost[header["round"], header["stage"]]
            if of_uploads and self.gone == name:
                yield name, Unreachable("not connected")
                continue
            self.gone = self.gone if of_uploads else ""
            self.replies.append(self.silos[name].answer(message))
            yield name, self.replies[-1]


def lose_replies(simulation: Simulation, silos: Sequence[str], lost: Mapping[int, str]) -> None:
    """Let the replies of some silos be lost in some rounds."""
    cohort_of = simulation.plan.cohort

    class Plan:
        present = staticmethod(simulation.plan.present)

        @staticmethod
        def cohort(seed: int, round_number: int, sizes: Any) -> Any:
            cohort = cohort_of(seed, round_number, sizes)
            replied = cohort.replied.clone()
            if round_number in lost:
                replied[silos.index(lost[round_number])] = False
            return replace(cohort, replied=replied)

    simulation.plan = Plan()  # type: ignore[assignment]
