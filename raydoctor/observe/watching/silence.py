"""How long no line of a session's logs on this machine has matched a pattern.

Only whole new lines are read: `worker-*.out`, `worker-*.err` and `job-driver-*.log`, at most `_MOST` bytes a
call. What is not read could contain a match, so it counts as one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from fnmatch import fnmatchcase

_NAMES = ("worker-*.out", "worker-*.err", "job-driver-*.log")
_FILES = 5_000
_MOST = 8 << 20
_LINE = 4_096
"""Bytes of a line that are searched, so that no line costs long."""


class LogSilence:
    """The silence of one session. Its first call finds the ends of the files, and counts as a match."""

    def __init__(self, session_dir: str, pattern: re.Pattern[bytes]) -> None:
        self._folder = os.path.join(session_dir, "logs")
        self._pattern = pattern
        self._read: dict[str, int] | None = None
        self._since = 0.0

    def seconds(self, now: float) -> float:
        """Seconds since the last match, by the clock of `now`; a file that cannot be read has no lines."""
        is_first, before = self._read is None, self._read or {}
        self._read, room, found = {}, _MOST, is_first
        for name, size in self._sizes():
            begin = size if is_first else min(before.get(name, 0), size)
            wanted = size - begin
            data = self._new(name, begin, min(wanted, room)) if wanted else b""
            room -= len(data)
            if wanted > room + len(data):
                found, end = True, size
            else:
                # The rest of a line is read with its end, unless the line is endless.
                end = begin + (data.rfind(b"\n") + 1 or (len(data) if len(data) > _LINE else 0))
                found = found or self._matches(data[: end - begin])
            self._read[name] = end
        if found:
            self._since = now
        return now - self._since

    def _sizes(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if any(fnmatchcase(entry.name, name) for name in _NAMES) and len(found) < _FILES:
                    with suppress(OSError):
                        if entry.is_file(follow_symlinks=False):
                            found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        return found

    def _new(self, name: str, begin: int, count: int) -> bytes:
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(os.path.join(self._folder, name), flags)
            try:
                return os.pread(file, count, begin)
            finally:
                os.close(file)
        return b""

    def _matches(self, data: bytes) -> bool:
        return any(self._pattern.search(line[:_LINE]) for line in data.splitlines())
