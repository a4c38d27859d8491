"""A message is not pulled further than it may be large."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_objects

from idiolect.silo.flower import limit_messages

pytestmark = pytest.mark.distributed


class Stub:
    """What Flower's has: two messages of so many pieces of half a megabyte."""

    def __init__(self, pieces: int) -> None:
        self.pulled = 0
        names = [f"{message}-{piece}" for message in "ab" for piece in range(pieces)]
        trees = [
            ObjectTree(object_id=m, children=[ObjectTree(object_id=n) for n in names if n[0] == m])
            for m in "ab"
        ]
        self.PullMessages = lambda: SimpleNamespace(message_object_trees=trees)
        self.PullObject = self._pull
        self.names = names

    def _pull(self, request: Any) -> Any:
        self.pulled += 1
        return SimpleNamespace(object_content=bytes(2**19))


def pull(stub: Stub, names: list[str]) -> dict[str, bytes]:
    return pull_objects(names, lambda name: stub.PullObject(SimpleNamespace(object_id=name)).object_content)


def test_a_large_message_is_not_pulled_to_its_end() -> None:
    stub = Stub(pieces=200)
    limit_messages(stub, 2**21)  # 4 pieces, and 2 for what Flower adds
    stub.PullMessages()
    with pytest.raises(ObjectPullError, match="the message is larger than 2097152 bytes"):
        pull(stub, stub.names[:200])
    assert stub.pulled < 40  # several are pulled at a time


def test_messages_of_admitted_size_pass_one_after_the_other() -> None:
    stub = Stub(pieces=4)
    limit_messages(stub, 2**21)
    for _ in range(3):
        stub.PullMessages()
        for names in (stub.names[:4], stub.names[4:]):
            assert len(pull(stub, names)) == 4
