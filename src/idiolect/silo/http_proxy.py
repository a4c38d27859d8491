"""A proxy of HTTP on the way out of a hospital, as gRPC finds it: by `https_proxy` and `no_proxy`.

gRPC asks the proxy to pass on even what is meant for the same machine. Flower's programs and ours talk to
each other there, so loopback is taken out of it, for this process and its children.
"""

import base64
import contextlib
import ipaddress
import os
import socket
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

LOOPBACK_NAMES = ("127.0.0.1", "localhost")
_PROXY = ("grpc_proxy", "https_proxy", "http_proxy")  # the first that is set; gRPC knows no capital letters
_DIRECT = ("no_grpc_proxy", "no_proxy")
_LONGEST_ANSWER = 65_536


class Refused(ConnectionError):  # noqa: N818  (it is an answer, not a fault)
    """A proxy that does not pass a connection on."""


class HttpProxy(NamedTuple):
    """Where it is, and what it wants to know."""

    host: str
    port: int
    credentials: str  # as the address has them: user:password

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """A connection through it."""
        connection = socket.create_connection((self.host, self.port), timeout=seconds)
        try:
            connection.sendall(self._request(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
            status = _status(connection)
        except BaseException:
            connection.close()
            raise
        if status.split(" ")[1:2] != ["200"]:
            connection.close()
            raise Refused(f"the proxy {self.host}:{self.port} does not pass it on: {status or 'no answer'}")
        return connection

    def _request(self, address: str) -> bytes:
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if self.credentials:
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(self.credentials.encode()).decode()}")
        return "\r\n".join([*lines, "", ""]).encode()


def proxy_for(host: str) -> HttpProxy | None:
    """The proxy through which gRPC reaches a host; None: there is none, or the host is reached without it."""
    address = next((os.environ[name] for name in _PROXY if os.environ.get(name)), "")
    direct = next((os.environ[name] for name in _DIRECT if os.environ.get(name)), "")
    entries = [entry.strip() for entry in direct.split(",") if entry.strip()]
    with contextlib.suppress(ValueError):  # gRPC too does without what cannot be read
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme == "http" and parts.hostname and not any(_covers(entry, host) for entry in entries):
            return HttpProxy(parts.hostname, parts.port or 80, _credentials(parts))
    return None


def keep_loopback_direct() -> None:
    """Let gRPC reach this machine itself without a proxy."""
    name = next((name for name in _DIRECT if os.environ.get(name)), _DIRECT[-1])
    listed = [entry for entry in os.environ.get(name, "").split(",") if entry]
    os.environ[name] = ",".join(dict.fromkeys([*listed, *LOOPBACK_NAMES]))


def _credentials(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}"


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of `no_proxy` is for a host: the end of its name, or a network that it is in."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())


def _status(connection: socket.socket) -> str:
    """The first line of what a proxy answers; the rest of the answer is read too."""
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < _LONGEST_ANSWER and (more := connection.recv(1)):
        answer += more  # one by one: what comes after it is the other side's
    return answer.split(b"\r\n")[0].decode("latin-1")
