"""Byte offsets -> lines of one file, read in windows so that a gigabyte costs no memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

from raydoctor.read.records import MAX_LINE

WINDOW = 256 << 10
_BEFORE = 32 << 10
RECORD_BYTES = 64 << 10
_TOGETHER = 1 << 10
"""Bytes of lines that are decoded together at first, as most records are shorter; then twice as many."""


class FileLines:
    """A file's lines by offset. Ascending offsets take one window each. A file that shrinks meanwhile yields
    empty lines, not an error."""

    def __init__(self, file: str) -> None:
        self._fd = os.open(file, os.O_RDONLY)
        self._start = 0
        self._data = b""
        self._safe_from, self._safe_to = 0, -1
        """Offsets of lines whose inspected part is inside the window."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def begin(self, offset: int) -> tuple[bytes, int, int]:
        """(window, start in it of the line with this byte, offset of the window).

        A long line is cut MAX_LINE / 2 before the byte. The window contains at least MAX_LINE bytes after it,
        or the file's end.
        """
        if not self._safe_from <= offset <= self._safe_to:
            self._load(offset)
        at = offset - self._start
        earliest = max(0, at - MAX_LINE // 2)
        return self._data, self._data.rfind(b"\n", earliest, at) + 1 or earliest, self._start

    def around(self, offset: int) -> tuple[int, bytes]:
        """(start, line) of the line with this byte, at most MAX_LINE bytes of it."""
        data, start, base = self.begin(offset)
        end = data.find(b"\n", start, start + MAX_LINE)
        return base + start, data[start : end if end >= 0 else start + MAX_LINE]

    def line_start(self, offset: int) -> int:
        """The start of the line with this byte, at most MAX_LINE / 2 before it."""
        return self.around(offset)[0]

    def line_at(self, start: int) -> bytes:
        """The line from `start` to its break, cut at MAX_LINE bytes."""
        if not self._safe_from <= start <= self._safe_to:
            self._load(start)
        at = start - self._start
        end = self._data.find(b"\n", at, at + MAX_LINE)
        return self._data[at : end if end >= 0 else at + MAX_LINE]

    def after(self, start: int, limit: int = RECORD_BYTES) -> Iterator[str]:
        """The lines after the line that contains `start`, in at most `limit` bytes."""
        ahead = self._start + len(self._data) - start
        if start < self._start or (ahead < limit and len(self._data) == WINDOW):
            self._load(start)
        # The window may move while the lines are used.
        data = self._data
        at = data.find(b"\n", start - self._start) + 1
        stop, together = at + limit, _TOGETHER
        while 0 < at < min(stop, len(data)):
            end = data.rfind(b"\n", at, min(stop, at + together))
            together *= 2
            if end >= 0:
                yield from data[at:end].decode("utf-8", "replace").split("\n")
                at = end + 1
                continue
            end = data.find(b"\n", at, stop)
            if end < 0:
                end = min(stop, len(data))
            yield data[at : min(end, at + MAX_LINE)].decode("utf-8", "replace")
            at = end + 1

    def _load(self, offset: int) -> None:
        """Load a window around `offset`, mostly after it."""
        self._start = max(0, offset - _BEFORE)
        self._data = os.pread(self._fd, WINDOW, self._start)
        end = self._start + len(self._data)
        self._safe_from = self._start + MAX_LINE // 2 if self._start else 0
        self._safe_to = end - 2 * MAX_LINE if len(self._data) == WINDOW else end
