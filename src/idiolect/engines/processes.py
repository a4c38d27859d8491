"""One client at a time in parallel processes: for models that cannot be stacked.

Every process has the data and does the sequential engine's work for one client after the other; states and
messages travel. The numbers are those of the sequential engine.
"""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch import Tensor

from idiolect.core.method import ClientState, Cohort, Exchange, ServerState, Site
from idiolect.data.federation import Rows
from idiolect.engines.base import Outcome, Setting
from idiolect.engines.sequential import Result, Sequential, Task

# Forked processes share the data and know classes that were defined in a script or a notebook. They never
# touch the threads of their parent, because each works with one thread; elsewhere forking is not safe.
_START = "fork" if sys.platform == "linux" else "spawn"


class Processes:
    """Runs clients one by one, as many at a time as there are cores."""

    def __init__(self, setting: Setting, workers: int | None = None) -> None:
        self.setting = setting
        self.workers = workers or os.cpu_count() or 1
        self._sequential = Sequential(setting, self._apply)
        self._pool: ProcessPoolExecutor | None = None

    def run(self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int) -> Outcome:
        """Carry out one exchange."""
        return self._sequential.run(exchange, server, cohort, round_number)

    def survey(
        self, look: Callable[[ClientState, Site], Any], part: Rows, ids: Tensor, round_number: int
    ) -> Any:
        """Apply a pure function to every client, in this process; the results are stacked."""
        return self._sequential.survey(look, part, ids, round_number)

    def _apply(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """The results of the tasks, in their order."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context(_START),
                initializer=_start_worker,
                initargs=(work,),
            )
        # Plain bytes: tensors in shared memory would need an open file each.
        yield from map(pickle.loads, self._pool.map(_work, map(pickle.dumps, tasks)))


_worker_work: Callable[[Task], Result]  # in a worker process: the sequential engine's work


def _start_worker(work: Callable[[Task], Result]) -> None:
    global _worker_work
    torch.set_num_threads(1)
    _worker_work = work


def _work(task: bytes) -> bytes:
    return pickle.dumps(_worker_work(pickle.loads(task)))
