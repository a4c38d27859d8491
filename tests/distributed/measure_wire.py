"""Bytes of a message as it is handed to Flower, against the bits that are counted for it.

Run as `python tests/distributed/measure_wire.py`; three silos without a network, a network of 164,003
parameters in float32, the fifth round: everybody has a state and took part in the fourth.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from idiolect.silo.coordinator import coordinate
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import unpack
from silo.problem import Direct, config, deployed, silos_in

ROUNDS = 5
TERNARY = {"up": "ternary", "down": "ternary", "keep": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": {"name": "fedavg"}},
    "FedAvg, ternary both ways": {"method": {"name": "fedavg"}, "codec": TERNARY},
    "APFL, ternary both ways": {"method": {"name": "apfl"}, "codec": TERNARY},
    "EFL, λ = 0": {"method": {"name": "efl", "elasticity": 0.0}},
    "EFL": {"method": {"name": "efl"}},
}


class Weighing(Direct):
    """A link that weighs the work of the last round."""

    def __init__(self, silos: Any) -> None:
        super().__init__(silos)
        self.bytes = {"down": 0, "up": 0}

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, answer in super().ask(requests, seconds):
            header = unpack(requests[name]).header
            if (header["ask"], header.get("round")) == ("work", ROUNDS - 1):
                assert isinstance(answer, bytes)
                self.bytes["down"] += len(requests[name])
                self.bytes["up"] += len(answer)
            yield name, answer


def main() -> None:
    print("| message of | way | counted | on the wire | difference |")
    print("|---|---|---|---|---|")
    for label, case in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model = {"name": "mlp", "hidden": [400, 400]}
            settings = config(rounds=ROUNDS, **{**case, "model": model, "dtype": "float32"})
            run = ServedRun.create(folder / "run", deployed(settings, folder))
            link = Weighing(silos_in(folder / "silos"))
            coordinate(run, link)
            last = run.progress()[-1]
        for way, bits in (("down", last.down_bits), ("up", last.up_bits)):
            counted, sent = bits / 8 / 3, link.bytes[way] / 3
            print(f"| {label} | {way} | {counted:,.0f} | {sent:,.0f} | {sent - counted:,.0f} |")


if __name__ == "__main__":
    main()
