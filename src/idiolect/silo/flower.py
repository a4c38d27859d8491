"""Flower as the carrier: how to claim work of its SuperLink or SuperNode, and our bytes in its messages.

Both sides run with `--isolation process`: Flower hands work (its "tasks") to whoever holds the secret on the
loopback interface, and that is the process that wrote it, ours. So nobody executes the app bundle that Flower
insists on shipping with a run; it is an empty stub, and a silo that is sent another one does not look at it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import grpc
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common import Array
from flwr.proto.appio_pb2 import ClaimTaskRequest, PullPendingTasksRequest
from flwr.proto.clientappio_pb2_grpc import ClientAppIoStub
from flwr.proto.serverappio_pb2_grpc import ServerAppIoStub
from flwr.supercore.grpc import create_channel
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor, SuperExecAuthClientInterceptor
from flwr.supercore.interceptors.superexec_auth_interceptor import (
    CLIENTAPPIO_SUPEREXEC_METHODS,
    SERVERAPPIO_SUPEREXEC_METHODS,
)

from idiolect.errors import UserError

RECORD, ENTRY = "message", "bytes"


class Queue:
    """What waits to be done at a SuperLink or SuperNode on this machine."""

    def __init__(self, side: Literal["server", "client"], address: str, secret: bytes) -> None:
        server = side == "server"
        methods = SERVERAPPIO_SUPEREXEC_METHODS if server else CLIENTAPPIO_SUPEREXEC_METHODS
        self.channel = create_channel(
            server_address=address,
            insecure=True,  # loopback, with the secret
            interceptors=[
                RuntimeVersionClientInterceptor(component_name="SuperExec"),
                SuperExecAuthClientInterceptor(master_secret=secret, protected_methods=methods),
            ],
        )
        self.stub: Any = (ServerAppIoStub if server else ClientAppIoStub)(self.channel)

    def claim(self) -> str | None:
        """The token of what waits longest; None if there is nothing, or nobody to ask yet."""
        try:
            waiting = self.stub.PullPendingTasks(PullPendingTasksRequest()).tasks
            if not waiting:
                return None
            return self.stub.ClaimTask(ClaimTaskRequest(task_id=waiting[0].task_id)).token or None
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                return None
            raise


@contextmanager
def open_queue(side: Literal["server", "client"], address: str, secret: bytes) -> Iterator[Queue]:
    """The queue, closed at the end."""
    queue = Queue(side, address, secret)
    try:
        yield queue
    finally:
        queue.channel.close()


def to_record(content: bytes) -> RecordDict:
    """Our bytes as one array, which Flower sends in pieces."""
    array = Array(dtype="uint8", shape=(len(content),), stype="safetensors", data=content)
    return RecordDict({RECORD: ArrayRecord({ENTRY: array})})


def from_message(message: Message) -> bytes:
    """Our bytes again."""
    record = message.content.get(RECORD)
    array = record.get(ENTRY) if isinstance(record, ArrayRecord) else None
    if not isinstance(array, Array):
        raise UserError("a Flower message is not one of ours")
    data: bytes = array.data
    return data
