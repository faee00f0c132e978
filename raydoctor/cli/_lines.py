"""Lines to standard output, written by a thread of their own: who prints them never waits.

A reader that stands still (a pager, a pipe into something slow) would hold up whoever prints, a full disk
would end it; a guard must do neither. Lines that find no room are left out, and counted.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST = 2_000
"""Lines that wait, of those that matter."""
_DISPENSABLE = 20
_END = 2.0
"""Seconds that the reader has at the end for what is not written yet."""


class LineWriter:
    """To one file descriptor, while the block runs."""

    def __init__(self, file: int) -> None:
        self.lost = 0
        """Lines that nobody will read."""
        self.is_full = False
        """Whether there was no room on its disk."""
        self._file = file
        self._error: OSError | None = None
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="lines", daemon=True)

    def __enter__(self) -> LineWriter:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        deadline = time.monotonic() + _END
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self.lost += len(self._waiting)

    def put(self, line: str, is_dispensable: bool = False) -> None:
        """Have it written. Raises the OSError that an earlier one met: the reader is gone, say."""
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
            if error.errno not in _NO_ROOM:
                raise
            self.is_full = True
            self.lost += 1
            if is_begun:  # what was begun is ended, so that the next line is one
                with suppress(OSError):
                    os.write(self._file, b"\n")
