"""Waiting for events, and limits of time, that hold on a machine that is busy with something else."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 180.0
"""Seconds for what takes two on an idle machine. Only a failure waits so long."""
MOST = 3
"""Factor on limits of waits beside any other work: a failure must come to an end."""
PRESSURE = Path("/proc/pressure/cpu")
UNKNOWN = 10.0
"""Factor on limits where the kernel does not report how long processes wait for a processor."""


class Program(subprocess.Popen[Any]):
    """A process that is killed when its block fails, which would otherwise wait for its end."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def until(holds: Callable[[], object], seconds: float = PATIENCE, every: float = 0.02) -> None:
    """Wait until it holds; fail if it does not in time. A costly look is taken less often: for a fifth of the time."""
    is_late, begun = limit(seconds), time.thread_time()
    while not holds():
        assert not is_late(), "it did not come true"
        time.sleep(max(every, 4 * (time.thread_time() - begun)))
        begun = time.thread_time()


def limit(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since this call, by `clock`; or `MOST` times as much, by any."""
    begun, at = time.monotonic(), clock()
    return lambda: clock() - at > seconds or time.monotonic() - begun > MOST * seconds


def starved() -> float | None:
    """Seconds since the boot in which some process waited for a processor; None where that is unknown."""
    try:
        return int(PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6
    except (OSError, IndexError, ValueError):
        return None


def clock() -> float:
    """Seconds, not counting those in which some process waited for a processor: for upper limits of time.

    Where the kernel does not report these, it runs slower than time by a factor.
    """
    lost = starved()
    return time.monotonic() / UNKNOWN if lost is None else time.monotonic() - lost
