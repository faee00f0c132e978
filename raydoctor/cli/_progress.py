"""A progress line on standard error: on a terminal only, after two seconds, and erased at the end."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture

PATIENCE = 2.0
_STEP = 0.5


class Progress:
    """Shows the current activity, the elapsed seconds and, if known, an estimate of the rest."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._share = 0.0
        self._step_began = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, doing: str, done: float = 0, total: float = 0) -> None:
        """Change the activity; `done` of `total` units of it give the estimate."""
        if done <= 0:  # its first unit: earlier activities do not count
            self._step_began = time.monotonic()
        self._doing, self._share = doing, done / total if total else 0.0

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        began = time.monotonic()
        if self._done.wait(PATIENCE):
            return
        while True:
            now = time.monotonic()
            left = _left(self._share, now - self._step_began)
            sys.stderr.write(f"\r\x1b[K{self._doing} … {now - began:.0f} s{left} ")
            sys.stderr.flush()
            if self._done.wait(_STEP):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                return


def _left(share: float, seconds: float) -> str:
    """`, about 40 s left`: if the rest goes as fast as this share of the work."""
    if not 0 < share < 1:
        return ""
    from raydoctor.model.text import duration

    left = max(1, round(seconds / share - seconds))
    return f", about {left} s left" if left < 60 else f", about {duration(left)} left"


def read_with_progress(capture: Capture) -> Progress:
    """While the files of a capture are read: how much is done, with an estimate of the rest."""
    progress = Progress("reading the logs")

    def report(done: int, total: int) -> None:
        progress.say(f"reading {total / (1 << 20):,.0f} MiB of logs", done, total)

    capture.report = report
    return progress


def patience(doing: str) -> Progress:
    """The same for one thing that is done."""
    return Progress(doing)
