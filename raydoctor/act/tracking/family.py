"""Which processes belong to a tracked task: only those for which there is proof, at any depth.

A process belongs to the task if the registry records that the task started it (`registry.py`), if it descends
from such a process, if it is in a session or process group that one of them created, or if its environment
has the task's mark. A process that was not recorded, has no mark, left its session and lost its parents
before a sample was taken is not found. A worker that adopts its orphans (PR_SET_CHILD_SUBREAPER) would find
it, but Ray ends the direct children of an exiting worker, including processes that a task left on purpose.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache

from raydoctor.act.tracking.registry import (
    GROUP,
    MARK,
    RUN_MARK,
    SESSION,
    StartedProcess,
    known_workers,
)
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process

_SLACK = 0.011
"""Seconds: a tick."""
_OLD = 3600.0
"""Seconds after which a registry file without living processes is removed."""
_FOREIGN = 86400.0
"""The same for a file of another boot or container, whose processes are not visible here."""


def leads(process: Process) -> str:
    """Whether it leads a session (`s`) or a process group (`g`)."""
    is_group = GROUP if process.pgid == process.pid else ""
    return is_group + (SESSION if process.sid == process.pid else "")


def started_process(pid: int) -> StartedProcess | None:
    """A process as the registry records it; None if it is gone."""
    process = proc.read(pid)
    return None if process is None else StartedProcess(pid, process.started_at, leads(process))


def lives(process: StartedProcess) -> bool:
    """Whether that process exists; it may be defunct."""
    now = started_process(process.pid)
    return now is not None and process.is_same(now.pid, now.started_at)


def members(
    started: Iterable[StartedProcess],
    marks: Collection[str],
    sure: Callable[[Mapping[int, Process]], Iterable[int]] = lambda table: (),
    since: float = 0.0,
) -> list[StartedProcess]:
    """All living processes of a task, parents first.

    `marks` are the task's values of `MARK` (or `RUN_MARK`); `sure` returns further processes of the table
    that are known to belong to it; processes older than `since` are not checked for marks.
    """
    table = {pid: p for pid, p in proc.table().items() if p.state != "Z"}
    known = list(started)
    own = {s.pid for s in known if s.pid in table and s.is_same(s.pid, table[s.pid].started_at)}
    own.update(sure(table))
    leaders = [s for s in known if s.leads]
    leaders += [StartedProcess(pid, table[pid].started_at, leads(table[pid])) for pid in own]
    own |= _in_groups(table, leaders)
    own |= _marked(table.values(), marks, since)
    eldest_first = sorted(own, key=lambda pid: table[pid].started_at)
    found = [table[pid] for pid in proc.trees(table, eldest_first, without=os.getpid())]
    return [StartedProcess(p.pid, p.started_at, leads(p)) for p in found]


def _in_groups(table: Mapping[int, Process], leaders: Iterable[StartedProcess]) -> set[int]:
    """Processes in a session or group that one of these created.

    The kernel does not reuse the pid of a leader while its session or group has members, so a member younger
    than the leader belongs to that leader, not to a later process with the same pid.
    """
    sessions = {s.pid: s.started_at for s in leaders if SESSION in s.leads}
    groups = {s.pid: s.started_at for s in leaders if GROUP in s.leads}
    found = set()
    for process in table.values():
        for made, number in ((sessions, process.sid), (groups, process.pgid)):
            if number in made and process.started_at > made[number] - _SLACK:
                leader = table.get(number)
                if leader is None or abs(leader.started_at - made[number]) < _SLACK:
                    found.add(process.pid)
    return found


def _marked(processes: Iterable[Process], marks: Collection[str], since: float) -> set[int]:
    """Processes with one of the marks; environments of processes older than `since` are not read."""
    found = set()
    for process in processes if marks else ():
        if process.started_at > since - _SLACK:
            variables = proc.environment(process.pid, (MARK, RUN_MARK)) or {}
            if any(value in marks for value in variables.values()):
                found.add(process.pid)
    return found


def children(pid: int) -> list[int] | None:
    """Direct children, without reading all processes; None if the kernel does not list them.

    `/proc/PID/task/TID/children` (CONFIG_PROC_CHILDREN) lists the children that each thread started.
    """
    found: list[int] = []
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as stream:
                found += map(int, stream.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}"):
                return None
        except OSError:
            continue
    return found


def forget_old() -> None:
    """Remove old registry files whose worker and processes are all gone."""
    for known in known_workers(everywhere=True):
        named = [
            known.worker,
            *(s for task in known.tasks.values() for s in task.processes.values()),
        ]
        with suppress(OSError):
            age = time.time() - os.stat(known.path).st_mtime
            is_old = age > (_OLD if known.is_here else _FOREIGN)
            if is_old and not (known.is_here and any(map(lives, named))):
                os.unlink(known.path)


def now() -> float:
    """The current time on the clock of process start times, which differs slightly from the time of day."""
    return _booted() + time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _booted() -> float:
    with open("/proc/self/stat", "rb") as stream:
        ticks = int(stream.read().rpartition(b")")[2].split()[19])
    own = proc.read(os.getpid())
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return (own.started_at if own else since_boot) - since_boot
