"""Lines to standard output, written by a separate thread so that the watch never waits for the reader.

A slow reader (a pager, a pipe) would block the watch, and a full disk would end it; a guard must not depend
on either. Lines for which there is no room are dropped and counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress

from raydoctor.model.errors import NO_ROOM

_MOST = 2_000
"""Maximum number of waiting lines."""
_DISPENSABLE = 20
"""Number of waiting lines from which dispensable lines are dropped."""
_END = 2.0
"""Seconds that the reader has at the end for the remaining lines."""


class LineWriter:
    """Writes lines to a file descriptor while the block runs."""

    def __init__(self, file: int) -> None:
        self.lost = 0
        """Number of dropped lines."""
        self.is_full = False
        """Whether the disk was full."""
        self._file = file
        self._error: OSError | None = None
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="lines", daemon=True)

    def __enter__(self) -> LineWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _END
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self.lost += len(self._waiting)

    def put(self, line: str, is_dispensable: bool = False) -> None:
        """Queue a line. Raises the OSError of an earlier write, for example if the reader has exited."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if len(self._waiting) >= (_DISPENSABLE if is_dispensable else _MOST):
                self.lost += 1
                return
            self._waiting.append(line)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if not self._waiting or self._error is not None:
                    return
                line = self._waiting.popleft()
            try:
                self._write(line.encode())
            except OSError as error:
                self._error = error

    def _write(self, data: bytes) -> None:
        is_begun = False
        try:
            while data:
                data = data[os.write(self._file, data) :]
                is_begun = True
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.is_full = True
            self.lost += 1
            if is_begun:  # end the partial line, so that the next line is valid
                with suppress(OSError):
                    os.write(self._file, b"\n")
