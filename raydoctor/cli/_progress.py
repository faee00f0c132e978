"""A progress line on standard error: on a terminal only, after two seconds, and erased at the end."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import TYPE_CHECKING

from raydoctor.model.text import one_line

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture

PATIENCE = 2.0
_STEP = 0.5


class Progress:
    """Shows the current activity, the elapsed seconds, and an estimate or limit of the rest, if known."""

    def __init__(self, doing: str, limit: float = 0) -> None:
        self._doing, self._limit = one_line(doing), limit  # a task has any name
        self._share = 0.0
        self._step_began = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, doing: str, done: float = 0, total: float = 0, *, limit: float = 0) -> None:
        """Change the activity: `done` of `total` units give the estimate, `limit` is its most seconds."""
        if done <= 0:  # its first unit: earlier activities do not count
            self._step_began = time.monotonic()
        self._doing, self._limit = one_line(doing), limit
        self._share = done / total if total else 0.0

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        began = time.monotonic()
        if self._done.wait(PATIENCE):
            return
        while True:
            now = time.monotonic()
            left = _left(self._share, now - self._step_began, self._limit)
            sys.stderr.write(f"\r\x1b[K{self._doing} … {now - began:.0f} s{left} ")
            sys.stderr.flush()
            if self._done.wait(_STEP):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                return


def _left(share: float, seconds: float, limit: float) -> str:
    """`, about 40 s left` if the rest goes as fast as this share of the work; `, at most 3 s left`."""
    if not 0 < share < 1:
        rest = math.ceil(limit - seconds)
        return f", at most {_duration(rest)} left" if rest > 0 else ", time left unknown"
    return f", about {_duration(round(seconds / share - seconds))} left"


def _duration(seconds: int) -> str:
    from raydoctor.model.text import duration

    return f"{max(1, seconds)} s" if seconds < 60 else duration(seconds)


def read_with_progress(capture: Capture) -> Progress:
    """While the files of a capture are read: how much is done, with an estimate of the rest."""
    progress = Progress("reading the logs")

    def report(done: int, total: int) -> None:
        progress.say(f"reading {total / (1 << 20):,.0f} MiB of logs", done, total)

    capture.report = report
    return progress


def patience(doing: str, limit: float = 0) -> Progress:
    """The same for one thing that is done, in at most `limit` seconds."""
    return Progress(doing, limit)
