"""Limits for opening one input, however its parts are nested: bytes, members, depth, CPU time.

Everything below the path that the user names shares one budget: archives in archives, `.gz` logs, encoded
files, folders. Parts that are not read because the budget is spent become a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BASE_BYTES = 256 << 20
RATIO = 300
"""Compression shrinks logs 10 to 100 times, and a zip bomb a thousand times or more."""
WRITTEN_BYTES = 16 << 30
MEMBERS = 500_000
"""Of archives."""
ENTRIES = 2_000_000
"""Of folders."""
FOLDERS = 64
"""Maximum depth of a member's path."""
DEPTH = 2
"""Archives in archives: `ray cluster-dump` writes one for each node into one for all."""
SECONDS = 20.0
SECONDS_PER_BYTE = 1e-7
"""Processor time for each byte of packed input: 10 MB/s, which the slowest format reaches."""
_KEPT_FREE = 1 << 30
_AT_LEAST = 1 << 20


ReportBytes = Callable[[int, int], None]
"""Called with the number of bytes that are done, and of all."""


class TooMuchError(Exception):
    """The budget is spent; the text says which part of it."""


@dataclass(slots=True)
class Budget:
    """The remaining limits of one input. Each method that uses some raises TooMuchError once it is spent."""

    unpacked: int = field(default_factory=lambda: BASE_BYTES)
    """Bytes that may still come out of compressed data, wanted or not."""
    written: int = field(default_factory=lambda: BASE_BYTES)
    """Bytes that may still be written to the private folder."""
    members: int = field(default_factory=lambda: MEMBERS)
    entries: int = field(default_factory=lambda: ENTRIES)
    seconds: float = field(default_factory=lambda: SECONDS)
    report: ReportBytes = field(default=lambda done, total: None)
    """Called while an archive is read, with the number of its bytes that are done, and of all."""
    _began: float = field(default_factory=time.process_time)

    def allow(self, packed: int) -> None:
        """Raise the limits by the packed size of a file that the user named."""
        self.unpacked += RATIO * packed
        self.written = min(self.written + RATIO * packed, WRITTEN_BYTES)
        self.seconds += SECONDS_PER_BYTE * packed

    def limit_to_room(self, folder: Path) -> None:
        """Leave 1 GiB of the disk free that holds this folder."""
        import shutil  # slow to import, and not needed for most captures

        room = shutil.disk_usage(folder).free - _KEPT_FREE
        self.written = min(self.written, max(room, _AT_LEAST))

    def unpack(self, size: int) -> None:
        """Subtract bytes that came out of compressed data."""
        self.unpacked -= size
        if self.unpacked < 0:
            raise TooMuchError("unpacks to far more than its size allows")
        self.check_time()

    def write(self, size: int) -> None:
        """Subtract bytes that are about to be written."""
        self.written -= size
        if self.written < 0:
            raise TooMuchError("unpacks to more than the temporary folder may hold")

    def open_member(self) -> None:
        """Subtract one member of an archive."""
        self.members -= 1
        if self.members < 0:
            raise TooMuchError(f"has more than {MEMBERS:,} members")
        if not self.members % 256:
            self.check_time()

    def list_entries(self, count: int) -> None:
        """Subtract entries of a folder."""
        self.entries -= count
        if self.entries < 0:
            raise TooMuchError(f"holds more than {ENTRIES:,} files and folders")
        self.check_time()

    def check_time(self) -> None:
        """Raise TooMuchError once the processor time is spent."""
        if time.process_time() - self._began > self.seconds:
            raise TooMuchError(f"takes more than {self.seconds:.0f} s of processor time to open")
