"""Clients that are computed one at a time, in several threads: torch lets others run while it computes."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from idiolect.core.objective import Objective

Task = TypeVar("Task")
Result = TypeVar("Result")


class ClientThreads:
    """As many threads as torch may use, each with one client at a time and one thread of torch's own.

    So a client's numbers do not depend on how many threads there are. Every client under way has a copy of
    the model, because parameters are put into a model while it computes.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._spare: list[Objective] = []
        try:
            self._spare.append(copy.deepcopy(objective))
        except Exception:  # a module that keeps its own results, or a lock, or a file: no threads for it
            self._can_be_copied = False
        else:
            self._can_be_copied = True

    def map(self, work: Callable[[Objective, Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """The results of some tasks, in their order; few of them are under way or waiting at a time."""
        allowed = torch.get_num_threads()
        threads = allowed if self._can_be_copied else 1
        torch.set_num_threads(1)
        try:
            if threads == 1:
                yield from (work(self._objective, task) for task in tasks)
                return
            with ThreadPoolExecutor(threads) as pool:
                under_way: deque[Future[Result]] = deque()
                for task in tasks:
                    under_way.append(pool.submit(self._with_own_model, work, task))
                    if len(under_way) > 2 * threads:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
        finally:
            torch.set_num_threads(allowed)

    def _with_own_model(self, work: Callable[[Objective, Task], Result], task: Task) -> Result:
        try:
            own = self._spare.pop()
        except IndexError:
            own = copy.deepcopy(self._objective)
        try:
            return work(own, task)
        finally:
            self._spare.append(own)
