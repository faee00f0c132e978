"""The table `processes`: Ray's daemons, workers, drivers and their children, of all clusters here.

`kind` is daemon, worker, driver or child. `outlived` is what a leftover process outlived (`raylet`, `worker`,
`task`; see `ownership.py`), and empty for all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.processes import ownership, proc
from raydoctor.observe.processes.ownership import Log, Machine
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.redact import command_line

_NO_JOB = ("", "ffffffff")
"""Workers that were started before any job requested one have this id on files and in their environment."""
_TITLE = 200
_SETTLE = 0.5
"""Seconds that Ray takes to end the processes of a dead worker (0.2 s measured); later ones are leftovers."""
_SETTLE_DEFUNCT = 2.0
"""The same for a defunct raylet: `ray start --block` checks it once a second, and ends the rest."""


def tables(cluster: Cluster) -> Iterable[Piece | Gap]:
    """The table `processes`, of all clusters of this machine; `is_this` marks the inspected one."""
    at = time.time()
    machine = ownership.survey_machine()
    if machine.outlived:
        defunct = any(d.kind == "raylet" and d.state == "Z" for d in machine.daemons.values())
        time.sleep(_SETTLE_DEFUNCT if defunct else _SETTLE)
        _forget_ended(machine, cluster)
    rows = [_row(machine, pid, cluster) for pid in sorted(machine.kinds)]
    yield table("processes", rows, source="proc", at=at)
    yield from _gaps(cluster)


def _gaps(cluster: Cluster) -> Iterator[Gap]:
    """Gaps for data that is not readable."""
    if not proc.LINUX:
        yield Gap(
            "leftover processes",
            "this system does not show what a process inherited",
            optional=True,
        )
        return
    owners = {uid for d in cluster.daemons if (uid := proc.owner(d.pid)) is not None}
    others = owners - {os.geteuid()}
    if others and os.geteuid() != 0:
        names = ", ".join(sorted(proc.user(uid) for uid in others))
        yield Gap(
            "drivers and leftover processes",
            f"the cluster belongs to {names}, whose processes' files and environment are not readable",
            proc.needs_sudo(others),
            optional=True,
        )


def _forget_ended(machine: Machine, cluster: Cluster) -> None:
    """Drop leftovers that have ended meanwhile, and what other users claim to be leftovers."""
    for pid in list(machine.outlived):
        now = proc.read(pid)
        if (
            now is None
            or now.state == "Z"
            or now.started_at != machine.processes[pid].started_at
            or not cluster.may_have_started(proc.owner(pid))
        ):
            del machine.outlived[pid], machine.kinds[pid]


def _row(machine: Machine, pid: int, cluster: Cluster) -> dict[str, object]:
    process = machine.processes[pid]
    uid = proc.owner(pid)
    log = _log(machine, pid)
    raylet = _raylet_pid(machine, pid)
    session, node = _place(machine, pid, log, raylet)
    return {
        "pid": pid,
        "started_at": process.started_at,
        "ppid": process.ppid,
        "pgid": process.pgid,
        "sid": process.sid,
        "state": process.state,
        "uid": uid,
        "user": None if uid is None else proc.user(uid),
        "rss": process.rss,
        "private": proc.private_memory(pid),
        "cpu_seconds": round(process.cpu_seconds, 2),
        "title": _title(process),
        "kind": machine.kinds[pid],
        "session_dir": session,
        "worker_id": log.worker if log and log.kind != "driver" else "",
        "worker_pid": log.pid if log and log.kind != "driver" else None,
        "job_id": _job(machine, pid),
        "raylet_pid": raylet,
        "node_id": node,
        "is_this": bool(session) and session == cluster.session_dir,
        "parent_kind": _parent_kind(machine, process),
        "outlived": machine.outlived.get(pid, ""),
    }


def _title(process: Process) -> str:
    return command_line(process.pid)[:_TITLE] or f"[{process.name}]"


def _log(machine: Machine, pid: int) -> Log | None:
    """Its own log, or that of the worker or driver it descends from."""
    for each in machine.line(pid):
        if found := machine.log.get(each) or machine.output.get(each):
            return found
    return None


def _raylet_pid(machine: Machine, pid: int) -> int | None:
    for each in machine.line(pid):
        if machine.is_raylet(ppid := machine.processes[each].ppid):
            return ppid
        if (inherited := machine.variable(each, "RAY_RAYLET_PID")).isdigit():
            return int(inherited)
    return None


def _place(machine: Machine, pid: int, log: Log | None, raylet: int | None) -> tuple[str, str]:
    """Session and node."""
    known = [machine.daemons[p] for p in (*machine.line(pid), raylet) if p in machine.daemons]
    session = log.session if log else next((d.session_dir for d in known if d.session_dir), "")
    nodes = {d.node_id for d in known if d.node_id} or {
        d.node_id
        for d in machine.daemons.values()
        if d.kind == "raylet" and d.session_dir == session
    }
    return session, nodes.pop() if len(nodes) == 1 else ""


def _job(machine: Machine, pid: int) -> str:
    jobs = [machine.variable(pid, "RAY_JOB_ID")]
    for each in machine.line(pid):
        jobs += [log.job for log in (machine.log.get(each), machine.output.get(each)) if log]
    return next((job for job in jobs if job not in _NO_JOB), "")


def _parent_kind(machine: Machine, process: Process) -> str:
    if process.ppid in (0, 1):
        return "init"
    return machine.kinds.get(process.ppid, "other")
