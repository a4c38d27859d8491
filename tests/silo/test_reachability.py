"""Why a coordinator cannot be reached is said in words, within seconds."""

import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from idiolect.silo import keys, reachability
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
    assert "is not known here" in why_unreachable("no-such-host.invalid:9092", None)
    assert time.monotonic() - begin < 10


def test_nobody_answers(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "TIME_OUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and that is all
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "nobody answers" in why_unreachable(address, made / "north" / "ca.pem")
        assert "plain text" in why_unreachable(address, None)


def test_the_certificate_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "VALID", datetime.timedelta(minutes=1))  # it begins five minutes ago
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


def test_one_side_speaks_plain_text(made: Path) -> None:
    with listening(answer=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        assert "plain text" in why_unreachable(server, made / "north" / "ca.pem")
    with listening(made / "coordinator") as server:
        assert "--keys" in why_unreachable(server, None)
