"""Whose each process of this machine is: Ray's daemons, workers, drivers, what they started, what is left.

It is read off what a process cannot lose (measured with Ray 2.9.3, 2.40 and 2.60): a worker or driver has its
own log open (`python-core-worker-<worker id>_<pid>.log`; a fork of it has its parent's), a worker is a child
of its raylet, and what a task starts inherits `RAY_RAYLET_PID` and `RAY_JOB_ID`, mostly also the worker's
output files. Only these variables are read, of nothing but possible orphans and their possible origins.

A process is said to have *outlived* its raylet, worker or task only where that follows: what detached itself
may belong to any busy worker of that raylet that is older than itself, and then nothing is said.

A thorough look also finds what has lost its environment and its output (`traces.py`), and who is in the
session (setsid) of an orphan, as only what that one started can be.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.observe.collector.cluster import Daemon
from raydoctor.observe.processes import daemons, proc, traces
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.traces import Trace

_CORE_LOG = pattern(r"python-core-(worker|driver)-([0-9a-f]+)_(\d+)\.log")
_OUTPUT = pattern(r"worker-([0-9a-f]+)-([0-9a-f]+)-(\d+)\.(?:out|err)")
_MARK = "RAYDOCTOR_TASK"
"""What a task under `raydoctor.tracked` gives to what it starts: `TASK_ID:WORKER_PID:WORKER_START:NUMBER`."""
_VARIABLES = ("RAY_RAYLET_PID", "RAY_JOB_ID", _MARK)
_IDLE = "ray::IDLE"
_OURS = "ray::raydoctor:"
"""A worker that a task of ours has (`there.py`, `nodes.py`), as the kernel names it: 15 characters."""
_NO_JOB = "ffffffff"


class Log(NamedTuple):
    """What an open log says about the process that wrote it."""

    session: str
    kind: str
    """`worker` or `driver`; empty where only the output of a worker is open."""
    worker: str
    job: str
    pid: int


@dataclass(slots=True)
class Machine:
    """The process table, and what is known of each process in it."""

    processes: dict[int, Process]
    daemons: dict[int, Daemon]
    log: dict[int, Log] = field(default_factory=dict)
    """Worker's or driver's log that it has open."""
    output: dict[int, Log] = field(default_factory=dict)
    """Worker whose output files its standard output or error is."""
    children: dict[int, list[int]] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    """`daemon`, `worker`, `driver` or `child`; what is not Ray's has none."""
    orphans: list[int] = field(default_factory=list)
    traces: dict[int, Trace] = field(default_factory=dict)
    """What ties an orphan to Ray that has neither its variables nor a worker's files; thorough looks only."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Orphan that is known by nothing but its session -> the orphan that leads it; thorough looks only."""
    outlived: dict[int, str] = field(default_factory=dict)
    """`raylet`, `worker` or `task`."""
    variables: dict[int, dict[str, str] | None] = field(default_factory=dict)

    def environment(self, pid: int) -> dict[str, str] | None:
        """These variables of a process, read once; None where they may not be read."""
        if pid not in self.variables:
            self.variables[pid] = proc.environment(pid, _VARIABLES)
        return self.variables[pid]

    def variable(self, pid: int, name: str) -> str:
        """One of them, where it has been read."""
        return (self.variables.get(pid) or {}).get(name, "")

    def below(self, pid: int) -> Iterator[int]:
        """Descendants, parents first."""
        waiting = list(self.children.get(pid, ()))
        while waiting:
            child = waiting.pop()
            yield child
            waiting += self.children.get(child, ())

    def line(self, pid: int) -> Iterator[int]:
        """A process and its ancestors, up to the daemon, worker, driver or orphan that it came from."""
        seen: set[int] = set()
        while pid in self.kinds and pid not in seen:
            seen.add(pid)
            yield pid
            if pid in self.daemons or self.kinds[pid] in ("worker", "driver"):
                return
            pid = self.processes[pid].ppid

    def is_raylet(self, pid: int) -> bool:
        """Whether a raylet runs under this pid."""
        daemon = self.daemons.get(pid)
        return daemon is not None and daemon.kind == "raylet" and daemon.state != "Z"


def survey_machine(thorough: bool = False, folders: Iterable[str] = ()) -> Machine:
    """The process table of now. `folders` are sessions whose workers a thorough look knows by their logs."""
    processes = proc.table()
    machine = Machine(processes, {s.daemon.pid: s.daemon for s in daemons.find(processes)})
    machine.children.update(proc.by_parent(processes))
    for pid in processes.keys() - machine.daemons.keys():
        _read_files(machine, pid)
    _classify(machine)
    _find_orphans(machine)
    if thorough:
        _find_traces(machine, {*folders, *sessions(machine)})
        _find_members(machine)
    _find_outlived(machine)
    return machine


def sessions(machine: Machine) -> set[str]:
    """Folders of the sessions that anything runs of."""
    logs = (*machine.log.values(), *machine.output.values())
    return {log.session for log in logs} | {
        d.session_dir for d in machine.daemons.values() if d.state != "Z" and d.session_dir
    }


# ------------------------------------------------------------------ what files say


def _read_files(machine: Machine, pid: int) -> None:
    for number, path in proc.files(pid).items():
        session = daemons.session_of(path)
        if not session:
            continue
        name = posixpath.basename(path)
        if core := _CORE_LOG.fullmatch(name):
            kind, worker, writer = core.groups()
            # A driver's id begins with that of its job: `01000000ffff…`.
            job = worker[:8] if kind == "driver" else ""
            machine.log[pid] = Log(session, kind, worker, job, int(writer))
        elif number in (1, 2) and (out := _OUTPUT.fullmatch(name)):
            worker, job, writer = out.groups()
            machine.output[pid] = Log(session, "", worker, job, int(writer))


def is_driver(pid: int) -> bool:
    """Whether it has a driver's log open: it is one, or a fork of one."""
    names = (posixpath.basename(path) for path in proc.files(pid).values())
    return any((core := _CORE_LOG.fullmatch(name)) and core[1] == "driver" for name in names)


# ------------------------------------------------------------------ who is what


def _classify(machine: Machine) -> None:
    kinds = machine.kinds
    for pid, daemon in machine.daemons.items():
        kinds[pid] = "daemon"
        if daemon.kind == "dashboard":
            kinds.update(dict.fromkeys(machine.below(pid), "daemon"))
    for pid, process in machine.processes.items():
        if pid not in kinds:
            if machine.is_raylet(process.ppid):
                kinds[pid] = "worker"
            elif (log := machine.log.get(pid)) and _is_own(machine, process, log):
                kinds[pid] = log.kind
    for pid in list(kinds):
        _claim_below(machine, pid)


def _is_own(machine: Machine, process: Process, log: Log) -> bool:
    """Whether a process writes this log itself, and has not inherited it by a fork."""
    if log.pid == process.pid:
        return True
    # A container's pids are its own: there the first that has it open is the one.
    return machine.log.get(process.ppid) != log and not proc.same_pids(process.pid)


def _claim_below(machine: Machine, pid: int) -> None:
    """What a known process started is its child, down to what is known itself."""
    waiting = list(machine.children.get(pid, ()))
    while waiting:
        child = waiting.pop()
        if child not in machine.kinds:
            machine.kinds[child] = "child"
            waiting += machine.children.get(child, ())


def _find_orphans(machine: Machine) -> None:
    """Children of Ray's whose parent is gone; they now belong to init or to a subreaper right below it."""
    for pid in _detached(machine):
        log = machine.log.get(pid)
        if (
            pid in machine.output
            or (log and log.kind == "worker")  # a fork of one
            or {"RAY_RAYLET_PID", _MARK} & (machine.environment(pid) or {}).keys()
        ):
            _adopt(machine, pid)


def _detached(machine: Machine) -> list[int]:
    """What is known as nothing yet, and belongs to init or to what init started."""
    top = {0, 1}
    top |= {p.pid for p in machine.processes.values() if p.ppid in top}
    return [
        p.pid
        for p in machine.processes.values()
        if p.pid not in machine.kinds
        and p.ppid in top
        and p.pid != 1
        and p.state != "Z"
        and proc.same_pids(p.pid)
    ]


def _adopt(machine: Machine, pid: int) -> None:
    if pid not in machine.kinds:
        machine.kinds[pid] = "child"
        machine.orphans.append(pid)
        _claim_below(machine, pid)


def _find_traces(machine: Machine, folders: Iterable[str]) -> None:
    """Orphans that have lost both their environment and their files."""
    detached = _detached(machine)
    groups = traces.worker_groups(
        {machine.processes[pid].pgid for pid in detached} - machine.processes.keys(), folders
    )
    for pid in detached:
        if trace := traces.find(machine.processes[pid], groups):
            machine.traces[pid] = trace
            _adopt(machine, pid)


def _find_members(machine: Machine) -> None:
    """Orphans in the session of another one: a session is nothing but what its leader started."""
    leading = {pid for pid in machine.orphans if machine.processes[pid].sid == pid}
    for pid in _detached(machine):
        leader = machine.processes[pid].sid
        if leader in leading:
            machine.leaders[pid] = leader
            _adopt(machine, pid)


# ------------------------------------------------------------------ who outlived whom


def _find_outlived(machine: Machine) -> None:
    for pid in machine.orphans:
        if pid not in machine.leaders:
            _mark(machine, pid, whom_it_outlived(machine, machine.processes[pid]))
    for pid, leader in machine.leaders.items():
        _mark(machine, pid, machine.outlived.get(leader, ""))
    for pid, kind in list(machine.kinds.items()):
        process = machine.processes[pid]
        if kind != "worker" or process.state == "Z":
            continue
        if machine.is_raylet(process.ppid):
            if is_idle(machine, pid):
                for child in machine.children.get(pid, ()):
                    _mark(machine, child, "task")
        elif proc.same_pids(pid) and machine.environment(pid) and not _has_raylet(machine, process):
            _mark(machine, pid, "raylet")


def _mark(machine: Machine, pid: int, whom: str) -> None:
    if whom:
        machine.outlived[pid] = whom
        for below in machine.below(pid):
            if machine.kinds.get(below) == "child":
                machine.outlived[below] = whom


def whom_it_outlived(machine: Machine, orphan: Process) -> str:
    """`raylet`, `worker` or `task`, where it follows; else empty."""
    if not _has_raylet(machine, orphan):
        return "raylet"
    origins = _possible_origins(machine, orphan)
    if not origins:
        return "worker"
    return "" if any(not is_idle(machine, pid) for pid in origins) else "task"


def _has_raylet(machine: Machine, process: Process) -> bool:
    """Whether the raylet that it came from runs."""
    machine.environment(process.pid)
    told = machine.variable(process.pid, "RAY_RAYLET_PID")
    if trace := machine.traces.get(process.pid):
        return trace.session in sessions_of_raylets(machine)
    if not told.isdigit():
        log = machine.output.get(process.pid) or machine.log.get(process.pid)
        return log is None or log.session in sessions_of_raylets(machine)
    # A younger raylet has the pid anew; a second of slack, as the kernel's start times are rounded.
    raylet = machine.daemons.get(int(told))
    return machine.is_raylet(int(told)) and (
        raylet is not None and raylet.started_at <= process.started_at + 1.0
    )


def sessions_of_raylets(machine: Machine) -> set[str]:
    """Folders of the sessions that a raylet of this machine runs for."""
    return {d.session_dir for d in machine.daemons.values() if machine.is_raylet(d.pid)}


def _possible_origins(machine: Machine, orphan: Process) -> list[int]:
    """Living workers and drivers that may have started it; one, where its files or its group tell."""
    if log := machine.output.get(orphan.pid) or machine.log.get(orphan.pid):
        writer = machine.log.get(log.pid)
        lives = machine.kinds.get(log.pid) == "worker" and writer and writer.worker == log.worker
        return [log.pid] if lives else []
    if mark := machine.variable(orphan.pid, _MARK):
        return _marked(machine, mark)
    if machine.kinds.get(orphan.pgid) in ("worker", "driver"):
        return [orphan.pgid]
    if (trace := machine.traces.get(orphan.pid)) and trace.worker:
        return []
    return [
        pid
        for pid, kind in machine.kinds.items()
        if kind in ("worker", "driver")
        and machine.processes[pid].started_at <= orphan.started_at
        # Workers are of one job: this one has run nothing but our own task.
        and not machine.processes[pid].name.startswith(_OURS)
        and _may_have_started(machine, pid, orphan)
    ]


def _marked(machine: Machine, mark: str) -> list[int]:
    """The worker of this identity, if it lives."""
    pid, begun = [*mark.split(":"), "", ""][1:3]
    process = machine.processes.get(int(pid)) if pid.isdigit() else None
    if process is None or process.state == "Z":
        return []
    return [process.pid] if f"{proc.since_boot(process.started_at):.2f}" == begun else []


def _may_have_started(machine: Machine, pid: int, orphan: Process) -> bool:
    """Whether what the orphan inherited, if anything, can be this worker's or driver's."""
    if is_idle(machine, pid) and pid in machine.output and traces.has_run_nothing(pid):
        return False
    inherited, told = machine.environment(orphan.pid), machine.environment(pid)
    if orphan.pid in machine.traces or told is None or not inherited:
        return True  # who cannot be read may have been it
    if inherited.get("RAY_RAYLET_PID") != told.get("RAY_RAYLET_PID"):
        return False
    job = inherited.get("RAY_JOB_ID", "")
    if job == _NO_JOB:  # of a worker that was started before any job asked for one
        return told.get("RAY_JOB_ID", _NO_JOB) == _NO_JOB
    return not job or _job(machine, pid) in (_NO_JOB, job)


def _job(machine: Machine, pid: int) -> str:
    """The one job that a worker has worked for, where it is told.

    One that was started before any job asked for a worker has none in what it was started with; but in its
    output, in what it gave to its children, and an actor's in its log.
    """
    children = (machine.environment(child) or {} for child in machine.below(pid))
    told = [(machine.environment(pid) or {}).get("RAY_JOB_ID", _NO_JOB)]
    told.append(traces.job_of_worker(pid) or _NO_JOB)
    told += [each.get("RAY_JOB_ID", _NO_JOB) for each in children]
    job = next((each for each in told if each != _NO_JOB), "")
    log = machine.log.get(pid)
    return job or (traces.job_of_actor(log.session, log.worker, log.pid) if log else "") or _NO_JOB


def is_idle(machine: Machine, pid: int) -> bool:
    """Whether a worker runs no task and is no actor: it then calls itself so."""
    return machine.kinds.get(pid) == "worker" and machine.processes[pid].name.startswith(_IDLE)
