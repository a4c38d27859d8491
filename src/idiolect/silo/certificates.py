"""Keys and certificates as bytes: what is made, how long it is good for, and how that is read again.

A certificate has its end in it. A silo's public key is a line as OpenSSH writes it, whose comment says whose
key it is and until when: `ecdsa-sha2-nistp384 AAAA... north until=2028-11-17`. Without it there is no end.
"""

import datetime
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idiolect.errors import UserError

DAYS = 730
_AUTHORITY_DAYS = 3650  # longer than what it signs, so that silos seldom need another ca.pem
_MOST_DAYS = 36_500
_AUTHORITY = "idiolect authority"
_EARLIER = datetime.timedelta(minutes=5)  # clocks differ


def check_days(days: int) -> None:
    """Refuse a life that is none."""
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= _MOST_DAYS:
        raise UserError(f"days={days} is not possible: it must be a whole number from 1 to {_MOST_DAYS}")


def last_day(days: int) -> datetime.date:
    """The last day of what is made now."""
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)).date()


def new_key() -> Any:
    """A private key on P-384."""
    _, ec = cryptography_parts()
    return ec.generate_private_key(ec.SECP384R1())


def authority_certificate(key: Any, days: int) -> bytes:
    """What silos check the server's certificate against."""
    return _certificate(key, key, _AUTHORITY, (), max(days, _AUTHORITY_DAYS))


def server_certificate(key: Any, authority: Any, hosts: Sequence[str], days: int) -> bytes:
    """The server's, for the names and addresses under which silos reach it."""
    return _certificate(key, authority, hosts[0], hosts, days)


def _certificate(key: Any, issuer: Any, name: str, hosts: Sequence[str], days: int) -> bytes:
    """A certificate: of the authority itself if there are no hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    serialization, _ = cryptography_parts()
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
    )
    if hosts:
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    content: bytes = builder.sign(issuer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    return content


def certificate_end(path: Path) -> datetime.datetime:
    """When a certificate ends."""
    end: datetime.datetime = _read_certificate(path).not_valid_after_utc
    return end


def certificate_hosts(path: Path) -> list[str]:
    """The names and addresses that a server's certificate is for, the first as its own."""
    from cryptography import x509

    names = _read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def require_own_key(certificate: Path, key: Path) -> None:
    """Refuse a certificate that is not of the private key beside it: no TLS is possible with the two."""
    if _read_certificate(certificate).public_key() != read_private(key).public_key():
        raise UserError(
            f"{str(certificate)!r} is the certificate of another key than {str(key)!r}; copy both again"
        )


def _read_certificate(path: Path) -> Any:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise UserError(f"{str(path)!r} is damaged: it is no certificate; copy it again") from None


def private_text(key: Any, *, ssh: bool = False) -> bytes:
    """A private key as a file has it."""
    serialization, _ = cryptography_parts()
    form = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    content: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return content


def read_private(path: Path) -> Any:
    """The private key of a file, in either of the forms in which `private_text` writes them."""
    serialization, ec = cryptography_parts()
    content = path.read_bytes()
    ssh = b"OPENSSH" in content
    load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
    try:
        key = load(content, password=None)
    except Exception:  # whatever a damaged file, or one with a password, makes the library say
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{str(path)!r} is not a key that `idiolect silo init` made; copy it again")
    return key


def public_line(key: Any, name: str, until: datetime.date) -> bytes:
    """A silo's public key, with whose it is and until when."""
    serialization, _ = cryptography_parts()
    content: bytes = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return content + f" {name} until={until:%Y-%m-%d}\n".encode()


def end_of_line(line: bytes) -> datetime.date | None:
    """The last day of a public key; None: it has none."""
    found = re.search(rb" until=(\S+)\s*$", line)
    if found is None:
        return None
    try:
        return datetime.date.fromisoformat(found.group(1).decode())
    except ValueError:
        raise UserError(f"until={found.group(1).decode(errors='replace')} is no day") from None


def read_public(line: bytes, source: str) -> Any:
    """The public key of a line; what is not one of ours is refused."""
    serialization, ec = cryptography_parts()
    try:
        key = serialization.load_ssh_public_key(line)
    except Exception:  # whatever a damaged file makes the library say
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{source!r} is not a key that `idiolect silo init` made")
    return key


def key_mark(line: bytes) -> str:
    """A short name of a public key, whatever its comment says."""
    return hashlib.sha256(b" ".join(line.split()[:2])).hexdigest()[:16]


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def cryptography_parts() -> tuple[Any, Any]:
    """The library's serialization and elliptic curves."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError("silos need Flower: pip install 'idiolect[flower]'") from None
    return serialization, ec
