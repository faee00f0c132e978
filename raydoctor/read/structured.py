"""Reads files completely: export events and debug dumps.

Export events (`export_events/event_EXPORT_*.log`, written when `RAY_enable_export_api_write=1`, Ray
2.40+): one JSON object per line, ids as base64. A KubeRay History Server keeps the events that Ray's event
aggregator sends (`node_events/`, `job_events/`; `public/events_*.proto`, 2.49+). `debug_state.txt` (raylet,
rewritten every 10 s) and `debug_state_gcs.txt` (GCS, up to 2.49): `key: value` lines.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import budget
from raydoctor.read.clock import instant
from raydoctor.read.entities import in_fields
from raydoctor.read.records import plausible, strip_ansi

_LINE_LIMIT = 1 << 20
_KEPT_TASK_ERRORS = 2000
_KEPT_EVENTS = 50_000
"""Of one file."""
_KEPT_CHARS = 32_000_000
"""Of one file's messages."""
_LONGEST = 32_000
_DEBUG_LIMIT = 4 << 20
_INTERESTING = (
    *(b'"error_info"', b'"EXPORT_ACTOR"', b'"EXPORT_NODE"', b'"EXPORT_DRIVER_JOB"'),
    *(b'"rayErrorInfo"', b'"ACTOR_DEFINITION_EVENT"'),
)


def read(files: dict[Source, str], gaps: list[Gap]) -> list[Event]:
    """Events of every structured file. An unreadable file is a gap, and a damaged line is skipped."""
    events: list[Event] = []
    for source, file in files.items():
        try:
            if source.role == "export-event":
                events += _export_events(source, file, gaps)
            elif source.role == "debug-state":
                events += _debug_state(source, file)
        except OSError as error:
            gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
    return events


# ---------------------------------------------------------------- export events


def _export_events(source: Source, file: str, gaps: list[Gap]) -> Iterator[Event]:
    time = budget.of_file(source.size)
    kept = events = chars = 0
    with open(file, "rb") as stream:
        for number, raw in _lines(stream):
            if not any(mark in raw for mark in _INTERESTING):
                continue
            if time.spent:
                gaps.append(budget.gap(source.path, stream.tell(), source.size, time))
                return
            event = _export_event(source, number, raw)
            if event is None:
                continue
            kept += event.kind == "export.task_error"
            events += 1
            chars += len(event.message) + len(event.text)
            if kept > _KEPT_TASK_ERRORS or events > _KEPT_EVENTS or chars > _KEPT_CHARS:
                return
            yield event


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number, line) of each line that is not too long; of one that is, the rest is passed over."""
    number = 0
    while raw := stream.readline(_LINE_LIMIT):
        number += 1
        if raw.endswith(b"\n") or len(raw) < _LINE_LIMIT:
            yield number, raw
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(_LINE_LIMIT)


def _export_event(source: Source, number: int, raw: bytes) -> Event | None:
    try:
        record: Any = json.loads(raw)
        if "eventType" in record:
            kind, fields = _AGGREGATED[record["eventType"]](record)
            at = instant(record["timestamp"])
        else:
            kind, fields = _EXPORTS[record["source_type"]](record["event_data"])
            at = plausible(record["timestamp"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not kind:
        return None
    return Event(
        kind, source, number, 0, raw.decode("utf-8", "replace").strip()[:4000],
        fields.get("what", ""), at, 1.0,
        pid=source.pid, fields=fields, entities=_entities(fields),
    )  # fmt: skip


def _task(data: dict[str, Any]) -> tuple[str, dict[str, str]]:
    updates = data.get("state_updates") or {}
    error = updates.get("error_info") or {}
    if not error:
        return "", {}
    return "export.task_error", {
        "task": _hex(data.get("task_id")),
        "job": _hex(data.get("job_id")),
        "worker": _hex(updates.get("worker_id")),
        "node": _hex(updates.get("node_id")),
        "attempt": str(data.get("attempt_number", 0)),
        "func_or_class_name": str((data.get("task_info") or {}).get("func_or_class_name", "")),
        "error": str(error.get("error_type", "")),
        "what": _message(error.get("error_message")).removeprefix("User exception:\n"),
    }


def _actor(data: dict[str, Any]) -> tuple[str, dict[str, str]]:
    cause = next(iter((data.get("death_cause") or {}).values()), None) or {}
    return "export.actor", {
        "actor": _hex(data.get("actor_id")),
        "job": _hex(data.get("job_id")),
        "node": _hex(data.get("node_id")),
        "class_name": str(data.get("class_name", "")),
        "name": str(data.get("name", "")),
        "namespace": str(data.get("ray_namespace", "")),
        "state": str(data.get("state", "")),
        "worker_pid": str(data.get("pid") or ""),
        "reason": str(cause.get("reason", "")),
        "what": _message(cause.get("error_message") or cause.get("formatted_exception_string")),
    }


def _node(data: dict[str, Any]) -> tuple[str, dict[str, str]]:
    death = data.get("death_info") or {}
    return "export.node", {
        "node": _hex(data.get("node_id")),
        "ip": str(data.get("node_manager_address", "")),
        "state": str(data.get("state", "")),
        "reason": str(death.get("reason", "")),
        "what": _message(death.get("reason_message")),
    }


def _driver_job(data: dict[str, Any]) -> tuple[str, dict[str, str]]:
    return "export.driver_job", {
        "job": _hex(data.get("job_id")),
        "driver_pid": str(data.get("driver_pid", "")),
        "ip": str(data.get("driver_ip_address", "")),
        "dead": "1" if data.get("is_dead") else "",
    }


_EXPORTS = {
    "EXPORT_TASK": _task,
    "EXPORT_ACTOR": _actor,
    "EXPORT_NODE": _node,
    "EXPORT_DRIVER_JOB": _driver_job,
}


def _aggregated_task(record: dict[str, Any]) -> tuple[str, dict[str, str]]:
    data = record["taskLifecycleEvent"]
    error = data.get("rayErrorInfo") or {}
    return "export.task_error" if error else "", {
        "task": _hex(data.get("taskId")),
        "job": _hex(data.get("jobId")),
        "worker": _hex(data.get("workerId")),
        "node": _hex(data.get("nodeId")),
        "attempt": str(data.get("taskAttempt", 0)),
        "error": str(error.get("errorType", "")),
        "what": _message(error.get("errorMessage")).removeprefix("User exception:\n"),
    }


def _aggregated_actor(record: dict[str, Any]) -> tuple[str, dict[str, str]]:
    data = record["actorDefinitionEvent"]
    return "export.actor", {
        "actor": _hex(data.get("actorId")),
        "job": _hex(data.get("jobId")),
        "class_name": str(data.get("className", "")),
        "name": str(data.get("name", "")),
        "namespace": str(data.get("rayNamespace", "")),
    }


_AGGREGATED = {
    "TASK_LIFECYCLE_EVENT": _aggregated_task,
    "ACTOR_DEFINITION_EVENT": _aggregated_actor,
}


def _message(value: object) -> str:
    """A message without colours, cut at a length that no message of Ray has."""
    return strip_ansi(str(value or "")[:_LONGEST])


def _hex(value: object) -> str:
    """An id of the export files (base64 of its bytes) as Ray's logs write it."""
    if not isinstance(value, str) or not value:
        return ""
    try:
        return base64.b64decode(value, validate=True).hex()
    except (binascii.Error, ValueError):
        return ""


def _entities(fields: dict[str, str]) -> frozenset[Entity]:
    return in_fields(
        {k: v for k, v in fields.items() if k in ("task", "job", "worker", "node", "actor")}
    )


# ---------------------------------------------------------------- debug dumps


_COUNTS = (
    *("num_waiting_for_resource", "infeasible_queue_length", "schedule_queue_length"),
    *("grant_queue_length", "dispatch_queue_length", "num_bytes_currently_spilled"),
)
"""Fields of a raylet's dump that rules use as numbers."""
_COUNT = pattern(r"[0-9]{1,20}")


def drop_damaged_counts(fields: dict[str, str]) -> None:
    """Remove counts that are no numbers: what follows the name is a part of another row."""
    for key in _COUNTS:
        if not _COUNT.fullmatch(fields.get(key, "")):
            fields.pop(key, None)


def _debug_state(source: Source, file: str) -> Iterator[Event]:
    """One event for the whole dump; its `key: value` lines become fields, lower case with `_` for blanks."""
    with open(file, "rb") as stream:
        text = stream.read(_DEBUG_LIMIT).decode("utf-8", "replace")
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("Event stats:"):
            break
        key, colon, value = line.strip(" -=[]").partition(":")
        if colon and len(key) < 80:
            fields.setdefault(key.strip().lower().replace(" ", "_"), value.strip())
    if not fields:
        return
    drop_damaged_counts(fields)
    fields["node"] = fields.get("node_id", "")
    # Only the file has a time, and copying a capture changes it: no time is better than a wrong one.
    yield Event(
        "debug.state",
        source,
        1,
        0,
        text[:2000],
        text[:20_000],
        fields=fields,
        entities=_entities(fields),
    )
