"""The runs of recipes, several at once; what is there already is not computed again."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from idiolect.errors import UserError
from idiolect.reproduction.plan import Plan
from idiolect.runs.config import RunConfig, resolve
from idiolect.runs.lifecycle import start_or_continue
from idiolect.runs.settings import Settings

Told = Callable[[str, int, int], None]  # the recipe that is played, how many runs are done, and of how many


class Account(NamedTuple):
    """How the playing went."""

    failures: dict[str, str]  # why runs failed, by their folders' names
    late: bool  # whether the budget was spent; what was begun goes on next time


def play_plans(
    plans: Sequence[Plan],
    told: Told = lambda recipe, done, total: None,
    *,
    jobs: int | None = None,
    budget: float | None = None,
) -> Account:
    """Play what is missing, recipe by recipe; a recipe that cannot be played does not stop the others.

    jobs: processes at once, 1 for this one alone; None: as many as there are processors.
    budget: seconds after which no further run begins.
    """
    deadline = None if budget is None else time.monotonic() + budget
    player = _Player(plans, told, jobs or os.cpu_count() or 1, deadline)
    try:
        for plan in plans:
            player.play(plan.recipe.name, [config for trials in plan.trials.values() for _, config in trials])
            if plan.why_undecided() is None:
                player.play(plan.recipe.name, [run.config for run in plan.runs()])
    except _LateError:
        return Account(player.failures, late=True)
    except BrokenProcessPool as broken:
        raise UserError(
            "a process that played runs was ended from outside, as for want of memory; the same command, "
            "with a smaller --jobs, goes on"
        ) from broken
    finally:
        player.close()
    return Account(player.failures, late=False)


class _LateError(Exception):
    """The budget is spent."""


class _Player:
    """A few processes, and an account of what is done."""

    def __init__(self, plans: Sequence[Plan], told: Told, jobs: int, deadline: float | None) -> None:
        self.told, self.jobs, self.deadline = told, jobs, deadline
        self.total = sum(plan.number_of_runs for plan in plans)
        self.done: set[Path] = set()
        self.failures: dict[str, str] = {}
        self.pool: ProcessPoolExecutor | None = None

    def play(self, recipe: str, configs: Iterable[RunConfig]) -> None:
        """Play those that are missing."""
        waiting = []
        for config in {config.folder: config for config in configs}.values():
            if config.folder in self.done or (config.folder / "summary.json").is_file():
                self._count(recipe, config.folder)
            else:
                waiting.append(config)
        if self.jobs == 1:
            for config in waiting:
                self._refuse_if_late()
                self._ended(recipe, config, _play(config.plain(), config.folder))
        else:
            self._play_at_once(recipe, waiting)

    def _play_at_once(self, recipe: str, waiting: list[RunConfig]) -> None:
        running: dict[Future[str | None], RunConfig] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs and not self._late:
                config = waiting.pop(0)
                running[self._pool.submit(_play, config.plain(), config.folder)] = config
            if not running:
                self._refuse_if_late()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self._ended(recipe, running.pop(future), future.result())

    def _refuse_if_late(self) -> None:
        if self._late:
            raise _LateError

    def _ended(self, recipe: str, config: RunConfig, reason: str | None) -> None:
        if reason is not None:
            self.failures[config.folder.name] = reason
        self._count(recipe, config.folder)

    def close(self) -> None:
        """End the processes, also in the midst of a run."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()

    @property
    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def _pool(self) -> ProcessPoolExecutor:
        if self.pool is None:
            # Not forked: torch's threads do not survive it.
            spawning = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(self.jobs, spawning, _end_with_parent, (os.getpid(),))
        return self.pool

    def _count(self, recipe: str, folder: Path) -> None:
        self.done.add(folder)
        self.told(recipe, min(len(self.done), self.total), self.total)


def _end_with_parent(parent: int) -> None:
    """A process whose parent was killed ends too, instead of playing on for nobody."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _play(settings: Settings, folder: Path) -> str | None:
    """One run; why it failed, if it did."""
    try:
        start_or_continue(resolve({**settings, "out": str(folder)}))
    except UserError as error:
        return str(error)
    except Exception as error:  # a run that fails does not take the others with it
        return f"{type(error).__name__}: {error}"
    return None
