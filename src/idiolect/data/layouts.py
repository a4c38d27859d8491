"""Folders in the layouts of other tools: PFLlib's npz files and LEAF's JSON files."""

import io
import json
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect.core.task import Task
from idiolect.data.arrays import from_arrays
from idiolect.data.federation import Federation, Rows
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, TooFew, split_clients
from idiolect.data.tables import check_names
from idiolect.data.targets import TaskChoice
from idiolect.errors import UserError

# what a pickled numpy array is made of, under numpy's old and new module names
_ARRAY_PARTS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def pfllib(
    path: str | Path,
    *,
    seed: int,
    task: TaskChoice = "auto",
    fractions: Fractions = (0.8, 0.2, 0.0),
    minimum_rows: int | None = None,
    too_few: TooFew = "refuse",
) -> Federation:
    """A folder of PFLlib: train/N.npz and test/N.npz, each with a dictionary of arrays `x` and `y`.

    The test rows are PFLlib's; `fractions` splits the rows of train/N.npz. The files are pickled, which
    could run any code: they are read with an unpickler that admits numpy arrays and nothing else.
    """
    train = {file.stem: file for file in Path(path, "train").glob("*.npz")}
    test = {file.stem: file for file in Path(path, "test").glob("*.npz")}
    if not train:
        raise UserError(f"the folder {str(path)!r} has no files train/N.npz")
    if alone := sorted(train.keys() ^ test.keys()):
        raise UserError(f"client {alone[0]!r} must have a file both in train/ and in test/ of {str(path)!r}")
    names = sorted(train, key=lambda name: (len(name), name))  # 2 comes before 10
    own = [_read_pfllib(train[name]) for name in names]
    held = [_read_pfllib(test[name]) for name in names]
    return from_arrays(
        [x for x, _ in own],
        [y for _, y in own],
        names=names,
        test_inputs=[x for x, _ in held],
        test_targets=[y for _, y in held],
        seed=seed,
        task=task,
        fractions=fractions,
        minimum_rows=minimum_rows,
        too_few=too_few,
    )


def leaf(
    path: str | Path,
    *,
    seed: int,
    task: TaskChoice = "auto",
    fractions: Fractions | None = None,
    minimum_rows: int | None = None,
    too_few: TooFew = "refuse",
) -> Federation:
    """LEAF's JSON: one file, a folder of files, or a folder with train/ and test/ folders of them.

    Rows of numbers become real inputs; strings with a character as target become a next-character task.
    With train/ and test/ folders the test rows are LEAF's and `fractions` splits the others (default
    80/20/0), otherwise it splits all (60/20/20). Users in one of the two folders only are refused.
    """
    path = Path(path)
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    own = _read_leaf(path / "train" if divided else path)
    held = _read_leaf(path / "test") if divided else {}
    if divided and (alone := sorted(own.keys() ^ held.keys())):
        raise UserError(f"user {alone[0]!r} must be both in train/ and in test/ of {str(path)!r}")
    if fractions is None:
        fractions = (0.8, 0.2, 0.0) if divided else DEFAULT_FRACTIONS
    names = list(own)
    check_names(names)
    if isinstance(next((x[0] for x, _ in own.values() if x), None), str):
        return _from_texts(own, held, seed=seed, fractions=fractions, minimum=minimum_rows, too_few=too_few)
    arrays = {name: _numbers(name, pair) for name, pair in own.items()}
    held_arrays = {name: _numbers(name, pair) for name, pair in held.items()}
    return from_arrays(
        [arrays[name][0] for name in names],
        [arrays[name][1] for name in names],
        names=names,
        test_inputs=[held_arrays[name][0] for name in names] if divided else None,
        test_targets=[held_arrays[name][1] for name in names] if divided else None,
        seed=seed,
        task=task,
        fractions=fractions,
        minimum_rows=minimum_rows,
        too_few=too_few,
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Admits numpy arrays in plain containers; a pickle that asks for anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolve the parts of an array, under numpy's present module names."""
        if (module, name) not in _ARRAY_PARTS:
            raise UserError(f"it asks for {module}.{name}, and only numpy arrays are admitted")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_pfllib(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            member = io.BytesIO(archive.read("data.npy"))
        np.lib.format.read_magic(member)
        _, _, dtype = np.lib.format.read_array_header_1_0(member)
        if dtype != np.dtype(object):
            raise UserError("it holds no dictionary")
        content = _ArrayUnpickler(member).load().item()
        x, y = np.asarray(content["x"]), np.asarray(content["y"])
    except (OSError, EOFError, KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise UserError(f"the file {str(path)!r} is not one of PFLlib's: {error}") from error
    except (zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise UserError(f"the file {str(path)!r} cannot be read: {error}") from error
    if object in (x.dtype, y.dtype):
        raise UserError(f"the file {str(path)!r} holds something else than arrays of numbers")
    return x, y


def _read_leaf(path: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    """Inputs and targets of each user, from one file or all files of a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"the folder {str(path)!r} has no files that end in .json")
    users: dict[str, tuple[list[Any], list[Any]]] = {}
    for file in files:
        try:
            content = json.loads(file.read_text())
            listed, counts, data = content["users"], content["num_samples"], content["user_data"]
            for user, count in zip(listed, counts, strict=True):
                x, y = data[user]["x"], data[user]["y"]
                if user in users:
                    raise UserError(f"the user {user!r} occurs twice")
                if not len(x) == len(y) == count:
                    raise UserError(f"user {user!r} has {len(x)} x, {len(y)} y and num_samples {count}")
                users[user] = (x, y)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"the file {str(file)!r} is not one of LEAF's: {error}") from error
    return users


def _numbers(name: str, pair: tuple[list[Any], list[Any]]) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(pair[0], dtype=np.float32), np.asarray(pair[1])
    except (ValueError, TypeError) as error:
        raise UserError(f"the inputs of user {name!r} are neither numbers nor strings") from error
    return x, y


def _from_texts(
    own: dict[str, tuple[list[str], list[str]]],
    held: dict[str, tuple[list[str], list[str]]],
    *,
    seed: int,
    fractions: Fractions,
    minimum: int | None,
    too_few: TooFew,
) -> Federation:
    """Next-character rows: every input is a string of one length, every target one character."""
    pairs = [*own.values(), *held.values()]
    if len(lengths := {len(text) for x, _ in pairs for text in x}) != 1:
        raise UserError(f"LEAF's strings must all have one length, not {sorted(lengths)[:5]}")
    if any(not isinstance(c, str) or len(c) != 1 for _, y in pairs for c in y):
        raise UserError("LEAF's targets must be single characters where the inputs are strings")
    characters = sorted({c for x, y in pairs for text in (*x, *y) for c in text})
    code = {c: i for i, c in enumerate(characters)}
    sizes = [len(y) for _, y in pairs]
    rows = torch.split(torch.arange(sum(sizes)), sizes)
    names = list(own)
    split = split_clients(
        list(rows[: len(own)]), names, seed=seed, fractions=fractions, minimum_rows=minimum, too_few=too_few
    )
    order = {name: i for i, name in enumerate(held, start=len(own))}
    test = Rows.of_clients([rows[order[names[i]]] for i in split.kept]) if held else split.test
    return Federation(
        inputs=_codes((text for x, _ in pairs for text in x), code),
        targets=_codes((y for _, ys in pairs for y in ys), code)[:, 0],
        task=Task("next-character", len(characters)),
        names=tuple(names[i] for i in split.kept),
        train=split.train,
        validation=split.validation,
        test=test,
        class_names=tuple(characters),
    )


def _codes(texts: Iterable[str], code: dict[str, int]) -> torch.Tensor:
    return torch.tensor([[code[c] for c in text] for text in texts], dtype=torch.int64)
