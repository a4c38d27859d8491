"""Why a coordinator cannot be reached is said in words, within seconds."""

import contextlib
import datetime
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from idiolect.silo import certificates, http_proxy, keys, reachability
from idiolect.silo.processes import free_port
from idiolect.silo.reachability import why_unreachable

pytest.importorskip("cryptography")


@contextmanager
def listening(certificates: Path | None = None, answer: bytes = b"") -> Iterator[str]:
    """A server that shakes hands, or takes what comes and answers; one connection after the other."""
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # it was closed
                    return
                try:
                    with connection:
                        if context is not None:
                            context.wrap_socket(connection, server_side=True).close()
                        else:
                            connection.recv(64)
                            connection.sendall(answer)
                except OSError:
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys.init_keys(tmp_path / "keys", "127.0.0.1", ["north"])
    return tmp_path / "keys"


@contextmanager
def proxying(status: str = "200 OK", to: str = "") -> Iterator[tuple[str, list[str]]]:
    """A proxy of HTTP, and the heads of what it was asked; it passes everything on to one address."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while more := source.recv(4096):
                    target.sendall(more)

        def serve() -> None:
            with contextlib.suppress(OSError):  # it was closed
                while True:
                    inside, _ = server.accept()
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        head += inside.recv(1)
                    asked.append(head.decode())
                    inside.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
                    with inside, contextlib.suppress(OSError, ValueError):
                        host, port = to.split(":")
                        with socket.create_connection((host, int(port))) as outside:
                            threading.Thread(target=pass_on, args=(outside, inside), daemon=True).start()
                            pass_on(inside, outside)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_coordinator_behind_a_proxy_of_http_is_reached(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from inside a hospital: the name means nothing here, and the proxy knows the way."""
    keys.init_keys(made.parent / "more", "fl.invalid", ["north"])
    with listening(made.parent / "more" / "coordinator") as server, proxying(to=server) as (proxy, asked):
        monkeypatch.setenv("https_proxy", proxy.replace("//", "//me:se%40cret@"))
        assert why_unreachable("fl.invalid:9092", made.parent / "more" / "north" / "ca.pem") == ""
        assert asked[0].startswith("CONNECT fl.invalid:9092 HTTP/1.1\r\nHost: fl.invalid:9092\r\n")
        assert "Basic bWU6c2VAY3JldA==" in asked[0]  # me:se@cret
        assert "not of your authority" in why_unreachable("fl.invalid:9092", made / "north" / "ca.pem")
        monkeypatch.setenv("no_proxy", "elsewhere.org,.invalid")
        assert http_proxy.proxy_for("fl.invalid") is None


def test_a_proxy_that_refuses_is_named(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxying("403 Forbidden\x1b[2J") as (proxy, _):
        monkeypatch.setenv("https_proxy", proxy)
        sentence = why_unreachable("fl.invalid:9092", made / "north" / "ca.pem")
    assert f"the proxy {proxy.removeprefix('http://')} does not pass it on" in sentence
    assert "403 Forbidden" in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"no_proxy": "127.0.0.1,localhost"}),
        ({"no_proxy": "10.0.0.0/8"}, {"no_proxy": "10.0.0.0/8,127.0.0.1,localhost"}),
        (
            {"no_grpc_proxy": "a", "no_proxy": "b"},
            {"no_grpc_proxy": "a,127.0.0.1,localhost", "no_proxy": "b"},
        ),
    ],
    ids=str,
)
def test_what_is_on_this_machine_is_reached_without_a_proxy(
    before: dict[str, str], after: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.setenv(name, before.get(name, ""))
    monkeypatch.setenv("https_proxy", "http://10.0.0.1:3128")
    http_proxy.keep_loopback_direct()
    http_proxy.keep_loopback_direct()
    assert {name: os.environ[name] for name in after} == after
    assert http_proxy.proxy_for("127.0.0.1") is None
    assert http_proxy.proxy_for("fl.example.org") == ("10.0.0.1", 3128, "")


def test_a_coordinator_that_is_there_is_reached(made: Path) -> None:
    with listening(made / "coordinator") as server:
        assert why_unreachable(server, made / "north" / "ca.pem") == ""
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # what an HTTP/2 server says first
    with listening(answer=settings) as server:
        assert why_unreachable(server, None) == ""


def test_nobody_is_there(made: Path) -> None:
    begin = time.monotonic()
    server = f"127.0.0.1:{free_port()}"
    for authority in (None, made / "north" / "ca.pem"):
        assert f"nobody listens at {server}" in why_unreachable(server, authority)
    assert time.monotonic() - begin < 10


def test_nobody_knows_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the answer of the network, which may be late, or an address for whatever name, is given."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = why_unreachable("no-such-host.invalid:9092", None)
    assert said == "the name no-such-host.invalid is not known here"


@pytest.mark.parametrize("host", ["fl..example.org", "x" * 70 + ".org"])
def test_nobody_can_have_the_name(host: str) -> None:
    assert why_unreachable(f"{host}:9092", None) == f"the name {host} is not known here"


def test_nobody_answers(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "TIME_OUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and that is all
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "nobody answers" in why_unreachable(address, made / "north" / "ca.pem")
        assert "plain text" in why_unreachable(address, None)


def test_the_certificate_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificates.server_certificate
    monkeypatch.setattr(certificates, "_EARLIER", datetime.timedelta(days=3))
    monkeypatch.setattr(keys, "server_certificate", lambda key, by, hosts, days: made(key, by, hosts, -1))
    keys.init_keys(tmp_path / "keys", "127.0.0.1", ["north"])
    with listening(tmp_path / "keys" / "coordinator") as server:
        reason = why_unreachable(server, tmp_path / "keys" / "north" / "ca.pem")
    assert "expired" in reason


def test_the_certificate_is_of_another_authority_or_for_another_host(made: Path, tmp_path: Path) -> None:
    keys.init_keys(tmp_path / "others", "127.0.0.1", ["north"])
    with listening(made / "coordinator") as server:
        reason = why_unreachable(server, tmp_path / "others" / "north" / "ca.pem")
        assert "is not of your authority" in reason
        port = server.rpartition(":")[2]
        assert "is not for 127.0.0.2" in why_unreachable(f"127.0.0.2:{port}", made / "north" / "ca.pem") or (
            "nobody listens" in why_unreachable(f"127.0.0.2:{port}", made / "north" / "ca.pem")
        )


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_proxy_behind_which_nobody_listens(abruptly: bool, made: Path) -> None:
    """It takes the connection and ends it; the same in one sentence, however the network tells it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            if abruptly:  # what was not read makes it a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        threading.Thread(target=end, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "is `idiolect serve` running behind it?" in why_unreachable(address, made / "north" / "ca.pem")


def test_one_side_speaks_plain_text(made: Path) -> None:
    with listening(answer=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        assert "plain text" in why_unreachable(server, made / "north" / "ca.pem")
    with listening(made / "coordinator") as server:
        assert "--keys" in why_unreachable(server, None)
