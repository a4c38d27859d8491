"""Timing on a machine that does other things too: contenders take turns, and ratios are of neighbours."""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def interleaved_seconds(
    contenders: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, list[float]]:
    """The times of each contender, who take turns, after a run that is not measured."""
    for play in contenders.values():
        play()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, play in contenders.items():
            start = time.perf_counter()
            play()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """The median of the ratios of measurements that were made next to each other."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


class PeakMemory:
    """How far the process grows inside a block, in MB; None where the system does not tell."""

    megabytes: float | None = None

    def __enter__(self) -> "PeakMemory":
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform == "linux":
            self.megabytes = max(_status("VmHWM") - self._before, 0) / 1024


def _status(field: str) -> int:
    """A line of the process's status, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
