"""The tasks of a cluster, from its GCS, its workers and the tasks' owners: part of `gcs_tables`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from raydoctor.observe.gcs.programs import gcs_rows, gcs_wire
    from raydoctor.observe.gcs.programs.gcs_client import LIMIT, Gcs, Row, RowTable, first
    from raydoctor.observe.gcs.programs.gcs_wire import Call, TaskFilter, result
else:  # a program finds only modules in its own folder
    import gcs_rows
    import gcs_wire
    from gcs_client import LIMIT, Gcs, Row, RowTable, first
    from gcs_wire import Call, TaskFilter, result


LIMIT_WAITING = 10_000
"""Waiting tasks that are requested for each state."""
KEPT_ALIKE = 1_000
"""Waiting tasks of one function and equal resource requests that are kept: the oldest and the newest."""
LIMIT_FAILED = 200
LIMIT_FINISHED = 5_000
"""Last finished tasks of all functions, requested in one call."""
LIMIT_PEERS = 1_000
"""Last finished tasks of one function."""
_RARE = 5
"""A function with fewer tasks among the last finished ones is requested by name."""
_MOST_RARE = 3
"""Largest number of functions that are requested by name: each call takes up to 0.6 s."""
LIMIT_AT_ONCE = 5_000
"""Unfinished tasks that are requested in one call; if there are more, they are requested state by state."""
_WAITING = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER")


def tasks(gcs: Gcs) -> RowTable:
    """Unfinished tasks, the last failed ones, and running tasks that the GCS does not know."""
    replies = _task_replies(gcs)
    names = gcs.of.rpc.TaskStatus
    events = {
        (event.task_id, event.attempt_number): event
        for each in replies
        for event in each.events_by_task
        if not gcs_rows.is_finished(event, names)
    }
    shown = [gcs_rows.task(event, names) for event in _unlike(events.values(), names)]
    rows = [row for row in shown if row["type"] != "DRIVER_TASK"]
    kept = _kept(rows) + _lost(gcs, {task.hex() for task, _ in events})
    gcs.running = frozenset(
        name for row in kept if row["state"] == "RUNNING" and (name := _function(row))
    )
    left_out = len(events) - len(shown) + sum(max(0, reply.num_truncated) for reply in replies)
    return RowTable(kept, max(len(kept), len(rows) + left_out))


def _unlike(events: Collection[Any], names: Any) -> list[Any]:
    """All running tasks, and of each queue of similar waiting tasks a part: building a row takes 50 µs."""
    if len(events) <= KEPT_ALIKE:
        return list(events)
    chosen: list[Any] = []
    queues: dict[Any, list[Any]] = {}
    for event in events:
        if gcs_rows.is_waiting(event, names):
            info = event.task_info
            asked = tuple(sorted(info.required_resources.items()))
            queues.setdefault((event.job_id, info.name, asked), []).append(event)
        else:
            chosen.append(event)
    half = KEPT_ALIKE // 2
    for queue in queues.values():
        # The GCS returns the newest first.
        chosen += queue if len(queue) <= KEPT_ALIKE else queue[:half] + queue[-half:]
    return chosen


def _kept(rows: list[Row]) -> list[Row]:
    by_state: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["creation_time_ms"] or 0):
        by_state.setdefault(row["state"], []).append(row)
    failed = sorted(by_state.pop("FAILED", []), key=lambda row: row["end_time_ms"] or 0)
    return [row for group in by_state.values() for row in group[:LIMIT]] + failed[-LIMIT_FAILED:]


def _task_call(gcs: Gcs, limit: int, state: str = "", others: tuple[str, ...] = ()) -> Call:
    """Tasks in `state`, or in none of `others`, if this version can filter by state.

    A call takes 0.6 s if the GCS holds its maximum of 100,000 tasks, for any filter (2.60.0): the GCS copies
    all of them, and then selects, newest first.
    """
    if not gcs_wire.filters_states(gcs.of):  # the reply contains all tasks, which are filtered here
        limit = -1
    return gcs_wire.task_events(gcs.of, TaskFilter(state=state, not_in=others), limit)


def _task_replies(gcs: Gcs) -> list[Any]:
    """As few calls as possible, so that 100,000 waiting tasks do not hide a running one."""

    def ask(limits: dict[str, int]) -> list[Any]:
        calls = [_task_call(gcs, limit, state) for state, limit in limits.items()]
        others = ("FINISHED", "FAILED", "RUNNING", *limits)
        calls.append(_task_call(gcs, LIMIT_AT_ONCE, others=others))
        return [result(each) for each in [gcs.start(call) for call in calls]]

    whole = gcs.ask(_task_call(gcs, LIMIT_AT_ONCE, others=("FINISHED",)))
    if whole.num_truncated <= 0:
        return [whole]
    running, failed, waiting = ask({"RUNNING": LIMIT, "FAILED": LIMIT_FAILED})
    if waiting.num_truncated <= 0:
        return [running, failed, waiting]
    return [running, failed, *ask(dict.fromkeys(_WAITING, LIMIT_WAITING))]


def _lost(gcs: Gcs, known: set[str]) -> list[Row]:
    """Tasks that only a worker reports as running: events reach the GCS late, and may be dropped."""
    running = {}
    for worker, reply, _ in gcs.stats():
        for identifier in reply.running_task_ids if reply is not None else ():
            if identifier.hex() not in known:
                running[identifier.hex()] = (worker, reply.core_worker_stats)
    if not running:
        return []
    owned = {row["task_id"]: row for row in owned_tasks(gcs).rows}
    return [
        {
            **owned.get(identifier, {"task_id": identifier, "job_id": stats.job_id.hex()}),
            "attempt_number": None,
            "state": "RUNNING",
            "worker_id": worker.worker_address.worker_id.hex(),
            "worker_pid": worker.pid,
            "node_id": gcs_rows.node_of(worker.worker_address),
            "reported_by": "worker",
        }
        for identifier, (worker, stats) in running.items()
    ]


def owned_tasks(gcs: Gcs) -> RowTable:
    """Unfinished tasks, as reported by their owners."""
    replies = [reply for _, reply, _ in gcs.stats(of_tasks=True) if reply is not None]
    found = [each for reply in replies for each in reply.owned_task_info_entries]
    rows = [gcs_rows.owned_task(each) for each in found]
    return first([row for row in rows if row["state"] != "FINISHED"])


def finished(gcs: Gcs) -> RowTable:
    """Durations of the last finished tasks of each function that runs now.

    Must be requested after the tasks, which determine these functions.
    """
    if not gcs.running:
        return first([])
    names = gcs.of.rpc.TaskStatus
    last = gcs.ask(_finished_call(gcs, LIMIT_FINISHED))
    found = _by_function(last.events_by_task, names, gcs.running)
    rare = sorted(name for name in gcs.running if len(found.get(name, ())) < _RARE)
    if last.num_truncated > 0:
        calls = [_finished_call(gcs, LIMIT_PEERS, name) for name in rare[:_MOST_RARE]]
        asked = [gcs.start(call) for call in calls]
        for each in asked:
            found |= _by_function(result(each).events_by_task, names, rare)
    return first([_peers(name, found[name][:LIMIT_PEERS]) for name in sorted(found)])


def _finished_call(gcs: Gcs, limit: int, name: str = "") -> Call:
    """Finished tasks, newest first; of one name, if this version can filter by name."""
    return gcs_wire.task_events(gcs.of, TaskFilter(name=name, state="FINISHED"), limit)


def _function(row: Row) -> str:
    """The function by which peers are compared: the method, or the task's name, which libraries set."""
    key = "name" if row.get("type") == "NORMAL_TASK" else "func_or_class_name"
    return str(row.get(key) or "")


def _by_function(
    events: Collection[Any], names: Any, wanted: Collection[str]
) -> dict[str, list[float]]:
    """Function -> the duration of each of its tasks, newest first."""
    found: dict[str, list[float]] = {}
    for event in events:
        info = event.task_info
        is_task = gcs_rows.enum(info, "type") == "NORMAL_TASK"
        name = info.name if is_task else info.func_or_class_name
        seconds = gcs_rows.took(event, names) if name in wanted else None
        if seconds is not None:
            found.setdefault(name, []).append(seconds)
    return found


def _peers(name: str, seconds: list[float]) -> Row:
    ordered = sorted(seconds)
    return {
        "name": name,
        "count": len(ordered),
        "median_s": round(ordered[len(ordered) // 2], 4),
        "p95_s": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], 4),
        "max_s": round(ordered[-1], 4),
    }
