"""Steps by their signature: recorded on first use, compared with the plain step, then replayed."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import partial

from torch import Tensor

from idiolect.engines.compiler.doubt import Doubt, describe
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.compiler.recorder import Arguments, Recording, Replay, Step, record
from idiolect.engines.compiler.warrant import elsewhere, unexplained_difference
from idiolect.errors import first_sentence

logger = logging.getLogger("idiolect")

Replayed = Callable[[Arguments], list[Tensor]]

MOST_RECORDINGS = 64  # kept: cohorts of ever new sizes must not pile them up


class Compiler:
    """Recordings that were used last. After a doubt nothing is rewritten any more."""

    def __init__(self, passes: Iterable[str] = PASSES) -> None:
        self.passes = tuple(passes)
        self.doubts: list[Doubt] = []
        self._recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def records_all_steps(self) -> bool:
        """Whether all steps could be recorded and are trusted."""
        return not self.doubts and None not in self._recordings.values()

    def steps(self, signature: Hashable, plain: Step, example: Arguments) -> "Steps":
        """The steps of some clients in one round: replayed where they can be recorded and are trusted."""
        with self._lock:
            if self.doubts:
                return Steps(plain)
            if signature not in self._recordings:
                self._recordings[signature] = self._record(plain, example)
            self._recordings.move_to_end(signature)
            if len(self._recordings) > MOST_RECORDINGS:
                self._recordings.popitem(last=False)
            return Steps(plain, self._recordings[signature], self)

    def _record(self, plain: Step, example: Arguments) -> Recording | None:
        try:
            return record(plain, example, self.passes)
        except Exception as error:  # whatever torch or a pass trips over: the plain step is right
            if None not in self._recordings.values():  # said once is enough
                logger.warning(
                    "a step cannot be recorded, so it is computed as it is written (%s)",
                    first_sentence(error),
                )
            return None

    def vouch(self, plain: Step, replayed: Replayed, arguments: Arguments) -> list[Tensor]:
        """The results of a step, computed both ways: the plain ones if they differ."""
        kept = arguments._replace(changing=[leaf.clone() for leaf in arguments.changing])
        expected = [leaf.clone() for leaf in plain(kept)]
        return self._compared(plain, kept, expected, lambda: replayed(arguments))

    def vouch_elsewhere(self, plain: Step, replayed: Replayed, arguments: Arguments) -> None:
        """Compare a step also where none of its arguments is special."""
        moved = elsewhere(arguments)
        try:
            expected = [leaf.clone() for leaf in plain(moved)]
        except Exception:  # it need not be defined there, as a root or a code of a character
            return
        self._compared(plain, moved, expected, lambda: replayed(moved))

    def _compared(
        self,
        plain: Step,
        arguments: Arguments,
        expected: list[Tensor],
        replayed: Callable[[], list[Tensor]],
    ) -> list[Tensor]:
        try:
            actual = replayed()
        except Exception as error:  # of whatever kind: the plain step is right
            finding = f"a rewritten local step fails: {first_sentence(error)}"
            return self._doubt(plain, arguments, finding, expected, [])
        difference = unexplained_difference(plain, arguments, expected, actual)
        if difference is None:
            return actual
        return self._doubt(plain, arguments, str(difference), expected, actual)

    def _doubt(
        self, plain: Step, arguments: Arguments, finding: str, expected: list[Tensor], actual: list[Tensor]
    ) -> list[Tensor]:
        with self._lock:
            if not self.doubts:
                self.doubts.append(describe(plain, self.passes, arguments, finding, (expected, actual)))
        return expected


class Steps:
    """The steps of some clients in one round."""

    def __init__(
        self, plain: Step, recording: Recording | None = None, compiler: Compiler | None = None
    ) -> None:
        self._plain, self._recording, self._compiler = plain, recording, compiler
        self._replay: Replay | None = None
        self._shared: list[Tensor] = []

    def take(self, arguments: Arguments, step: int, *, is_checked: bool) -> list[Tensor]:
        """The results of one step of this number; what changes is used up."""
        if self._recording is None or self._compiler is None:
            return self._plain(arguments)
        replay = self._recording.at(step)
        if not replay.is_vouched:
            self._compiler.vouch_elsewhere(self._plain, replay.tried, arguments)
        if self._compiler.doubts:  # this one, or one that came up in another thread
            return self._plain(arguments)
        if replay.is_vouched and not is_checked:
            results = self._replayed(replay, arguments)
        else:
            results = self._compiler.vouch(self._plain, partial(self._replayed, replay), arguments)
            replay.is_vouched = not self._compiler.doubts
        # The next step is replayed for the layout that was recorded.
        return [leaf.contiguous() for leaf in results]

    def _replayed(self, replay: Replay, arguments: Arguments) -> list[Tensor]:
        if replay is not self._replay:
            self._replay, self._shared = replay, replay.share(*arguments.fixed)
        return replay.step(*arguments.flat(), *self._shared)
