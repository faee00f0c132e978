"""Classifies processes of a machine as leftovers, with the reason, for `leftovers.py`.

The evidence is one snapshot of the process table (`observe/processes/ownership.py`), the logs of raylets that
are gone, and, for a GCS, its connections. A process without conclusive evidence is not marked.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from raydoctor.act.signals.process import Identity
from raydoctor.act.tracking import family, registry, watcher
from raydoctor.act.tracking.registry import Task, WorkerRecord
from raydoctor.act.zombies import history
from raydoctor.act.zombies.history import Raylets
from raydoctor.model.patterns import pattern
from raydoctor.observe.collector.cluster import Daemon
from raydoctor.observe.machine import holdings
from raydoctor.observe.processes import daemons, ownership, proc, traces
from raydoctor.observe.processes.ownership import Machine

Kind = Literal["defunct", "orphan", "stale-daemon", "leaked-child", "idle-holder"]
_STARTING = 60.0
"""Seconds in which a session without a raylet counts as starting up."""
_RAYLET_SOCKET = pattern(r"/sockets/raylet(?:\.\d+)?$")
_AGENTS = ("agent", "runtime_env_agent")
_CLIENT_DRIVER = "ray.util.client.server"


class Mark(NamedTuple):
    """Why one process is left over."""

    kind: Kind
    why: str
    belongs_to: str
    session: str
    is_inherited_only: bool = False
    """Whether its inherited environment is the only tie to Ray: a tmux server that was started from a job has
    the same environment, and belongs to its user."""


@dataclass(slots=True)
class LeftoverSurvey:
    """A snapshot of the machine, and the processes that are marked as leftovers."""

    machine: Machine
    raylets: Raylets
    hidden: set[str] = field(default_factory=set)
    """Sessions with a raylet that is not visible from this pid namespace."""
    marks: dict[int, Mark] = field(default_factory=dict)

    def identity(self, pid: int) -> Identity:
        """The identity of a process of the snapshot."""
        return Identity(pid, self.machine.processes[pid].started_at)

    @property
    def is_ending(self) -> bool:
        """Whether a raylet may just have died, so that other processes are about to exit."""
        daemons_too = any(mark.kind == "stale-daemon" for mark in self.marks.values())
        return daemons_too or any(_is_defunct_raylet(d) for d in self.machine.daemons.values())


def survey() -> LeftoverSurvey:
    """Take a snapshot of the machine, and mark leftovers."""
    machine = ownership.survey_machine(thorough=True, folders=history.session_folders())
    folders = history.session_folders(ownership.sessions(machine))
    survey = LeftoverSurvey(machine, Raylets(folders), _with_hidden_raylets(machine))
    _mark_outlived(survey)
    _mark_recorded(survey)
    _mark_daemons(survey)
    _mark_lost_drivers(survey)
    _mark_defunct(survey)
    return survey


def _with_hidden_raylets(machine: Machine) -> set[str]:
    """Sessions that have more raylets than are visible: in another container that shares folder and network.

    Each raylet listens on its own socket in the session's folder (`sockets/raylet`, `raylet.1`, Ray 2.9 to
    2.60); the kernel lists only sockets of living processes.
    """
    listening = Counter(
        path.partition("/sockets/")[0]
        for path in set(history.bound_sockets())
        if _RAYLET_SOCKET.search(path)
    )
    visible = Counter(
        os.path.realpath(d.session_dir)
        for d in machine.daemons.values()
        if machine.is_raylet(d.pid)
    )
    hidden = {s for s, count in listening.items() if count > visible[os.path.realpath(s)]}
    return hidden | {os.path.realpath(session) for session in hidden}


# ------------------------------------------------------------------ workers and what they started


def _mark_outlived(survey: LeftoverSurvey) -> None:
    machine = survey.machine
    for pid, outlived in machine.outlived.items():
        if machine.processes[pid].state != "Z":
            worker, raylet = _origin(survey, pid)
            kind: Kind = "leaked-child" if outlived == "task" else "orphan"
            owner = _owner(survey, outlived, worker, raylet)
            session = _session(survey, pid, raylet)
            if outlived == "raylet" and session in survey.hidden:
                continue
            inherited = _is_inherited_only(machine, pid)
            survey.marks[pid] = Mark(
                kind, _why(survey, pid, outlived, owner), str(owner), session, inherited
            )


def _origin(survey: LeftoverSurvey, pid: int) -> tuple[int, int]:
    """Pids of the worker and of the raylet that it came from; 0 if unknown."""
    machine = survey.machine
    worker = raylet = 0
    for each in machine.line(pid):
        log = machine.output.get(each) or machine.log.get(each)
        trace = machine.traces.get(each)
        group = machine.processes[each].pgid
        worker = worker or (log.pid if log else 0) or (trace.worker if trace else 0)
        worker = worker or (group if machine.kinds.get(group) == "worker" else 0)
        value = machine.variable(each, "RAY_RAYLET_PID")
        raylet = raylet or (int(value) if value.isdigit() else 0)
    if not worker and pid in machine.leaders:
        return _origin(survey, machine.leaders[pid])
    return worker, raylet


class _Owner(NamedTuple):
    """The process that a leftover outlived."""

    name: str
    state: str
    is_worker: bool = False
    """Whether that worker itself is known, not only its raylet."""

    def __str__(self) -> str:
        """`worker pid 812 (gone)`."""
        return f"{self.name} ({self.state})"


def _owner(survey: LeftoverSurvey, outlived: str, worker: int, raylet: int) -> _Owner:
    if outlived == "raylet":
        daemon = survey.machine.daemons.get(raylet)
        state = "defunct" if daemon and _is_defunct_raylet(daemon) else "gone"
        return _Owner(f"raylet pid {raylet}" if raylet else "a raylet", state)
    state = "idle" if outlived == "task" else "gone"
    if worker:
        return _Owner(f"worker pid {worker}", state, is_worker=True)
    return _Owner(f"a worker of raylet pid {raylet}" if raylet else "a worker", state)


def _why(survey: LeftoverSurvey, pid: int, outlived: str, owner: _Owner) -> str:
    """In one clause: what the process outlived, and the evidence for it."""
    by = _evidence(survey.machine, pid)
    if outlived == "task":
        its = "its worker is idle" if owner.is_worker else "every possible worker is idle"
        return f"the task that started it has ended: {its} ({by})"
    return f"{owner.name} is {owner.state} ({by})"


def _evidence(machine: Machine, pid: int) -> str:
    """The evidence of ownership, from the process or its closest ancestor that has any."""
    for each in machine.line(pid):
        if value := _tie(machine, each):
            subject = "it" if each == pid else f"its ancestor pid {each}"
            return f"{subject} {value}"
    return "by its parent"


def _tie(machine: Machine, pid: int) -> str:
    log, trace = machine.log.get(pid), machine.traces.get(pid)
    found = ""
    if machine.kinds.get(pid) == "worker":
        found = "is a Ray worker"
    elif out := machine.output.get(pid):
        found = f"writes to the output of worker pid {out.pid}"
    elif log:
        found = f"is a fork of worker pid {log.pid}, and has its log open"
    elif raylet := machine.variable(pid, "RAY_RAYLET_PID"):
        found = f"inherited RAY_RAYLET_PID={raylet}"
    elif trace:
        found = trace.why
    elif leader := machine.leaders.get(pid):
        found = f"is in the session of pid {leader}, a leftover"
    return found


def _is_inherited_only(machine: Machine, pid: int) -> bool:
    """Whether `RAY_RAYLET_PID` in its environment, or an ancestor's, is its only tie to Ray."""
    line = list(machine.line(pid))
    if any(_has_own_tie(machine, each) for each in line):
        return False
    leaders = [machine.leaders[each] for each in line if each in machine.leaders]
    return all(_is_inherited_only(machine, leader) for leader in leaders)


def _has_own_tie(machine: Machine, pid: int) -> bool:
    """Whether a process has a tie that only children of Ray workers have."""
    if machine.kinds.get(pid) in ("daemon", "worker", "driver"):
        return True
    if pid in machine.output or pid in machine.log or pid in machine.traces:
        return True
    if machine.variable(pid, registry.MARK):
        return True
    # The process group of a living daemon or worker, or of the raylet that it names (Ray before 2.57 leaves
    # workers in their raylet's). A process that detaches itself leaves it.
    process = machine.processes[pid]
    is_raylets = machine.variable(pid, "RAY_RAYLET_PID") == str(process.pgid) != str(pid)
    return is_raylets or machine.kinds.get(process.pgid) in ("daemon", "worker")


def _session(survey: LeftoverSurvey, pid: int, raylet: int) -> str:
    machine = survey.machine
    for each in machine.line(pid):
        if log := machine.log.get(each) or machine.output.get(each):
            return log.session
        if (trace := machine.traces.get(each)) and trace.session:
            return trace.session
        if each in machine.leaders:
            return _session(survey, machine.leaders[each], raylet)
    if raylet in machine.daemons:
        return machine.daemons[raylet].session_dir
    return survey.raylets.session(raylet, machine.processes[pid].started_at) if raylet else ""


def _mark_recorded(survey: LeftoverSurvey) -> None:
    """Mark processes of vanished workers that the registry lists: of tracked tasks, or from samples.

    Such a process needs no other evidence (`act/tracking/tracking.py`, `act/tracking/lineage.py`): it was
    recorded while it still had its parents.
    """
    machine = survey.machine
    numbers = {n for p in machine.processes.values() for n in (p.pid, p.pgid, p.sid)}
    for known in registry.known_workers():
        worker = known.worker
        now = machine.processes.get(worker.pid)
        lives = now is not None and now.state != "Z" and worker.is_same(worker.pid, now.started_at)
        if lives and (known.is_tracked or not ownership.is_idle(machine, worker.pid)):
            continue
        here = [
            t for t in known.tasks.values() if any(s.pid in numbers for s in t.processes.values())
        ]
        groups = traces.worker_groups([worker.pid], survey.raylets.folders) if here else {}
        session, _ = groups.get(worker.pid, ("", 0.0))
        for task in here:
            mark = _recorded(machine, known, task, lives, session)
            for each in family.members(_plain_children(machine, task), [task.mark(worker)]):
                if _has_no_owner(machine, each):
                    survey.marks.setdefault(each.pid, mark)


def _recorded(machine: Machine, known: WorkerRecord, task: Task, lives: bool, session: str) -> Mark:
    pid = known.worker.pid
    owner = f"worker pid {pid} ({'idle' if lives else 'gone'})"
    if task.task == registry.RUN:
        owner = f"raydoctor (pid {pid}, gone)"
        guard = watcher.running(machine.processes, known.path)
        rest = f"is gone; its guard (pid {guard}) still runs" if guard else "and its guard are gone"
        why = f"raydoctor (pid {pid}), which had started it, {rest}"
    elif known.is_tracked:
        why = f"worker pid {pid} is gone; its tracked task {task.task} had started it"
    elif lives:
        why = (
            f"the task that started it has ended: its worker is idle (it was seen below pid {pid})"
        )
    else:
        why = f"worker pid {pid} is gone (it was seen below that worker)"
    return Mark("leaked-child" if lives else "orphan", why, owner, session)


def _plain_children(machine: Machine, task: Task) -> list[registry.StartedProcess]:
    """Recorded processes without those that are now drivers or daemons, which own their children."""
    kinds, processes = machine.kinds, machine.processes
    return [
        each
        for each in task.processes.values()
        if kinds.get(each.pid, "child") == "child"
        or not each.is_same(each.pid, processes[each.pid].started_at)
    ]


def _has_no_owner(machine: Machine, each: registry.StartedProcess) -> bool:
    """Whether it is the recorded process and no living worker, driver or daemon has started it."""
    now = machine.processes.get(each.pid)
    if now is None or not each.is_same(now.pid, now.started_at):
        return False
    *_, last = machine.line(each.pid) if each.pid in machine.kinds else (each.pid,)
    return machine.kinds.get(last, "child") == "child"


# ------------------------------------------------------------------ daemons


def _is_defunct_raylet(daemon: Daemon) -> bool:
    return daemon.kind == "raylet" and daemon.state == "Z"


def _mark_daemons(survey: LeftoverSurvey) -> None:
    machine = survey.machine
    living = ownership.sessions_of_raylets(machine) | survey.hidden
    by_session: dict[str, list[Daemon]] = {}
    for daemon in machine.daemons.values():
        if daemon.state != "Z" and daemon.session_dir and proc.same_pids(daemon.pid):
            by_session.setdefault(daemon.session_dir, []).append(daemon)
    for session, its in by_session.items():
        if session not in living:
            _mark_session(survey, session, its)
        else:
            for daemon in its:
                if daemon.kind in _AGENTS and _is_alone(machine, daemon.pid):
                    why = "an agent is a child of its raylet, and the raylet of this one is gone"
                    _mark_daemon(survey, daemon.pid, why, "a raylet (gone)", session)


def _is_alone(machine: Machine, pid: int) -> bool:
    """Whether its parent is gone: its parent is init, a subreaper outside Ray, or not visible."""
    parent = machine.processes.get(machine.processes[pid].ppid)
    return (
        parent is None
        or parent.pid == 1
        or (parent.ppid in (0, 1) and parent.pid not in machine.kinds)
    )


def _mark_session(survey: LeftoverSurvey, session: str, its: list[Daemon]) -> None:
    """Mark the daemons of a session without a raylet here, unless other processes use them."""
    had = survey.raylets.of(session)
    youngest = max(d.started_at for d in its)
    if not had and time.time() - youngest < _STARTING:
        return  # GCS, dashboard and monitor are started before the raylet
    if any(d.kind == "gcs_server" and _is_used(survey, session, d) for d in its):
        return
    if any(_is_driver_of(survey, pid, session) for pid in survey.machine.kinds):
        return
    owner = f"raylet pid {had[-1]} (gone)" if had else "a raylet (gone)"
    named = f"raylet pid {had[-1]} of its session is gone" if had else "its session has no raylet"
    why = f"{named}, and no other process on any machine is connected to its GCS"
    if not any(d.kind == "gcs_server" for d in its):
        why = f"{named}, and it has no GCS here"
    for daemon in its:
        _mark_daemon(survey, daemon.pid, why, owner, session)


def _mark_daemon(survey: LeftoverSurvey, pid: int, why: str, owner: str, session: str) -> None:
    mark = Mark("stale-daemon", why, owner, session)
    for each in (pid, *survey.machine.below(pid)):
        if each not in survey.marks and survey.machine.processes[each].state != "Z":
            survey.marks[each] = mark


def _is_used(survey: LeftoverSurvey, session: str, gcs: Daemon) -> bool:
    """Whether processes of other sessions or machines are connected to a GCS; True if unknown."""
    machine = survey.machine
    connected = holdings.clients(gcs.pid, machine.processes)
    if connected is None:
        return True
    return not all(_belongs_to(survey, pid, session) for pid in connected)


def _belongs_to(survey: LeftoverSurvey, pid: int, session: str) -> bool:
    machine = survey.machine
    if pid in survey.marks:
        return True
    for each in machine.line(pid):
        if each in machine.daemons:
            return machine.daemons[each].session_dir == session
    return _is_client_server(machine, pid)


def _is_driver_of(survey: LeftoverSurvey, pid: int, session: str) -> bool:
    machine = survey.machine
    log = machine.log.get(pid)
    return (
        machine.kinds[pid] == "driver"
        and log is not None
        and log.session == session
        and not _is_client_server(machine, pid)
        and not _has_lost_worker(survey, pid)
    )


# ------------------------------------------------------------------ drivers that Ray itself started


def _is_client_server(machine: Machine, pid: int) -> bool:
    """Whether it is a driver that the client server started for a client."""
    return machine.kinds.get(pid) == "driver" and _CLIENT_DRIVER in proc.command(pid)


def _has_lost_worker(survey: LeftoverSurvey, pid: int) -> bool:
    """Whether a driver was started by a worker (a job's entrypoint) whose raylet is gone."""
    machine = survey.machine
    value = (machine.environment(pid) or {}).get("RAY_RAYLET_PID", "")
    return value.isdigit() and _is_alone(machine, pid) and not machine.is_raylet(int(value))


def _mark_lost_drivers(survey: LeftoverSurvey) -> None:
    machine = survey.machine
    living = ownership.sessions_of_raylets(machine) | survey.hidden
    for pid, kind in machine.kinds.items():
        log = machine.log.get(pid)
        if kind != "driver" or log is None or log.session in living or not proc.same_pids(pid):
            continue
        if _has_lost_worker(survey, pid):
            raylet = machine.variable(pid, "RAY_RAYLET_PID")
            why = f"it is the entrypoint of a job, and its raylet pid {raylet} is gone"
            mark = Mark("orphan", why, f"raylet pid {raylet} (gone)", log.session)
        elif _is_client_server(machine, pid) and _is_alone(machine, pid):
            why = "the client server that started it is gone, and the session has no raylet"
            mark = Mark("stale-daemon", why, "a client server (gone)", log.session)
        else:
            continue
        for each in (pid, *machine.below(pid)):
            survey.marks.setdefault(each, mark)


# ------------------------------------------------------------------ defunct


def _mark_defunct(survey: LeftoverSurvey) -> None:
    machine = survey.machine
    for pid, process in machine.processes.items():
        if process.state != "Z" or _has_threads(pid) or not _is_rays(machine, pid):
            continue
        parent = machine.processes.get(process.ppid)
        named = f"pid {process.ppid} ({parent.name if parent else 'not seen'})"
        why = f"it has ended; {named} has not asked for its exit status"
        if process.ppid == 1:
            why += ", because it is not an init process (start the container with --init, or under tini)"
        daemon = machine.daemons.get(pid)
        session = daemon.session_dir if daemon else _session(survey, process.ppid, 0)
        survey.marks[pid] = Mark("defunct", why, f"parent {named}", session)


def _is_rays(machine: Machine, pid: int) -> bool:
    """Whether a defunct process, of which only name and parent remain, belonged to Ray or a task."""
    process = machine.processes[pid]
    by_name = process.name in daemons.BINARIES or process.name.startswith("ray::")
    return by_name or any(
        machine.kinds.get(each) == "worker" for each in machine.line(pid) if each != pid
    )


def _has_threads(pid: int) -> bool:
    """Whether other threads still run: then the process looks defunct but works."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False
