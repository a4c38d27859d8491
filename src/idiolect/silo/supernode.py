"""A silo on Flower: a SuperNode as a child, and this process, which answers its messages one by one."""

import logging
import time
from pathlib import Path

import grpc
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.clientappio_pb2_grpc import ClientAppIoStub
from flwr.supercore.grpc import create_channel
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_grpc
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import AppIoTokenClientInterceptor, RuntimeVersionClientInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from idiolect.errors import UserError
from idiolect.silo.flower import (
    ANSWER_SECONDS,
    Deadline,
    from_message,
    limit_messages,
    open_queue,
    to_record,
)
from idiolect.silo.health import Pulse
from idiolect.silo.key_cycle import ends_to_come
from idiolect.silo.pauses import GrowingPause, shorten_pauses_of_pulls
from idiolect.silo.plain_text import one_line
from idiolect.silo.processes import LOOPBACK, Child, free_port, secret_file
from idiolect.silo.reachability import why_unreachable
from idiolect.silo.service import Silo
from idiolect.silo.wire import pack

POLL_SECONDS = 1.0  # at most, between two looks for messages that the SuperNode has
# What a SuperNode does when the coordinator is away or still remembers the last one: try again.
RESTART_SECONDS = 5.0
LOOK_SECONDS = 15.0  # without a message, after which we look whether the coordinator is there
_ACCEPTED = "SuperNode ID:"  # what a SuperNode writes when the coordinator has let it in
_MOST_SILENCES = 2  # of a SuperNode, of `ANSWER_SECONDS` each: it hangs
_MESSAGE_SECONDS = _MOST_SILENCES * ANSWER_SECONDS  # for each call of which a message's way is made
_DAY = 86_400.0

log = logging.getLogger(__name__)


def run_silo(silo: Silo, server: str, keys: Path | None, folder: Path, pulse: Pulse) -> None:
    """Answer the coordinator until interrupted; the SuperNode is started again when it ends."""
    shorten_pauses_of_pulls()
    connection = _Connection(silo.name, server, keys, pulse)
    _arguments(server, keys, "", folder)  # says whether the keys are there
    while True:
        pulse.turn()
        connection.warn_of_ends()
        if not connection.in_trouble():
            address = f"{LOOPBACK}:{free_port()}"
            secret = secret_file(folder)
            with Child("flower-supernode", _arguments(server, keys, address, secret), folder) as child:
                log.debug("%s: connecting to %s", silo.name, server)
                hangs = False
                try:
                    hangs = _answer_messages(silo, address, secret.read_bytes(), child, connection)
                except grpc.RpcError as error:  # it ended in the middle of a message
                    log.debug("the SuperNode is gone: %s", error)
            connection.lost("the SuperNode did not answer" if hangs else child.last_words())
        time.sleep(RESTART_SECONDS)


class _Connection:
    """Whether the coordinator can be reached; what is in the way is said once, however often it is tried."""

    def __init__(self, name: str, server: str, keys: Path | None, pulse: Pulse) -> None:
        self.name = name
        self.server = server
        self.keys = keys
        self.pulse = pulse
        self._told = ""
        self._warn_again = 0.0

    def in_trouble(self) -> bool:
        """Look whether the coordinator is there, and say so if it is not."""
        reason = why_unreachable(self.server, None if self.keys is None else self.keys / "ca.pem")
        if reason:
            self._tell(reason)
        return bool(reason)

    def lost(self, last_words: str) -> None:
        """The SuperNode has ended."""
        if "activat" in last_words.lower():
            self._tell(
                "the name is taken, as somebody is connected with this key or was until a minute ago; or the "
                "coordinator does not know the key, revoked it, or plays a run without this silo"
            )
        elif "invalid node" in last_words.lower():
            self._tell("the coordinator was started anew, or revoked the key")
        else:
            self._tell(last_words or "the SuperNode, Flower's program beside `join`, ended")

    def works(self) -> None:
        """The coordinator has let us in, or a message has come."""
        if self._told:
            log.info("%s: %s can be reached", self.name, self.server)
        self._told = ""
        self.pulse.say(trouble="")

    def warn_of_ends(self) -> None:
        """Once a day, of certificates and a key that end soon."""
        if self.keys is None or time.monotonic() < self._warn_again:
            return
        self._warn_again = time.monotonic() + _DAY
        for sentence in ends_to_come(self.keys, [self.name]):
            log.warning("%s", sentence)

    def _tell(self, reason: str) -> None:
        sentence = f"no connection to {self.server} ({one_line(reason)})"
        if reason != self._told:
            log.warning("%s: %s; trying again", self.name, sentence)
        self._told = reason
        self.pulse.say(trouble=sentence)


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


def _answer_messages(silo: Silo, address: str, secret: bytes, child: Child, connection: _Connection) -> bool:
    """Until the SuperNode ends; or hangs, which is told."""
    look_again, let_in = time.monotonic() + LOOK_SECONDS, False
    pause = GrowingPause(POLL_SECONDS)
    with open_queue("client", address, secret) as queue:
        while not child.ended:
            connection.pulse.turn()
            token = queue.claim()
            if token is not None:
                with connection.pulse.busy():
                    _answer_message(silo, address, token)
                let_in = True
                connection.works()
                look_again = time.monotonic() + LOOK_SECONDS
                pause.restart()
                continue
            if queue.silent >= _MOST_SILENCES:
                return True
            if not let_in and child.has_said(_ACCEPTED):
                let_in = True
                connection.works()
            if time.monotonic() > look_again:
                connection.warn_of_ends()
                if not connection.in_trouble() and let_in:
                    connection.works()
                look_again = time.monotonic() + LOOK_SECONDS
            pause.sleep()
    return False


def _answer_message(silo: Silo, address: str, token: str) -> None:
    """Pull one message, answer it, push the reply. The bundle that comes along is not opened."""
    channel = create_channel(
        server_address=address,
        insecure=True,
        interceptors=[
            RuntimeVersionClientInterceptor(component_name="flwr-clientapp"),
            AppIoTokenClientInterceptor(token),
            Deadline(_MESSAGE_SECONDS),
        ],
    )
    stub = ClientAppIoStub(channel)
    limit_messages(stub, silo.limits.most_bytes)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_grpc(stub))
    heartbeat.start()
    try:
        message, context, _run, _bundle = pull_task_input(stub)
        reply = Message(to_record(_answer_of(silo, message)), reply_to=message)
        push_message(stub, reply, context)
        push_task_output(stub=stub, context=context, sub_status=SubStatus.COMPLETED, details="")
    except ObjectPullError as error:  # there is no message that could be answered; its sender waits in vain
        log.warning("refused: a message could not be pulled: %s", one_line(error))
    finally:
        heartbeat.stop()
        channel.close()


def _answer_of(silo: Silo, message: Message) -> bytes:
    try:
        content = from_message(message)
    except UserError as error:
        log.warning("refused: %s", one_line(error))
        return pack({"refused": str(error)})
    return silo.answer(content)
