"""The coordinator's gate: what it does when the folder of keys changes, and whom it notes as turned away."""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import idiolect
from idiolect.errors import UserError
from idiolect.silo import logins
from idiolect.silo import requests as silo_requests
from idiolect.silo.audit import AuditLog, read_audit
from idiolect.silo.coordinator import coordinate
from idiolect.silo.gate import Gate
from idiolect.silo.keys import SiloKey, admitted_keys, init_keys
from idiolect.silo.logins import FailedLogins
from idiolect.silo.requests import NotConnected, Patience, Request, ShutOut, Unreachable, ask_all
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import pack
from silo.problem import (
    FIVE_SILOS,
    SILOS,
    Direct,
    assert_same,
    config,
    deployed,
    last_saved,
    silos_in,
    simulate,
)
from silo.secure_problem import serve, with_keys

pytest.importorskip("cryptography")


class Registry:
    """Keys as a SuperLink has them."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.registered = 0

    def register(self, key: SiloKey) -> int:
        self.registered += 1
        self.keys[self.registered] = key.mark
        return self.registered

    def unregister(self, node: int) -> None:
        del self.keys[node]


class Scene(SimpleNamespace):
    keys: Path
    registry: Registry
    gate: Gate


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    init_keys(tmp_path / "keys", "127.0.0.1", SILOS)
    keys, registry = tmp_path / "keys" / "coordinator", Registry()
    (tmp_path / "link.log").touch()
    failed = FailedLogins(tmp_path / "link.log")
    gate = Gate(registry, keys, SILOS, {}, {}, AuditLog(tmp_path / "run"), failed)
    gate.open()
    return Scene(keys=keys, registry=registry, gate=gate, log=tmp_path / "link.log", run=tmp_path / "run")


def marks(scene: Scene) -> set[str]:
    return {key.mark for key in admitted_keys(scene.keys).values()}


def test_a_revoked_key_is_taken_away_at_the_next_look_and_once(scene: Scene) -> None:
    assert set(scene.registry.keys.values()) == marks(scene)
    idiolect.silo_revoke(["south"], keys=scene.keys)
    for _ in range(3):
        scene.gate.look()
    assert set(scene.registry.keys.values()) == marks(scene)
    assert len(scene.registry.keys) == 2
    assert scene.gate.shut_out == {"south": "its key was revoked"}
    assert "south" not in scene.gate.nodes
    noted = [entry for entry in read_audit(scene.run).entries if entry.get("silo") == "south"]
    assert [(entry["ask"], entry["outcome"].split(";")[0]) for entry in noted] == [
        ("revoked", "shut out: its key was revoked")
    ]


def test_a_renewed_key_takes_the_place_of_the_one_before(scene: Scene) -> None:
    before = scene.gate.nodes["south"]
    idiolect.silo_renew(["south"], keys=scene.keys.parent)
    scene.gate.look()
    assert before not in scene.registry.keys
    assert scene.registry.keys[scene.gate.nodes["south"]] == admitted_keys(scene.keys)["south"].mark
    idiolect.silo_revoke(["south"], keys=scene.keys)
    scene.gate.look()
    idiolect.silo_renew(["south"], keys=scene.keys.parent)
    scene.gate.look()
    assert not scene.gate.shut_out
    assert set(scene.registry.keys.values()) == marks(scene)


def test_a_key_ends_with_its_last_day(scene: Scene) -> None:
    path = scene.keys / "silos" / "west.pub"
    path.write_bytes(b" ".join(path.read_bytes().split()[:2]) + b" west until=2020-02-29\n")
    scene.gate.look()
    assert scene.gate.shut_out == {"west": "its key ended on 2020-02-29"}


def test_half_a_file_and_a_missing_one_change_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    registered = dict(scene.registry.keys)
    path = scene.keys / "silos" / "west.pub"
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    with caplog.at_level(logging.WARNING, logger="idiolect"):
        for _ in range(3):
            scene.gate._look_again()
    assert scene.registry.keys == registered
    assert len(caplog.records) == 1
    path.unlink()
    scene.gate._look_again()
    assert scene.registry.keys == registered
    path.write_bytes(whole)
    scene.gate._look_again()
    assert (scene.registry.keys, scene.registry.registered) == (registered, 3)


def test_a_silo_without_a_key_is_told_before_the_run(scene: Scene) -> None:
    (scene.keys / "silos" / "west.pub").unlink()
    with pytest.raises(UserError, match=r"silo 'west' has no key .*; make one with `idiolect silo add`"):
        scene.gate.open()


def knock(scene: Scene, key: SiloKey | None, what: str = "ActivateNode") -> None:
    """As Flower's SuperLink writes it."""
    from idiolect.silo.certificates import cryptography_parts, read_public

    serialization, _ = cryptography_parts()
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pem = b"\xff nonsense" if key is None else read_public(key.line, "").public_bytes(*form)
    with scene.log.open("a") as file:
        file.write(
            f"\x1b[91mERROR \x1b[0m:     [/flwr.proto.Fleet/{what}][ApiError:2004] Attempted to register "
            f"SuperNode with public key: {pem!r}, exception: No SuperNode found with the given public key.\n"
        )


def told(scene: Scene) -> list[str]:
    scene.gate.look()
    path = scene.run / "audit.jsonl"
    entries = read_audit(scene.run).entries if path.is_file() else []
    return [entry["outcome"].removeprefix("refused: ") for entry in entries if entry["ask"] == "login"]


def test_failed_logins_are_noted_with_whose_key_it_was(scene: Scene, tmp_path: Path) -> None:
    init_keys(tmp_path / "others", "x", ["eve"])
    stranger = admitted_keys(tmp_path / "others" / "eve")["eve"]
    own = admitted_keys(scene.keys)
    idiolect.silo_revoke(["south"], keys=scene.keys)
    for key in (stranger, own["south"], own["north"], None):
        knock(scene, key)
    knock(scene, stranger, "RegisterNode")
    with scene.log.open("a") as file:
        file.write("I1117 ssl_transport_security.cc:2563] Handshake failed with error WRONG_VERSION_NUMBER\n")
        file.write("I1117 ssl_transport_security.cc:2563] Handshake failed with error UNKNOWN_CA\n")
        file.write("Attempted to register: a line that is not whole")
    assert told(scene) == [
        f"somebody with the unknown key {stranger.mark}",
        "a key of south that was revoked or replaced",
        "the key of north once more, while somebody is or just was connected with it",
        "somebody with no readable key",
        "somebody without a key",
        "somebody who speaks plain text",
        "somebody who did not accept our certificate",
    ]
    assert read_audit(scene.run).broken is None


def test_whoever_knocks_again_and_again_fills_no_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(logins, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in range(50):
        knock(scene, None)
    assert len(told(scene)) == 1
    now[0] += 599
    knock(scene, None)
    assert len(told(scene)) == 1
    now[0] += 2
    knock(scene, None)
    assert told(scene)[1:] == ["somebody with no readable key (50 more times meanwhile)"]


def test_others_are_told_together_when_there_are_very_many(tmp_path: Path) -> None:
    failed = FailedLogins(tmp_path / "log")
    sentences = [told for number in range(500) if (told := failed._worth_telling(f"key {number}"))]
    assert sentences == [*(f"key {number}" for number in range(100)), "others with further unknown keys"]


# What it does to a run.


class Losing(Direct):
    """South is shut out after some requests."""

    def __init__(self, silos: Mapping[str, Any], after: int) -> None:
        super().__init__(silos)
        self.left = after

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, answer in super().ask(requests, seconds):
            if name == "south":
                self.left -= 1
            gone = name == "south" and self.left < 0
            yield name, ShutOut("its key was revoked") if gone else answer


def test_a_run_goes_on_without_a_silo_that_was_revoked(tmp_path: Path) -> None:
    """Though all answers are needed by default; it ends as a simulation in which south left after round 2."""
    settings = config({"name": "apfl", "local_steps": 2}, rounds=4, evaluation={"every": 4})
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    coordinate(run, Losing(silos_in(tmp_path / "silos"), after=4))  # greeting, evaluation, two rounds
    assert run.folder.finished
    left = {"participation": {"clients": {"south": {"leave": 2}}}}
    assert_same(last_saved(run).server, simulate({**settings, **left}).play(4).server)


def test_a_run_that_has_begun_is_resumed_without_it(tmp_path: Path) -> None:
    settings = config({"name": "apfl", "local_steps": 2}, rounds=4, evaluation={"every": 4})
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    silos = silos_in(tmp_path / "silos")

    class Ending(Direct):
        left = 12  # answers: greeting, evaluation, two rounds

        def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Any]]:
            for answer in super().ask(requests, seconds):
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
                yield answer

    with pytest.raises(KeyboardInterrupt):
        coordinate(run, Ending(silos))
    coordinate(ServedRun(run.path), Losing(silos, after=0))
    left = {"participation": {"clients": {"south": {"leave": 2}}}}
    assert_same(last_saved(run).server, simulate({**settings, **left}).play(4).server)


def test_secure_sums_go_on_as_long_as_the_threshold_is_met(tmp_path: Path) -> None:
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=3, evaluation={"every": 5})
    silos = with_keys(tmp_path, FIVE_SILOS)
    run = ServedRun.create(
        tmp_path / "run", deployed(settings, tmp_path, FIVE_SILOS, secure={"threshold": 3})
    )
    serve(run, Losing(silos, after=15), tmp_path)  # greeting, metrics before, and in the middle of a sum
    assert run.folder.finished
    opened = json.loads((run.path / "survivors.json").read_text())
    assert opened[f"{run.name}/work/2/0"] == sorted(set(FIVE_SILOS) - {"south"})


def test_a_run_does_not_begin_without_one(tmp_path: Path) -> None:
    settings = config({"name": "apfl", "local_steps": 2}, rounds=2)
    run = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    with pytest.raises(UserError, match="at least 3 are needed; south: its key was revoked"):
        coordinate(run, Losing(silos_in(tmp_path / "silos"), after=0))


def test_when_all_are_shut_out_the_run_stops() -> None:
    class Nobody:
        def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Unreachable]]:
            return ((name, ShutOut("gone")) for name in requests)

    requests = {name: Request[Any]({"ask": "x"}, {}, lambda packet: packet) for name in SILOS}
    begun = time.monotonic()
    with pytest.raises(UserError, match="0 of 3 silos gave a usable answer and at least 1 are needed"):
        ask_all(Nobody(), requests, Patience(), 3)
    assert time.monotonic() - begun < 60  # at once, not when patience is over
    assert ask_all(Nobody(), requests, Patience(), 0) == {}


def test_all_silos_say_what_is_wrong_before_a_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """South is about to connect when north has refused already; west does not come."""
    looks = Counter[str]()

    class Arriving:
        def ask(
            self, requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | Unreachable]]:
            for name in requests:
                looks[name] += 1
                here = name == "north" or (name == "south" and looks[name] > 3)
                refusal = pack({"refused": f"no table at {name}"})
                yield name, refusal if here else NotConnected("not connected")

    requests = {name: Request[Any]({"ask": "x"}, {}, lambda packet: packet) for name in SILOS}
    patience = Patience(pause_seconds=0.01)
    monkeypatch.setattr(silo_requests, "HEARING_SECONDS", 0.5)
    with pytest.raises(
        UserError, match="north: refused: no table at north; south: refused: no table at south;"
    ):
        ask_all(Arriving(), requests, patience, None)
    assert looks["north"] == 1
    looks.clear()
    with pytest.raises(UserError, match="north: refused"):
        ask_all(Arriving(), requests, patience, 3)  # in a round nobody is waited for in vain
    assert looks["west"] == 1


def test_nobody_waits_for_a_silo_that_is_shut_out_while_it_works() -> None:
    """Its question is on its way; the answer of another one comes later."""
    pytest.importorskip("flwr")
    from idiolect.silo.superlink import FlowerLink

    nodes, shut_out = {"north": 1, "south": 2}, dict[str, str]()

    class Grid:
        looks = 0

        def get_node_ids(self) -> list[int]:
            return [1, 2]

        def push_messages(self, messages: list[Any]) -> list[str]:
            return [str(message.metadata.dst_node_id) for message in messages]

        def pull_messages(self, marks: list[str]) -> list[Any]:
            self.looks += 1
            if self.looks == 2:
                shut_out["south"] = "its key was revoked"
                del nodes["south"]
            return []

    asked = FlowerLink(Grid(), nodes, shut_out).ask({"north": pack({}), "south": pack({})}, 2.0)
    (first, reason), (second, time_out) = asked
    assert (first, str(reason), type(reason)) == ("south", "its key was revoked", ShutOut)
    assert (second, str(time_out)) == ("north", "no answer within 2 seconds")
