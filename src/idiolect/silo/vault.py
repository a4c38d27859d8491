"""A silo's own folder: its personal state in every run, kept through restarts of anybody.

    ID/run.json                      what was agreed: configuration, schema, name and number; of which rows
    ID/weights.safetensors           what the model is that no seed gives: a fixed part, weights of a file
    ID/state-RRRRRR-E.safetensors    the state after exchange E of round R
    ID/told.json                     which messages asked for work and for metrics, and the clock of schedules
    ID/models.safetensors            the models that the client can predict with now

States of the last two rounds or more are kept, so that an exchange can be done again from where it began:
after a crash of the coordinator, or when a reply was lost, the second answer equals the first. It is done
again for the same message only, which is known by its hash: kept before the work begins, since that work was
refused tells something of rows too.
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
_TOLD = "told.json"
_WEIGHTS = "weights.safetensors"


class Position(NamedTuple):
    """An exchange of a run: which of the exchanges of which round."""

    round: int
    place: int


class Asked(NamedTuple):
    """What was asked: the hash of the message and the state that it met, and of the exchange alone."""

    message: str
    exchange: str


FIRST = Position(-1, 0)  # of the state before the first exchange


class RunVault:
    """One run's folder in a silo."""

    def __init__(self, folder: Path, modules: Collection[str] = (), keep_rounds: int = 2) -> None:
        self.folder = folder
        self.modules = modules  # of the silo's own methods, whose states may be here
        self.keep_rounds = max(keep_rounds, 2)  # fewer would not do for a resumption

    @property
    def agreement(self) -> dict[str, Any] | None:
        """What was agreed when the run began; None before."""
        if not (self.folder / "run.json").is_file():
            return None
        agreement: dict[str, Any] = read_json(self.folder / "run.json")
        if agreement.pop("format", None) != FORMAT:
            raise UserError(f"{str(self.folder)!r} is not a silo's folder of the format {FORMAT}")
        agreement.pop("rows", None)
        return agreement

    @property
    def weights(self) -> Params:
        """What was sent of the model when the run was agreed."""
        path = self.folder / _WEIGHTS
        weights: Params = unpack(path.read_bytes()).trees["weights"] if path.is_file() else {}
        return weights

    def require_same_agreement(self, agreement: dict[str, Any]) -> None:
        """Refuse what is not what was agreed before, if anything was: a run cannot be changed afterwards."""
        before = self.agreement
        if before is not None and before != agreement:
            changed = [key for key in {**before, **agreement} if agreement.get(key) != before.get(key)]
            raise UserError(
                f"the run {self.folder.name!r} was agreed with another {' and '.join(changed)}; "
                "an altered configuration needs a new run"
            )

    def agree(self, agreement: dict[str, Any], weights: Params, rows: str) -> None:
        """Keep what is agreed when a run begins, what was sent of the model, the fingerprint of the rows."""
        if self.agreement is None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if weights:
                write_bytes(self.folder / _WEIGHTS, pack({"format": FORMAT}, {"weights": weights}))
            write_json(self.folder / "run.json", {"format": FORMAT, **agreement, "rows": rows})
        remove_leftovers(self.folder)

    def require_same_rows(self, fingerprint: str) -> None:
        """Refuse rows that are not those that the run was agreed with: batches and budgets are of these."""
        path = self.folder / "run.json"
        if path.is_file() and read_json(path).get("rows", fingerprint) != fingerprint:
            raise UserError(
                f"this silo's rows have changed since the run was agreed; give `idiolect join` the table of "
                f"then to go on with {self.folder.name!r}, or start a new run"
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

    def last(self) -> Position | None:
        """The last exchange that was asked for."""
        return max(self._asked(), default=None)

    def asked(self, position: Position) -> Asked | None:
        """By what an exchange was asked for, as far as it is remembered."""
        return self._asked().get(position)

    def asked_in(self, round_number: int) -> list[Asked]:
        """What was asked in a round."""
        return [asked for position, asked in self._asked().items() if position.round == round_number]

    def keep_asked(self, position: Position, asked: Asked) -> None:
        """Remember by what an exchange is asked for, before the work; what is too old goes."""
        told, oldest = self._told(), position.round - self.keep_rounds
        told["asked"] = [
            {**known._asdict(), **one._asdict()}
            for known, one in {**self._asked(), position: asked}.items()
            if known.round >= oldest
        ]
        write_json(self.folder / _TOLD, told)

    def _asked(self) -> dict[Position, Asked]:
        return {
            Position(one["round"], one["place"]): Asked(one["message"], one["exchange"])
            for one in self._told()["asked"]
        }

    def has_state_after(self, position: Position) -> bool:
        """Whether an exchange was done, and not only asked for."""
        return self._file(position).is_file()

    def keep_first(self, state: ClientState) -> None:
        """Keep the state that the first exchange starts from."""
        write_bytes(self._file(FIRST), pack({"format": FORMAT}, {"state": state}))

    def keep(self, position: Position, state: ClientState) -> None:
        """Keep the state after an exchange; what is too old goes."""
        write_bytes(self._file(position), pack({"format": FORMAT}, {"state": state}))
        begun = [
            known for known in self._positions() if known < Position(position.round - self.keep_rounds + 1, 0)
        ]
        for known in begun[:-1]:
            self._file(known).unlink()

    def go_back(self, round_number: int) -> int:
        """Forget what came after a round, by the silo's own will; how many exchanges these were."""
        later = [known for known in self._positions() if known.round >= round_number]
        if later and len(later) == len(self._positions()):
            first = max(self._positions()[0].round + 1, 0)
            raise UserError(
                f"the state after round {round_number} is not kept any more; it is from {first} on"
            )
        for known in later:
            self._file(known).unlink()
        told = self._told()
        told["evaluated"] = {
            done: one for done, one in told["evaluated"].items() if int(done) <= round_number
        }
        told["asked"] = [one for one in told["asked"] if one["round"] < round_number]
        write_json(self.folder / _TOLD, told)
        return len(later)

    def evaluated(self) -> dict[int, str]:
        """The hashes of the messages by which models were evaluated, by the rounds that were over."""
        return {int(done): str(message) for done, message in self._told()["evaluated"].items()}

    def keep_evaluated(self, done: int, message: str) -> None:
        """Remember an evaluation, before its metrics are told."""
        told = self._told()
        told["evaluated"][str(done)] = message
        write_json(self.folder / _TOLD, told)

    def keep_clock(self, epochs: int, steps: int) -> int:
        """The local steps of a round on the clock of schedules, as they were told first."""
        told = self._told()
        if str(epochs) not in told["clock"]:
            told["clock"][str(epochs)] = steps
            write_json(self.folder / _TOLD, told)
        return int(told["clock"][str(epochs)])

    def _told(self) -> dict[str, Any]:
        path = self.folder / _TOLD
        return {"asked": [], "evaluated": {}, "clock": {}, **(read_json(path) if path.is_file() else {})}

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
