"""Report -> JSON: the contract that other tools rely on. Keys are added, never renamed.

All output is ASCII, so that no control character of a log reaches a terminal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from raydoctor.model.status import EnvironmentBuild, LiveStatus, TaskAge, TaskCounts
from raydoctor.model.values import (
    CaptureInfo,
    Diagnosis,
    Gap,
    Link,
    NodeInfo,
    Remedy,
    Report,
    Stats,
    Subject,
    Unexplained,
)
from raydoctor.model.version import __version__

SCHEMA = "raydoctor/report/1"


def render(report: Report) -> str:
    """The report as one JSON object."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "capture": _capture(report.capture),
            "diagnoses": [_diagnosis(d) for d in report.diagnoses],
            "unexplained": [_unexplained(u) for u in report.unexplained],
            "gaps": [gap(g) for g in report.gaps],
            "stats": _stats(report.stats),
            **({} if report.status is None else {"status": status(report.status)}),
        }
    )


def dumps(document: Mapping[str, Any]) -> str:
    """One JSON object, indented, ASCII, with a line break at its end."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def number(value: float | None) -> float | None:
    """A number that JSON can represent: logs may contain `NaN` and `Infinity`."""
    return value if value is None or math.isfinite(value) else None


def gap(value: Gap) -> dict[str, Any]:
    """A gap as JSON shows it, in reports and stories alike."""
    return {"what": value.what, "why": value.why, "hint": value.hint, "optional": value.optional}


def remedy(value: Remedy) -> dict[str, Any]:
    """A remedy as JSON shows it, in reports and rule pages alike."""
    return {
        "title": value.title,
        "steps": list(value.steps),
        "risk": value.risk,
        "doc": value.doc or None,
    }


def status(value: LiveStatus) -> dict[str, Any]:
    """The state of a cluster, as live reports and `raydoctor status` show it."""
    return {
        "at": round(value.at, 3),
        "nodes": {
            "alive": value.nodes,
            "draining": value.draining,
            "dead": value.dead_nodes,
            "silent": [each._asdict() for each in value.silent],
        },
        "workers": value.workers,
        "drivers": value.drivers,
        "resources": [asdict(each) for each in value.resources],
        "tasks": _tasks(value.tasks) if value.tasks else None,
        "actors": None if value.actors is None else dict(value.actors),
        "gauges": [each.as_row() for each in value.gauges],
        "environments": [_build(each) for each in value.builds],
    }


def _tasks(tasks: TaskCounts) -> dict[str, Any]:
    return {
        "running": tasks.running,
        "pending": tasks.pending,
        "oldest_running": _task_age(tasks.oldest_running),
        "oldest_pending": _task_age(tasks.oldest_pending),
        "waits": [
            {
                "kind": each.kind,
                "name": each.name,
                "reason": each.reason,
                "count": each.count,
                "oldest_s": round(each.oldest, 3),
            }
            for each in tasks.waits
        ],
        "complete": tasks.is_complete,
    }


def _task_age(task: TaskAge | None) -> dict[str, Any] | None:
    return None if task is None else {"name": task.name, "age_s": round(task.age, 3)}


def _build(build: EnvironmentBuild) -> dict[str, Any]:
    return {
        "tool": build.tool or None,
        "node": build.node or None,
        "age_s": _seconds(build.age),
        "timeout_s": build.limit,
        "attempt": build.attempt,
        "command": build.command or None,
        "command_s": _seconds(build.command_age),
        "last_error": build.last_error or None,
    }


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _capture(info: CaptureInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "kind": info.kind,
        "ray_versions": list(info.ray_versions),
        "nodes": [_node(n) for n in info.nodes],
        "from": number(info.begin),
        "to": number(info.end),
        "files": info.files,
        "bytes": info.bytes,
    }


def _node(node: NodeInfo) -> dict[str, Any]:
    return {"id": node.id, "ip": node.ip, "head": node.head}


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "id": diagnosis.id,
        "rule": diagnosis.rule,
        "tier": diagnosis.tier,
        "severity": diagnosis.severity,
        "headline": diagnosis.headline,
        "count": diagnosis.count,
        "first_at": number(diagnosis.first_at),
        "last_at": number(diagnosis.last_at),
        "subjects": [_subject(s) for s in diagnosis.subjects],
        "chain": [_link(link) for link in diagnosis.chain],
        "remedies": [remedy(r) for r in diagnosis.remedies],
        "gaps": [gap(g) for g in diagnosis.gaps],
        "consequences": list(diagnosis.consequences),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    return {
        "kind": subject.kind,
        "id": subject.id,
        "name": subject.name,
        "pid": subject.pid,
        "node": subject.node,
    }


def _link(link: Link) -> dict[str, Any]:
    event = link.event
    return {
        "file": event.source.path,
        "line": event.line,
        "at": number(event.at),
        "text": event.text,
        "shows": link.shows,
        **({"code": link.code} if link.code else {}),
        "count": event.count,
        "also": [{"file": e.source.path, "line": e.line} for e in event.sightings],
    }


def _unexplained(symptom: Unexplained) -> dict[str, Any]:
    return {
        "kind": symptom.kind,
        "file": symptom.file,
        "line": symptom.line,
        "text": symptom.text,
        "count": symptom.count,
    }


def _stats(stats: Stats) -> dict[str, Any]:
    return {
        "seconds": round(stats.seconds, 3),
        "hits": stats.hits,
        "events": stats.events,
        "rules": stats.rules,
        "outside_span": stats.outside_span,
    }
