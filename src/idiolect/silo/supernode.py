"""A silo on Flower: a SuperNode as a child, and this process, which answers its messages one by one."""

import logging
import time
from pathlib import Path

from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.clientappio_pb2_grpc import ClientAppIoStub
from flwr.supercore.grpc import create_channel
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_grpc
from flwr.supercore.interceptors import AppIoTokenClientInterceptor, RuntimeVersionClientInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from idiolect.errors import UserError
from idiolect.silo.flower import from_message, open_queue, to_record
from idiolect.silo.processes import LOOPBACK, Child, free_port, secret_file
from idiolect.silo.service import Silo

POLL_SECONDS = 0.2
# What a SuperNode does when the coordinator is away or still remembers the last one: try again.
RESTART_SECONDS = 5.0

log = logging.getLogger(__name__)


def run_silo(silo: Silo, server: str, keys: Path | None, folder: Path) -> None:
    """Answer the coordinator until interrupted; the SuperNode is started again when it ends."""
    told = ""
    while True:
        address = f"{LOOPBACK}:{free_port()}"
        secret = secret_file(folder)
        with Child("flower-supernode", _arguments(server, keys, address, secret), folder) as child:
            log.debug("%s: connecting to %s", silo.name, server)
            _answer_messages(silo, address, secret.read_bytes(), child)
        if (reason := child.last_words()) != told:  # once, however often it is tried
            log.warning("%s: no connection to %s (%s); trying again", silo.name, server, reason)
            told = reason
        time.sleep(RESTART_SECONDS)


def _arguments(server: str, keys: Path | None, address: str, secret: Path) -> list[str]:
    arguments = ["--superlink", server, "--isolation", "process", "--clientappio-api-address", address]
    arguments += ["--superexec-auth-secret-file", str(secret)]
    if keys is None:
        return [*arguments, "--insecure"]
    for name in ("ca.pem", "silo.key"):
        if not (keys / name).is_file():
            raise UserError(
                f"--keys {keys} has no {name}; it must be the folder that `idiolect silo init` made"
            )
    return [
        *arguments,
        "--root-certificates",
        str(keys / "ca.pem"),
        "--auth-supernode-private-key",
        str(keys / "silo.key"),
    ]


def _answer_messages(silo: Silo, address: str, secret: bytes, child: Child) -> None:
    with open_queue("client", address, secret) as queue:
        while not child.ended:
            token = queue.claim()
            if token is None:
                time.sleep(POLL_SECONDS)
            else:
                _answer_message(silo, address, token)


def _answer_message(silo: Silo, address: str, token: str) -> None:
    """Pull one message, answer it, push the reply. The bundle that comes along is not opened."""
    channel = create_channel(
        server_address=address,
        insecure=True,
        interceptors=[
            RuntimeVersionClientInterceptor(component_name="flwr-clientapp"),
            AppIoTokenClientInterceptor(token),
        ],
    )
    stub = ClientAppIoStub(channel)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_grpc(stub))
    heartbeat.start()
    try:
        message, context, _run, _bundle = pull_task_input(stub)
        reply = Message(to_record(silo.answer(from_message(message))), reply_to=message)
        push_message(stub, reply, context)
        push_task_output(stub=stub, context=context, sub_status=SubStatus.COMPLETED, details="")
    finally:
        heartbeat.stop()
        channel.close()
