"""Files that are either the old ones or the new ones, whatever happens in between.

Everything is written under a temporary name, forced to the disk, and renamed. A process that is killed
leaves at most a file whose name starts with `TEMPORARY`, which nobody reads and the next run removes.
"""

import errno
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from idiolect.errors import UserError
from idiolect.strict_json import to_json

TEMPORARY = ".writing-"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Say in one sentence why something could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise UserError(
                f"no space is left to write {str(path)!r}; what was saved before is intact: "
                "make room and continue with `idiolect resume`"
            ) from error
        raise UserError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Put a file in place at once; `mode`: who may use it, as far as the umask allows."""
    temporary = path.with_name(TEMPORARY + path.name)
    with clear_write_errors(path):
        try:
            with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name, complete, when the block ends without an error."""
    temporary = path.with_name(TEMPORARY + path.name)
    with clear_write_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            yield temporary
            sync_folder(temporary)
            remove_folder(path)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Take a folder away at once: it loses its name before its files go."""
    if path.exists():
        doomed = path.with_name(f"{TEMPORARY}old-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was about to write."""
    for leftover in folder.rglob(f"{TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any, mode: int = 0o666) -> None:
    """A JSON file that people can read too; what is not a finite number is null."""
    write_bytes(path, (to_json(content) + "\n").encode(), mode)


def read_json(path: Path) -> Any:
    """A JSON file's content."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} is damaged or cannot be read: {error}") from error


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    """A table."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue())


def read_parquet(path: Path) -> pd.DataFrame:
    """A table's content."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise UserError(f"{str(path)!r} is damaged or cannot be read: {error}") from error


def write_tensors(path: Path, named: dict[str, Tensor]) -> None:
    """Named tensors; copies, because the format has no tensors that share memory."""
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in named.items()}
    write_bytes(path, save_safetensors(copies))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors."""
    try:
        return load_safetensors(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{str(path)!r} is damaged or cannot be read: {error}") from error
