"""Who is who: a certificate authority, the server's certificate, and a key for each silo.

DIR/authority.key                   signs certificates; keep it off-line
DIR/coordinator/ca.pem              what silos check the server against
DIR/coordinator/server.pem, .key    the server's certificate and key
DIR/coordinator/silos/NAME.pub      the public keys that are admitted, by silo
DIR/NAME/ca.pem, silo.key           what silo NAME gets, and nobody else
DIR/NAME/silos/OTHER.pub            the public keys of all silos, by which they know each other in secure sums
"""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.errors import UserError
from idiolect.silo.secure.agreement import Credentials

if TYPE_CHECKING:
    from idiolect.secure.signing import KnownKeys

# In the folder of keys, and in that of silos' states.
_OWN_NAMES = (
    "coordinator",
    "authority.key",
    "flower",
    "log.txt",
    "summary.json",
    "misfits.json",
    "audit.jsonl",
    "silos",
)
_PUBLIC = "silos"  # the folder of public keys
VALID = datetime.timedelta(days=730)


def init_keys(folder: Path, host: str, silos: Sequence[str]) -> None:
    """Make all keys of a federation; nothing that exists is overwritten."""
    check_names(silos)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{str(folder)!r} exists and is not empty; keys are never overwritten")
    serialization, ec = _cryptography()
    authority = ec.generate_private_key(ec.SECP384R1())
    authority_certificate = _certificate(authority, authority, "idiolect authority", None)
    server = ec.generate_private_key(ec.SECP384R1())
    server_certificate = _certificate(server, authority, host, host)
    pem = serialization.Encoding.PEM
    ca = authority_certificate.public_bytes(pem)
    _write_secret(folder / "authority.key", _private(authority))
    _write(folder / "coordinator" / "ca.pem", ca)
    _write(folder / "coordinator" / "server.pem", server_certificate.public_bytes(pem))
    _write_secret(folder / "coordinator" / "server.key", _private(server))
    for name in silos:
        key = ec.generate_private_key(ec.SECP384R1())
        _write(folder / name / "ca.pem", ca)
        _write_secret(folder / name / "silo.key", _private(key, ssh=True))
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        for reader in ("coordinator", *silos):
            _write(folder / reader / _PUBLIC / f"{name}.pub", public)


def read_credentials(folder: Path, name: str) -> Credentials:
    """What a silo signs with, and knows the others by."""
    from idiolect.secure.signing import Identity

    serialization, ec = _cryptography()
    key = serialization.load_ssh_private_key(_read(folder / "silo.key"), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{str(folder / 'silo.key')!r} is not a key that `idiolect silo init` made")
    return Credentials(Identity(name, key), read_known_keys(folder))


def read_known_keys(folder: Path) -> "KnownKeys":
    """The public keys of all silos, of a silo's or the coordinator's folder."""
    from idiolect.secure.signing import KnownKeys

    serialization, ec = _cryptography()
    keys = {}
    for path in sorted((folder / _PUBLIC).glob("*.pub")):
        keys[path.stem] = serialization.load_ssh_public_key(_read(path))
        if not isinstance(keys[path.stem], ec.EllipticCurvePublicKey):
            raise UserError(f"{str(path)!r} is not a key that `idiolect silo init` made")
    return KnownKeys(keys)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UserError(f"--keys {path.parent} has no {path.name}; it must be a folder of `silo init`")
    return path.read_bytes()


def check_names(silos: Sequence[str]) -> None:
    """Names of silos are names of folders too."""
    for name in silos:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
            raise UserError(f"silo {name!r} is not possible: use letters, digits, '-', '_' and '.'")
        if name.lower() in _OWN_NAMES:
            raise UserError(f"silo {name!r} is not possible: a file or folder of ours has that name")
    if len(set(silos)) == len(silos) > len({name.lower() for name in silos}):
        raise UserError(
            f"silos={','.join(silos)} must differ in more than capital letters: they name folders"
        )
    if len(set(silos)) < len(silos) or not silos:
        raise UserError(f"silos={','.join(silos)} must be one or more different names")


def _certificate(key: Any, issuer_key: Any, name: str, host: str | None) -> Any:
    """A certificate: of the authority itself if there is no host."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    issuer = "idiolect authority"
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + VALID)
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
    )
    if host is not None:
        names = [_general_name(entry) for entry in dict.fromkeys((host, "localhost", "127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: Any, *, ssh: bool = False) -> bytes:
    serialization, _ = _cryptography()
    form = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    content: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return content


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_bytes(content)


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError("silos need Flower: pip install 'idiolect[flower]'") from None
    return serialization, ec
