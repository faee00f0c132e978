"""Finds the process to attach to: by pid, by its task or actor, or because it waits at a breakpoint.

Tasks are found as in `cancel`, actors in the table of the GCS. Ray does not mark tasks that wait at a
breakpoint (2.60: `is_debugger_paused` stays empty); the worker's row has the port and the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from raydoctor.act.cancel.owner import connected
from raydoctor.act.cancel.target import CancelTarget, UnknownTaskError
from raydoctor.act.cancel.target import find as find_tasks
from raydoctor.model import ids, paste, target_names
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.target_names import is_prefix, short_names
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import usual_timeout
from raydoctor.observe.gcs import gcs
from raydoctor.observe.processes import discover, proc
from raydoctor.observe.processes.redact import command_line, name_of_task

Row = dict[str, Any]
Tables = dict[str, list[Row]]
What = Literal["task", "method", "creation", "actor", "driver", "worker", "process"]
_ACTOR_DIGITS = 32


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """A process that matches the request."""

    what: What
    id: str
    """Id of the task or the actor; empty for a process."""
    name: str
    state: str
    """Ray's state; empty for a process."""
    pid: int
    ip: str = ""
    node: str = ""
    """Its id."""
    worker: str = ""
    actor: str = ""
    debugger: int = 0
    """Port of Ray's own debugger if a thread waits at a breakpoint."""
    attempt: int | None = None
    """Of a task, counted from 0; None if the GCS does not have it."""


def find(cluster: Cluster | None, wanted: str) -> list[FoundProcess]:
    """The matching processes. Raises RaydoctorError if there is none."""
    timeout = usual_timeout()
    wish = target_names.parse(wanted)
    name, pid = wish
    if (alone := target_names.pid_of(wanted)) is not None:
        return [_process(cluster, alone, timeout)]
    if cluster is None or not cluster.gcs_address:
        raise RaydoctorError(
            f"no cluster runs on this machine in which to look for a task or an actor called {wanted}",
            "Pass --address HOST:PORT of a GCS, or the pid of a process.",
        )
    if pid is not None and wish.is_kind:
        process = _process(cluster, pid, timeout)
        found = [process] if process.what in ("driver", "worker") else []
    else:
        found = _named(cluster, name, timeout)
    if pid is None:
        return found
    if of_process := [each for each in found if each.pid == pid]:
        return of_process
    raise RaydoctorError(
        f"pid {pid} is no process of {name}, or no longer",
        paste.shell("Name only one of them: raydoctor attach {name}", name=name),
    )


def _named(cluster: Cluster, wanted: str, timeout: float) -> list[FoundProcess]:
    """The processes of a task or an actor. Raises RaydoctorError if there is none."""
    if len(wanted) == _ACTOR_DIGITS and not wanted.strip("0123456789abcdef"):
        return _actors(_tables(cluster, ("actors", "workers"), timeout), wanted)
    if (job := target_names.job_of_driver(wanted)) is not None:
        return _drivers(_tables(cluster, ("workers",), timeout)["workers"], job)
    # Two child processes query it in parallel: each takes a while to load gRPC.
    with ThreadPoolExecutor(1) as pool:
        tables = pool.submit(_tables, cluster, ("actors", "workers"), timeout)
        try:
            with connected(cluster, timeout) as owners:
                tasks = find_tasks(owners, wanted, classes=False)
        except UnknownTaskError:
            return _actors(tables.result(), wanted)
        return _running(tables.result(), tasks)


def paused(cluster: Cluster) -> list[FoundProcess]:
    """Processes of the cluster that wait at a breakpoint for a debugger."""
    rows = _tables(cluster, ("workers", "tasks"), usual_timeout())
    names = {
        row["worker_id"]: row
        for row in rows["tasks"]
        if row.get("state") == "RUNNING" and row.get("worker_id")
    }
    return [
        _of_worker(row, names.get(row["worker_id"]))
        for row in rows["workers"]
        if row.get("is_alive") and row.get("num_paused_threads") and row.get("debugger_port")
    ]


def is_here(cluster: Cluster | None, found: FoundProcess) -> bool:
    """Whether it is a process of this machine and pid namespace."""
    if found.what == "process" or cluster is None:
        return True
    if proc.read(found.pid) is None:
        return False
    # A worker has its log open, whose name contains its id; files of other users are not visible.
    return _has_our_pids(cluster, found.node) or any(
        found.worker in path for path in proc.logs(found.pid) if found.worker
    )


def _has_our_pids(cluster: Cluster, node: str) -> bool:
    """Whether a node runs on this machine and outside of a container, where pids mean other processes."""
    return node in cluster.node_ids and not discover.has_other_pids(cluster, node)


# ------------------------------------------------------------------ by pid


def _process(cluster: Cluster | None, pid: int, timeout: float) -> FoundProcess:
    process = proc.read(pid)
    if process is None:
        raise RaydoctorError(
            f"no process on this machine has the pid {pid}",
            "For a process on another node, pass its task or its actor.",
        )
    name = command_line(pid)[:200] or process.name
    found = FoundProcess("process", "", name, "", pid)
    if cluster is None or not cluster.gcs_address:
        return found
    try:
        rows = _tables(cluster, ("workers",), timeout)["workers"]
    except RaydoctorError:
        return found  # the cluster is optional here
    for row in rows:
        if row.get("is_alive") and row.get("pid") == pid:
            worker = _of_worker(row, None)
            if _has_our_pids(cluster, worker.node):
                return replace(worker, name=name)
    return found


def _of_worker(row: Row, task: Row | None) -> FoundProcess:
    is_driver = row.get("worker_type") == "DRIVER"
    what: What = "driver" if is_driver else "worker"
    paused = row.get("debugger_port") if row.get("num_paused_threads") else 0
    found = FoundProcess(
        what,
        "",
        what,
        "",
        int(row.get("pid") or 0),
        str(row.get("ip") or ""),
        str(row.get("node_id") or ""),
        str(row.get("worker_id") or ""),
        debugger=int(paused or 0),
    )
    if task is None:
        return found
    name = name_of_task(str(task.get("name") or task.get("func_or_class_name") or ""))
    kind: What = "method" if ids.actor_of_task(task["task_id"]) else "task"
    actor = str(task.get("actor_id") or "")
    return replace(found, what=kind, id=task["task_id"], name=name, state="RUNNING", actor=actor)


# ------------------------------------------------------------------ by name


def _running(tables: Tables, tasks: Sequence[CancelTarget]) -> list[FoundProcess]:
    """The running tasks, one for each process."""
    running = {(each.node, each.pid): each for each in reversed(tasks) if each.runs}
    if not running:
        first = tasks[0]
        raise RaydoctorError(
            f"{first.name} is not running: {first.ray_state}",
            "To see why it waits: raydoctor diagnose" if first.state == "waiting" else "",
        )
    workers = {row["worker_id"]: row for row in tables["workers"]}
    return [
        FoundProcess(
            each.kind,
            each.task,
            each.name,
            each.ray_state,
            each.pid,
            each.ip,
            each.node,
            each.worker,
            each.actor,
            _of_worker(workers.get(each.worker, {}), None).debugger,
            each.attempt,
        )
        for each in reversed(running.values())
    ]


def _actors(tables: Tables, wanted: str) -> list[FoundProcess]:
    workers = {(r.get("node_id"), r.get("pid")): r for r in tables["workers"] if r.get("is_alive")}
    meant = [row for row in tables["actors"] if _is_meant(row, wanted)]
    alive = [row for row in meant if row.get("state") == "ALIVE" and row.get("pid")]
    if not alive:
        if meant:
            raise RaydoctorError(
                f"the actor {_actor_name(meant[-1])} has no process: it is {meant[-1]['state']}",
                "To see why: raydoctor diagnose",
            )
        raise RaydoctorError(
            f"no running task, actor or process has the name or id {wanted}",
            "To list them: ray list tasks --filter state=RUNNING; ray list actors",
        )
    return [_of_actor(row, workers.get((row.get("node_id"), row["pid"]), {})) for row in alive]


def _of_actor(row: Row, worker: Row) -> FoundProcess:
    return replace(
        _of_worker({**worker, "pid": row["pid"], "node_id": row.get("node_id")}, None),
        what="actor",
        id=row["actor_id"],
        name=_actor_name(row),
        state=row["state"],
        actor=row["actor_id"],
    )


def _drivers(workers: Sequence[Row], job: int) -> list[FoundProcess]:
    """The living driver of a job. Raises RaydoctorError if there is none."""
    found = [
        _of_worker(row, None)
        for row in workers
        if row.get("is_alive")
        and row.get("worker_type") == "DRIVER"
        and ids.job_number(ids.job_of_driver(row["worker_id"])) == job
    ]
    if not found:
        raise RaydoctorError(f"job {job} has no running driver", "List jobs: ray list jobs")
    return found


def _actor_name(row: Row) -> str:
    name = row.get("name")
    return f"{row['class_name']} ({name_of_task(name)})" if name else str(row["class_name"])


def _is_meant(row: Row, wanted: str) -> bool:
    names = (short_names(row.get(key)) for key in ("class_name", "repr_name"))
    is_id = is_prefix(wanted, row.get("actor_id"))
    return is_id or wanted == row.get("name") or any(wanted in each for each in names)


def _tables(cluster: Cluster, names: Iterable[str], timeout: float) -> Tables:
    """These tables of the GCS. Raises RaydoctorError if one is missing."""
    child = gcs.Child()
    try:
        tables = {
            each.name: each
            for each in child.ask(cluster.gcs_address, cluster.access(), list(names), timeout + 3.0)
        }
    finally:
        child.end()
    for each in tables.values():
        if each.why:
            raise RaydoctorError(
                f"the cluster did not return its {each.name}: {each.why}",
                "To find the cause: raydoctor diagnose",
            )
    return {name: each.rows for name, each in tables.items()}
