"""Finding the files of known data sets: in a data directory, or downloaded into a cache."""

import hashlib
import os
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from idiolect.errors import UserError

ENVIRONMENT = "IDIOLECT_DATA"


@dataclass(frozen=True)
class RemoteFile:
    """A canonical file: where it is published and which bytes it has."""

    name: str
    url: str
    sha256: str


def data_directory(data_dir: str | Path | None) -> Path | None:
    """The folder given, or that of the environment variable IDIOLECT_DATA, or none."""
    given = data_dir or os.environ.get(ENVIRONMENT)
    if not given:
        return None
    if not Path(given).is_dir():
        origin = "data_dir" if data_dir else ENVIRONMENT
        raise UserError(f"{origin}={str(given)!r} is not a folder")
    return Path(given)


def find(folder: str, name: str, data_dir: str | Path | None) -> Path | None:
    """`folder/name` in the data directory, if it is there."""
    root = data_directory(data_dir)
    return path if root and (path := root / folder / name).is_file() else None


def obtain(file: RemoteFile, folder: str, data_dir: str | Path | None) -> Path:
    """The file in the data directory, or else downloaded once into the user's cache; always verified."""
    if path := find(folder, file.name, data_dir):
        _verify(path, file)
        return path
    return _download(file, folder)


def load_arrays(path: Path, *keys: str) -> tuple[np.ndarray, ...]:
    """Arrays of an npz file, by name."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return tuple(archive[key] for key in keys)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"the file {str(path)!r} cannot be read ({error}); fetch it again") from error


def _verify(path: Path, file: RemoteFile) -> None:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise UserError(
            f"the file {str(path)!r} has sha256 {found[:12]}... instead of {file.sha256[:12]}...: it is cut "
            f"short or altered; fetch it again from {file.url}"
        )


def _download(file: RemoteFile, folder: str) -> Path:
    try:
        import pooch
    except ImportError as error:
        raise UserError(
            f"{file.name} is not in the data directory (data_dir or {ENVIRONMENT}), and to download it "
            "you need pip install 'idiolect[download]'"
        ) from error
    pooch.get_logger().setLevel("WARNING")
    try:
        path = pooch.retrieve(
            file.url,
            known_hash=f"sha256:{file.sha256}",
            fname=file.name,
            path=pooch.os_cache("idiolect") / folder,
            progressbar=sys.stderr.isatty(),
        )
    except ValueError as error:  # pooch's word for a checksum that does not match
        raise UserError(
            f"the download of {file.url} has a wrong checksum: it was cut short, or the file has changed; "
            "try again"
        ) from error
    except OSError as error:
        raise UserError(
            f"{file.url} cannot be downloaded ({type(error).__name__}); check the network, or put "
            f"{file.name} into a folder {folder}/ of a data directory "
            f"and name that with data_dir or {ENVIRONMENT}"
        ) from error
    return Path(path)
