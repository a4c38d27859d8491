"""The whole state of a training in a folder, and back: safetensors for the tensors, JSON for the rest."""

import hashlib
from collections.abc import Collection
from pathlib import Path

import torch

from idiolect.core import tree
from idiolect.core.fixed import fingerprint
from idiolect.errors import UserError
from idiolect.runs.rounds import Training
from idiolect.store.files import new_folder, read_json, read_tensors, remove_folder, write_json, write_tensors

_SERVER = "server.safetensors"
_STATE = "state.json"
_NAME = "round-{:06d}"


def save_checkpoint(training: Training, folder: Path, needed: Collection[int] = ()) -> None:
    """Save the server, the clients and the round; those of rounds not needed go once the new one is there."""
    folder.mkdir(exist_ok=True)
    others = list(folder.glob("round-*"))
    with new_folder(folder / _NAME.format(training.round)) as target:
        write_tensors(target / _SERVER, tree.to_named(training.server))
        training.engine.setting.store.save(target)
        files = {str(file.relative_to(target)): _digest(file) for file in _files(target)}
        state = {"round": training.round, "sha256": files}
        if fixed := training.engine.setting.objective.fixed_params():
            state["fixed_sha256"] = fingerprint(fixed)  # it is what the configuration makes it
        write_json(target / _STATE, state)
    names = {_NAME.format(number) for number in (training.round, *needed)}
    for checkpoint in others:
        if checkpoint.name not in names:
            remove_folder(checkpoint)


def all_checkpoints(folder: Path) -> list[Path]:
    """What was saved there, in the order of rounds."""
    return sorted(folder.glob("round-*"))


def newest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was saved."""
    return max(folder.glob("round-*"), default=None)


def checkpoint_of(folder: Path, round_number: int) -> Path | None:
    """The checkpoint of a round, if it was kept."""
    path = folder / _NAME.format(round_number)
    return path if path.is_dir() else None


def load_checkpoint(training: Training, checkpoint: Path) -> None:
    """Put a fresh training of the same configuration into the saved state."""
    state = read_json(checkpoint / _STATE)
    for name, digest in state["sha256"].items():
        if not (checkpoint / name).is_file() or _digest(checkpoint / name) != digest:
            raise UserError(
                f"the checkpoint {str(checkpoint)!r} is damaged: {name} is not the file that was saved; "
                "remove that folder to train again from the beginning"
            )
    setting = training.engine.setting
    if state.get("fixed_sha256", fixed := fingerprint(setting.objective.fixed_params())) != fixed:
        raise UserError(
            f"the fixed part of the model is not the one that {str(checkpoint)!r} was trained with: the code "
            "of the model, or what it reads, changed since the run began"
        )
    training.server = tree.from_named(read_tensors(checkpoint / _SERVER), training.server)
    template = setting.arrivals(setting.founding, torch.tensor([0]))
    setting.store.load(checkpoint, template)
    training.round = int(state["round"])


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
