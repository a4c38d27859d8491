"""Who is who: a certificate authority, the server's certificate, and a key for each silo.

DIR/authority.key                   signs certificates; keep it off-line
DIR/coordinator/ca.pem              what silos check the server against
DIR/coordinator/server.pem, .key    the server's certificate and key
DIR/coordinator/silos/NAME.pub      the public keys that are admitted, by silo
DIR/coordinator/revoked/            those that were taken back or replaced
DIR/NAME/ca.pem, silo.key           what silo NAME gets, and nobody else
DIR/NAME/silos/, DIR/NAME/revoked/  the same public keys: silos know each other by them in secure sums
"""

import datetime
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from idiolect.errors import UserError
from idiolect.silo.certificates import (
    DAYS,
    authority_certificate,
    check_days,
    end_of_line,
    key_mark,
    last_day,
    new_key,
    private_text,
    public_line,
    read_private,
    read_public,
    server_certificate,
)
from idiolect.silo.secure.agreement import Credentials
from idiolect.store.files import TEMPORARY, new_folder, write_bytes

if TYPE_CHECKING:
    from idiolect.secure.signing import KnownKeys

COORDINATOR = "coordinator"
AUTHORITY = "authority.key"
ADMITTED, REVOKED = "silos", "revoked"  # the folders of public keys
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
# In the folder of keys, and in that of silos' states.
_OWN_NAMES = (
    COORDINATOR,
    AUTHORITY,
    "flower",
    "log.txt",
    "summary.json",
    "misfits.json",
    "audit.jsonl",
    "health.json",
    ADMITTED,
    REVOKED,
)


class SiloKey(NamedTuple):
    """A silo's public key, as a file has it."""

    name: str
    line: bytes
    until: datetime.date | None  # the last day on which it is good; None: no end

    @property
    def mark(self) -> str:
        """By which the same key is known again."""
        return key_mark(self.line)

    @property
    def is_over(self) -> bool:
        """Whether its last day is past."""
        return self.until is not None and self.until < datetime.datetime.now(datetime.UTC).date()


def init_keys(folder: Path, host: str, silos: Sequence[str], days: int = DAYS) -> None:
    """Make all keys of a federation, or none; nothing that exists is overwritten."""
    check_names(silos)
    check_days(days)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{str(folder)!r} exists and is not empty; keys are never overwritten")
    authority, server = new_key(), new_key()
    ca = authority_certificate(authority, days)
    hosts = list(dict.fromkeys((host, "localhost", "127.0.0.1")))
    keys = {name: new_key() for name in silos}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _umask(0o022), new_folder(folder) as whole:
        write_secret(whole / AUTHORITY, private_text(authority))
        write_public(whole / COORDINATOR / "ca.pem", ca)
        write_public(whole / COORDINATOR / "server.pem", server_certificate(server, authority, hosts, days))
        write_secret(whole / COORDINATOR / "server.key", private_text(server))
        for name, key in keys.items():
            write_public(whole / name / "ca.pem", ca)
            write_secret(whole / name / "silo.key", private_text(key, ssh=True))
            line = public_line(key, name, last_day(days))
            for reader in (COORDINATOR, *silos):
                write_public(whole / reader / ADMITTED / f"{name}.pub", line)


def admitted_keys(folder: Path) -> dict[str, SiloKey]:
    """The public keys of a party's folder, by silo, also those whose time is over."""
    keys = {}
    for path, line in _public_files(folder / ADMITTED):
        read_public(line, str(path))
        keys[path.stem] = SiloKey(path.stem, line, end_of_line(line))
    names = {key.mark: key.name for key in keys.values()}
    for key in keys.values():
        if names[key.mark] != key.name:
            raise UserError(
                f"{str(folder / ADMITTED)!r} has one key for {key.name} and {names[key.mark]}: whoever has "
                "it would count as two silos"
            )
    return keys


def revoked_keys(folder: Path) -> list[SiloKey]:
    """The public keys that were taken back or replaced, of a party's folder."""
    lines = [(path.stem.rpartition(".")[0], line) for path, line in _public_files(folder / REVOKED)]
    return [SiloKey(name, line, end_of_line(line)) for name, line in lines]


def _public_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Public keys with their files; not to be allowed to look is not the same as that there are none."""
    try:
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            if name.endswith(".pub") and not name.startswith(TEMPORARY):
                with suppress(FileNotFoundError):  # revoked meanwhile
                    yield folder / name, (folder / name).read_bytes()
    except OSError as error:
        raise UserError(f"the keys in {str(folder)!r} cannot be read: {error.strerror}") from error


def good_keys(folder: Path) -> dict[str, SiloKey]:
    """Those that are neither over nor revoked."""
    revoked = {key.mark for key in revoked_keys(folder)}
    keys = admitted_keys(folder).items()
    return {name: key for name, key in keys if not key.is_over and key.mark not in revoked}


def read_credentials(folder: Path, name: str) -> Credentials:
    """What a silo signs with, and knows the others by."""
    from idiolect.secure.signing import Identity

    return Credentials(Identity(name, _own_key(folder)), read_known_keys(folder))


def require_own_folder(folder: Path, name: str) -> None:
    """Refuse the folder of another silo: the coordinator would take us for that one."""
    mark = key_mark(public_line(_own_key(folder), name, last_day(1)))
    owners = [key.name for key in admitted_keys(folder).values() if key.mark == mark]
    if owners and name not in owners:
        raise UserError(
            f"--keys {folder} is the folder of {owners[0]}, not of {name}: give --name or --keys anew"
        )


def _own_key(folder: Path) -> Any:
    _require_file(folder / "silo.key")
    return read_private(folder / "silo.key")


def read_known_keys(folder: Path) -> "KnownKeys":
    """The public keys of all silos, of a silo's or the coordinator's folder, whenever they are asked for."""
    from idiolect.secure.signing import KnownKeys

    return KnownKeys(_GoodKeys(folder))


class _GoodKeys(Mapping[str, Any]):
    """The keys of a folder that are good at the moment: in a run that lasts for weeks one may be revoked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Any:
        path = self.folder / ADMITTED / f"{name}.pub"
        if not re.fullmatch(_NAME, name) or not path.is_file():  # a name that somebody sent
            raise KeyError(name)
        key = SiloKey(name, line := path.read_bytes(), end_of_line(line))
        if key.is_over or any(revoked.mark == key.mark for revoked in revoked_keys(self.folder)):
            raise KeyError(name)
        return read_public(line, str(path))

    def __iter__(self) -> Iterator[str]:
        return iter(good_keys(self.folder))

    def __len__(self) -> int:
        return len(good_keys(self.folder))


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"--keys {path.parent} has no {path.name}; it must be a folder of `silo init`")


def check_names(silos: Sequence[str]) -> None:
    """Names of silos are names of folders too."""
    for name in silos:
        if not re.fullmatch(_NAME, name):
            raise UserError(f"silo {name!r} is not possible: use letters, digits, '-', '_' and '.'")
        if name.lower() in _OWN_NAMES:
            raise UserError(f"silo {name!r} is not possible: a file or folder of ours has that name")
    if len(set(silos)) == len(silos) > len({name.lower() for name in silos}):
        raise UserError(
            f"silos={','.join(silos)} must differ in more than capital letters: they name folders"
        )
    if len(set(silos)) < len(silos) or not silos:
        raise UserError(f"silos={','.join(silos)} must be one or more different names")


def write_public(path: Path, content: bytes) -> None:
    """Put a file in place at once that everybody may read: who revokes a key need not be who serves.

    Nobody else may write it, however loose the umask is: a key that is put there is admitted.
    """
    with _umask(0o022):
        _write(path, content)


def write_secret(path: Path, content: bytes) -> None:
    """The same, a file that only its owner can read."""
    with private_files_only():
        _write(path, content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)


@contextmanager
def private_files_only() -> Iterator[None]:
    """What is written in the block, by children too, nobody else can read."""
    with _umask(0o077):
        yield


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
