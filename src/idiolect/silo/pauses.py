"""Pauses between two looks: short after something happened, longer and longer while nothing does.

Flower has no options for its own: a SuperNode waits for three seconds before it looks for a message again,
and for half a second before it looks for our answer to one; whoever pulls a message of which a part is still
on its way waits for a second. A secure sum is five messages, and each would wait for all of these. Here they
are a small part of that at first. What is carried stays the same.
"""

import time
from typing import Any

from flwr.supercore.constant import PULL_INITIAL_BACKOFF
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supernode import start_client_internal

_FIRST = 1 / 32  # of the longest pause


class GrowingPause:
    """Each is twice as long as the one before, up to the longest."""

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self.restart()

    def restart(self) -> None:
        """Something has happened: more may follow soon."""
        self._next = _FIRST * self.longest

    def sleep(self) -> None:
        """Pause."""
        time.sleep(self._next)
        self._next = min(2 * self._next, self.longest)


class _TimeOfSupernode:
    """In place of the module `time` in a SuperNode's loop, which uses nothing of it but `sleep`.

    A pause of another length than the last one means that something has happened in between.
    """

    def __init__(self) -> None:
        self._pause = GrowingPause(0)

    def sleep(self, seconds: float) -> None:
        """Pause for so long at most."""
        if seconds != self._pause.longest:
            self._pause = GrowingPause(seconds)
        self._pause.sleep()


def shorten_pauses_of_supernode() -> None:
    """In the process of a SuperNode."""
    loop: Any = start_client_internal  # whose types do not foresee a change
    loop.time = _TimeOfSupernode()
    shorten_pauses_of_pulls()


def shorten_pauses_of_pulls() -> None:
    """In any process that pulls messages; Flower doubles these itself."""
    pull: Any = pull_objects
    pull.__kwdefaults__["initial_backoff"] = _FIRST * PULL_INITIAL_BACKOFF
