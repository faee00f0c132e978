"""This machine's memory and disk as Ray believes them to be, so that limits can be set just above.

Memory: the cgroup's, where its limit is below the machine's, else `/proc/meminfo`; the page cache
does not count (`memory_monitor_utils.cc`: usage - inactive_file - active_file).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class HostMemory(NamedTuple):
    """Bytes in use, and bytes there are."""

    used: int
    total: int


class _MemoryFiles(NamedTuple):
    limit: str
    usage: str
    prefix: str


_V1 = _MemoryFiles("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_")
_V2 = _MemoryFiles("memory.max", "memory.current", "")


def memory(root: Path = Path("/")) -> HostMemory | None:
    """Memory as Ray's monitor sees it; None where it has none (macOS)."""
    system = _system(root / "proc/meminfo")
    if system is None:
        return None
    for files in (_V1, _V2):
        group = _cgroup(root / "sys/fs/cgroup", files)
        if group and group.total < system.total:
            return group
    return system


def _system(file: Path) -> HostMemory | None:
    fields = _fields(file, separator=":")
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return None
    total, available = fields["MemTotal"] * 1024, fields["MemAvailable"] * 1024
    return HostMemory(total - available, total)


def _cgroup(folder: Path, files: _MemoryFiles) -> HostMemory | None:
    limit, usage = _number(folder / files.limit), _number(folder / files.usage)
    if limit is None or usage is None:
        return None
    fields = _fields((folder / files.limit).with_name("memory.stat"))
    cached = fields.get(f"{files.prefix}inactive_file", 0) + fields.get(
        f"{files.prefix}active_file", 0
    )
    return HostMemory(usage - cached, limit)


def _number(file: Path) -> int | None:
    """The number in a file; None for `max`, and where there is no such file."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _fields(file: Path, separator: str = " ") -> dict[str, int]:
    """`name value` lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, rest = line.partition(separator)
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name.strip()] = int(number[0])
    return found


def disk_used(folder: Path) -> float:
    """The used share of a folder's file system, as Ray computes it: 1 - available / size."""
    state = os.statvfs(folder)
    return 1 - state.f_bavail / state.f_blocks if state.f_blocks else 0.0
