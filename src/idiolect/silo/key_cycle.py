"""The life of keys after `silo init`: silos are added, keys renewed and revoked, their ends are seen coming.

Every file is the old one or the new one, and what an interrupted command left undone the same command does:
the private key in the making waits as `silo.key.new` until all parties' folders have its public one.
`revoke` begins with the coordinator, who refuses the key at once, also in the middle of a run (`gate.py`).
"""

import datetime
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.errors import UserError
from idiolect.silo.certificates import (
    DAYS,
    authority_certificate,
    certificate_end,
    certificate_hosts,
    check_days,
    last_day,
    new_key,
    private_text,
    public_line,
    read_private,
    require_own_key,
    server_certificate,
)
from idiolect.silo.keys import (
    ADMITTED,
    AUTHORITY,
    COORDINATOR,
    REVOKED,
    SiloKey,
    admitted_keys,
    check_names,
    good_keys,
    revoked_keys,
    write_public,
    write_secret,
)

WARN_DAYS = 30  # before an end
_PENDING = "silo.key.new"


class KeyEntry(NamedTuple):
    """A key or certificate, as `silo keys` shows it."""

    who: str
    what: str  # key, certificate or authority
    until: datetime.date | None
    state: str  # good, ends soon, over or revoked
    mark: str = ""


def add_silos(keys: Path, names: Sequence[str], days: int = DAYS) -> list[str]:
    """Make folders for further silos and admit their keys; the silos that have to get to know them."""
    check_days(days)
    known = _known(_whole(keys))
    if taken := sorted(set(names) & known):
        raise UserError(
            f"silo {taken[0]!r} has a key already; `idiolect silo renew {taken[0]}` makes another one"
        )
    check_names([*sorted(known), *names])
    for name in names:
        _give_key(keys, name, days)
    return sorted(known)


def renew_keys(keys: Path, names: Sequence[str], days: int = DAYS) -> bool:
    """Make new keys for silos, or `coordinator`: a new certificate; whether silos need another ca.pem."""
    check_days(days)
    coordinator = _whole(keys)
    if unknown := sorted(set(names) - _known(coordinator) - {COORDINATOR}):
        raise UserError(
            f"silo {unknown[0]!r} has no key to renew; `idiolect silo add {unknown[0]}` makes one"
        )
    new_authority = COORDINATOR in names and _renew_certificate(keys, days)
    for name in names:
        if name != COORDINATOR:
            _give_key(keys, name, days)
    return new_authority


def revoke_keys(keys: Path, names: Sequence[str]) -> None:
    """Take keys back: in the folder of all keys, or in that of one party, who then trusts them no more."""
    parties = _parties(keys)
    for name in names:
        if not any(name in admitted_keys(party) for party in parties):
            raise UserError(f"silo {name!r} has no key in {str(keys)!r} that could be revoked")
    for party in parties:
        for name, key in admitted_keys(party).items():
            if name in names:
                _retire(party, key)
                (party / ADMITTED / f"{name}.pub").unlink()


def listed_keys(keys: Path) -> list[KeyEntry]:
    """Whose keys and certificates there are, until when, and which are revoked."""
    party = keys / COORDINATOR if (keys / COORDINATOR).is_dir() else keys
    certificates = [("server.pem", COORDINATOR, "certificate"), ("ca.pem", "authority", "certificate")]
    entries = [
        _entry(who, what, certificate_end(party / file).date())
        for file, who, what in certificates
        if (party / file).is_file()
    ]
    if not entries:
        raise UserError(f"--keys {keys} holds no keys; it must be a folder of `idiolect silo init`")
    entries += [_entry(key.name, "key", key.until, key.mark) for key in admitted_keys(party).values()]
    return entries + [KeyEntry(k.name, "key", k.until, "revoked", k.mark) for k in revoked_keys(party)]


def require_good_certificates(keys: Path) -> None:
    """Refuse a coordinator's certificates whose time is over, or not of its key: nobody would connect."""
    for entry in listed_keys(keys):
        if entry.what == "certificate" and entry.state == "over":
            raise UserError(_sentence(entry))
    if all((keys / name).is_file() for name in ("server.pem", "server.key")):
        require_own_key(keys / "server.pem", keys / "server.key")


def ends_to_come(keys: Path, whose: Collection[str]) -> list[str]:
    """What ends soon or is over, of the certificates and of some silos' keys."""
    return [
        _sentence(entry)
        for entry in listed_keys(keys)
        if entry.state in ("ends soon", "over") and (entry.what == "certificate" or entry.who in whose)
    ]


def why_shut_out(keys: Path, name: str) -> str:
    """Why a silo's key is no longer good in a party's folder; empty if it is, or was never there."""
    if name in good_keys(keys):
        return ""
    key = admitted_keys(keys).get(name)
    if key is not None and key.is_over:
        return f"its key ended on {key.until}"
    return "its key was revoked" if any(revoked.name == name for revoked in revoked_keys(keys)) else ""


def _entry(who: str, what: str, until: datetime.date | None, mark: str = "") -> KeyEntry:
    left = None if until is None else (until - datetime.datetime.now(datetime.UTC).date()).days
    state = "good" if left is None or left > WARN_DAYS else "ends soon" if left >= 0 else "over"
    return KeyEntry(who, what, until, state, mark)


def _sentence(entry: KeyEntry) -> str:
    ends = "ended" if entry.state == "over" else "ends"
    whose = entry.who if entry.what == "key" else COORDINATOR
    return (
        f"the {entry.what} of {entry.who} {ends} on {entry.until}; whoever keeps the keys makes another one "
        f"with `idiolect silo renew {whose}`"
    )


def _whole(keys: Path) -> Path:
    """The coordinator's folder in that of all keys."""
    if not (keys / COORDINATOR / "ca.pem").is_file():
        raise UserError(
            f"--keys {keys} has no coordinator/ca.pem; it must be the folder that `silo init` wrote"
        )
    return keys / COORDINATOR


def _parties(keys: Path) -> list[Path]:
    """The folders of all parties that are here, the coordinator first; or the one folder itself."""
    if (keys / ADMITTED).is_dir():
        return [keys]
    return [_whole(keys), *_silo_folders(keys)]


def _silo_folders(keys: Path) -> Iterator[Path]:
    return (path.parent for path in sorted(keys.glob(f"*/{ADMITTED}")) if path.parent.name != COORDINATOR)


def _known(coordinator: Path) -> set[str]:
    return admitted_keys(coordinator).keys() | {key.name for key in revoked_keys(coordinator)}


def _give_key(keys: Path, name: str, days: int) -> None:
    """A new key for a silo, in its folder and known to all parties that are here; the coordinator last."""
    coordinator, own = keys / COORDINATOR, keys / name
    if not (own / _PENDING).is_file():
        write_secret(own / _PENDING, private_text(new_key(), ssh=True))
    key = read_private(own / _PENDING)
    write_public(own / "ca.pem", (coordinator / "ca.pem").read_bytes())
    for other in admitted_keys(coordinator).values():
        write_public(own / ADMITTED / f"{other.name}.pub", other.line)
    line = public_line(key, name, last_day(days))
    for party in (*_silo_folders(keys), coordinator):
        before = admitted_keys(party).get(name)
        if before is not None and before.mark != SiloKey(name, line, None).mark:
            _retire(party, before)
        write_public(party / ADMITTED / f"{name}.pub", line)
    (own / _PENDING).replace(own / "silo.key")


def _retire(party: Path, key: SiloKey) -> None:
    """Remember a key that is no longer good."""
    write_public(party / REVOKED / f"{key.name}.{key.mark}.pub", key.line)


def _renew_certificate(keys: Path, days: int) -> bool:
    """Another certificate for the server's key; one for the authority too, if it would end before that."""
    coordinator = keys / COORDINATOR
    authority, server = _pem_key(keys / AUTHORITY), _pem_key(coordinator / "server.key")
    ends = certificate_end(coordinator / "ca.pem")
    too_short = ends < datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    if too_short:
        ca = authority_certificate(authority, days)
        for party in (*_silo_folders(keys), coordinator):
            write_public(party / "ca.pem", ca)
    hosts = certificate_hosts(coordinator / "server.pem")
    write_public(coordinator / "server.pem", server_certificate(server, authority, hosts, days))
    return too_short


def _pem_key(path: Path) -> Any:
    if not path.is_file():
        raise UserError(
            f"there is no {str(path)!r}, which signs certificates; bring it here for this command"
        )
    return read_private(path)
