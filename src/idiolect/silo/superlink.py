"""The coordinator on Flower: a SuperLink as a child, silos by their keys, and messages to and fro."""

import hashlib
import io
import logging
import time
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
from flwr.app import Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.appio_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.control_pb2_grpc import ControlStub
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.grpc import create_channel
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_grpc
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.grid.grpc_grid import GrpcGrid

from idiolect.errors import UserError
from idiolect.silo.audit import AuditLog
from idiolect.silo.certificates import read_public
from idiolect.silo.flower import TOO_LARGE, from_message, limit_messages, open_queue, to_record
from idiolect.silo.gate import Gate
from idiolect.silo.keys import SiloKey
from idiolect.silo.logins import FailedLogins
from idiolect.silo.pauses import GrowingPause, shorten_pauses_of_pulls
from idiolect.silo.plain_text import one_line
from idiolect.silo.processes import LOOPBACK, Child, free_port, require_free, secret_file
from idiolect.silo.requests import NotConnected, ShutOut, Unreachable
from idiolect.silo.wire import pack, unpack

START_SECONDS = 60.0
NAME_SECONDS = 20.0  # a SuperNode looks for messages every three seconds
POLL_SECONDS = 0.5  # at most, between two looks for answers
_END_SECONDS = 5.0  # from a broken connection to the end of the program at its other side
_MOST_NAME_BYTES = 4096

log = logging.getLogger(__name__)


class FlowerLink:
    """Carries requests through a SuperLink; `nodes` has the silos' nodes, `shut_out` why one has none."""

    def __init__(
        self,
        grid: Any,
        nodes: MutableMapping[str, int],
        shut_out: Mapping[str, str] = MappingProxyType({}),
        *,
        asks_names: bool = False,
    ) -> None:
        self.grid = grid
        self.nodes = nodes  # both change while we wait (`gate.py`)
        self.shut_out = shut_out
        # Without keys nothing else tells who is who, and a silo that comes back is another node.
        self.asks_names = asks_names

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        """Replies as they come in, until the time is over."""
        for name in [name for name in requests if name in self.shut_out]:
            yield name, ShutOut(self.shut_out[name])
        requests = {name: request for name, request in requests.items() if name not in self.shut_out}
        connected = set(self.grid.get_node_ids())
        if self.asks_names and not connected.issuperset(self.nodes.get(name, 0) for name in requests):
            self._learn_names(connected - set(self.nodes.values()))
        nodes = dict(self.nodes)  # as they are now
        reachable = {name: nodes[name] for name in requests if nodes.get(name) in connected}
        for name in [name for name in requests if name not in reachable]:
            yield name, NotConnected("not connected")
        messages = [
            Message(to_record(requests[name]), dst_node_id=node, message_type="query", ttl=seconds)
            for name, node in reachable.items()
        ]
        marks = self.grid.push_messages(messages) if messages else []
        waiting = {mark: name for mark, name in zip(marks, reachable, strict=True) if mark}
        end, pause = time.monotonic() + seconds, GrowingPause(POLL_SECONDS)
        while waiting and time.monotonic() < end:
            for mark, name in list(waiting.items()):
                if self.nodes.get(name) != reachable[name]:
                    del waiting[mark]
                    yield name, self._no_longer(name)
            for reply in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id)
                yield name, _content(reply)
                pause.restart()
            pause.sleep()
        for name in waiting.values():
            yield name, Unreachable(f"no answer within {seconds:.0f} seconds")

    def _no_longer(self, name: str) -> Unreachable:
        """Why an answer is not awaited any more, whose question is on its way."""
        return ShutOut(self.shut_out[name]) if name in self.shut_out else Unreachable("its key was renewed")

    def _learn_names(self, strangers: set[int]) -> None:
        link = FlowerLink(self.grid, {str(node): node for node in strangers})
        for node, reply in link.ask({name: pack({"ask": "name"}) for name in link.nodes}, NAME_SECONDS):
            if not isinstance(reply, bytes):
                continue
            try:
                name = unpack(reply, _MOST_NAME_BYTES).header.get("name")
            except UserError as error:
                log.warning("a silo that did not say its name is left out: %s", one_line(error))
                continue
            if isinstance(name, str):
                self.nodes[name] = int(node)


def _content(reply: Message) -> bytes | Unreachable:
    if reply.has_error():
        if reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            return Unreachable("connection lost")
        if TOO_LARGE in (reply.error.reason or ""):  # no use in asking again
            return pack({"refused": f"its answer was not taken: {TOO_LARGE} than admitted"})
        reason = reply.error.reason or f"Flower error {reply.error.code}"
        return Unreachable(f"unreachable ({one_line(reason, 300)})")
    try:
        return from_message(reply)
    except UserError as error:
        return pack({"refused": str(error)})


@contextmanager
def flower_link(
    names: tuple[str, ...],
    address: str,
    keys: Path | None,
    folder: Path,
    most_bytes: int,
    audit: AuditLog | None = None,
) -> Iterator[FlowerLink]:
    """A running SuperLink whose silos are reached at `address`; everything else stays on loopback.

    audit: where it is noted who was turned away; by default in the folder.
    """
    shorten_pauses_of_pulls()
    listening = int(address.rpartition(":")[2])
    control_port = free_port(listening)
    appio_port = free_port(listening, control_port)
    ports = {"control": f"{LOOPBACK}:{control_port}", "appio": f"{LOOPBACK}:{appio_port}"}
    secret = secret_file(folder)
    arguments = _arguments(address, keys, ports, secret)
    nodes: dict[str, int] = {}
    shut_out: dict[str, str] = {}
    require_free(address)
    with (
        Child("flower-superlink", arguments, folder, GRPC_VERBOSITY="info") as child,
        _told_when_ended(child),
        ExitStack() as stack,
    ):
        control = _Control(ports["control"], keys, child)
        if keys is not None:
            logins = FailedLogins(child.log)
            gate = Gate(control, keys, names, nodes, shut_out, audit or AuditLog(folder), logins)
            gate.open()
            stack.enter_context(gate.watched())
        control.start_run()
        grid = stack.enter_context(_grid(ports["appio"], secret.read_bytes(), child))
        limit_messages(grid._stub, most_bytes)
        yield FlowerLink(grid, nodes, shut_out, asks_names=keys is None)


@contextmanager
def _told_when_ended(child: Child) -> Iterator[None]:
    """Say in one sentence that a call failed because the program is gone."""
    try:
        yield
    except grpc.RpcError:
        if not child.ends_within(_END_SECONDS):
            raise
        raise UserError(
            "the SuperLink, Flower's program beside `serve`, ended; its log is in the run's folder, and "
            "`idiolect serve --resume` goes on"
        ) from None


def _arguments(address: str, keys: Path | None, ports: Mapping[str, str], secret: Path) -> list[str]:
    arguments = [
        "--isolation",
        "process",
        "--disable-runtime-dependency-installation",
        "--fleet-api-address",
        address,
        "--control-api-address",
        ports["control"],
        "--serverappio-api-address",
        ports["appio"],
        "--superexec-auth-secret-file",
        str(secret),
    ]
    if keys is None:
        return [*arguments, "--insecure"]
    for name in ("ca.pem", "server.pem", "server.key"):
        if not (keys / name).is_file():
            raise UserError(
                f"--keys {keys} has no {name}; it must be the coordinator's folder of `silo init`"
            )
    return [
        *arguments,
        "--ssl-ca-certfile",
        str(keys / "ca.pem"),
        "--ssl-certfile",
        str(keys / "server.pem"),
        "--ssl-keyfile",
        str(keys / "server.key"),
        "--enable-supernode-auth",
    ]


class _Control:
    """The SuperLink's control interface, which only this machine can reach."""

    def __init__(self, address: str, keys: Path | None, child: Child) -> None:
        channel = create_channel(
            server_address=address,
            insecure=keys is None,
            root_certificates=None if keys is None else (keys / "ca.pem").read_bytes(),
            interceptors=[RuntimeVersionClientInterceptor(component_name="flwr CLI")],
        )
        self.stub = ControlStub(channel)
        end = time.monotonic() + START_SECONDS
        ready = grpc.channel_ready_future(channel)
        while True:
            try:
                ready.result(timeout=1)
            except grpc.FutureTimeoutError:
                if child.ended or time.monotonic() > end:
                    raise UserError(f"the SuperLink did not start: {_words_of(child)}") from None
            else:
                return

    def register(self, key: SiloKey) -> int:
        """Admit a silo's key; a node's number follows from its key, so no silo can pose as another."""
        public = read_public(key.line, key.name)
        return int(
            self.stub.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public))).node_id
        )

    def unregister(self, node: int) -> None:
        """Refuse a node's key from now on, in the middle of whatever it does."""
        self.stub.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def start_run(self) -> None:
        """Start a run with a bundle in which there is nothing to execute."""
        content = _stub_bundle()
        request = StartRunRequest(federation=NOOP_FEDERATION_ID)
        request.fab.hash_str = hashlib.sha256(content).hexdigest()
        request.fab.content = content
        if not self.stub.StartRun(request).HasField("run_id"):
            raise UserError("the SuperLink did not start a run; see its log")


@contextmanager
def _grid(address: str, secret: bytes, child: Child) -> Iterator[GrpcGrid]:
    """Flower's grid for the run, held by this process."""
    with open_queue("server", address, secret) as queue:
        end, pause = time.monotonic() + START_SECONDS, GrowingPause(POLL_SECONDS)
        while (token := queue.claim()) is None:
            if child.ended or time.monotonic() > end:
                raise UserError(f"the SuperLink offered no run: {_words_of(child)}")
            pause.sleep()
    grid = GrpcGrid(address, insecure=True, token=token)
    # Flower would try for ever to reach a program that is gone.
    gives_up = grid._retry_invoker.should_giveup
    grid._retry_invoker.should_giveup = lambda error: child.ended or bool(gives_up and gives_up(error))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_grpc(grid._stub))
    heartbeat.start()
    try:
        grid.set_run(run_from_proto(grid._stub.PullTaskInput(PullTaskInputRequest()).run))
        yield grid
        grid._stub.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
    finally:
        heartbeat.stop()
        grid.close()


def _words_of(child: Child) -> str:
    return child.last_words() or f"it says no reason; its log is {child.log}"


def _stub_bundle() -> bytes:
    """The app that Flower ships to every silo: it says what it is and does nothing."""
    project = (
        '[project]\nname = "idiolect-stub"\nversion = "1.0.0"\ndescription = ""\nlicense = "Apache-2.0"\n'
        'dependencies = ["flwr==1.33.0"]\n[tool.flwr.app]\npublisher = "idiolect"\n'
        '[tool.flwr.app.components]\nserverapp = "stub:app"\nclientapp = "stub:app"\n'
    )
    files = {
        "pyproject.toml": project,
        "stub.py": '"""Silos call their own installed package."""\n\napp = None\n',
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, text in files.items():
            bundle.writestr(zipfile.ZipInfo(name), text)
    return buffer.getvalue()
