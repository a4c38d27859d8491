"""A silo's summands in one run: one sum at a time, and one list of survivors for each, for ever.

A coordinator can begin a sum anew, with the same uploads, and it must be able to: it may have crashed. But of
two sums over different silos the difference is somebody's upload. So which list was signed for a sum is kept,
in the silo's folder of the run, and no other one is signed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.errors import UserError
from idiolect.secure.fixed_point import FixedPoint
from idiolect.secure.participant import Participant
from idiolect.secure.rule import Rule
from idiolect.silo.secure.agreement import Credentials
from idiolect.silo.secure.letters import (
    read_advert,
    read_all,
    table,
    write,
    write_advert,
    written,
)
from idiolect.silo.wire import Packet
from idiolect.store.files import read_json, write_json

_SIGNED = "survivors.json"


class SiloSums:
    """Begins sums with a silo's own numbers, and answers what the coordinator asks about the one at hand."""

    def __init__(self, folder: Path, credentials: Credentials, rule: Rule, fixed_point: FixedPoint) -> None:
        self._file = folder / _SIGNED
        self._credentials = credentials
        self.rule = rule
        self.fixed_point = fixed_point
        self._at_hand: Participant | None = None

    @property
    def sentence(self) -> str:
        """What was agreed, for the silo's people."""
        return (
            f"uploads are seen in sums over {self.rule.threshold} to {self.rule.parties} silos only, unless "
            f"the coordinator is in league with more than {self.rule.accomplices} of them"
        )

    def begin(self, label: str, question: str, numbers: NDArray[np.float64]) -> dict[str, Any]:
        """Keep the numbers for a sum; what the coordinator gets of them now is this silo's keys for it.

        question: to which they are the answer. Others' keys are good if they were asked the same.
        """
        self._at_hand = None  # whatever it was, it is over
        whole = self.fixed_point.encode(numbers)
        own, known = self._credentials.identity, self._credentials.known
        self._at_hand = Participant(label, own, known, self.rule.about(question), whole)
        return {"keys": write_advert(self._at_hand.advert)}

    def answer(self, packet: Packet) -> tuple[dict[str, Any], dict[str, Any]]:
        """Header and trees of the answer to one stage."""
        header, label = packet.header, packet.header.get("sum")
        if self._at_hand is None or self._at_hand.label != label:
            raise UserError(f"the sum {label!r} is not at hand here: this silo has begun anew, or gone on")
        match header.get("stage"):
            case "share":
                adverts = table(header, "keys")
                boxes = self._at_hand.share({name: read_advert(adverts, name) for name in adverts})
                return {"boxes": written(boxes)}, {}
            case "mask":
                masked = self._at_hand.mask(read_all(header, "boxes"))
                return {}, {"masked": {"numbers": torch.from_numpy(masked.view(np.int64))}}
            case "confirm":
                return {"signature": write(self._confirm(self._at_hand, header.get("survivors")))}, {}
            case "reveal":
                revealed = self._at_hand.reveal(read_all(header, "signatures"))
                return {"seeds": written(revealed.seeds), "keys": written(revealed.keys)}, {}
            case other:
                raise UserError(f"{other!r} is no stage of a secure sum")

    def _confirm(self, participant: Participant, survivors: Any) -> bytes:
        if not isinstance(survivors, list) or not all(isinstance(name, str) for name in survivors):
            raise UserError("a list of survivors cannot be read")
        signed: dict[str, list[str]] = read_json(self._file) if self._file.is_file() else {}
        before = signed.get(participant.label)
        if before is not None and before != sorted(survivors):
            raise UserError(
                f"the sum {participant.label!r} was opened for {', '.join(before)} already; for others the "
                "difference would be seen"
            )
        signature = participant.confirm(survivors)
        write_json(self._file, {**signed, participant.label: sorted(survivors)})
        return signature
