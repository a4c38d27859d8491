"""Why a coordinator cannot be reached, in words: looked at before Flower tries, and whenever it fails.

Flower's own program tries for a long time and says little; a connection of our own tells within seconds
whether nobody is there, the certificate has expired or is another's, or the other side speaks plain text.
"""

import contextlib
import datetime
import socket
import ssl
from pathlib import Path

from idiolect.silo.http_proxy import Refused, proxy_for
from idiolect.silo.plain_text import one_line

TIME_OUT = 5.0
_TLS_ALERT = b"\x15\x03"
# What HTTP/2, and so gRPC, begins with, and an empty frame of settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def why_unreachable(server: str, authority: Path | None) -> str:
    """What is in the way of a connection; empty if nothing is.

    server: as host:port.
    authority: the certificate that the coordinator's must be signed with; None: plain text.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        with _connection(host, int(port)) as connection:
            connection.settimeout(TIME_OUT)
            return (
                _why_not_plain(connection) if authority is None else _why_not_tls(connection, host, authority)
            )
    except Refused as error:
        return one_line(error)
    except (socket.gaierror, UnicodeError):  # the second is of names that no host can have
        return f"the name {host} is not known here"
    except TimeoutError:
        return f"nobody answers at {server} within {TIME_OUT:.0f} seconds"
    except ConnectionRefusedError:
        return f"nobody listens at {server}: is `idiolect serve` running there?"
    except (OSError, OverflowError) as error:
        return f"{server} cannot be reached: {getattr(error, 'strerror', None) or error}"


def _connection(host: str, port: int) -> socket.socket:
    """As Flower will make one: through a proxy, if there is one."""
    if (proxy := proxy_for(host)) is not None:
        return proxy.connect(host, port, TIME_OUT)
    return socket.create_connection((host, port), timeout=TIME_OUT)


def _why_not_tls(connection: socket.socket, host: str, authority: Path) -> str:
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return ""
    except ssl.SSLCertVerificationError as error:
        if "expired" in error.verify_message:
            return f"the coordinator's certificate, or that of its authority, expired ({_today()} here)"
        if "not yet valid" in error.verify_message:
            return f"the coordinator's certificate is not valid yet: is the clock right here ({_today()})?"
        if "mismatch" in error.verify_message:
            return f"the coordinator's certificate is not for {host}: {error.verify_message}"
        return f"the coordinator's certificate is not of your authority (ca.pem): {error.verify_message}"
    except (ssl.SSLEOFError, ConnectionError, EOFError):
        return "the other side ended the connection: if it is a proxy, is `idiolect serve` running behind it?"
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return "the other side speaks plain text, without TLS: is it `idiolect serve --insecure`?"
        return f"no TLS with the other side: {error.reason or error}"


def _why_not_plain(connection: socket.socket) -> str:
    """With plain text a server of HTTP/2 answers at once; one with TLS sends an alert, or nothing."""
    connection.sendall(_PREFACE)
    with contextlib.suppress(TimeoutError, ConnectionError):
        answer = connection.recv(9)
        if answer.startswith(_TLS_ALERT):
            return "the other side speaks TLS: give --keys in place of --insecure"
        if len(answer) >= 4 and answer[3] == 4:  # a frame of settings
            return ""
    return "the other side does not speak Flower's plain text: with keys it needs --keys, not --insecure"


def _today() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
