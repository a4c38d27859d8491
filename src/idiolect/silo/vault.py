"""A silo's own folder: its personal state in every run, kept through restarts of anybody.

    ID/run.json                      what was agreed: configuration, schema, name and number
    ID/weights.safetensors           what the model is that no seed gives: a fixed part, weights of a file
    ID/state-RRRRRR-E.safetensors    the state after exchange E of round R
    ID/models.safetensors            the models that the client can predict with now

States of the last two rounds are kept, so that an exchange can be done again from where it began: after a
crash of the coordinator, or when a reply was lost, the second answer equals the first.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.core.exchange import ClientState
from idiolect.core.tree import Params, Tree
from idiolect.errors import UserError
from idiolect.silo.wire import pack, unpack
from idiolect.store.files import read_json, remove_leftovers, write_bytes, write_json

FORMAT = "idiolect-silo-1"
_WEIGHTS = "weights.safetensors"


class Position(NamedTuple):
    """An exchange of a run: which of the exchanges of which round."""

    round: int
    place: int


FIRST = Position(-1, 0)  # of the state before the first exchange


class RunVault:
    """One run's folder in a silo."""

    def __init__(self, folder: Path, modules: Collection[str] = ()) -> None:
        self.folder = folder
        self.modules = modules  # of the silo's own methods, whose states may be here

    @property
    def agreement(self) -> dict[str, Any] | None:
        """What was agreed when the run began; None before."""
        if not (self.folder / "run.json").is_file():
            return None
        agreement: dict[str, Any] = read_json(self.folder / "run.json")
        if agreement.pop("format", None) != FORMAT:
            raise UserError(f"{str(self.folder)!r} is not a silo's folder of the format {FORMAT}")
        return agreement

    @property
    def weights(self) -> Params:
        """What was sent of the model when the run was agreed."""
        path = self.folder / _WEIGHTS
        weights: Params = unpack(path.read_bytes()).trees["weights"] if path.is_file() else {}
        return weights

    def agree(self, agreement: dict[str, Any], weights: Params) -> None:
        """Keep what was agreed, and what was sent of the model; a run cannot be changed afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        before = self.agreement
        if before is None:
            if weights:
                write_bytes(self.folder / _WEIGHTS, pack({"format": FORMAT}, {"weights": weights}))
            write_json(self.folder / "run.json", {"format": FORMAT, **agreement})
        elif before != agreement:
            changed = [key for key in {**before, **agreement} if agreement.get(key) != before.get(key)]
            raise UserError(
                f"the run {self.folder.name!r} was agreed with another {' and '.join(changed)}; "
                "an altered configuration needs a new run"
            )

    def before(self, position: Position) -> ClientState | None:
        """The state from which an exchange starts; None if the client has none yet."""
        earlier = [known for known in self._positions() if known < position]
        if not earlier:
            if self._positions():
                raise UserError(
                    f"round {position.round} is long past: this silo has finished round "
                    f"{self._positions()[-1].round} of the run {self.folder.name!r}"
                )
            return None
        return unpack(self._file(earlier[-1]).read_bytes(), modules=self.modules).trees["state"]

    def latest(self) -> ClientState | None:
        """The state after the last exchange."""
        return self.before(Position(2**62, 0))

    def keep(self, position: Position, state: ClientState) -> None:
        """Keep the state after an exchange; what came later, and what is two rounds old, goes."""
        write_bytes(self._file(position), pack({"format": FORMAT}, {"state": state}))
        begun = [known for known in self._positions() if known < Position(position.round - 1, 0)]
        later = [known for known in self._positions() if known > position]
        for known in [*begun[:-1], *later]:
            self._file(known).unlink()

    def keep_models(self, models: Tree, round_number: int) -> None:
        """Keep the models for offline use."""
        write_bytes(
            self.folder / "models.safetensors",
            pack({"format": FORMAT, "round": round_number}, {"models": models}),
        )

    def models(self) -> tuple[Tree, int]:
        """The models and the round they are from."""
        path = self.folder / "models.safetensors"
        if not path.is_file():
            raise UserError(f"{str(self.folder)!r} has no models yet: they come with the first evaluation")
        packet = unpack(path.read_bytes())
        return packet.trees["models"], int(packet.header["round"])

    def keep_chosen(self, model: Tree, kept: str, round_number: int) -> None:
        """Keep the model that the silo chose of those after a round, and which one it was."""
        header = {"format": FORMAT, "kept": kept, "round": round_number}
        write_bytes(self.folder / "chosen.safetensors", pack(header, {"model": model}))

    def chosen(self) -> tuple[Tree, str]:
        """The model that the silo chose, and which one it is."""
        path = self.folder / "chosen.safetensors"
        if not path.is_file():
            raise UserError("nothing was chosen yet: `idiolect silo choose` does, by the silo's own rows")
        packet = unpack(path.read_bytes())
        if int(packet.header["round"]) != self.models()[1]:
            raise UserError("the models are newer than the choice: `idiolect silo choose` again")
        return packet.trees["model"], str(packet.header["kept"])

    def _positions(self) -> list[Position]:
        found = (path.stem.split("-", 2)[1:] for path in self.folder.glob("state-*.safetensors"))
        return sorted(Position(_number(round_number), int(place)) for round_number, place in found)

    def _file(self, position: Position) -> Path:
        round_number = "first" if position == FIRST else f"{position.round:06d}"
        return self.folder / f"state-{round_number}-{position.place}.safetensors"


def _number(text: str) -> int:
    return FIRST.round if text == "first" else int(text)
