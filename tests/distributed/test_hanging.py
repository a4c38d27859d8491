"""A SuperNode that hangs in the middle of a message: `join` does not wait for it for ever."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import grpc

from idiolect.silo import supernode
from idiolect.silo.processes import free_port

pytestmark = pytest.mark.distributed


class Hanging(grpc.GenericRpcHandler):
    """Takes every call and answers none."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda *_: self.over.wait() and b"")


@pytest.fixture
def address() -> Iterator[str]:
    address, hanging = f"127.0.0.1:{free_port()}", Hanging()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[hanging])
    server.add_insecure_port(address)
    server.start()
    yield address
    hanging.over.set()
    server.stop(None)


def test_a_message_whose_way_hangs_is_given_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernode, "_MESSAGE_SECONDS", 0.5)
    silo: Any = SimpleNamespace(limits=SimpleNamespace(most_bytes=2**20))
    given_up = threading.Event()

    def answer() -> None:
        with pytest.raises(grpc.RpcError) as error:
            supernode._answer_message(silo, address, "token")
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        given_up.set()

    threading.Thread(target=answer, daemon=True).start()
    assert given_up.wait(60)
