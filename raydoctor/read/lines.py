"""Byte offsets -> lines of one file, read in windows so that a gigabyte costs no memory."""

from __future__ import annotations

import os
from pathlib import Path

from raydoctor.read.records import MAX_LINE

WINDOW = 256 << 10
_BEFORE = 32 << 10
RECORD_BYTES = 64 << 10


class Lines:
    """A file's lines by offset. Offsets that ascend cost one window each; a file that shrinks while
    it is read gives empty lines, never an error."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_RDONLY)
        self._start = 0
        self._data = b""
        self._at_end = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def line_start(self, offset: int) -> int:
        """Where the line begins that holds this byte (at most MAX_LINE before it)."""
        self._load(offset)
        position = offset - self._start
        cut = self._data.rfind(b"\n", 0, position)
        return max(self._start + cut + 1, offset - MAX_LINE)

    def line_at(self, start: int) -> bytes:
        """The line from `start` to its break, cut at MAX_LINE bytes."""
        self._load(start)
        position = start - self._start
        end = self._data.find(b"\n", position)
        if end < 0:
            end = len(self._data)
        return self._data[position : min(end, position + MAX_LINE)]

    def following(self, start: int, limit: int = RECORD_BYTES) -> list[str]:
        """The lines after the one that begins at `start`, as many as `limit` bytes hold."""
        self._load(start, ahead=limit)
        position = start - self._start
        first = self._data.find(b"\n", position)
        if first < 0:
            return []
        block = self._data[first + 1 : first + 1 + limit]
        return [raw[:MAX_LINE].decode("utf-8", "replace") for raw in block.split(b"\n")]

    def _load(self, offset: int, ahead: int = MAX_LINE) -> None:
        """Make the window hold some bytes before `offset` and `ahead` bytes behind it."""
        start, end = self._start, self._start + len(self._data)
        holds_before = start == 0 or offset - start >= MAX_LINE
        if start <= offset <= end and holds_before and (offset + ahead <= end or self._at_end):
            return
        self._start = max(0, offset - _BEFORE)
        self._data = os.pread(self._fd, WINDOW, self._start)
        self._at_end = len(self._data) < WINDOW
