"""The machine's memory, its cgroups, its pressure, and the limits of Ray's processes.

All of it is read from `/proc` and `/sys/fs/cgroup` (Linux). Only the number of open files of another user's
process requires a privilege.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.machine import cgroups
from raydoctor.observe.processes import proc

_MOST_WORKERS = 500
"""Workers that are inspected: all inherit their raylet's limits, and few have many files open."""
_KB = 1024


class _Member(NamedTuple):
    """A process of the cluster."""

    pid: int
    kind: str
    """`raylet`, `gcs_server`, `worker`, or another daemon's."""


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """Tables `memory`, `pressure` and `limits`."""
    if not sys.platform.startswith("linux"):
        yield Gap(
            "memory and limits of this machine", "read from /proc, on Linux only", optional=True
        )
        return
    members = _members(cluster)
    yield table("memory", _memory(members), source="proc")
    if pressure := list(_pressure()):
        yield table("pressure", pressure, source="proc")
    yield table("limits", _limits(members), source="proc")


def _members(cluster: Cluster) -> list[_Member]:
    """The cluster's daemons on this machine, and the raylets' children: workers and agents."""
    members = {d.pid: _Member(d.pid, d.kind) for d in cluster.daemons if d.state != "Z"}
    raylets = {d.pid for d in cluster.of("raylet")}
    if raylets:
        for process in proc.table().values():
            if process.ppid in raylets and process.state != "Z":
                members.setdefault(process.pid, _Member(process.pid, "worker"))
    return list(members.values())


# ------------------------------------------------------------------ memory


def _memory(members: list[_Member]) -> Iterator[dict[str, Any]]:
    host = _host()
    yield host
    yield from _cgroup_rows(members, host["limit"] or cgroups.UNLIMITED)


def _host() -> dict[str, Any]:
    info = _pairs("/proc/meminfo")
    total, available = _bytes(info, "MemTotal"), _bytes(info, "MemAvailable")
    swap, free = _bytes(info, "SwapTotal"), _bytes(info, "SwapFree")
    kills = _pairs("/proc/vmstat").get("oom_kill")
    return {
        "kind": "host",
        "path": "",
        "limit": total,
        "used": None if total is None or available is None else total - available,
        "available": available,
        "swap_used": None if swap is None or free is None else swap - free,
        # Since the boot, in all cgroups (Linux 4.13).
        "events": {} if kills is None else {"oom_kill": kills},
        "version": None,
        "pids": [],
    }


def _cgroup_rows(members: list[_Member], memory: int) -> Iterator[dict[str, Any]]:
    """The cgroups of the cluster's processes and of this one, and those above them that have a limit."""
    held: dict[cgroups.Cgroup, list[int]] = {}
    for pid in [*(m.pid for m in members), os.getpid()]:
        if cgroup := cgroups.of_process(pid):
            pids = held.setdefault(cgroup, [])
            if any(m.pid == pid for m in members):
                pids.append(pid)
    for cgroup, pids in list(held.items()):
        for parent in cgroups.above(cgroup):
            if (cgroups.usage(parent).limit or memory) < memory and parent not in held:
                held[parent] = pids
    for cgroup, pids in held.items():
        usage = cgroups.usage(cgroup)
        room = None if usage.limit is None or usage.used is None else usage.limit - usage.used
        yield {
            "kind": "cgroup",
            "path": cgroup.folder,
            "limit": usage.limit,
            "used": usage.used,
            "available": None if room is None else max(0, room),
            "swap_used": usage.swap,
            "events": usage.events,
            "version": cgroup.version,
            "pids": pids,
        }


def _bytes(info: dict[str, int], name: str) -> int | None:
    return info[name] * _KB if name in info else None


# ------------------------------------------------------------------ pressure


def _pressure() -> Iterator[dict[str, Any]]:
    """Percentage of time that tasks were stalled (PSI); a kernel without PSI has no such files."""
    for resource in ("memory", "cpu", "io"):
        row: dict[str, Any] = {"resource": resource}
        for line in cgroups.lines(f"/proc/pressure/{resource}"):
            kind, *averages = line.split()
            for name, _, value in (average.partition("=") for average in averages):
                if name in ("avg10", "avg60"):
                    row[f"{kind}_{name}"] = float(value)
        if len(row) > 1:
            yield row


# ------------------------------------------------------------------ limits


def _limits(members: list[_Member]) -> Iterator[dict[str, Any]]:
    workers = [m for m in members if m.kind == "worker"][:_MOST_WORKERS]
    daemons = [m for m in members if m.kind in ("raylet", "gcs_server")]
    for member in (*daemons, *workers):
        limits = _limits_of(member.pid)
        if not limits:
            continue
        soft, hard = limits.get("Max open files", (None, None))
        yield {
            "pid": member.pid,
            "kind": member.kind,
            "open_files_soft": soft,
            "open_files_hard": hard,
            "open_files_used": _open_files(member.pid),
            "processes_soft": limits.get("Max processes", (None, None))[0],
        }


def _limits_of(pid: int) -> dict[str, tuple[int | None, int | None]]:
    """Name of a limit, such as `Max open files` -> soft and hard limit; None is unlimited."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for line in cgroups.lines(f"/proc/{pid}/limits")[1:]:
        # The name's column is 26 wide (fs/proc/base.c), the two limits' 21.
        soft, hard = line[26:47].strip(), line[47:68].strip()
        found[line[:26].strip()] = (_whole(soft), _whole(hard))
    return found


def _open_files(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def _whole(word: str) -> int | None:
    return int(word) if word.isdigit() else None


# ------------------------------------------------------------------ files of the kernel


def _pairs(path: str) -> dict[str, int]:
    """Names and numbers of lines such as `MemTotal:  24684084 kB` and `oom_kill 9`."""
    words: Iterable[list[str]] = (line.split() for line in cgroups.lines(path))
    return {w[0].rstrip(":"): int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}
