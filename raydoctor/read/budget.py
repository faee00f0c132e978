"""CPU time limits of a diagnosis, so that hostile files cannot stall it.

The limits use CPU time, not wall time: on a busy machine the same files give the same report. A normal
gigabyte takes some seconds (see `benchmarks/`), so only files made to be slow exceed a budget.

Reading checks its budget between two lines. Rules, including those of plugins, are interrupted: a regular
expression has no time limit, but it lets a signal handler run, which may raise. That is safe only for code
without side effects, such as a rule's function.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from types import FrameType

from raydoctor.model import text
from raydoctor.model.values import Gap

FILE_SECONDS = 1.5
"""Per file, in addition to the time for its size."""
RUN_SECONDS = 60.0
"""For all files of a capture together, in addition to the time for their size."""
SECONDS_PER_GB = 120.0
HINT = "Read the rest of the file yourself, or split its long lines and diagnose it again."


class CpuBudget:
    """A number of seconds of this thread's CPU time, from now on."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = thread_time() + seconds

    @property
    def spent(self) -> bool:
        """Whether the budget is spent."""
        return thread_time() > self._end

    @property
    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._end - thread_time())


def of_file(size: int) -> CpuBudget:
    """The budget of a file of this size in bytes."""
    return CpuBudget(FILE_SECONDS + size / 1e9 * SECONDS_PER_GB)


def gap(file: str, read: int, size: int, spent: CpuBudget) -> Gap:
    """The gap for a file whose budget is spent, with the amount that was read."""
    return Gap(
        file,
        f"{text.size(read)} of {text.size(size)} read within the time budget of "
        f"{text.duration(spent.seconds)}: its lines are very long or very unusual",
        HINT,
    )


def of_run(size: int) -> CpuBudget:
    """The budget of all files of a capture, by their total size in bytes."""
    return CpuBudget(RUN_SECONDS + size / 1e9 * SECONDS_PER_GB)


class CpuTimeSpent(BaseException):
    """The computation took too long. Not an `Exception`, so that no rule catches it by accident."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise CpuTimeSpent in the body after this many seconds of the process's user time.

    The limit requires signal handling: the main thread of a POSIX process that does not use SIGVTALRM itself.
    Otherwise the body runs without a limit. A limit for other threads would not work: an exception that is
    raised in a thread from outside waits for the end of a regular expression.
    """
    if not _is_available():
        yield
        return
    signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


def _is_available() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    if not hasattr(signal, "setitimer"):
        return False
    return signal.getsignal(signal.SIGVTALRM) in (signal.SIG_DFL, _interrupt) and not any(
        signal.getitimer(signal.ITIMER_VIRTUAL)
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise CpuTimeSpent
