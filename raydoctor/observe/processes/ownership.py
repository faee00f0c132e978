"""Ownership of each process of this machine: Ray's daemons, workers, drivers, their children, leftovers.

Ownership is established from resources that a process keeps (measured with Ray 2.9.3, 2.40 and 2.60): a
worker or driver has its own log open (`python-core-worker-<worker id>_<pid>.log`; a fork has its parent's), a
worker is a child of its raylet, and processes that a task starts inherit `RAY_RAYLET_PID` and `RAY_JOB_ID`,
usually also the worker's output files. Only these variables are read, and only of possible orphans and their
possible origins.

A process has *outlived* its raylet, worker or task only if that is certain: a detached process may belong to
any older busy worker of its raylet, and then it is not reported.

A thorough survey also finds processes that have lost their environment and output (`traces.py`), and those in
the session (setsid) of an orphan, which only its descendants can be in.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.model.patterns import pattern
from raydoctor.observe.collector.cluster import Daemon
from raydoctor.observe.processes import daemons, proc, traces
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.traces import Trace

_CORE_LOG = pattern(r"python-core-(worker|driver)-([0-9a-f]+)_(\d+)\.log")
_OUTPUT = pattern(r"worker-([0-9a-f]+)-([0-9a-f]+)-(\d+)\.(?:out|err)")
_MARK = "RAYDOCTOR_TASK"
"""Variable for processes started under `raydoctor.tracked`: `TASK_ID:WORKER_PID:WORKER_START:NUMBER`."""
_VARIABLES = ("RAY_RAYLET_PID", "RAY_JOB_ID", _MARK)
_IDLE = "ray::IDLE"
_OURS = "ray::raydoctor:"
"""A worker that runs raydoctor's own task (`there.py`, `nodes.py`); the kernel keeps 15 characters."""
_NO_JOB = "ffffffff"


class Log(NamedTuple):
    """The process that wrote a log, according to the log's name."""

    session: str
    kind: str
    """`worker` or `driver`; empty if only the output of a worker is open."""
    worker: str
    job: str
    pid: int


@dataclass(slots=True)
class Machine:
    """The process table, and the ownership of each process in it."""

    processes: dict[int, Process]
    daemons: dict[int, Daemon]
    log: dict[int, Log] = field(default_factory=dict)
    """Process -> the worker's or driver's log that it has open."""
    output: dict[int, Log] = field(default_factory=dict)
    """Process -> the worker that owns its standard output or error."""
    children: dict[int, list[int]] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    """Process -> `daemon`, `worker`, `driver` or `child`; only for processes of Ray."""
    orphans: list[int] = field(default_factory=list)
    traces: dict[int, Trace] = field(default_factory=dict)
    """Orphan -> its other tie to Ray, if it has neither the variables nor a worker's files; thorough only."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Orphan that is tied only by its session -> the orphan that leads the session; thorough only."""
    outlived: dict[int, str] = field(default_factory=dict)
    """Process -> `raylet`, `worker` or `task`."""
    variables: dict[int, dict[str, str] | None] = field(default_factory=dict)

    def environment(self, pid: int) -> dict[str, str] | None:
        """The variables in `_VARIABLES` of a process, read once; None if they are not readable."""
        if pid not in self.variables:
            self.variables[pid] = proc.environment(pid, _VARIABLES)
        return self.variables[pid]

    def variable(self, pid: int, name: str) -> str:
        """One of these variables, if it has been read."""
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
        visited: set[int] = set()
        while pid in self.kinds and pid not in visited:
            visited.add(pid)
            yield pid
            if pid in self.daemons or self.kinds[pid] in ("worker", "driver"):
                return
            pid = self.processes[pid].ppid

    def is_raylet(self, pid: int) -> bool:
        """Whether a raylet runs under this pid."""
        daemon = self.daemons.get(pid)
        return daemon is not None and daemon.kind == "raylet" and daemon.state != "Z"


def survey_machine(thorough: bool = False, folders: Iterable[str] = ()) -> Machine:
    """The current process table. `folders`: sessions whose logs identify workers in a thorough survey."""
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
    """Folders of the sessions that have a running process."""
    logs = (*machine.log.values(), *machine.output.values())
    return {log.session for log in logs} | {
        d.session_dir for d in machine.daemons.values() if d.state != "Z" and d.session_dir
    }


# ------------------------------------------------------------------ open files


def _read_files(machine: Machine, pid: int) -> None:
    for number, path in proc.files(pid).items():
        session = daemons.session_of(path)
        if not session or not proc.writes(pid, number):
            continue  # `tail -F` of a log does not make a process a child of Ray
        name = posixpath.basename(path)
        if core := _CORE_LOG.fullmatch(name):
            kind, worker, writer = core.groups()
            # A driver's id begins with its job's id: `01000000ffff…`.
            job = worker[:8] if kind == "driver" else ""
            machine.log[pid] = Log(session, kind, worker, job, int(writer))
        elif number in (1, 2) and (out := _OUTPUT.fullmatch(name)):
            worker, job, writer = out.groups()
            machine.output[pid] = Log(session, "", worker, job, int(writer))


def is_driver(pid: int) -> bool:
    """Whether it writes to a driver's log: it is a driver, or a fork of one."""
    names = map(posixpath.basename, proc.logs(pid))
    return any((core := _CORE_LOG.fullmatch(name)) and core[1] == "driver" for name in names)


# ------------------------------------------------------------------ kinds


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
    """Whether a process writes this log itself, and did not inherit it by a fork."""
    if log.pid == process.pid:
        return True
    # In a container pids differ: there the topmost process that has it open is the writer.
    return machine.log.get(process.ppid) != log and not proc.same_pids(process.pid)


def _claim_below(machine: Machine, pid: int) -> None:
    """Descendants of a known process are `child`, down to processes that have a kind."""
    waiting = list(machine.children.get(pid, ()))
    while waiting:
        child = waiting.pop()
        if child not in machine.kinds:
            machine.kinds[child] = "child"
            waiting += machine.children.get(child, ())


def _find_orphans(machine: Machine) -> None:
    """Children of Ray without their parent; they now belong to init or to a subreaper right below it."""
    for pid in _detached(machine):
        log = machine.log.get(pid)
        if (
            pid in machine.output
            or (log and log.kind == "worker")  # a fork of one
            or {"RAY_RAYLET_PID", _MARK} & (machine.environment(pid) or {}).keys()
        ):
            _adopt(machine, pid)


def _detached(machine: Machine) -> list[int]:
    """Processes without a kind that belong to init or to a child of init."""
    top = {0, 1}
    top |= {p.pid for p in machine.processes.values() if p.ppid in top}
    return [
        p.pid
        for p in machine.processes.values()
        if p.pid not in machine.kinds
        and p.ppid in top
        and p.pid != 1
        and p.state != "Z"
        and not proc.has_other_pids(p.pid)
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
        trace = _group(machine, pid) or traces.find(machine.processes[pid], groups)
        # Of another user's process little can be read: only that it comes from this user's session.
        if trace and (proc.same_pids(pid) or owners.of_folder(trace.session) == os.geteuid()):
            machine.traces[pid] = trace
            _adopt(machine, pid)


def _group(machine: Machine, pid: int) -> Trace | None:
    """That it is in the process group of a running worker."""
    leader = machine.processes[pid].pgid
    log = machine.log.get(leader) or machine.output.get(leader)
    is_worker = machine.kinds.get(leader) == "worker"
    return traces.of_group(log.session, leader) if log and is_worker else None


def _find_members(machine: Machine) -> None:
    """Orphans in the session of another one: only descendants of a leader are in its session."""
    leading = {pid for pid in machine.orphans if machine.processes[pid].sid == pid}
    for pid in _detached(machine):
        leader = machine.processes[pid].sid
        if leader in leading:
            machine.leaders[pid] = leader
            _adopt(machine, pid)


# ------------------------------------------------------------------ outlived processes


def _find_outlived(machine: Machine) -> None:
    for pid in machine.orphans:
        if pid not in machine.leaders:
            _mark(machine, pid, outlived_by(machine, machine.processes[pid]))
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


def _mark(machine: Machine, pid: int, origin: str) -> None:
    if origin:
        machine.outlived[pid] = origin
        for below in machine.below(pid):
            if machine.kinds.get(below) == "child":
                machine.outlived[below] = origin


def outlived_by(machine: Machine, orphan: Process) -> str:
    """What an orphan has certainly outlived: `raylet`, `worker` or `task`; else empty."""
    if not _has_raylet(machine, orphan):
        return "raylet"
    origins = _possible_origins(machine, orphan)
    if not origins:
        return "worker"
    return "" if any(not is_idle(machine, pid) for pid in origins) else "task"


def _has_raylet(machine: Machine, process: Process) -> bool:
    machine.environment(process.pid)
    pid = machine.variable(process.pid, "RAY_RAYLET_PID")
    if trace := machine.traces.get(process.pid):
        return trace.session in sessions_of_raylets(machine)
    if not pid.isdigit():
        log = machine.output.get(process.pid) or machine.log.get(process.pid)
        return log is None or log.session in sessions_of_raylets(machine)
    # A younger raylet has reused the pid; one second of tolerance, as start times are rounded.
    raylet = machine.daemons.get(int(pid))
    return machine.is_raylet(int(pid)) and (
        raylet is not None and raylet.started_at <= process.started_at + 1.0
    )


def sessions_of_raylets(machine: Machine) -> set[str]:
    """Folders of the sessions with a running raylet on this machine."""
    return {d.session_dir for d in machine.daemons.values() if machine.is_raylet(d.pid)}


def _possible_origins(machine: Machine, orphan: Process) -> list[int]:
    """Running workers and drivers that may have started it; only one if its files or group identify it."""
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
        # A worker serves one job: this one has only run raydoctor's own task.
        and not machine.processes[pid].name.startswith(_OURS)
        and _may_have_started(machine, pid, orphan)
    ]


def _marked(machine: Machine, mark: str) -> list[int]:
    """The worker of this identity, if it runs."""
    pid, begun = [*mark.split(":"), "", ""][1:3]
    process = machine.processes.get(int(pid)) if pid.isdigit() else None
    if process is None or process.state == "Z":
        return []
    return [process.pid] if f"{proc.since_boot(process.started_at):.2f}" == begun else []


def _may_have_started(machine: Machine, pid: int, orphan: Process) -> bool:
    """Whether the orphan's inherited variables, if any, can be from this worker or driver."""
    if is_idle(machine, pid) and pid in machine.output and traces.has_run_nothing(pid):
        return False
    inherited, own = machine.environment(orphan.pid), machine.environment(pid)
    if orphan.pid in machine.traces or own is None or not inherited:
        return True  # an unreadable environment excludes nothing
    if inherited.get("RAY_RAYLET_PID") != own.get("RAY_RAYLET_PID"):
        return False
    job = inherited.get("RAY_JOB_ID", "")
    if job == _NO_JOB:  # from a worker that was started before any job requested one
        return own.get("RAY_JOB_ID", _NO_JOB) == _NO_JOB
    return not job or _job(machine, pid) in (_NO_JOB, job)


def _job(machine: Machine, pid: int) -> str:
    """The job of a worker, if known.

    A worker that was started before any job requested one has no job in its environment, but in its output
    and its children's environment, and for an actor in its log.
    """
    children = (machine.environment(child) or {} for child in machine.below(pid))
    jobs = [(machine.environment(pid) or {}).get("RAY_JOB_ID", _NO_JOB)]
    jobs.append(traces.job_of_worker(pid) or _NO_JOB)
    jobs += [each.get("RAY_JOB_ID", _NO_JOB) for each in children]
    job = next((each for each in jobs if each != _NO_JOB), "")
    log = machine.log.get(pid)
    return job or (traces.job_of_actor(log.session, log.worker, log.pid) if log else "") or _NO_JOB


def is_idle(machine: Machine, pid: int) -> bool:
    """Whether a worker runs no task and has no actor, according to its title."""
    return machine.kinds.get(pid) == "worker" and machine.processes[pid].name.startswith(_IDLE)
