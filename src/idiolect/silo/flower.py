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
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor, SuperExecAuthClientInterceptor
from flwr.supercore.interceptors.superexec_auth_interceptor import (
    CLIENTAPPIO_SUPEREXEC_METHODS,
    SERVERAPPIO_SUPEREXEC_METHODS,
)

from idiolect.errors import UserError

RECORD, ENTRY = "message", "bytes"
TOO_LARGE = "the message is larger"
# What a poll says of a program that is starting or ending.
_NOBODY_THERE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
ANSWER_SECONDS = 20.0  # for a call to a program on this machine
_ENVELOPE = 2**20  # what Flower adds to a message of ours, and more


class Deadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc has no types
    """No call without an end: who takes one and does not answer hangs, in the middle of a message too."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Let a call that has no deadline have one."""
        seconds = client_call_details.timeout or self.seconds
        return continuation(client_call_details._replace(timeout=seconds), request)


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
        self.silent = 0  # how many of the last calls were taken and not answered

    def claim(self) -> str | None:
        """The token of what waits longest; None if there is nothing, or nobody to ask yet."""
        try:
            waiting = self.stub.PullPendingTasks(PullPendingTasksRequest(), timeout=ANSWER_SECONDS).tasks
            self.silent = 0
            if not waiting:
                return None
            request = ClaimTaskRequest(task_id=waiting[0].task_id)
            return self.stub.ClaimTask(request, timeout=ANSWER_SECONDS).token or None
        except grpc.RpcError as error:
            self.silent += error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if error.code() in _NOBODY_THERE:
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


def limit_messages(stub: Any, most_bytes: int) -> None:
    """Stop pulling a message as soon as it is larger than admitted, before all of it is in memory.

    Flower pulls a message in pieces, several at a time; what it was told of as one message counts together.
    """
    pull_messages, pull_object = stub.PullMessages, stub.PullObject
    message_of: dict[str, str] = {}
    pulled: dict[str, int] = {}
    most = most_bytes + _ENVELOPE

    def limited_messages(*args: Any, **options: Any) -> Any:
        answer = pull_messages(*args, **options)
        message_of.clear()  # those of the call before are all here
        pulled.clear()
        for pieces in answer.message_object_trees:
            pulled[pieces.object_id] = 0
            for piece in iterate_object_tree(pieces):
                message_of[piece.object_id] = pieces.object_id
        return answer

    def limited_object(request: Any, *args: Any, **options: Any) -> Any:
        message = message_of.get(request.object_id, "")
        if pulled.get(message, 0) > most:
            raise ObjectPullError(request.object_id, f"{TOO_LARGE} than {most_bytes} bytes")
        answer = pull_object(request, *args, **options)
        pulled[message] = pulled.get(message, 0) + len(answer.object_content)
        return answer

    stub.PullMessages, stub.PullObject = limited_messages, limited_object


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
