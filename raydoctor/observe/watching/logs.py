"""Whether a session's logs on this machine grew, and whether the new lines look like errors.

Only a part of the new lines is read: it decides whether a diagnosis is worth its second of CPU time, not what
the diagnosis reports. The patterns match Ray's own logs (`… E 4659 4659] …`), Python's logging and
tracebacks.
"""

from __future__ import annotations

import os
from contextlib import suppress

from raydoctor.model.patterns import pattern

_TROUBLE = pattern(rb" [EFC] \d+ \d+\] |Traceback \(most recent call last\)|\bERROR\b|Error: ")
_READ = 64 << 10
"""Bytes of a file that are read, at its end."""
_FILES = 5_000


class Logs:
    """The logs of one session; the first call reports no trouble."""

    def __init__(self, session_dir: str) -> None:
        self._folder = os.path.join(session_dir, "logs") if session_dir else ""
        self._sizes: dict[str, int] | None = None

    def has_trouble(self) -> bool:
        """Whether lines written since the last call look like errors; never raises."""
        sizes = self._now()
        before, self._sizes = self._sizes, sizes
        if before is None:
            return False
        grown = {name: before.get(name, 0) for name in sizes if sizes[name] > before.get(name, 0)}
        return any(self._is_trouble(*each) for each in grown.items())

    def _now(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        if not self._folder:
            return sizes
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if len(sizes) < _FILES and entry.name.endswith((".out", ".err", ".log")):
                    with suppress(OSError):
                        if entry.is_file(follow_symlinks=False):
                            sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes

    def _is_trouble(self, name: str, since: int) -> bool:
        with suppress(OSError):
            # Any user can replace it by a link, or by a pipe that blocks.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(os.path.join(self._folder, name), flags)
            try:
                end = os.fstat(file).st_size
                return bool(_TROUBLE.search(os.pread(file, _READ, max(since, end - _READ))))
            finally:
                os.close(file)
        return False
