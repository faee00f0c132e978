"""Interrupts computations that take too long.

A regular expression has no time limit, but it lets a signal handler run, which may raise. That is safe only
for code without side effects, such as a rule's function.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class CpuTimeSpent(BaseException):
    """The computation took too long. Not an `Exception`, so that no rule catches it by accident."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise CpuTimeSpent in the body after this many seconds of the process's user time.

    The limit requires signal handling: the main thread of a POSIX process that does not use SIGVTALRM itself.
    Otherwise the body runs without a limit. A limit for other threads would not work: an exception that is
    raised in a thread from outside waits for the end of a regular expression.
    """
    with cpu_limits() as limit:
        try:
            limit(seconds)
            yield
        finally:
            limit(None)


@contextmanager
def cpu_limits() -> Iterator[Callable[[float | None], None]]:
    """A function that limits what follows as `cpu_limit` does, until it is called with None.

    For many short computations: installing the handler takes longer than most rules.
    """
    if not _is_available():
        yield lambda seconds: None
        return
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    try:
        yield _limit
    finally:
        _limit(None)
        # None: a handler that C installed, which cannot be restored.
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


def _limit(seconds: float | None) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0 if seconds is None else max(seconds, 0.001))


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
