"""What changed between two rounds of a watch, as events: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydoctor.model import text as _text
from raydoctor.observe.watching.gauges import Gauge
from raydoctor.observe.watching.watching import Node
from raydoctor.watch.event import Level, WatchEvent, event
from raydoctor.watch.view import WatchProblem

Row = Mapping[str, Any]
_LEVELS: dict[str, Level] = {"critical": "error", "error": "error", "warning": "warning"}
_GAUGES: dict[str, Level] = {"ok": "ok", "near": "warning", "over": "error"}


def nodes(before: Sequence[Node], now: Sequence[Node]) -> Iterator[WatchEvent]:
    """Nodes that joined, and those that are gone."""
    old, new = {n.node: n for n in before}, {n.node: n for n in now}
    for node in new.keys() - old.keys():
        text = f"node {new[node].ip} ({_text.short_id(node)}…) joined"
        yield event("node-joined", "info", text, node_id=node, ip=new[node].ip)
    for node in old.keys() - new.keys():
        text = f"node {old[node].ip} ({_text.short_id(node)}…) is gone"
        yield event("node-gone", "error", text, node_id=node, ip=old[node].ip)


def levels(before: Sequence[Gauge], now: Sequence[Gauge]) -> Iterator[WatchEvent]:
    """Gauges that came near the limit, or left it."""
    old = {(g.node, g.what, g.path): g.level for g in before}
    for gauge in now:
        was = old.get((gauge.node, gauge.what, gauge.path), "ok")
        if gauge.level == was:
            continue
        words = {"ok": "is well below", "near": "is near", "over": "is over"}[gauge.level]
        where = f" of {gauge.path}" if gauge.path else ""
        on = f" on {gauge.ip}" if gauge.ip else ""
        limit = f"Ray's threshold of {gauge.threshold:.0%}"
        if gauge.is_assumed:
            limit = f"Ray's default threshold of {gauge.threshold:.0%} (what this node was given is unknown)"
        text = f"{gauge.what}{where}{on} at {gauge.share:.0%} {words} {limit}"
        yield event("gauge", _GAUGES[gauge.level], text, **gauge_facts(gauge))


def gauge_facts(gauge: Gauge) -> dict[str, Any]:
    """Keys of a JSON object about a gauge."""
    return {
        "node_id": gauge.node,
        "ip": gauge.ip or None,
        "what": gauge.what,
        "path": gauge.path or None,
        "used": gauge.used,
        "limit": gauge.limit,
        "threshold": gauge.threshold,
        "threshold_assumed": gauge.is_assumed,
        "level": gauge.level,
        "users": [each._asdict() for each in gauge.users],
    }


def _key(diagnosis: Mapping[str, Any]) -> tuple[str, ...]:
    """What stays the same of a diagnosis while its numbers grow."""
    subjects = diagnosis.get("subjects") or [{}]
    first = subjects[0]
    return (
        str(diagnosis.get("rule")),
        str(first.get("kind")),
        str(first.get("name") or first.get("id")),
    )


def problems(before: Sequence[WatchProblem], now: Sequence[WatchProblem]) -> Iterator[WatchEvent]:
    """What could not be found out for the first time, or for another reason than before."""
    for each in now:
        if each not in before:
            yield event("look-failed", "warning", each.text, **each._asdict())


def diagnoses(before: Sequence[Row], now: Sequence[Row]) -> Iterator[WatchEvent]:
    """Diagnoses that a report has for the first time, and those that it has no more."""
    old = {_key(each): each for each in before}
    new = {_key(each): each for each in now}
    for key, each in new.items():
        if key not in old:
            facts = {name: each.get(name) for name in ("rule", "severity", "tier", "headline")}
            level = _LEVELS.get(str(each.get("severity")), "info")
            text = f"{each.get('rule')}: {each.get('headline')}"
            yield event("diagnosis", level, text, **facts)
    for key in old.keys() - new.keys():
        text = f"{key[0]} is seen no more: {old[key].get('headline')}"
        yield event("diagnosis-gone", "info", text, rule=key[0])


def task_of(hung: Row) -> str:
    """The id of the task that hangs; empty for a driver."""
    return str((hung.get("task") or {}).get("id") or "")


def hangs(before: Sequence[Row], now: Sequence[Row]) -> Iterator[WatchEvent]:
    """What hangs that did not before."""
    known = {_hang(each) for each in before}
    for each in now:
        if _hang(each) in known:
            continue
        task = each.get("task") or {}
        name = task.get("name") or task.get("id") or "a driver"
        evidence = (each.get("evidence") or [""])[0]
        text = f"{name} (pid {each.get('pid')}) hangs: {each.get('kind')}"
        text += f", {evidence}" if isinstance(evidence, str) and evidence else ""
        keys = ("kind", "task", "actor", "pid", "node", "age_s", "waits_for")
        yield event("task-hung", "error", text, **{key: each.get(key) for key in keys})


def _hang(row: Row) -> tuple[str, str, str]:
    return task_of(row), str(row.get("pid")), str(row.get("kind"))
