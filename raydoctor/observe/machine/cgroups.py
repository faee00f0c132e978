"""The memory cgroup of a process, of either version: its limit, its usage, how often it hit its limit.

Facts: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of Linux. `/proc/PID/cgroup` names a
process's cgroup relative to a root that `/proc/self/mountinfo` contains. In a container, both may begin with
the container's own path, so the mount's root is removed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest number of pages, in bytes."""


class Cgroup(NamedTuple):
    """One memory cgroup."""

    folder: str
    version: int
    top: str
    """Mount point of its hierarchy: cgroups above it are not visible."""


class Usage(NamedTuple):
    """The numbers of a memory cgroup in bytes; None if it has no such file."""

    limit: int | None
    used: int | None
    """Without the page cache that the kernel would reclaim first (`inactive_file`)."""
    swap: int | None
    events: dict[str, int]
    """`oom_kill`: processes in it that the kernel killed; `max`: how often it hit its limit; …"""


class _Mount(NamedTuple):
    folder: str
    root: str
    version: int


def of_process(pid: int | str) -> Cgroup | None:
    """The memory cgroup of a process (`self` is this one); None if there is none or it is not visible."""
    mounts = _mounts()
    for line in lines(f"/proc/{pid}/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v1 = "memory" in controllers.split(",")
        if not is_v1 and number != "0":
            continue
        mount = mounts.get(1 if is_v1 else 2)
        folder = _below(mount, path) if mount else ""
        if mount and folder and _has_memory(folder, mount):
            return Cgroup(folder, mount.version, mount.folder)
    return None


def _mounts() -> dict[int, _Mount]:
    """The mounted memory hierarchies, by version."""
    found: dict[int, _Mount] = {}
    for line in lines("/proc/self/mountinfo"):
        place, _, kind = line.partition(" - ")
        words, system = place.split(), kind.split()
        if len(words) < 5 or len(system) < 3:
            continue
        if system[0] == "cgroup2":
            found.setdefault(2, _Mount(words[4], words[3], 2))
        elif system[0] == "cgroup" and "memory" in system[2].split(","):
            found.setdefault(1, _Mount(words[4], words[3], 1))
    return found


def _below(mount: _Mount, path: str) -> str:
    """The folder of a cgroup; empty for one outside of the mount (`/../…`), which is not visible."""
    if path.startswith("/.."):
        return ""
    inside = posixpath.relpath(path, mount.root) if mount.root != "/" else path.lstrip("/")
    if inside.startswith(".."):
        # The path is already relative to a cgroup namespace.
        inside = path.lstrip("/")
    return posixpath.normpath(posixpath.join(mount.folder, inside))


def _has_memory(folder: str, mount: _Mount) -> bool:
    if mount.version == 1:
        return _number(f"{folder}/memory.usage_in_bytes") is not None
    # The root of version 2 has neither a limit nor `memory.current`: the host's numbers apply.
    return _number(f"{folder}/memory.current") is not None


def above(cgroup: Cgroup) -> Iterator[Cgroup]:
    """The cgroups that contain it, nearest first."""
    folder = cgroup.folder
    while folder != cgroup.top and folder.startswith(f"{cgroup.top}/"):
        folder = posixpath.dirname(folder)
        yield cgroup._replace(folder=folder)


def usage(cgroup: Cgroup) -> Usage:
    """Its numbers now."""
    return _usage_v1(cgroup.folder) if cgroup.version == 1 else _usage_v2(cgroup.folder)


def _usage_v1(folder: str) -> Usage:
    cache = _pairs(f"{folder}/memory.stat").get("total_inactive_file", 0)
    memory = _number(f"{folder}/memory.usage_in_bytes")
    both = _number(f"{folder}/memory.memsw.usage_in_bytes")
    limit = _number(f"{folder}/memory.limit_in_bytes")
    events = _pairs(f"{folder}/memory.oom_control")
    events["max"] = _number(f"{folder}/memory.failcnt") or 0
    return Usage(
        limit if limit is not None and limit < UNLIMITED else None,
        None if memory is None else max(0, memory - cache),
        None if both is None or memory is None else max(0, both - memory),
        {name: count for name, count in events.items() if name in _EVENTS},
    )


def _usage_v2(folder: str) -> Usage:
    cache = _pairs(f"{folder}/memory.stat").get("inactive_file", 0)
    memory = _number(f"{folder}/memory.current")
    events = _pairs(f"{folder}/memory.events")
    return Usage(
        _number(f"{folder}/memory.max"),
        None if memory is None else max(0, memory - cache),
        _number(f"{folder}/memory.swap.current"),
        {name: count for name, count in events.items() if name in _EVENTS},
    )


_EVENTS = ("oom", "oom_kill", "max", "high")


def _number(path: str) -> int | None:
    """The number in a file; None for `max`, and if there is no such file."""
    content = next(iter(lines(path)), "")
    return int(content) if content.isdigit() else None


def _pairs(path: str) -> dict[str, int]:
    found = {}
    for line in lines(path):
        name, _, number = line.partition(" ")
        if number.isdigit():
            found[name] = int(number)
    return found


def lines(path: str) -> list[str]:
    """The lines of a file of the kernel; none if it is missing or switched off (`psi=0`)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()
    except OSError:
        return []
