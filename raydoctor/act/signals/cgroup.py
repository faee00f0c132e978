"""Kills all processes of a cgroup at once, if it contains only processes that are to end.

For processes that fork faster than they can be ended one by one. Facts:
Documentation/admin-guide/cgroup-v2.rst of Linux: writing 1 into `cgroup.kill` (5.14) sends SIGKILL to all
processes of a cgroup and of its descendants, including those that are being forked. Only version 2 has it; a
process's cgroup is the line `0::/path` of `/proc/PID/cgroup`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from raydoctor.act.audit import Audit
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process


def owned(pids: Collection[int], table: Mapping[int, Process]) -> list[str]:
    """Folders of cgroups that contain only these processes, and processes started after the table was read.

    The latter can only be children of the former.
    """
    newest = max((p.started_at for p in table.values()), default=0.0)
    mine = _folder(os.getpid())
    found = []
    for folder in dict.fromkeys(filter(None, map(_folder, pids))):
        is_ours = mine == folder or mine.startswith(f"{folder}/")
        members = set(_members(folder))
        if not is_ours and members and all(p in pids or _is_newer(p, newest) for p in members):
            found.append(folder)
    return found


def kill(folder: str, audit: Audit) -> bool:
    """Kill all processes in it; whether the kernel accepted the request."""
    try:
        with open(f"{folder}/cgroup.kill", "w", encoding="ascii") as stream:
            stream.write("1")
    except OSError as error:
        audit.write("cgroup.kill", path=folder, result=error.strerror or str(error))
        return False
    audit.write("cgroup.kill", path=folder, result="sent")
    return True


def _is_newer(pid: int, than: float) -> bool:
    process = proc.read(pid)
    return process is None or process.state == "Z" or process.started_at > than


def _members(folder: str) -> Iterator[int]:
    """Pids in a cgroup and its descendants; 0 stands for a process outside our pid namespace."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError), open(f"{path}/cgroup.procs", encoding="ascii") as stream:
            yield from map(int, stream.read().split())


def _folder(pid: int) -> str:
    """Folder of the cgroup of a process; empty for the root cgroup, and if there is none."""
    with suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8") as stream:
        for line in stream:
            number, _, rest = line.rstrip("\n").partition(":")
            path = rest.partition(":")[2]
            if number == "0" and path.strip("/") and not path.startswith("/.."):
                return next(
                    (f"{top}{path}" for top in _tops() if os.path.isdir(f"{top}{path}")), ""
                )
    return ""


def _tops() -> list[str]:
    """Mount points of the whole cgroup hierarchy that is visible to us."""
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as stream:
        split = (line.split() for line in stream)
        return [words[4] for words in split if "cgroup2" in words[6:] and words[3] == "/"]
    return []
