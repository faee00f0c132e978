"""Reads the memory of another process, if permitted: `/proc/PID/mem`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_TOP = 1 << 63


class ProcessMemory(NamedTuple):
    """The memory of one process; reads of unmapped addresses return nothing."""

    file: int

    def read(self, address: int, count: int) -> bytes:
        """At most this number of bytes."""
        if not 0 < address < _TOP:
            return b""
        try:
            return os.pread(self.file, count, address)
        except OSError:
            return b""

    def words(self, address: int, count: int = 1) -> tuple[int, ...]:
        """64-bit integers; empty if not all of them can be read."""
        data = self.read(address, 8 * count)
        return struct.unpack(f"={count}Q", data) if len(data) == 8 * count else ()

    def text(self, address: int, most: int = 256) -> str:
        """A C string, cut at the end of its page."""
        most = min(most, 4096 - address % 4096)
        return self.read(address, most).partition(b"\0")[0].decode("utf-8", "replace")


@contextmanager
def memory(pid: int) -> Iterator[ProcessMemory | None]:
    """The memory of a process while the block runs; None if it is not readable."""
    try:
        file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        yield ProcessMemory(file)
    finally:
        os.close(file)
