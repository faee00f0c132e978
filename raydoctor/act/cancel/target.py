"""The task to cancel: its kind, where it runs, and its owner.

The GCS learns about a task a second late; its owner and its worker have the current state and take
precedence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from raydoctor.act.cancel.owner import AskError, Owners, Row
from raydoctor.model import ids, target_names
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.target_names import is_prefix, short_names
from raydoctor.observe.processes.redact import name_of_task

Kind = Literal["task", "method", "creation"]
State = Literal["waiting", "running", "ended"]
_ENDED = ("FINISHED", "FAILED")
_LAG = 1.5
"""Seconds by which the GCS may lag behind the workers."""
_INTERVAL = 0.1
_PID_DIGITS = 7
_MANY = 20
"""If more tasks match, they are listed as the GCS has them: each costs two queries."""


class UnknownTaskError(RaydoctorError):
    """No component of the cluster has the task."""


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """A task in its last known state."""

    task: str
    """Its id."""
    name: str
    kind: Kind
    state: State
    ray_state: str
    """Its state in Ray's terms: `PENDING_NODE_ASSIGNMENT`, `RUNNING`."""
    attempt: int | None
    """Counted from 0; None while the GCS does not have it."""
    started_at: float | None
    """Epoch seconds of its worker's clock."""
    worker: str
    """Id of the worker that runs it; empty if none does."""
    pid: int
    ip: str
    node: str
    """Id of its worker's node."""
    owner: str
    """Id of the worker or driver that submitted it; empty if that has ended."""
    owner_pid: int
    job: str
    actor: str
    parent: str
    launched_at: float | None = None
    """When its worker was launched: epoch seconds of that time's clock."""

    @property
    def identity(self) -> str:
        """This attempt in this worker: it differs once the task has been retried, moved or started."""
        return f"{self.task}:{self.attempt}:{self.worker}:{self.pid}"

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self.state == "running"


def find(owners: Owners, wanted: str, *, classes: bool = True) -> list[CancelTarget]:
    """The tasks with this id, first digits of an id, name or pid; ended tasks only by their full id.

    `classes`: whether the name may be that of an actor's class, for all of its methods.
    Raises UnknownTaskError if there is none.
    """
    wish = target_names.parse(wanted)
    name, pid = wish
    if len(name) == 48 and not name.strip("0123456789abcdef") and pid is None:
        return [by_id(owners, name)]
    rows = owners.unfinished()
    found = [row for row in rows if is_prefix(name, row["task_id"]) or name in _names(row, classes)]
    if pid is not None:
        of_process = [row for row in rows if row.get("worker_pid") == pid]
        is_any = not name or wish.is_kind
        found = [row for row in of_process if is_any or row in found]
    elif name.isdecimal() and len(name) <= _PID_DIGITS:
        found = [row for row in rows if row.get("worker_pid") == int(name)] or found
    if len(found) > _MANY:
        return [_of(row, [], []) for row in found]
    targets = [_target(owners, row) for row in found]
    left = [each for each in targets if each.state != "ended"]
    if not left:
        raise UnknownTaskError(
            f"no waiting or running task has the name or id {wanted}",
            "List running tasks: ray list tasks --filter state=RUNNING",
        )
    return left


def by_id(owners: Owners, task: str) -> CancelTarget:
    """The task with this id. Raises UnknownTaskError if the cluster does not have it."""
    roles = owners.roles(task)
    rows = [*owners.attempts(task), *_of_kind(roles, "owns"), *_of_kind(roles, "runs")]
    if not rows:
        raise UnknownTaskError(
            f"no task has the id {task}",
            "The GCS drops ended tasks after a while. List known tasks: ray list tasks",
        )
    merged: Row = {"task_id": task, "state": "RUNNING"}
    for row in rows:  # fields of the last attempt, then of the owner
        merged |= {key: value for key, value in row.items() if value not in (None, "")}
    return _target(owners, merged, roles)


def refreshed(owners: Owners, target: CancelTarget) -> CancelTarget:
    """The same task in its current state."""
    if target.runs and may_run(owners, target):
        return target
    if target.owner and _owner_is_done(owners, target):
        return replace(target, state="ended", ray_state="FINISHED")
    try:
        return by_id(owners, target.task)
    except UnknownTaskError:  # it ended before the GCS had it
        return replace(target, state="ended", ray_state="FINISHED")


def with_start(owners: Owners, target: CancelTarget) -> CancelTarget:
    """The same, with the start time of its last attempt if the GCS has it by now."""
    rows = owners.attempts(target.task)
    last = rows[-1] if rows else {}
    if not last.get("start_time_ms") or last["worker_id"] != target.worker:
        return target
    return replace(target, started_at=last["start_time_ms"] / 1000, attempt=last["attempt_number"])


def settled(owners: Owners, target: CancelTarget) -> Row:
    """Its last attempt in the GCS, after waiting up to 1.5 s until the GCS has its end."""
    deadline = time.monotonic() + _LAG
    while True:
        rows = owners.attempts(target.task)
        last = rows[-1] if rows else {}
        if last.get("state") in _ENDED or time.monotonic() > deadline:
            return last
        time.sleep(_INTERVAL)


def children(owners: Owners, target: CancelTarget) -> list[CancelTarget]:
    """Tasks that it submitted and that have not ended."""
    rows = [row for row in owners.unfinished() if row.get("parent_task_id") == target.task]
    found = [_target(owners, row) for row in rows]
    return [each for each in found if each.state != "ended" and each.kind != "creation"]


def runs(owners: Owners, target: CancelTarget) -> bool | None:
    """Whether its worker reports that it runs it; None if the worker does not answer, but may be alive.

    A cancel makes the worker's RPC thread wait for the GIL: while native code holds it, there is no reply.
    """
    if not target.worker:
        return False
    try:
        roles = owners.roles(target.task, target.worker, owned=False)
    except AskError as error:
        try:
            return None if _may_live(owners, target.worker, error) else False
        except AskError:  # the GCS does not answer: the owner may know
            return None
    return bool(_of_kind(roles, "runs"))


def may_run(owners: Owners, target: CancelTarget) -> bool:
    """Whether its worker runs it, or does not answer while its owner lists it as unfinished."""
    answer = runs(owners, target)
    if answer is None:
        return not (target.owner and _owner_is_done(owners, target))
    return answer


def has_ended(owners: Owners, target: CancelTarget) -> bool:
    """Whether it neither runs nor waits, by its worker and its owner."""
    if target.runs and may_run(owners, target):
        return False
    if target.owner:
        return _owner_is_done(owners, target)
    return not _of_kind(owners.roles(target.task), "runs", "owns")


def _owner_is_done(owners: Owners, target: CancelTarget) -> bool:
    try:
        roles = owners.roles(target.task, target.owner)
    except AskError as error:
        return not _may_live(owners, target.owner, error)  # a task ends with its owner
    states = [row["state"] for row in _of_kind(roles, "owns")]
    if not states and _of_kind(roles, "may-own"):
        states = [row["state"] for row in owners.attempts(target.task)[-1:]]
    return all(state in _ENDED for state in states)


def _may_live(owners: Owners, worker: str, error: AskError) -> bool:
    """Whether a worker that did not answer may still be alive, such as a stopped one.

    Raises the error if it has another cause than the worker.
    """
    if error.code == "UNAVAILABLE":
        return bool(owners.lives(worker))
    if error.code not in ("DEADLINE_EXCEEDED", "NOT_FOUND"):
        raise error
    return error.code == "DEADLINE_EXCEEDED"


# ------------------------------------------------------------------ rows


def _names(row: Row, classes: bool) -> Iterator[str]:
    """The names of a task; of a method also those of its actor's class."""
    for key in ("name", "func_or_class_name"):
        full = row.get(key) or ""
        yield from short_names(full)
        if classes and ids.actor_of_task(row["task_id"]):
            yield from short_names(full.rpartition(".")[0])


def _of_kind(rows: list[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["is"] in kinds]


def _target(owners: Owners, row: Row, roles: list[Row] | None = None) -> CancelTarget:
    if roles is None:
        roles = owners.roles(row["task_id"])
    running, owner = _of_kind(roles, "runs"), _of_kind(roles, "owns")
    if not owner and not running and not _of_kind(roles, "may-own"):
        # Its owner does not list it any more: it has ended, and the GCS does not have that yet.
        row = {**row, "state": row["state"] if row["state"] in _ENDED else "FINISHED"}
    if not owner and (derived := _derived_owner(owners, row)):
        owner = [derived]
    return _of(row, running, owner)


def _of(row: Row, running: list[Row], owner: list[Row]) -> CancelTarget:
    task = row["task_id"]
    ray_state = (
        "RUNNING" if running else next((r["state"] for r in owner if "state" in r), row["state"])
    )
    state: State = "running" if running else "ended" if ray_state in _ENDED else "waiting"
    started = row.get("start_time_ms")
    where, whose = running[0] if running else {}, owner[0] if owner else {}
    return CancelTarget(
        task,
        name_of_task(row.get("name") or row.get("func_or_class_name") or task[:16]),
        _kind(task),
        state,
        ray_state,
        row.get("attempt_number"),
        started / 1000 if started and running else None,
        where.get("worker_id", ""),
        int(where.get("worker_pid", 0)),
        where.get("worker_ip", ""),
        where.get("worker_node", ""),
        whose.get("worker_id", ""),
        int(whose.get("worker_pid", 0)),
        ids.job_of_task(task),
        row.get("actor_id") or ids.actor_of_task(task),
        row.get("parent_task_id") or "",
        where.get("worker_launched_at"),
    )


def _kind(task: str) -> Kind:
    if ids.is_creation_task(task):
        return "creation"
    return "method" if ids.actor_of_task(task) else "task"


def _derived_owner(owners: Owners, row: Row) -> Row:
    """The worker that ran its parent, as an owner with many tasks lists only some of them."""
    parent = row.get("parent_task_id") or ""
    if not parent:
        return {}
    if ids.is_driver_task(parent):
        return _alive(owners, ids.driver_of_job(ids.job_of_task(parent)))
    if running := _of_kind(owners.roles(parent), "runs"):
        return running[0]
    ran = [each.get("worker_id") for each in owners.attempts(parent)]
    return _alive(owners, ran[-1]) if ran and ran[-1] else {}


def _alive(owners: Owners, worker: str) -> Row:
    with suppress(AskError):
        return next(iter(owners.lives(worker)), {})
    return {}
