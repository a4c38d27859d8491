"""What people see of a deployment: one status, the same in the terminal, on the page and after a restart."""

import dataclasses
import io
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from idiolect.errors import UserError
from idiolect.silo import live_page, terminal
from idiolect.silo.coordinator import coordinate
from idiolect.silo.requests import Unreachable
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.silo.status import PHASES, RoundRecord, SiloStatus, Status, Warned
from idiolect.silo.wire import unpack
from reports.reading import tables
from silo.problem import SILOS, Direct, config, deployed, own_rows, silos_in, simulate

APFL = {"name": "apfl", "local_steps": 2}
ANSWERING = {"name": 0.25, "hello": 0.5, "work": 4.0, "evaluate": 2.0}  # seconds that silos take
TRIFLE, MANY = 2**-20, 10_000


class Watching:
    """A view that keeps all that it is shown."""

    def __init__(self) -> None:
        self.seen: list[Status] = []

    def show(self, status: Status) -> None:
        self.seen.append(status)

    @property
    def last(self) -> Status:
        return self.seen[-1]


class Clock:
    """Time passes only while silos answer, and by a trifle whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += TRIFLE
        return self.now

    time = monotonic


class Weighing(Direct):
    """A link that weighs what it carries, and on which every kind of request takes its time."""

    def __init__(self, silos: Mapping[str, Silo], clock: Clock) -> None:
        super().__init__(silos)
        self.clock = clock
        self.down = dict.fromkeys(SILOS, 0)
        self.up = dict.fromkeys(SILOS, 0)
        self.asked: list[str] = []

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        self.asked.append(unpack(next(iter(requests.values()))).header["ask"])
        self.clock.now += ANSWERING[self.asked[-1]]
        for name, reply in super().ask(requests, seconds):
            assert isinstance(reply, bytes)
            self.down[name] += len(requests[name])
            self.up[name] += len(reply)
            yield name, reply


class Away(Direct):
    """A link on which one silo cannot be reached at some requests."""

    def __init__(self, silos: Mapping[str, Silo], name: str, when: range) -> None:
        super().__init__(silos)
        self.name = name
        self.when = when
        self.asked = 0

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Unreachable]]:
        for name, reply in super().ask(requests, seconds):
            away = name == self.name and self.asked in self.when
            self.asked += name == self.name
            yield name, Unreachable("not connected") if away else reply


def new_run(folder: Path, rounds: int = 3, **options: Any) -> ServedRun:
    settings = deployed(config(APFL, rounds), folder, **options)
    quick = dataclasses.replace(settings.patience, pause_seconds=0.01)
    return ServedRun.create(folder / "run", dataclasses.replace(settings, patience=quick))


def test_rounds_times_and_bytes_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, view = Clock(), Watching()
    monkeypatch.setattr("idiolect.silo.monitor.time", clock)
    folder, link = new_run(tmp_path), Weighing(silos_in(tmp_path / "silos"), clock)
    coordinate(folder, link, [view])
    status = view.last
    assert (status.state, status.done, status.seconds_left) == ("finished", 3, None)
    assert [record.round for record in status.history] == [0, 1, 2, 3]
    for silo in status.silos:
        assert (silo.down_bytes, silo.up_bytes) == (link.down[silo.name], link.up[silo.name])
    assert status.down_bytes == sum(link.down.values())
    assert status.up_bytes == sum(link.up.values())
    assert status.history[0].down_bits == 0
    for record in status.history[1:]:
        assert record.seconds["silos"] == pytest.approx(ANSWERING["work"], abs=MANY * TRIFLE)
        assert 0 < record.seconds["saving"] < MANY * TRIFLE
        assert 8 * record.up_bytes > record.up_bits > 0
    assert (status.history[1].seconds["evaluation"], status.history[1].seconds["greeting"]) == (0, 0)
    for number in (0, 2, 3):
        own = status.history[number].seconds["evaluation"]
        assert own == pytest.approx(ANSWERING["evaluate"], abs=MANY * TRIFLE)
    assert link.asked.count("work") == 3
    passed = sum(ANSWERING[asked] for asked in link.asked)
    assert sum(status.phase_seconds.values()) == pytest.approx(passed, abs=MANY * TRIFLE)
    table = pd.read_parquet(tmp_path / "run" / "progress.parquet")
    assert table["up_bytes"].tolist() == [record.up_bytes for record in status.history]


def test_silos_tell_their_last_metrics_or_keep_them(tmp_path: Path) -> None:
    silos = silos_in(tmp_path / "silos")
    silos["south"] = Silo("south", own_rows("south"), tmp_path / "s", shares_metrics=False)
    view = Watching()
    metrics = coordinate(new_run(tmp_path), Direct(silos), [view]).metrics()
    last = metrics[(metrics["round"] == 3) & (metrics.metric == "accuracy")]
    north, south, west = view.last.silos
    for silo in (north, west):
        own = last[last.client == silo.name]
        assert silo.shares
        for part in ("validation", "test"):
            table = own[own.part == part].set_index("kind").value
            assert silo.metrics[part] == table.to_dict()
    assert (south.shares, south.metrics) == (False, {})
    assert [silo.rows for silo in view.last.silos] == simulate(config(APFL)).federation.train.sizes.tolist()
    assert {silo.answer for silo in view.last.silos} == {"evaluation after round 3"}
    assert view.last.parts == ("validation", "test")
    assert view.last.kinds == ("global", "localized", "personal")


def test_who_is_away_and_who_is_back(tmp_path: Path) -> None:
    """West answers at its third greeting."""
    view = Watching()
    coordinate(new_run(tmp_path), Away(silos_in(tmp_path / "silos"), "west", range(2)), [view])
    seen = [status.silos[2].connection for status in view.seen]
    story = [word for word, before in zip(seen, [None, *seen], strict=False) if word != before]
    assert story[:4] == ["not asked yet", "asked", "not connected", "connected"]
    waiting = [s.headline for s in view.seen if s.phase == "greeting"]
    assert "waiting for silos: 2 of 3 have answered" in waiting
    assert [warned.line for warned in view.last.warnings] == [
        "west: not connected",
        "2 of at least 3 answers; asking again: west",
    ]
    assert {s.headline for s in view.seen} >= {
        "round 1 of 3: silos at work",
        "evaluation before round 1",
        "saving after round 2 of 3",
        "evaluation after round 2 of 3",
        "round 3 of 3: silos at work",
        "finished after round 3",
    }


def test_an_answer_of_no_use_is_told(tmp_path: Path) -> None:
    class Garbled(Direct):
        def ask(
            self, requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | Unreachable]]:
            for name, reply in super().ask(requests, seconds):
                work = unpack(requests[name]).header["ask"] == "work"
                yield name, b"nonsense" if name == "west" and work else reply

    view = Watching()
    coordinate(new_run(tmp_path, minimum_replies=2), Garbled(silos_in(tmp_path / "silos")), [view])
    answers = [status.silos[2].answer for status in view.seen]
    assert "round 1: not usable" in answers
    assert "round 1: not usable" not in [status.silos[1].answer for status in view.seen]


def test_a_continued_run_shows_all_rounds(tmp_path: Path) -> None:
    """West is lost in round 3; after the restart sums go on, and a round that was not saved is dropped."""
    first, second = Watching(), Watching()
    # West's requests: greeting, evaluation, round 1, round 2, evaluation; then it is gone.
    folder = new_run(tmp_path, rounds=4, patience_seconds=0.1)
    with pytest.raises(UserError, match="2 of 3 silos"):
        coordinate(folder, Away(silos_in(tmp_path / "silos"), "west", range(5, 10**6)), [first])
    stopped = first.last
    assert stopped.headline.startswith("stopped after round 2 of 4: 2 of 3 silos gave a usable answer")
    assert [silo.connection for silo in stopped.silos] == ["connected", "connected", "not connected"]
    table = tmp_path / "run" / "progress.parquet"
    noted = pd.read_parquet(table)
    unsaved = noted.tail(1).assign(round=3)
    pd.concat([noted, unsaved]).to_parquet(table)

    coordinate(ServedRun(tmp_path / "run"), Direct(silos_in(tmp_path / "silos")), [second])
    begin, end = second.seen[0], second.last
    assert {silo.connection for silo in begin.silos} == {"not heard since the restart"}
    assert begin.warnings == stopped.warnings
    assert [silo.metrics for silo in begin.silos] == [silo.metrics for silo in stopped.silos]
    assert [record.round for record in end.history] == [0, 1, 2, 3, 4]
    assert end.history[:3] == begin.history[:3]
    assert end.history[3].seconds["greeting"] > 0
    for before, after in zip(stopped.silos, end.silos, strict=True):
        assert after.down_bytes > before.down_bytes > 0
    assert end.state == "finished"


def test_a_page_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "WRITE_SECONDS", 0.001)  # it is tried more than once, and said once
    view = Watching()
    nowhere = live_page.PageView(tmp_path / "nowhere" / "report.html", "")
    with caplog.at_level(logging.WARNING, logger="idiolect.silo"), nowhere.kept_up_to_date():
        coordinate(new_run(tmp_path), Direct(silos_in(tmp_path / "silos")), [nowhere, view])
    assert view.last.state == "finished"
    assert caplog.text.count("could not be written") == 1


def test_without_the_extra_there_is_no_page_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_run(tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)  # as if it were not installed
    with caplog.at_level(logging.INFO, logger="idiolect.silo"):
        assert live_page.page_view(folder) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no report page: it needs pip install 'idiolect[report]'"
    ]


def test_the_page_is_written_while_the_run_goes_on_and_is_final_at_the_end(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    view = live_page.page_view(folder)
    assert view is not None
    pages: list[str] = []

    class Slow(Direct):
        """Its silos need longer for round 2 than it takes until the page is written."""

        def ask(
            self, requests: Mapping[str, bytes], seconds: float
        ) -> Iterator[tuple[str, bytes | Unreachable]]:
            header = unpack(next(iter(requests.values()))).header
            if header["ask"] == "work" and header["round"] == 1:
                time.sleep(2 * live_page.WRITE_SECONDS)
                pages.append(view.path.read_text())
            return super().ask(requests, seconds)

    with view.kept_up_to_date():
        coordinate(folder, Slow(silos_in(tmp_path / "silos")), [view])
    (during,), after = pages, view.path.read_text()
    assert "Round 2 of 3: silos at work" in during
    assert [row[0] for row in tables(during)["rounds"][1:]] == ["1", "before 1"]
    assert [row[1] for row in tables(during)["silos"][1:]] == ["at work"] * 3
    assert "Finished after round 3" in after
    assert [row[0] for row in tables(after)["rounds"][1:]] == ["3", "2", "1", "before 1"]
    assert ('http-equiv="refresh"' in during, 'http-equiv="refresh"' in after) == (True, False)


# The renderers, on a status written by hand.

SECONDS = dict(zip(PHASES, (0.0, 3.0, 0.25, 1.0, 0.5), strict=True))
STATUS = Status(
    run="apfl-1a2b",
    method="apfl",
    metric="accuracy",
    judged_by="personal",
    rounds=6,
    state="running",
    reason="",
    phase="silos",
    phase_since=1_000_000_090.0,
    now=1_000_000_100.0,
    silos=(
        SiloStatus(
            "north",
            rows=12,
            asked=1_000_000_091.0,
            heard=1_000_000_089.0,
            answer="round 2",
            down_bytes=4_000_000,
            up_bytes=1_500,
            shares=True,
            metrics={"validation": {"global": 0.5, "personal": 0.875}, "test": {"personal": 0.25}},
        ),
        SiloStatus("so<u>th", heard=999_992_810.0, trouble="not connected", shares=False),
        SiloStatus("west"),
    ),
    history=(
        RoundRecord(0, 0, 0, 700, 300, dict.fromkeys(PHASES, 2.0)),
        RoundRecord(1, 8_000, 16_000, 5_000_000, 1_200, SECONDS),
        RoundRecord(2, 8_000, 16_000, 6_000_000, 1_300, SECONDS),
    ),
    warnings=(Warned(1_000_000_010.0, "so<u>th: gone"), Warned(1_000_000_020.0, "so<u>th: still gone")),
)


def test_sums_and_what_is_left() -> None:
    assert STATUS.seconds_left == pytest.approx(4 * 4.75)  # four rounds of 4.75 s
    assert STATUS.phase_seconds["silos"] == 2 + 3 + 3
    assert (STATUS.down_bytes, STATUS.up_bytes) == (11_000_700, 2_800)
    assert STATUS.headline == "round 3 of 6: silos at work"


def test_the_page_shows_the_status_and_needs_nothing_else() -> None:
    text = live_page.draw(STATUS, "rounds: 6")
    silos = {row[0]: row[1:] for row in tables(text)["silos"][1:]}
    assert silos["north"] == [
        "at work",
        "01:48:09 UTC",
        "round 2",
        "12",
        "4.00 MB",
        "1.5 kB",
    ]
    assert silos["so<u>th"][:2] == ["not connected", "2001-09-08 23:46:50 UTC"]
    assert silos["west"] == ["not asked yet", "never", "", "", "0.00 MB", "0.00 MB"]
    metrics = {row[0]: row[1:] for row in tables(text)["metrics"][2:]}
    assert metrics == {
        "north": ["50.0 %", "87.5 %", "–", "25.0 %"],
        "so<u>th": ["not shared"] * 4,
        "west": [""] * 4,
    }
    rounds = tables(text)["rounds"][1:]
    assert [row[0] for row in rounds] == ["2", "1", "before 1"]
    assert rounds[0][1:] == [
        *("4.8 s", "0.0 s", "3.0 s", "0.2 s", "1.0 s", "0.5 s"),
        *("1.0 kB", "2.0 kB", "6.00 MB", "1.3 kB"),
    ]
    assert text.index("still gone") < text.index("so&lt;u&gt;th: gone")
    assert '<meta http-equiv="refresh" content="5">' in text
    assert "<u>" not in text
    assert "<script" not in text
    assert re.findall(r"""(?:src|href)=""", text) == []


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_the_page_of_a_run_that_is_over_does_not_refresh_itself(state: Any) -> None:
    text = live_page.draw(dataclasses.replace(STATUS, state=state, reason="too few answers"), "")
    assert "http-equiv" not in text
    assert ("too few answers" in text) == (state == "stopped")


def drawn(status: Status, now: float) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal.draw(status, now))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_shows_the_same_and_time_goes_on() -> None:
    lines = drawn(STATUS, STATUS.now + 20).splitlines()
    assert "round 3 of 6: silos at work" in lines[0]
    assert "30 s" in lines[0]  # since the phase began
    assert lines[2].split() == ["validation"]
    assert re.split(r"\s{2,}", lines[3].strip()) == [
        *("silo", "connection", "silent for", "last answer", "down", "up", "accuracy")
    ]
    north, south, west = (next(line for line in lines if line.startswith(s.name)) for s in STATUS.silos)
    assert re.split(r"\s{2,}", north.strip()) == [
        *("north", "at work for 29 s", "31 s", "round 2", "4.00 MB", "1.5 kB", "87.5 %")
    ]
    assert "not connected" in south
    assert south.rstrip().endswith("not shared")
    assert "not asked yet" in west
    assert "11.00 MB down, 2.8 kB up" in "".join(lines)
    assert "2 warnings; the last: so<u>th: still gone" in "".join(lines)


def test_of_many_silos_those_in_trouble_are_shown() -> None:
    silos = tuple(SiloStatus(f"silo-{n:03d}", trouble="not connected" * (n == 777)) for n in range(1000))
    text = drawn(dataclasses.replace(STATUS, silos=silos), STATUS.now)
    assert "silo-777" in text
    assert "silo-018" in text
    assert "silo-019" not in text
    assert "and 980 more" in text


def test_a_terminal_view_draws_in_place() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    view = terminal.TerminalView(console)
    with view.on_screen():
        terminal.ConsoleHandler(console).emit(
            logging.LogRecord("idiolect", logging.INFO, "", 0, "a line with [brackets]", None, None)
        )
        view.show(STATUS)
    assert isinstance(console.file, io.StringIO)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert "a line with [brackets]" in text
    assert "round 3 of 6: silos at work" in text
