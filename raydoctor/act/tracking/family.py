"""Which processes are a tracked task's: only those for which that follows, at whatever remove.

A process is the task's if it was seen to be started by it (`_registry`), if it descends from one that is,
if it is in a session or process group that one of them made, or if its environment has the task's mark.
What was neither seen nor carries a mark, left its session and lost its parents before anyone looked, is not
found: making the worker the reaper of its orphans (PR_SET_CHILD_SUBREAPER) would show that, too, but Ray
ends a worker's direct children when it exits, so it would end what a task left behind on purpose.
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
"""Seconds after which a registry of which nothing lives is of no use to `raydoctor zombies` either."""
_FOREIGN = 86400.0
"""The same for one of another boot or container, of which it cannot be seen whether anything lives."""


def leads(process: Process) -> str:
    """What it leads: a session, a process group."""
    is_group = GROUP if process.pgid == process.pid else ""
    return is_group + (SESSION if process.sid == process.pid else "")


def started_process(pid: int) -> StartedProcess | None:
    """A process as a registry has it; None where it is gone."""
    process = proc.read(pid)
    return None if process is None else StartedProcess(pid, process.started_at, leads(process))


def lives(process: StartedProcess) -> bool:
    """Whether that process is there, if only defunct."""
    now = started_process(process.pid)
    return now is not None and process.is_same(now.pid, now.started_at)


def members(
    started: Iterable[StartedProcess],
    marks: Collection[str],
    sure: Callable[[Mapping[int, Process]], Iterable[int]] = lambda table: (),
    since: float = 0.0,
) -> list[StartedProcess]:
    """All that live of a task now, parents first.

    `marks` are the values of `MARK` (or `RUN_MARK`) that are the task's; `sure` names further processes of
    the table that are known to be; none is older than `since`.
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
    """Who is in a session or group that one of these made.

    The system gives nobody the pid of a leader while its session or group has members, so a member that is
    younger than the leader is of that leader's, not of a later process with that pid.
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
    """Who carries one of the marks; environments of older processes are not read."""
    found = set()
    for process in processes if marks else ():
        if process.started_at > since - _SLACK:
            variables = proc.environment(process.pid, (MARK, RUN_MARK)) or {}
            if any(value in marks for value in variables.values()):
                found.add(process.pid)
    return found


def children(pid: int) -> list[int] | None:
    """Direct children, without a look at all processes; None where the kernel does not tell.

    `/proc/PID/task/TID/children` (CONFIG_PROC_CHILDREN): of each thread, those that it started.
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
    """Remove files of the registry that nobody else will: nothing that they name is there, worker and all."""
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
    """The present on the clock that processes' starts are told on, which is not exactly the time of day."""
    return _booted() + time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _booted() -> float:
    with open("/proc/self/stat", "rb") as stream:
        ticks = int(stream.read().rpartition(b")")[2].split()[19])
    own = proc.read(os.getpid())
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return (own.started_at if own else since_boot) - since_boot
