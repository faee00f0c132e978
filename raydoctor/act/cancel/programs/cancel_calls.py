"""Queries a cluster about one task, and asks its owner to cancel it: by gRPC, with Ray's messages.

This program runs as a child, for the reasons in `observe/gcs/programs/gcs_tables.py`, with which it shares
code.

    cancel_calls.py

Standard input has one line with the address, the access rules and the timeout of a call, then one request a
line, `{"do": …, "n": number}`. Standard output has the result of the connection, then `{"answer": rows}` or
`{"failed": code, "detail"}` for each request, in order and with its number, because the parent may have given
up on an earlier one.

Only the owner of a task can cancel it without a retry. If the executor gets the request (`CancelTask`) or is
killed, the owner sees a crash and retries the task (2.60.0 measured). The call is `RequestOwnerToCancelTask`
from Ray 2.53 on, `CancelRemoteTask` in 2.52 and `RemoteCancelTask` before, with the same fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydoctor.observe.collector.programs.peers import access_of
    from raydoctor.observe.gcs.programs import gcs_rows, gcs_wire
    from raydoctor.observe.gcs.programs.gcs_client import LIMIT, Gcs, Row, id_of
    from raydoctor.observe.gcs.programs.gcs_messages import Messages
    from raydoctor.observe.gcs.programs.gcs_tables import jobs
    from raydoctor.observe.gcs.programs.gcs_tasks import owned_tasks, tasks
    from raydoctor.observe.gcs.programs.gcs_wire import CallError, TaskFilter, Wire
else:
    _OBSERVE = Path(__file__).parents[3] / "observe"
    sys.path[:0] = [str(_OBSERVE / room / "programs") for room in ("gcs", "collector")]
    import gcs_rows
    import gcs_wire
    from gcs_client import LIMIT, Gcs, Row, id_of
    from gcs_messages import Messages
    from gcs_tables import jobs
    from gcs_tasks import owned_tasks, tasks
    from gcs_wire import CallError, TaskFilter, Wire
    from peers import access_of

_FIRST_RETURN = b"\x01\x00\x00\x00"
"""An object id is the task id and the number of the return value; the first one identifies a task."""
_CANCELS = ("RequestOwnerToCancelTask", "CancelRemoteTask", "RemoteCancelTask")
_WORKER_DEADLINE = 1.0
"""Seconds. A worker's C++ thread answers within milliseconds, even while native code holds the GIL."""


@dataclass(slots=True)
class CancelClient:
    """The connections to one cluster."""

    of: Messages
    wire: Wire
    address: str
    timeout: float
    _workers: dict[bytes, Any] = field(default_factory=dict)

    def gcs(self) -> Gcs:
        """A new client: an existing one caches replies."""
        return Gcs(self.of, self.wire, self.address, self.timeout)

    def worker(self, name: str) -> Any:
        """A live worker or driver, by its id in hex."""
        wanted = bytes.fromhex(name)
        if wanted not in self._workers:
            try:
                known = self.gcs().workers()
            except CallError as failed:  # the error is about the GCS, not the worker
                raise CallError("GCS", f"{failed.code}: {failed.detail}") from failed
            self._workers = {id_of(each): each for each in known if each.is_alive}
        if wanted not in self._workers:
            raise CallError("NOT_FOUND", f"worker {name} is not alive")
        return self._workers[wanted]

    def ask_worker(self, name: str, method: str, timeout: float, **fields: Any) -> Any:
        """Call a method of a worker."""
        where = self.worker(name).worker_address
        if method == "GetCoreWorkerStats":
            fields["intended_worker_id"] = where.worker_id
        call = gcs_wire.call_of(self.of, "CoreWorkerService", method, **fields)
        return self.wire.ask(gcs_wire.host_port(where), call, timeout)


def attempts(cluster: CancelClient, request: Row) -> list[Row]:
    """The attempts of a task as the GCS has them, a second late."""
    task, gcs = bytes.fromhex(request["task"]), cluster.gcs()
    only = TaskFilter(ids=[task], exclude_driver=False)
    reply = gcs.ask(gcs_wire.task_events(cluster.of, only))
    names = cluster.of.rpc.TaskStatus
    rows = [gcs_rows.task(event, names) for event in reply.events_by_task]
    return sorted(rows, key=lambda row: row["attempt_number"])


def unfinished(cluster: CancelClient, request: Row) -> list[Row]:
    """Unfinished tasks by the GCS, the workers and the owners."""
    del request
    gcs = cluster.gcs()
    rows = {row["task_id"]: row for row in owned_tasks(gcs).rows}
    # A task that failed once may run again: its last attempt counts.
    for row in sorted(tasks(gcs).rows, key=lambda row: row["attempt_number"] or 0):
        rows[row["task_id"]] = row
    return [row for row in rows.values() if row["state"] not in ("FINISHED", "FAILED", "NIL")]


def roles(cluster: CancelClient, request: Row) -> list[Row]:
    """Workers and drivers that run the task (`is`: `runs`) or own it (`owns`); only `worker` if given.

    A worker whose list of tasks is truncated may own it (`may-own`).
    """
    task, name = bytes.fromhex(request["task"]), request.get("worker", "")
    if name:
        limit = {"include_task_info": True, "limit": LIMIT if request["owned"] else 0}
        reply = cluster.ask_worker(name, "GetCoreWorkerStats", _WORKER_DEADLINE, **limit)
        replies = [(cluster.worker(name), reply)]
    else:
        replies = [(each, reply) for each, reply, _ in cluster.gcs().stats(of_tasks=True)]
    return [
        row for each, reply in replies if reply is not None for row in _roles(task, each, reply)
    ]


def _roles(task: bytes, worker: Any, reply: Any) -> list[Row]:
    identity, entries = _worker(worker), reply.owned_task_info_entries
    rows = [{"is": "runs", **identity}] if task in reply.running_task_ids else []
    mine = [gcs_rows.owned_task(each) for each in entries if each.task_id == task]
    rows += [{"is": "owns", **row, **identity} for row in mine]
    if not mine and reply.tasks_total > len(entries):
        rows.append({"is": "may-own", **identity})
    return rows


def lives(cluster: CancelClient, request: Row) -> list[Row]:
    """The worker with this id, if the GCS has it as alive."""
    wanted = bytes.fromhex(request["worker"])
    found = cluster.gcs().workers()
    return [_worker(each) for each in found if each.is_alive and id_of(each) == wanted]


def known_jobs(cluster: CancelClient, request: Row) -> list[Row]:
    """All jobs."""
    del request
    return jobs(cluster.gcs()).rows


def actor(cluster: CancelClient, request: Row) -> list[Row]:
    """The actor in the GCS."""
    gcs = cluster.gcs()
    wanted = bytes.fromhex(request["actor"])
    found = gcs.ask(
        gcs.call("ActorInfoGcsService", "GetActorInfo", actor_id=wanted)
    ).actor_table_data
    return [{**gcs_rows.actor(found), "max_restarts": found.max_restarts}] if found.actor_id else []


def cancel(cluster: CancelClient, request: Row) -> list[Row]:
    """Have the owner cancel the task."""
    known = (name for name in _CANCELS if hasattr(cluster.of.rpc, f"{name}Request"))
    method = next(known, None)
    if method is None:
        raise CallError(
            "UNIMPLEMENTED", "this version of Ray has no call to cancel a task of another driver"
        )
    cluster.ask_worker(
        request["owner"],
        method,
        cluster.timeout,
        remote_object_id=bytes.fromhex(request["task"]) + _FIRST_RETURN,
        force_kill=request["force"],
        recursive=request["recursive"],
    )
    return []


def cancel_children(cluster: CancelClient, request: Row) -> list[Row]:
    """Have a worker cancel the children of a task that it ran and that has ended.

    `CancelTask` ends the task with this id, which does not run any more, and its children.
    """
    parent = bytes.fromhex(request["parent"])
    stats = cluster.ask_worker(
        request["owner"], "GetCoreWorkerStats", _WORKER_DEADLINE, include_task_info=True, limit=0
    )
    if parent in stats.running_task_ids:
        raise CallError("FAILED_PRECONDITION", "their parent is still running")
    cluster.ask_worker(
        request["owner"],
        "CancelTask",
        cluster.timeout,
        intended_task_id=parent,
        force_kill=request["force"],
        recursive=True,
    )
    return []


def kill_actor(cluster: CancelClient, request: Row) -> list[Row]:
    """End an actor as `ray.kill` does: it is not started again."""
    gcs = cluster.gcs()
    wanted = {"actor_id": bytes.fromhex(request["actor"]), "force_kill": True, "no_restart": True}
    gcs.ask(gcs.call("ActorInfoGcsService", "KillActorViaGcs", **wanted))
    return []


def _worker(message: Any) -> Row:
    address = message.worker_address
    return {
        "worker_id": address.worker_id.hex(),
        "worker_pid": message.pid,
        "worker_ip": address.ip_address,
        "worker_node": gcs_rows.node_of(address),
        "worker_launched_at": _launched_at(message),
    }


def _launched_at(message: Any) -> float | None:
    """When its raylet launched a worker, in epoch seconds; a driver has -1 as an unsigned number."""
    stamp = int(message.worker_launch_time_ms)
    return stamp / 1000 if 0 < stamp < 1 << 63 else None


CALLS: dict[str, Callable[[CancelClient, Row], list[Row]]] = {
    "attempts": attempts,
    "unfinished": unfinished,
    "roles": roles,
    "lives": lives,
    "jobs": known_jobs,
    "actor": actor,
    "cancel": cancel,
    "cancel-children": cancel_children,
    "kill-actor": kill_actor,
}


def answer(cluster: CancelClient, request: Row) -> Row:
    """The reply to one request."""
    try:
        return {"answer": CALLS[request["do"]](cluster, request)}
    except CallError as failed:
        return {"failed": failed.code, "detail": failed.detail}
    except Exception as error:  # a message of another version
        return {"failed": type(error).__name__, "detail": str(error)[:300]}


def main() -> None:
    """Serve until standard input ends."""
    opened = json.loads(sys.stdin.readline())
    wire = Wire(access_of(opened["access"]))
    cluster = CancelClient(Messages(), wire, opened["address"], opened["timeout"])
    gcs = cluster.gcs()
    print(json.dumps(gcs.probe()), flush=True)
    cluster.of = gcs.of
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({**answer(cluster, request), "n": request["n"]}), flush=True)


if __name__ == "__main__":
    main()
