"""Steps by their signature: recorded on first use, compared with the plain step, then replayed."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

from torch import Tensor

from idiolect.engines.compiler.doubt import Doubt, describe
from idiolect.engines.compiler.passes import PASSES
from idiolect.engines.compiler.recording import Arguments, Recording, Replay, Step, record
from idiolect.engines.compiler.vouching import unexplained_difference

logger = logging.getLogger("idiolect")

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
            logger.warning("a step cannot be recorded, so it is computed as it is written (%s)", _line(error))
            return None

    def vouch(self, plain: Step, replayed: Callable[[], list[Tensor]], arguments: Arguments) -> list[Tensor]:
        """The results of a step, computed both ways: the plain ones if they differ."""
        kept = arguments._replace(changing=[leaf.clone() for leaf in arguments.changing])
        expected = [leaf.clone() for leaf in plain(kept)]
        try:
            actual = replayed()
        except RuntimeError as error:
            return self._doubt(plain, kept, f"a rewritten local step fails: {_line(error)}", expected, [])
        difference = unexplained_difference(plain, kept, expected, actual)
        return actual if difference is None else self._doubt(plain, kept, str(difference), expected, actual)

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

    def take(self, arguments: Arguments, *, is_checked: bool) -> list[Tensor]:
        """The results of one step; what changes is used up."""
        if self._recording is None or self._compiler is None:
            return self._plain(arguments)
        replay = self._recording.first if arguments.step == 0 else self._recording.later
        if replay.is_vouched and not is_checked:
            results = self._replayed(replay, arguments)
        else:
            results = self._compiler.vouch(self._plain, lambda: self._replayed(replay, arguments), arguments)
            replay.is_vouched = not self._compiler.doubts
            if self._compiler.doubts:
                self._recording = None
        # The next step is replayed for the layout that was recorded.
        return [leaf.contiguous() for leaf in results]

    def _replayed(self, replay: Replay, arguments: Arguments) -> list[Tensor]:
        if replay is not self._replay:
            self._replay, self._shared = replay, replay.share(*arguments.fixed)
        return replay.step(*arguments.flat(), *self._shared)


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__
