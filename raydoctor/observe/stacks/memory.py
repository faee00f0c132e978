"""Reads the memory of another process, where that is allowed: `/proc/PID/mem`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_TOP = 1 << 63


class ProcessMemory(NamedTuple):
    """The memory of one process; what is not mapped is empty."""

    file: int

    def read(self, address: int, count: int) -> bytes:
        """So many bytes, or fewer."""
        if not 0 < address < _TOP:
            return b""
        try:
            return os.pread(self.file, count, address)
        except OSError:
            return b""

    def words(self, address: int, count: int = 1) -> tuple[int, ...]:
        """Whole numbers of 64 bits; none where not all of them are there."""
        data = self.read(address, 8 * count)
        return struct.unpack(f"={count}Q", data) if len(data) == 8 * count else ()

    def text(self, address: int, most: int = 256) -> str:
        """A text of C, as far as it is on one page."""
        most = min(most, 4096 - address % 4096)
        return self.read(address, most).partition(b"\0")[0].decode("utf-8", "replace")


@contextmanager
def memory(pid: int) -> Iterator[ProcessMemory | None]:
    """The memory of a process while the block runs; None where it may not be read."""
    try:
        file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        yield ProcessMemory(file)
    finally:
        os.close(file)
