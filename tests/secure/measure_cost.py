"""What a secure sum costs: `python tests/secure/measure_cost.py` prints the table of docs/deployment.md.

All parties are in this process, one after the other, with the messages that would cross between machines. A
silo's seconds and bytes are means over silos, of one sum of as many numbers as the network of the table of
messages has parameters.
"""

import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from idiolect.secure.signing import Identity, KnownKeys
from idiolect.silo.requests import Patience, Unreachable
from idiolect.silo.secure.agreement import Credentials, Occasion, SecureSettings
from idiolect.silo.secure.coordinator_side import CoordinatorSums
from idiolect.silo.secure.letters import read_advert
from idiolect.silo.secure.silo_side import SiloSums
from idiolect.silo.wire import pack, unpack
from secure.parties import party

NUMBERS = 164_004  # 164,003 parameters and the weight


class Counting:
    """A link to silos in this process, which counts bytes and their seconds."""

    def __init__(self, silos: Mapping[str, SiloSums], lost: set[str]) -> None:
        self.silos = silos
        self.lost = lost
        self.down = self.up = 0
        self.seconds = 0.0

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            packet = unpack(message)
            if name in self.lost and packet.header["stage"] == "mask":
                yield name, Unreachable("not connected")
                continue
            start = time.perf_counter()
            header, trees = self.silos[name].answer(packet)
            kept = {key: packet.header[key] for key in ("ask", "run", "round", "place", "request")}
            reply = pack({**kept, **header}, trees)
            self.seconds += time.perf_counter() - start
            self.down += len(message)
            self.up += len(reply)
            yield name, reply


class _Silent:
    """A monitor that nobody looks at."""

    def asking(self, *_: object) -> Any:
        return nullcontext()

    def usable(self, _: object) -> None:
        pass


def measure(count: int, lost: int, folder: Path) -> None:
    """One line of the table."""
    names = [f"silo-{place:03d}" for place in range(count)]
    them = party(names)
    secure = SecureSettings.read(True, count)
    assert secure is not None
    silos = {name: _silo(folder / name, them.identities[name], them.known, secure, count) for name in names}
    numbers = np.random.default_rng(1).normal(size=NUMBERS)
    label = f"run-{count}-{lost}/work/0/0"
    start = time.perf_counter()
    begun = {name: silo.begin(label, numbers) for name, silo in silos.items()}
    begin_seconds = time.perf_counter() - start
    adverts = {name: read_advert(answer, "keys") for name, answer in begun.items()}
    link = Counting(silos, set(names[:lost]))
    run: Any = SimpleNamespace(
        settings=SimpleNamespace(silos=names, patience=Patience(pause_seconds=0)), path=folder
    )
    monitor: Any = _Silent()
    rule, fixed_point = secure.rule(count), secure.fixed_point(count)
    sums = CoordinatorSums(link, run, rule, fixed_point, them.known, monitor)
    occasion = Occasion(label, {"run": "run", "round": 0, "place": 0}, "silos", "a sum")
    start = time.perf_counter()
    total = sums.collect(occasion, adverts, NUMBERS, names, secure.threshold)
    whole = time.perf_counter() - start
    assert np.allclose(total.numbers, (count - lost) * numbers, atol=1e-6)
    advert_bytes = sum(len(pack(answer)) for answer in begun.values())
    print(
        f"| {count} | {secure.threshold} | {lost} | {(link.up + advert_bytes) / count:,.0f} "
        f"| {link.down / count:,.0f} | {(begin_seconds + link.seconds) / count:.2f} "
        f"| {whole - link.seconds:.2f} |",
        flush=True,
    )


def _silo(folder: Path, identity: Identity, known: KnownKeys, secure: SecureSettings, count: int) -> SiloSums:
    folder.mkdir(exist_ok=True)
    return SiloSums(folder, Credentials(identity, known), secure.rule(count), secure.fixed_point(count))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # that some are lost is meant
    print(
        "| silos | threshold | lost | a silo sends | and receives | seconds at a silo | at the coordinator |"
    )
    print(
        "|-------|-----------|------|--------------|--------------|-------------------|--------------------|"
    )
    for count in (5, 20, 100):
        for lost in (0, count - SecureSettings.read(True, count).threshold):  # type: ignore[union-attr]
            with tempfile.TemporaryDirectory() as folder:
                measure(count, lost, Path(folder))
