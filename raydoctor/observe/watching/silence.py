"""How long no line of a session's logs on this machine has matched a pattern.

Only whole new lines are read: `worker-*.out`, `worker-*.err` and `job-driver-*.log`, at most `_MOST` bytes a
call. What is not read could contain a match, so it counts as one.

ripgrep searches them: its time is linear in the text. With Python's `re`, one hostile line could stop the
watch for good (`(\\w+ ?)*: step` on a line of 40 letters).
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from fnmatch import fnmatchcase

from raydoctor.model.errors import RaydoctorError

_NAMES = ("worker-*.out", "worker-*.err", "job-driver-*.log")
_FILES = 5_000
_MOST = 8 << 20
_LINE = 4_096
"""Bytes of a line without an end that are searched before its end is written."""
_SEARCH_S = 5.0
_FOUND, _ABSENT = 0, 1


def check(pattern: str) -> str:
    """The problem with a pattern, or nothing. Raises RaydoctorError without ripgrep."""
    done = _search(pattern, b"")
    if done.returncode in (_FOUND, _ABSENT):
        return ""
    lines = done.stderr.decode("utf-8", "replace").split("\n")
    reasons = [line.partition("error: ")[2] for line in lines if line.startswith("error: ")]
    return (reasons or ["ripgrep does not accept it"])[0]


def _search(pattern: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    from raydoctor.read.prefilter import find_rg  # few watches need it

    command = [find_rg(), "--no-config", "--quiet", "--text", "-e", pattern, "-"]
    return subprocess.run(command, input=data, capture_output=True, timeout=_SEARCH_S, check=False)


class LogSilence:
    """The silence of one session. Its first call finds the ends of the files, and counts as a match."""

    def __init__(self, session_dir: str, pattern: str) -> None:
        self._folder = os.path.join(session_dir, "logs")
        self._pattern = pattern
        self._read: dict[str, int] | None = None
        self._since = 0.0

    def seconds(self, now: float) -> float:
        """Seconds since the last match, by the clock of `now`; a file that cannot be read has no lines."""
        is_first, before = self._read is None, self._read or {}
        self._read, room, found = {}, _MOST, is_first
        new = []
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
                new.append(data[: end - begin])
            self._read[name] = end
        if found or self._matches(b"\n".join(filter(None, new))):
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
        if not data:
            return False
        try:
            return _search(self._pattern, data).returncode != _ABSENT
        except (OSError, subprocess.TimeoutExpired, RaydoctorError):
            return True
