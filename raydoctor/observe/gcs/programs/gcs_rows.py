"""Converts Ray's gRPC messages to rows with the keys and values of Ray's state API with `detail=1`.

Pure: from a message to a dict. The state API's conversion is in `ray/util/state/common.py` and
`ray/dashboard/state_aggregator.py` (2.9.3, 2.40.0 and 2.60.0 read): ids as hex, enums by name, None for
absent optional fields, 64-bit integers inside nested messages as text. Large or private fields
(`runtime_env`, `profiling_data`, `task_log_info`) are left out. A field that this version of Ray lacks is
None, or its default.
"""

from __future__ import annotations

import json
import re
from typing import Any

Row = dict[str, Any]
_NESTED_IDS = frozenset(
    {"actor_id", "owner_id", "job_id", "node_id", "placement_group_id", "creator_job_id"}
)
"""Keys that the state API converts from base64 to hex, at any depth."""
_OUTERMOST, _INNERMOST = 1 << 10, 7 << 10
"""Bytes of a driver's exception that are kept."""
_TASK_INFO_KEYS = (
    *("name", "func_or_class_name", "type", "language", "actor_id", "parent_task_id"),
    *("placement_group_id", "required_resources", "call_site", "label_selector"),
    "fallback_strategy",
)
_JOB_KEYS = (
    *("status", "entrypoint", "message", "error_type", "start_time", "end_time", "metadata"),
    *("driver_agent_http_address", "driver_node_id", "driver_exit_code"),
)
_DEATH_REASONS = {
    "EXPECTED_TERMINATION": "Expected termination",
    "UNEXPECTED_TERMINATION": "Unexpected termination",
    "AUTOSCALER_DRAIN_PREEMPTED": "Terminated due to preemption",
    "AUTOSCALER_DRAIN_IDLE": "Terminated due to idle (no Ray activity)",
}


def has(message: Any, name: str) -> bool:
    """Whether this version of Ray has the field, and the message sets it."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    return field is not None and (not field.has_presence or message.HasField(name))


def value(message: Any, name: str) -> Any:
    """The field, bytes as hex; None if it is absent."""
    if not has(message, name):
        return None
    found = getattr(message, name)
    return found.hex() if isinstance(found, bytes) else found


def enum(message: Any, name: str) -> Any:
    """The name of an enum's value, or its number if the name is unknown; None if it is absent."""
    if not has(message, name):
        return None
    number = getattr(message, name)
    known = message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number.get(number)
    return known.name if known is not None else number


def amounts(message: Any, name: str) -> dict[str, Any]:
    """A map of plain values, such as resource -> amount."""
    return dict(getattr(message, name)) if has(message, name) else {}


def nested(message: Any) -> Any:
    """A message as the state API shows one inside a row."""
    from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]

    options: Any = {"preserving_proto_field_name": True}
    try:
        plain = json_format.MessageToDict(
            message, always_print_fields_with_no_presence=True, **options
        )
    except TypeError:  # protobuf < 5.26
        plain = json_format.MessageToDict(message, including_default_value_fields=True, **options)
    return _ids_as_hex(plain)


def _ids_as_hex(plain: Any) -> Any:
    import base64

    if isinstance(plain, dict):
        return {
            key: base64.b64decode(each).hex()
            if key in _NESTED_IDS and isinstance(each, str)
            else _ids_as_hex(each)
            for key, each in plain.items()
        }
    return [_ids_as_hex(each) for each in plain] if isinstance(plain, list) else plain


def _optional(message: Any, name: str) -> Any:
    return nested(getattr(message, name)) if has(message, name) else None


def task(message: Any, states: Any) -> Row:
    """A row of `tasks` from a `TaskEvents`; `states` is the enum `TaskStatus`."""
    info, updates = message.task_info, message.state_updates
    row = {
        "task_id": message.task_id.hex(),
        "attempt_number": message.attempt_number,
        "job_id": message.job_id.hex(),
        **(_task_info(info) if message.HasField("task_info") else _no_task_info()),
        "node_id": value(updates, "node_id"),
        "worker_id": value(updates, "worker_id"),
        "worker_pid": value(updates, "worker_pid"),
        "is_debugger_paused": value(updates, "is_debugger_paused"),
        **_times(updates, states),
        "error_type": None,
        "error_message": None,
    }
    if row["state"] == "FAILED" and has(updates, "error_info"):
        row["error_type"] = enum(updates.error_info, "error_type")
        # It contains the colours of the printed message.
        row["error_message"] = re.sub(r"\x1b[^m]*m", "", updates.error_info.error_message)
    shown = value(updates, "actor_repr_name")
    if shown and row["type"] == "ACTOR_TASK" and row["name"] == row["func_or_class_name"]:
        row["name"] = f"{shown}.{row['name'].split('.')[-1]}"
    return row


def is_finished(message: Any, states: Any) -> bool:
    """Whether a `TaskEvents` is of a finished task, without building its row."""
    updates = message.state_updates
    done, failed = (since(updates, name, states.Value(name)) for name in ("FINISHED", "FAILED"))
    return done is not None and failed is None


def is_waiting(message: Any, states: Any) -> bool:
    """Whether a `TaskEvents` is of a task that has neither begun nor failed."""
    updates = message.state_updates
    begun = (since(updates, name, states.Value(name)) for name in ("RUNNING", "FAILED"))
    return all(began is None for began in begun)


def took(message: Any, states: Any) -> float | None:
    """Seconds that the task of a `TaskEvents` ran; None if it has not finished."""
    updates = message.state_updates
    begun, done = (since(updates, name, states.Value(name)) for name in ("RUNNING", "FINISHED"))
    return None if begun is None or done is None else max(0.0, (done - begun) / 1e9)


def owned_task(message: Any) -> Row:
    """A row of `tasks` from a `TaskInfoEntry`, which its owner keeps until it has the result."""
    return {
        "task_id": message.task_id.hex(),
        "job_id": message.job_id.hex(),
        **_task_info(message),
        "node_id": value(message, "node_id"),
        "state": enum(message, "scheduling_state"),
    }


def _task_info(info: Any) -> Row:
    return {
        "name": info.name,
        "func_or_class_name": info.func_or_class_name,
        "type": enum(info, "type"),
        "language": enum(info, "language"),
        "actor_id": value(info, "actor_id"),
        "parent_task_id": info.parent_task_id.hex(),
        "placement_group_id": value(info, "placement_group_id"),
        "required_resources": amounts(info, "required_resources"),
        "call_site": value(info, "call_site"),
        "label_selector": amounts(info, "label_selector"),
        "fallback_strategy": _optional(info, "fallback_strategy"),
    }


def _no_task_info() -> Row:
    """Empty fields: so far only the executor has reported it; its owner is a second behind, or dead."""
    return dict.fromkeys(_TASK_INFO_KEYS)


def _times(updates: Any, states: Any) -> Row:
    """When the task entered each state, in epoch milliseconds, and its current state: the last one."""
    events = []
    for number, name in sorted((number, name) for name, number in states.items()):
        nanoseconds = since(updates, name, number)
        if nanoseconds is not None:
            events.append({"state": name, "created_ms": nanoseconds // 1e6})
    at = {each["state"]: each["created_ms"] for each in events}
    return {
        "state": events[-1]["state"] if events else "NIL",
        "events": events,
        "creation_time_ms": at.get("PENDING_ARGS_AVAIL"),
        "start_time_ms": at.get("RUNNING"),
        "end_time_ms": at.get("FAILED", at.get("FINISHED")),
    }


def since(updates: Any, name: str, number: int) -> int | None:
    """When a task entered a state, in epoch nanoseconds; None if it never did."""
    for times in ("state_ts_ns", "state_ts"):  # the second in Ray 2.32 only
        if times in updates.DESCRIPTOR.fields_by_name:
            known = getattr(updates, times)
            return int(known[number]) if number in known else None
    # Ray <= 2.31 has a field for each.
    found = value(updates, f"{name.lower()}_ts")
    return int(found) if found is not None else None


def actor(message: Any) -> Row:
    """A row of `actors` from an `ActorTableData`."""
    return {
        "actor_id": message.actor_id.hex(),
        "class_name": message.class_name,
        "state": enum(message, "state"),
        "job_id": message.job_id.hex(),
        "name": message.name,
        "node_id": value(message, "node_id"),
        "pid": message.pid,
        "ray_namespace": message.ray_namespace,
        "required_resources": amounts(message, "required_resources"),
        "death_cause": _optional(message, "death_cause"),
        "is_detached": message.is_detached,
        "placement_group_id": value(message, "placement_group_id"),
        "repr_name": message.repr_name,
        "num_restarts": str(message.num_restarts),
        "num_restarts_due_to_lineage_reconstruction": _count(
            message, "num_restarts_due_to_lineage_reconstruction"
        ),
        "num_restarts_due_to_node_preemption": _count(
            message, "num_restarts_due_to_node_preemption"
        ),
        "call_site": value(message, "call_site"),
        "label_selector": amounts(message, "label_selector"),
        "fallback_strategy": _optional(message, "fallback_strategy"),
    }


def _count(message: Any, name: str) -> str | None:
    found = value(message, name)
    return None if found is None else str(found)


def worker(message: Any) -> Row:
    """A row of `workers` from a `WorkerTableData`."""
    address = message.worker_address
    return {
        "worker_id": address.worker_id.hex(),
        "is_alive": message.is_alive,
        "worker_type": enum(message, "worker_type"),
        "exit_type": enum(message, "exit_type"),
        "node_id": node_of(address),
        "ip": address.ip_address,
        "pid": message.pid,
        "exit_detail": value(message, "exit_detail"),
        "worker_launch_time_ms": message.worker_launch_time_ms,
        "worker_launched_time_ms": message.worker_launched_time_ms,
        "start_time_ms": message.start_time_ms,
        "end_time_ms": message.end_time_ms,
        "debugger_port": value(message, "debugger_port"),
        "num_paused_threads": value(message, "num_paused_threads"),
        "exception": _exception(message),
    }


def _exception(message: Any) -> str | None:
    """The frames of the exception that ended a driver, without its type; the state API does not return them.

    `custom_excepthook` in `ray/_private/worker.py` sends them (2.9.3 to 2.60.0), also for KeyboardInterrupt.
    The outermost and the innermost frames remain if they are long.
    """
    sent = message.worker_info.get("exception", b"")
    if len(sent) > _OUTERMOST + _INNERMOST:
        sent = sent[:_OUTERMOST] + b"\n" + sent[-_INNERMOST:]
    return sent.decode("utf-8", "replace") or None


def node_of(address: Any) -> str:
    """The node of an `Address`; the field was called `raylet_id` until 2.4x."""
    return str(value(address, "node_id") or value(address, "raylet_id") or "")


def node(message: Any) -> Row:
    """A row of `nodes` from a `GcsNodeInfo`."""
    return {
        "node_id": message.node_id.hex(),
        "node_ip": message.node_manager_address,
        "is_head_node": message.is_head_node,
        "state": enum(message, "state"),
        "state_message": _why_dead(message),
        "node_name": message.node_name,
        "resources_total": amounts(message, "resources_total"),
        "labels": amounts(message, "labels"),
        "start_time_ms": message.start_time_ms,
        "end_time_ms": message.end_time_ms,
    }


def _why_dead(message: Any) -> str | None:
    if not has(message, "death_info"):
        return None
    reason = _DEATH_REASONS.get(enum(message.death_info, "reason"))
    detail = message.death_info.reason_message
    return f"{reason}: {detail}" if reason and detail else detail or reason


def placement_group(message: Any) -> Row:
    """A row of `placement-groups` from a `PlacementGroupTableData`, and its strategy."""
    row = {
        "placement_group_id": message.placement_group_id.hex(),
        "name": message.name,
        "creator_job_id": message.creator_job_id.hex(),
        "state": enum(message, "state"),
        "bundles": [nested(bundle) for bundle in message.bundles],
        "is_detached": message.is_detached,
        "stats": _optional(message, "stats"),
    }
    for name in ("topology_strategy", "topology_assignments"):
        if name in message.DESCRIPTOR.fields_by_name:
            row[name] = {key: _plain(each) for key, each in getattr(message, name).items()}
    return {**row, "strategy": enum(message, "strategy")}


def _plain(each: Any) -> Any:
    return nested(each) if hasattr(each, "DESCRIPTOR") else each


def driver_job(message: Any) -> Row:
    """A row of `jobs` from the `JobTableData` of a driver without a submission."""
    return {
        "type": "DRIVER",
        "job_id": message.job_id.hex(),
        "submission_id": None,
        "driver_info": driver(message),
        **dict.fromkeys(_JOB_KEYS),
        "status": "SUCCEEDED" if message.is_dead else "RUNNING",
        "entrypoint": message.entrypoint,
        "start_time": message.start_time,
        "end_time": message.end_time,
        "metadata": dict(message.config.metadata),
    }


def driver(message: Any) -> Row:
    """The driver of a `JobTableData`."""
    return {
        "id": message.job_id.hex(),
        "node_ip_address": message.driver_address.ip_address,
        "pid": str(message.driver_pid),
    }


def submitted_job(submission_id: str, stored: bytes, driven: Row | None) -> Row:
    """A row of `jobs` from the job manager's JSON about a submission in the GCS."""
    job = json.loads(stored)
    return {
        "type": "SUBMISSION",
        "job_id": driven["id"] if driven else None,
        "submission_id": submission_id,
        "driver_info": driven,
        **{key: job.get(key) for key in _JOB_KEYS},
    }


def reference(message: Any, stats: Any) -> Row | None:
    """A row of `objects` from an `ObjectRefInfo` of a worker's stats; None if nothing holds the object.

    The rules of `ray/dashboard/memory_utils.py`.
    """
    kind = _reference_kind(message)
    if kind is None or not any(byte != 0xFF for byte in message.object_id):
        return None
    return {
        "object_id": message.object_id.hex(),
        "object_size": message.object_size,
        "task_status": enum(message, "task_status"),
        "attempt_number": int(message.attempt_number) + 1,
        "reference_type": kind,
        "call_site": message.call_site or "disabled",
        "type": "DRIVER" if enum(stats, "worker_type") == "DRIVER" else "WORKER",
        "pid": stats.pid,
        "ip": stats.ip_address,
    }


def _reference_kind(message: Any) -> str | None:
    held = {
        "PINNED_IN_MEMORY": message.pinned_in_memory,
        "USED_BY_PENDING_TASK": message.submitted_task_ref_count > 0,
        "LOCAL_REFERENCE": message.local_ref_count > 0,
        "CAPTURED_IN_OBJECT": len(message.contained_in_owned) > 0,
    }
    kind = next((name for name, is_so in held.items() if is_so), None)
    # Bytes 0-7 are the task's id, 8-19 the actor's: an actor's creation task has only the second.
    is_handle = message.object_id[:8] == b"\xff" * 8 and message.object_id[8:20] != b"\xff" * 12
    return "ACTOR_HANDLE" if kind and is_handle else kind


def worker_stats(message: Any, reply: Any | None) -> Row:
    """A row of `worker-stats` from a `WorkerTableData` and the worker's reply, if any."""
    address = message.worker_address
    row: Row = {
        "worker_id": address.worker_id.hex(),
        "pid": message.pid,
        "node_id": node_of(address),
        "ip": address.ip_address,
        "worker_type": enum(message, "worker_type"),
        "answers": reply is not None,
    }
    if reply is None:
        return row
    stats = reply.core_worker_stats
    return {
        **row,
        "job_id": _unless_nil(stats.job_id),
        "actor_id": _unless_nil(stats.actor_id),
        "running_task_ids": [each.hex() for each in reply.running_task_ids],
        "task_queue_length": stats.task_queue_length,
        "num_running_tasks": stats.num_running_tasks,
        "num_pending_tasks": stats.num_pending_tasks,
        "num_executed_tasks": stats.num_executed_tasks,
        "objects_in_scope": stats.num_object_refs_in_scope,
        "used_object_store_memory": stats.used_object_store_memory,
    }


def _unless_nil(identifier: bytes) -> str | None:
    return identifier.hex() if identifier.strip(b"\xff") else None


def resources(message: Any, usage: Any | None) -> Row:
    """A row of `resources` from a `GcsNodeInfo` and the node's `NodeState`, if any."""
    row: Row = {
        "node_id": message.node_id.hex(),
        "ip": message.node_manager_address,
        "is_head": message.is_head_node,
        "state": enum(message, "state"),
        "total": amounts(message, "resources_total"),
        "available": None,
        "labels": amounts(message, "labels"),
    }
    if usage is None:
        return row
    return {
        **row,
        "total": amounts(usage, "total_resources") or row["total"],
        "available": amounts(usage, "available_resources"),
        "status": enum(usage, "status"),
        "idle_ms": usage.idle_duration_ms,
        "activity": list(usage.node_activity) if has(usage, "node_activity") else [],
    }


def demands(state: Any) -> list[Row]:
    """The rows of `demands` from a `ClusterResourceState`."""
    rows = [
        {
            "kind": "task-or-actor",
            "shape": amounts(each.request, "resources_bundle"),
            "count": each.count,
            "strategy": "",
            "label_selectors": _selectors(each.request),
        }
        for each in state.pending_resource_requests
    ]
    return rows + [_gang(each) for each in state.pending_gang_resource_requests]


def _gang(message: Any) -> Row:
    selectors = getattr(message, "bundle_selectors", ())
    requests = selectors[0].resource_requests if selectors else message.requests
    bundles = [amounts(each, "resources_bundle") for each in requests]
    whole: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            whole[name] = whole.get(name, 0.0) + amount
    # `details` is "<placement group's id>:<strategy>|<state>".
    group, _, rest = message.details.partition(":")
    return {
        "kind": "placement-group",
        "shape": whole,
        "count": 1,
        "strategy": rest.partition("|")[0],
        "placement_group_id": group,
        "bundles": bundles,
    }


def _selectors(request: Any) -> list[Any]:
    return [nested(each) for each in getattr(request, "label_selectors", ())]
