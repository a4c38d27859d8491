"""What goes wrong between machines, and what is made of it: one line in the log, and the right numbers."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from idiolect.core import tree
from idiolect.errors import UserError
from idiolect.runs.checkpoint import newest_checkpoint
from idiolect.silo.coordinator import coordinate
from idiolect.silo.limits import Limits
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.wire import Packet, pack, unpack
from silo.problem import (
    SILOS,
    Direct,
    assert_same,
    config,
    deployed,
    last_saved,
    own_rows,
    silos_in,
    simulate,
)

APFL = {"name": "apfl", "local_steps": 2}
FAST = {"answer_seconds": 1, "patience_seconds": 1}


class Meddling(Direct):
    """A link that changes what silo `west` answers to its work in one round."""

    def __init__(
        self, silos: Mapping[str, Silo], change: Callable[[bytes], list[bytes | Unreachable]]
    ) -> None:
        super().__init__(silos)
        self.change = change

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            answer = self.silos[name].answer(message)
            header = unpack(message).header
            meddle = name == "west" and header["ask"] == "work" and header["round"] == 1
            for reply in self.change(answer) if meddle else [answer]:
                yield name, reply


def with_upload(answer: bytes, change: Callable[[Any], Any]) -> bytes:
    header, trees = unpack(answer)
    return pack(header, {"upload": change(trees["upload"])})


def with_header(answer: bytes, **changes: Any) -> bytes:
    header, trees = unpack(answer)
    return pack({**header, **changes}, trees)


def narrower(upload: Any) -> Any:
    return tree.map_tree(lambda leaf: leaf[..., :1], upload)


BAD_ANSWERS = {
    "NaN": (lambda a: [with_upload(a, lambda u: tree.scale(u, torch.nan))], "NaN or infinite"),
    "infinite": (lambda a: [with_upload(a, lambda u: tree.scale(u, torch.inf))], "NaN or infinite"),
    "shapes": (lambda a: [with_upload(a, narrower)], "another structure, shape or type"),
    "precision": (
        lambda a: [with_upload(a, lambda u: tree.map_tree(torch.Tensor.float, u))],
        "another structure, shape or type",
    ),
    "wrong round": (lambda a: [with_header(a, round=0)], "answered for round=0 instead of 1"),
    "wrong request": (lambda a: [with_header(a, request="x")], "answered another request"),
    "unreadable": (lambda a: [b"\x08" + a[1:]], "cannot be read"),
    "too large": (
        lambda a: [with_upload(a, lambda u: tree.map_tree(lambda x: torch.zeros(2**17), u))],
        "larger than the",
    ),
    "foreign class": (
        lambda a: [
            re.sub(rb"idiolect\.[\w.]+:\w+", lambda found: b"subprocess:".ljust(len(found[0]), b"x"), a)
        ],
        "is not part of",
    ),
    "lost": (lambda a: [Unreachable("no answer within 1 seconds")], "no answer within 1 seconds"),
}


@pytest.mark.parametrize("kind", BAD_ANSWERS)
def test_a_bad_answer_is_left_out_with_one_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run equals one in which that reply was lost on its way."""
    change, line = BAD_ANSWERS[kind]
    options = {"minimum_replies": 2, "most_megabytes": 0.5, **FAST}
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **options))
    with caplog.at_level(logging.WARNING, logger="idiolect.silo"):
        coordinate(served, Meddling(silos_in(tmp_path / "silos"), change))
    assert caplog.text.count(line) == 1
    simulation = simulate(config(APFL))
    simulation.plan = LostOnce(simulation.plan)
    simulation.play(3)
    saved = last_saved(served)
    assert_same(saved.server, simulation.server)


class LostOnce:
    """The plan of a simulation in which west's reply is lost in round 1."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.present = plan.present

    def cohort(self, seed: int, round_number: int, sizes: torch.Tensor) -> Any:
        cohort = self.plan.cohort(seed, round_number, sizes)
        if round_number == 1:
            cohort.replied[SILOS.index("west")] = False
        return cohort


def test_an_answer_that_comes_twice_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path))
    with caplog.at_level(logging.WARNING, logger="idiolect.silo"):
        coordinate(served, Meddling(silos_in(tmp_path / "silos"), lambda answer: [answer, answer]))
    assert caplog.text.count("answered twice") == 1
    saved = last_saved(served)
    assert_same(saved.server, simulate(config(APFL)).play(3).server)


def test_below_the_minimum_the_silo_is_asked_again_and_nothing_is_done_twice(tmp_path: Path) -> None:
    """The first answer is lost after the work was done; the second equals it."""
    tries: list[bytes] = []

    def lost_once(answer: bytes) -> list[bytes | Unreachable]:
        tries.append(answer)
        return [answer] if len(tries) > 1 else [Unreachable("gone")]

    settings = deployed(config(APFL), tmp_path)
    served = ServedRun.create(tmp_path / "run", settings)
    silos = silos_in(tmp_path / "silos")
    coordinate(served, Meddling(silos, lost_once))
    simulation = simulate(config(APFL)).play(3)
    saved = last_saved(served)
    assert_same(saved.server, simulation.server)
    assert_same(silos["west"]._vault(served.name).latest(), tree.row(simulation.clients(), 2))


def test_too_few_answers_stop_the_run_and_resuming_gives_the_undisturbed_models(tmp_path: Path) -> None:
    """Coordinator and silos start anew from their folders, as after a crash of both."""
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL, rounds=4), tmp_path, **FAST))
    gone = Meddling(silos_in(tmp_path / "silos"), lambda answer: [Unreachable("gone")])
    with pytest.raises(UserError, match="2 of 3 silos gave a usable answer and at least 3 are needed"):
        coordinate(served, gone)
    silos = silos_in(tmp_path / "silos")
    metrics = coordinate(ServedRun(tmp_path / "run"), Direct(silos)).metrics()
    simulation = simulate(config(APFL, rounds=4)).play(4)
    saved = last_saved(ServedRun(tmp_path / "run"))
    assert_same(saved.server, simulation.server)
    for number, name in enumerate(SILOS):
        assert_same(silos[name]._vault(served.name).latest(), tree.row(simulation.clients(), number))
    assert sorted(metrics["round"].unique()) == [0, 2, 4]


def test_a_run_that_stops_in_its_first_round_is_evaluated_from_its_beginning(tmp_path: Path) -> None:
    """Silos have worked already, but the coordinator has saved nothing: it asks as if they had not."""

    class Gone(Direct):
        def ask(
            self, requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | Unreachable]]:
            for name, answer in super().ask(requests, seconds):
                work = unpack(requests[name]).header["ask"] == "work"
                yield name, Unreachable("gone") if work and name == "west" else answer

    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **FAST))
    with pytest.raises(UserError, match="2 of 3 silos"):
        coordinate(served, Gone(silos_in(tmp_path / "silos")))
    again = coordinate(ServedRun(tmp_path / "run"), Direct(silos_in(tmp_path / "silos")))
    undisturbed = ServedRun.create(tmp_path / "other", deployed(config(APFL), tmp_path))
    expected = coordinate(undisturbed, Direct(silos_in(tmp_path / "others")))
    for name in ("metrics", "rounds", "traffic", "diagnostics"):
        pd.testing.assert_frame_equal(getattr(again, name)(), getattr(expected, name)())


REFUSALS = {
    "method": (
        {"limits": Limits(methods=("fedavg",))},
        "method=apfl is not admitted here; admitted are fedavg",
    ),
    "rounds": ({"limits": Limits(rounds=2)}, "rounds=3 is more than the 2 that are admitted here"),
    "size": ({"limits": Limits(megabytes=0.001)}, "is larger than the 1048 that are admitted"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_silo_refuses_what_is_outside_of_its_limits(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options, line = REFUSALS[kind]
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **FAST))
    silos = silos_in(tmp_path / "silos") | {"west": Silo("west", own_rows("west"), tmp_path / "w", **options)}
    with (
        pytest.raises(UserError, match="2 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Direct(silos))
    assert re.search(f"west: refused: .*{line}", caplog.text)


def test_a_model_larger_than_admitted_is_refused_before_it_takes_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(APFL, model={"name": "mlp", "hidden": [10**6, 10**6]})
    served = ServedRun.create(tmp_path / "run", deployed(settings, tmp_path, **FAST))
    with (
        pytest.raises(UserError, match="0 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Direct(silos_in(tmp_path / "silos")))
    assert re.search(r"west: refused: a model of \d{13} bytes is larger than the 536870912", caplog.text)


def test_more_steps_than_admitted_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **FAST))
    silos = silos_in(tmp_path / "silos", limits=Limits(steps=1))
    with (
        pytest.raises(UserError, match="0 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Direct(silos))
    assert "north: refused: 2 local steps are more than the 1 that are admitted here" in caplog.text


def test_an_altered_configuration_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator's folder is changed after the silos agreed."""
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **FAST))
    silos = silos_in(tmp_path / "silos")
    coordinate(served, Direct(silos))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("local_steps: 2", "local_steps: 3"))
    with (
        pytest.raises(UserError, match="0 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(ServedRun(tmp_path / "run"), Direct(silos))
    assert "was agreed with another config; an altered configuration needs a new run" in caplog.text


COLUMNS = {
    "missing": (lambda t: t.drop(columns="dose"), "missing: dose"),
    "extra": (lambda t: t.assign(phone=1), "not agreed: phone"),
    "class": (lambda t: t.replace("worse", "bad"), "holds 'bad'; the agreed classes are better, same, worse"),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_table_that_differs_is_refused_before_any_training(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, line = COLUMNS[kind]
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path, **FAST))
    silos = silos_in(tmp_path / "silos") | {"west": Silo("west", change(own_rows("west")), tmp_path / "w")}
    with (
        pytest.raises(UserError, match="2 of 3 silos"),
        caplog.at_level(logging.WARNING, logger="idiolect.silo"),
    ):
        coordinate(served, Direct(silos))
    assert line in caplog.text
    assert newest_checkpoint(tmp_path / "run" / "checkpoints") is None


def test_a_silo_can_keep_its_metrics(tmp_path: Path) -> None:
    served = ServedRun.create(tmp_path / "run", deployed(config(APFL), tmp_path))
    run = coordinate(served, Direct(silos_in(tmp_path / "silos", shares_metrics=False)))
    assert run.metrics().empty
    assert run.summary()["kinds"]["personal"]["clients"] == 0


class Watching(Direct):
    """A link that keeps the last request of each silo to evaluate."""

    def __init__(self, silos: Mapping[str, Silo]) -> None:
        super().__init__(silos)
        self.seen: dict[str, Packet] = {}

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, message in requests.items():
            if unpack(message).header["ask"] == "evaluate":
                self.seen[name] = unpack(message)
        return super().ask(requests, seconds)


def test_no_silo_is_told_who_else_took_part(tmp_path: Path) -> None:
    """EFL's server counts replies and knows who holds which model; to predict, the model is enough."""
    served = ServedRun.create(tmp_path / "run", deployed(config({"name": "efl"}), tmp_path))
    link = Watching(silos_in(tmp_path / "silos"))
    coordinate(served, link)
    for _, trees in link.seen.values():
        sent = tree.to_named(trees["brief"])
        assert sent
        assert all(name.startswith("w/") for name in sent)


def test_no_silo_is_told_of_anothers_model(tmp_path: Path) -> None:
    """PERM's server holds everybody's model; each silo gets its own only."""
    served = ServedRun.create(
        tmp_path / "run", deployed(config({"name": "perm", "local_steps": 2}), tmp_path)
    )
    link = Watching(silos_in(tmp_path / "silos"))
    coordinate(served, link)
    saved = last_saved(served)
    for number, name in enumerate(SILOS):
        brief = link.seen[name].trees["brief"]
        assert_same(brief.v, tree.row(saved.server.v, number))
        assert brief._fields == ("w", "v")
