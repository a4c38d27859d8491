"""Both sides can look up who asked what; a line that was changed or taken out shows."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import idiolect
from idiolect.cli import app
from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.silo.audit import FILE, AuditedLink, AuditLog, read_audit
from idiolect.silo.coordinator import coordinate
from idiolect.silo.history import go_back
from idiolect.silo.requests import NotConnected, Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.wire import pack, unpack
from silo.letters import answer, asked, changed, honest, north, refusal
from silo.problem import Direct, assert_same, config, deployed, last_saved, silos_in, simulate

FAST = {"answer_seconds": 1, "patience_seconds": 1}


def test_every_request_is_noted_on_both_sides(tmp_path: Path) -> None:
    settings = deployed(config({"name": "apfl", "local_steps": 2}, rounds=1), tmp_path)
    served = ServedRun.create(tmp_path / "run", settings)
    coordinate(served, Direct(silos_in(tmp_path / "silos")))
    here, there = read_audit(tmp_path / "run"), read_audit(tmp_path / "silos" / "north")
    assert here.broken is None
    assert there.broken is None
    noted = [(entry["ask"], entry["question"], entry["answer"]) for entry in there.entries]
    told = [(e["ask"], e["question"], e["answer"]) for e in here.entries if e["silo"] == "north"]
    assert noted == told
    assert [ask for ask, _, _ in noted] == ["hello", "evaluate", "work", "evaluate"]
    assert {entry["outcome"] for entry in here.entries} == {"answered"}


def test_refusals_are_noted_and_changes_show(tmp_path: Path) -> None:
    silo = north(tmp_path)
    answer(silo, asked(honest("apfl"), "hello"))
    refusal(silo, changed(asked(honest("apfl"), "work"), round=10**9))
    silo.answer(b"\x1b[2J nothing")
    answer(north(tmp_path), asked(honest("apfl"), "work"))  # after a restart
    entries, broken = read_audit(tmp_path)
    assert broken is None
    assert [entry["outcome"].split(":")[0] for entry in entries] == [
        "answered",
        "refused",
        "refused",
        "answered",
    ]
    assert entries[1]["round"] == 10**9
    lines = (tmp_path / FILE).read_text().splitlines()
    assert all(line.isprintable() for line in lines)
    shown = CliRunner().invoke(app, ["silo", "audit", str(tmp_path), "--refused", "--json"])
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)["entries"]) == 2
    for spoilt in (lines[:1] + lines[2:], [lines[0].replace("answered", "refused!"), *lines[1:]]):
        (tmp_path / FILE).write_text("\n".join(spoilt) + "\n")
        assert read_audit(tmp_path).broken == 2
        assert CliRunner().invoke(app, ["silo", "audit", str(tmp_path)]).exit_code == 1


def test_a_silo_that_is_away_is_noted_once_until_it_is_back(tmp_path: Path) -> None:
    """It is looked for every second, perhaps for hours, and sent nothing."""
    replies = [NotConnected("not connected")] * 3 + [Unreachable("connection lost")] * 2
    replies += (
        [NotConnected("not connected")] * 2 + [pack({"ask": "hello"})] + [NotConnected("not connected")]
    )
    told = iter(replies)

    class Away:
        def ask(self, requests: Mapping[str, bytes], _: float) -> Iterator[tuple[str, bytes | Unreachable]]:
            yield from ((name, next(told)) for name in requests)

    link = AuditedLink(Away(), AuditLog(tmp_path))
    passed = [reply for _ in replies for _, reply in link.ask({"north": pack({"ask": "hello"})}, 1)]
    assert passed == replies
    assert [entry["outcome"] for entry in read_audit(tmp_path).entries] == [
        "no answer: not connected",
        "no answer: connection lost",
        "no answer: connection lost",
        "no answer: not connected",
        "answered",
        "no answer: not connected",
    ]


def test_after_a_power_cut_in_the_middle_of_a_line_there_are_new_ones(tmp_path: Path) -> None:
    """The torn line shows; it neither takes the next one with it nor stops the silo."""
    log = AuditLog(tmp_path)
    for number in range(2):
        log.note("login", f"Grüße {number}")
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: whole.rindex("ü".encode()) + 1])  # half a letter is left
    again = AuditLog(tmp_path)
    for number in range(2):
        again.note("login", f"again {number}")
    entries, broken = read_audit(tmp_path)
    assert [entry["outcome"] for entry in entries] == ["Grüße 0", "unreadable", "again 0", "again 1"]
    assert broken == 2


def test_a_log_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        AuditLog(tmp_path).note("login", "refused")


def test_there_is_nothing_to_look_up(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no audit"):
        idiolect.silo_audit(tmp_path)


def test_a_silo_goes_back_by_its_own_will_only(tmp_path: Path) -> None:
    """After its leave, and only then, a round is played again with another message."""
    silo = north(tmp_path)
    answer(silo, asked(honest("apfl"), "hello"))
    works = [asked(honest("apfl"), "work", number) for number in range(2)]
    for work in works:
        answer(silo, work)
    answer(silo, asked(honest("apfl"), "evaluate", 1))
    other = changed(works[1], {"down": tree.scale(unpack(works[1]).trees["down"], 0.9)})
    refusal(silo, other)
    said = CliRunner().invoke(app, ["silo", "back", "--state", str(tmp_path), "--to", "1"])
    assert said.exit_code == 0, said.output
    assert "exchanges forgotten: 1" in said.output
    assert "refused" not in answer(silo, other).header
    refusal(silo, works[1])
    for _ in range(2):
        assert "refused" not in answer(silo, asked(honest("apfl"), "evaluate", 1)).header


def test_a_run_goes_back_where_all_agree(tmp_path: Path) -> None:
    """From round 4 to round 2, and all ends as if nothing had been."""
    settings = deployed(config({"name": "apfl", "local_steps": 2}, rounds=5), tmp_path, **FAST)
    served = ServedRun.create(tmp_path / "run", settings)
    silos = silos_in(tmp_path / "silos", keep_rounds=4)
    with pytest.raises(UserError, match="0 of 3 silos"):
        coordinate(served, Spoiling(silos))
    assert last_saved(served).round == 4
    with pytest.raises(UserError, match="the rounds that are kept are from 1 to 4"):
        go_back(served, 7)
    go_back(served, 2)
    assert last_saved(served).round == 2
    with pytest.raises(UserError, match="was asked for already, by another message"):
        coordinate(ServedRun(tmp_path / "run"), Direct(silos))
    for name in silos:
        assert idiolect.silo_back(state=tmp_path / "silos" / name, to=2) == 3  # one more than was absorbed
    go_back(served, 2)
    coordinate(ServedRun(tmp_path / "run"), Direct(silos_in(tmp_path / "silos")))
    simulation = simulate(config({"name": "apfl", "local_steps": 2})).play(5)
    assert_same(last_saved(served).server, simulation.server)
    assert served.folder.metrics()["round"].unique().tolist() == [0, 2, 4, 5]


class Spoiling(Direct):
    """From round 2 on west's uploads are ten times what they are, and nobody answers in round 4."""

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, reply in super().ask(requests, seconds):
            assert isinstance(reply, bytes)
            header, trees = unpack(reply)
            if header.get("ask") == "work" and header["round"] == 4:
                yield name, pack({"refused": "something is wrong"})
            elif name == "west" and header.get("ask") == "work" and header["round"] >= 2:
                yield name, pack(header, tree.scale(trees, 10.0))
            else:
                yield name, reply


class PowerCut(Direct):
    """A link that breaks when the second exchange of round 1 has been answered by some."""

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, reply in super().ask(requests, seconds):
            header = unpack(requests[name]).header
            if (header.get("round"), header.get("place")) == (1, 1):
                raise KeyboardInterrupt
            yield name, reply


def test_a_coordinator_that_stops_between_exchanges_repeats_both(tmp_path: Path) -> None:
    """DRFA trains and then asks for losses: silos answer the same messages again, and only these."""
    settings = config({"name": "drfa", "local_steps": 2}, rounds=3)
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, **FAST))
    with pytest.raises(KeyboardInterrupt):
        coordinate(served, PowerCut(silos_in(tmp_path / "silos")))
    coordinate(ServedRun(tmp_path / "run"), Direct(silos_in(tmp_path / "silos")))
    assert_same(last_saved(served).server, simulate(settings).play(3).server)
