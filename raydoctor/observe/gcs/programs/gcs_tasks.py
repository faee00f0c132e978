"""The tasks of a cluster, as its GCS, its workers and their owners know them: part of `gcs_tables`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydoctor.observe.gcs.programs import gcs_rows, gcs_wire
    from raydoctor.observe.gcs.programs.gcs_client import LIMIT, Gcs, Row, RowTable, first
    from raydoctor.observe.gcs.programs.gcs_wire import Call, TaskFilter, result
else:  # a program finds what is beside it
    import gcs_rows
    import gcs_wire
    from gcs_client import LIMIT, Gcs, Row, RowTable, first
    from gcs_wire import Call, TaskFilter, result


LIMIT_WAITING = 10_000
"""Tasks that wait, of each state: asked for."""
KEPT_ALIKE = 1_000
"""Of tasks that wait, have one function and ask for the same: the oldest and the newest are kept."""
LIMIT_FAILED = 200
LIMIT_FINISHED = 5_000
"""Tasks that finished, of all functions: asked for at once, the last ones."""
LIMIT_PEERS = 1_000
"""Of one function."""
_RARE = 5
"""A function of which fewer are among the last ones is asked for by name."""
_MOST_RARE = 3
"""Functions: each question costs up to 0.6 s."""
LIMIT_AT_ONCE = 5_000
"""Tasks that are not finished: more are asked for state by state."""
_WAITING = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER")


def tasks(gcs: Gcs) -> RowTable:
    """Tasks that are not finished, the last that failed, and those that run unknown to the GCS."""
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
    untold = len(events) - len(shown) + sum(max(0, reply.num_truncated) for reply in replies)
    return RowTable(kept, max(len(kept), len(rows) + untold))


def _unlike(events: Collection[Any], names: Any) -> list[Any]:
    """Those that differ, and enough of those that are alike: making a row takes 50 µs, a queue is long."""
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
        # The GCS gives the last first.
        chosen += queue if len(queue) <= KEPT_ALIKE else queue[:half] + queue[-half:]
    return chosen


def _kept(rows: list[Row]) -> list[Row]:
    by_state: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["creation_time_ms"] or 0):
        by_state.setdefault(row["state"], []).append(row)
    failed = sorted(by_state.pop("FAILED", []), key=lambda row: row["end_time_ms"] or 0)
    return [row for group in by_state.values() for row in group[:LIMIT]] + failed[-LIMIT_FAILED:]


def _task_call(gcs: Gcs, limit: int, state: str = "", others: tuple[str, ...] = ()) -> Call:
    """Tasks in `state`, or in none of `others`, as far as this version can tell them apart.

    A call costs 0.6 s where the GCS holds its 100,000 tasks, whatever it is asked for (2.60.0): it
    copies them all, and then takes the last first.
    """
    if not gcs_wire.filters_states(gcs.of):  # all of them come, and are chosen from here
        limit = -1
    return gcs_wire.task_events(gcs.of, TaskFilter(state=state, not_in=others), limit)


def _task_replies(gcs: Gcs) -> list[Any]:
    """As few calls as tell of all: 100,000 that wait must not hide the one that runs."""

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
    """Tasks that a worker says it runs and the GCS does not know: events come late, and may be dropped."""
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
    """What owners say of their tasks, as far as they are not finished."""
    replies = [reply for _, reply, _ in gcs.stats(of_tasks=True) if reply is not None]
    found = [each for reply in replies for each in reply.owned_task_info_entries]
    rows = [gcs_rows.owned_task(each) for each in found]
    return first([row for row in rows if row["state"] != "FINISHED"])


def finished(gcs: Gcs) -> RowTable:
    """How long the functions that run now took before: each one's last finished tasks, as far as known.

    Asked after the tasks, which tell what runs.
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
    """Tasks that finished, the last first; of one name, as far as this version can tell them apart."""
    return gcs_wire.task_events(gcs.of, TaskFilter(name=name, state="FINISHED"), limit)


def _function(row: Row) -> str:
    """Whose peers count: a method's, or a task's by its name, by which those of a library differ."""
    key = "name" if row.get("type") == "NORMAL_TASK" else "func_or_class_name"
    return str(row.get(key) or "")


def _by_function(
    events: Collection[Any], names: Any, wanted: Collection[str]
) -> dict[str, list[float]]:
    """Function -> how long each of its tasks took, the last first."""
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
