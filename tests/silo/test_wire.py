"""What is on the wire with codecs: the encoded streams, of the counted length, and the same numbers."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from idiolect.codecs.journal import Missed
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.silo.coordinator import coordinate
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import Packet, pack, unpack
from silo.problem import SILOS, Direct, assert_same, config, deployed, last_saved, silos_in, simulate

ROUNDS = 5
FAST = {"answer_seconds": 1, "patience_seconds": 1}
TERNARY = {"up": "ternary", "down": "ternary", "keep": 0.1}
WIDE = {"name": "mlp", "hidden": [60, 20]}
CASES: dict[str, dict[str, Any]] = {
    "efl": {"method": {"name": "efl", "keep": 0.1}},
    "efl, personal terms": {"method": {"name": "efl", "keep": 0.3, "exclude_self": True}},
    "efl, no terms": {"method": {"name": "efl", "keep": 0.1, "elasticity": 0.0, "scope": "flat"}},
    "efl, dense": {"method": {"name": "efl", "keep": None, "elasticity": 0.0}},
    "apfl": {"method": {"name": "apfl", "local_steps": 2}, "codec": TERNARY},
    "fedavg": {"method": {"name": "fedavg"}, "codec": {"up": "stochastic", "down": "float16", "bits": 4}},
    "scaffold, up only": {"method": {"name": "scaffold"}, "codec": {"up": "topk", "keep": 0.2}},
}


class Letter(NamedTuple):
    name: str
    request: bytes
    answer: bytes

    def asked(self) -> Packet:
        return unpack(self.request)

    def answered(self) -> Packet:
        return unpack(self.answer)


class Reading(Direct):
    """A link that keeps the work that is asked for and answered, and may change answers."""

    def __init__(self, silos: Mapping[str, Silo], change: Callable[[Letter], bytes] | None = None) -> None:
        super().__init__(silos)
        self.change = change
        self.letters: list[Letter] = []

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            letter = Letter(name, message, self.silos[name].answer(message))
            if unpack(message).header["ask"] == "work":
                self.letters.append(letter)
                yield name, letter.answer if self.change is None else self.change(letter)
            else:
                yield name, letter.answer


def assert_identical(ours: Any, theirs: Any) -> None:
    a, b = tree.to_named(ours), tree.to_named(theirs)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def settings_of(case: str, **options: Any) -> dict[str, Any]:
    chosen = dict(CASES[case])
    return config(chosen.pop("method"), rounds=ROUNDS, **chosen, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_encoded_messages_give_the_numbers_of_a_simulation_bit_for_bit(
    case: str, lost: float, tmp_path: Path
) -> None:
    """Also when replies are lost, so that a silo holds a newer model than the coordinator can know.

    EFL's Fisher terms are sums over a table that a simulation pads to the size of the largest, and so may
    differ in the last bits: to 1e-9 with them, bit for bit without.
    """
    compare = assert_same if case in ("efl", "efl, personal terms") else assert_identical
    settings = settings_of(case, participation={"lost_replies": lost, "count": 2} if lost else {})
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    silos = silos_in(tmp_path / "silos")
    coordinate(served, Direct(silos))
    simulation = simulate(settings).play(ROUNDS)
    compare(last_saved(served).server, simulation.server)
    clients = simulation.clients()
    for number, name in enumerate(SILOS):
        latest = silos[name]._vault(served.name).latest()
        if latest is not None:  # it was asked
            compare(latest, tree.row(clients, number))


@pytest.mark.parametrize("case", ["efl", "apfl"])
def test_a_message_has_the_counted_bits_and_a_small_header(case: str, tmp_path: Path) -> None:
    settings = settings_of(case, model=WIDE, dtype="float32")
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path))
    link = Reading(silos_in(tmp_path / "silos"))
    coordinate(served, link)
    rounds = served.folder.rounds().set_index("round")
    for number in range(1, ROUNDS):
        letters = [letter for letter in link.letters if letter.asked().header["round"] == number]
        assert len(letters) == 3
        for direction, bits in (("request", rounds.down_bits), ("answer", rounds.up_bits)):
            counted = bits[number + 1] / 8
            sent = sum(len(getattr(letter, direction)) for letter in letters)
            assert counted <= sent <= counted + 3 * 4096
        for letter in letters:
            down, up = letter.asked().trees["down"], letter.answered().trees["upload"]
            assert isinstance(down.w, Missed)
            encoded = up.delta if case == "efl" else up.w
            assert encoded.dtype == torch.uint8


def test_a_silo_without_its_folder_starts_anew_and_is_sent_the_whole_model(tmp_path: Path) -> None:
    """It lost its disk between the coordinator's crash and resumption; the others go on as before."""
    settings = settings_of("apfl")
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, **FAST))
    gone = Reading(silos_in(tmp_path / "silos"), lambda letter: stop_in_round(letter, 2))
    with pytest.raises(UserError, match="0 of 3 silos"):
        coordinate(served, gone)
    shutil.rmtree(tmp_path / "silos" / "west")
    link = Reading(silos_in(tmp_path / "silos"))
    coordinate(ServedRun(tmp_path / "run"), link)
    first = {letter.name: letter.asked().trees for letter in link.letters[:3]}
    assert "first" in first["west"]
    assert isinstance(first["west"]["down"].w, dict)
    assert all(isinstance(letter.asked().trees["down"].w, Missed) for letter in link.letters[3:])


def test_a_silo_whose_folder_is_an_older_copy_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of("efl")
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, **FAST))
    silos = silos_in(tmp_path / "silos")

    def rewinding(letter: Letter) -> bytes:
        own = tmp_path / "silos" / "west" / served.name
        if letter.name == "west" and letter.asked().header["round"] == 1:
            shutil.copytree(own, tmp_path / "copy")
        if letter.name == "west" and letter.asked().header["round"] == 3:
            shutil.rmtree(own)
            shutil.copytree(tmp_path / "copy", own)
        return letter.answer

    with (
        pytest.raises(UserError, match="2 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Reading(silos, rewinding))
    assert caplog.text.count("west: refused: the copy of the shared model that is kept here is none") == 1


def stop_in_round(letter: Letter, number: int) -> bytes:
    return pack({"refused": "gone"}) if letter.asked().header["round"] == number else letter.answer


def with_stream(letter: Letter, change: Callable[[torch.Tensor], Any]) -> bytes:
    header, trees = letter.answered()
    return pack(header, {"upload": trees["upload"]._replace(delta=change(trees["upload"].delta))})


BAD_STREAMS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "cut": (lambda stream: stream[:-2], "payload does not fit"),
    "padded": (lambda stream: torch.cat([stream, stream[:3]]), "payload does not fit"),
    "huge": (lambda stream: torch.zeros(2**18, dtype=torch.uint8), "is longer than the"),
    "not bytes": (lambda stream: stream.double(), "something else where an encoded part"),
    "not a stream": (lambda stream: {"delta": stream}, "another structure, shape or type"),
    "infinite": (lambda stream: torch.full_like(stream, 255), "payload does not fit"),
}


@pytest.mark.parametrize("kind", BAD_STREAMS)
def test_a_malformed_stream_is_left_out_with_one_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, line = BAD_STREAMS[kind]
    settings = settings_of("efl")
    served = ServedRun.create(
        tmp_path / "run", deployed(settings, tmp_path, minimum_replies=2, most_megabytes=0.5, **FAST)
    )

    def meddle(letter: Letter) -> bytes:
        chosen = letter.name == "west" and letter.asked().header["round"] == 1
        return with_stream(letter, change) if chosen else letter.answer

    with caplog.at_level(logging.WARNING, logger="idiolect.silo"):
        coordinate(served, Reading(silos_in(tmp_path / "silos"), meddle))
    assert len(caplog.records) == 1
    assert line in caplog.text


def test_a_silo_refuses_a_malformed_stream_and_stays(tmp_path: Path) -> None:
    """The request of a second round, changed in the many ways of noise: refusals, then the right answer."""
    served = ServedRun.create(tmp_path / "run", deployed(settings_of("efl"), tmp_path))
    silos = silos_in(tmp_path / "silos")
    link = Reading(silos)
    coordinate(served, link)
    letter = link.letters[-1]
    header, trees = letter.asked()
    down = trees["down"]
    for payloads in (down.w.payloads[:-1], down.w.payloads.flip(0), torch.zeros(0, dtype=torch.uint8)):
        broken = down._replace(w=down.w._replace(payloads=payloads))
        refusal = unpack(silos[letter.name].answer(pack(header, {"down": broken}))).header
        assert "do not" in refusal["refused"] or "does not" in refusal["refused"]
    assert_identical(
        unpack(silos[letter.name].answer(letter.request)).trees["upload"], letter.answered().trees["upload"]
    )


def test_a_message_nested_beyond_measure_is_refused() -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    text = '{"__metadata__":{"idiolect":' + pack_text(deep) + "}}"
    message = len(text).to_bytes(8, "little") + text.encode()
    with pytest.raises(UserError, match="a message cannot be read"):
        unpack(message)


def pack_text(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
