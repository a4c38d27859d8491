"""Two processes and one folder: the second one is told so, and nothing is harmed."""

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
import pytest

import idiolect
from idiolect.errors import UserError
from idiolect.runs.folder import RunFolder
from idiolect.runs.lock import alone_in
from matrix.problem import invoke

RUN = ("method=fedavg", "data=vowels", "rounds=3", "evaluation.every=3", "engine=sequential", "local_steps=1")
FORK = multiprocessing.get_context("fork")


class Waiting:
    """Tells that the first round was played, and then waits to be ended or to be let go."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def played(self, round_number: int) -> None:
        if round_number == 1:
            self.pipe.send("playing")
            self.pipe.recv()

    def evaluated(self, round_number: int, metrics: pd.DataFrame) -> None:
        pass


def _play(settings: tuple[str, ...], out: Path, pipe: Connection) -> None:
    play = idiolect.compare if settings[0].startswith("methods") else idiolect.run
    play(*settings, out=out, watch=lambda config: [Waiting(pipe)])
    pipe.send("finished")


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_second_process_is_told_and_the_lock_goes_with_the_first(command: str, tmp_path: Path) -> None:
    settings = RUN if command == "run" else ("methods=fedavg", *RUN[1:])
    ours, theirs = FORK.Pipe()
    out = tmp_path / "out"
    first = FORK.Process(target=_play, args=(settings, out, theirs))
    first.start()
    assert ours.recv() == "playing"
    for second in ((command, *settings, f"out={out}"), ("resume", out)):
        said = invoke(*second, mistake=True)
        assert said.startswith(f"error: {str(out)!r} is in use")
        assert said.count("\n") == 1
    first.kill()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    assert "fedavg" in invoke("resume", out)
    whole = idiolect.run(*RUN, out=tmp_path / "whole")
    finished = out if command == "run" else out / "fedavg-seed0"
    pd.testing.assert_frame_equal(RunFolder(finished).metrics(), whole.metrics())


def _start(out: Path, pipe: Connection) -> None:
    try:
        idiolect.run(*RUN, out=out)
        pipe.send("finished")
    except UserError as error:
        pipe.send(str(error))


def test_processes_that_start_at_once_make_one_run(tmp_path: Path) -> None:
    pipes = [FORK.Pipe() for _ in range(4)]
    processes = [FORK.Process(target=_start, args=(tmp_path / "out", theirs)) for _, theirs in pipes]
    for process in processes:
        process.start()
    said = [ours.recv() for ours, _ in pipes]
    for process in processes:
        process.join()
    assert "finished" in said
    assert all(one == "finished" or "is in use" in one for one in said)
    assert RunFolder(tmp_path / "out").summary()["kinds"]["global"]["round"] in (0, 3)


def test_a_folder_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone_in(tmp_path):
        raise ZeroDivisionError
    with alone_in(tmp_path), pytest.raises(UserError, match="is in use"), alone_in(tmp_path):
        pass
