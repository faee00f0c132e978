"""Changes between two rounds of a watch, as events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydoctor.model import text as _text
from raydoctor.model.status import Gauge
from raydoctor.observe.watching.watching import Node
from raydoctor.watch.event import Level, WatchEvent, event
from raydoctor.watch.view import WatchProblem

Row = Mapping[str, Any]
_LEVELS: dict[str, Level] = {"critical": "error", "error": "error", "warning": "warning"}
_GAUGES: dict[str, Level] = {"ok": "ok", "near": "warning", "over": "error"}


def nodes(before: Sequence[Node], now: Sequence[Node]) -> Iterator[WatchEvent]:
    """Nodes that joined or left."""
    old, new = {n.node: n for n in before}, {n.node: n for n in now}
    for node in new.keys() - old.keys():
        text = f"Node {new[node].ip} ({_text.short_id(node)}…) joined"
        yield event("node-joined", "info", text, node_id=node, ip=new[node].ip)
    for node in old.keys() - new.keys():
        text = f"Node {old[node].ip} ({_text.short_id(node)}…) is gone"
        yield event("node-gone", "error", text, node_id=node, ip=old[node].ip)


def levels(before: Sequence[Gauge], now: Sequence[Gauge]) -> Iterator[WatchEvent]:
    """Gauges that came near their limit, exceeded it or recovered."""
    old = {(g.node, g.what, g.path): g.level for g in before}
    for gauge in now:
        was = old.get((gauge.node, gauge.what, gauge.path), "ok")
        if gauge.level == was:
            continue
        position = {"ok": "is well below", "near": "is near", "over": "is over"}[gauge.level]
        where = f" of {gauge.path}" if gauge.path else ""
        on = f" on {gauge.ip}" if gauge.ip else ""
        limit = f"Ray's threshold of {gauge.threshold:.0%}"
        if gauge.is_assumed:
            limit = f"Ray's default threshold of {gauge.threshold:.0%} (the node's own setting is unknown)"
        subject = f"{gauge.what[:1].upper()}{gauge.what[1:]}{where}{on}"
        text = f"{subject} at {gauge.share:.0%} {position} {limit}"
        # `level` is the event's, so the gauge's own has another name.
        row = gauge.as_row()
        row["gauge_level"] = row.pop("level")
        yield event("gauge", _GAUGES[gauge.level], text, **row)


def _key(diagnosis: Mapping[str, Any]) -> tuple[str, ...]:
    """The part of a diagnosis that stays the same while its numbers grow."""
    subjects = diagnosis.get("subjects") or [{}]
    first = subjects[0]
    return (
        str(diagnosis.get("rule")),
        str(first.get("kind")),
        str(first.get("name") or first.get("id")),
    )


def problems(before: Sequence[WatchProblem], now: Sequence[WatchProblem]) -> Iterator[WatchEvent]:
    """Problems that are new, or have another reason than before."""
    for each in now:
        if each not in before:
            yield event("look-failed", "warning", each.text, **each._asdict())


def diagnoses(before: Sequence[Row], now: Sequence[Row]) -> Iterator[WatchEvent]:
    """Diagnoses that are new in a report, and those that are no longer in it."""
    old = {_key(each): each for each in before}
    new = {_key(each): each for each in now}
    for key, each in new.items():
        if key not in old:
            facts = {name: each.get(name) for name in ("rule", "severity", "tier", "headline")}
            level = _LEVELS.get(str(each.get("severity")), "info")
            text = f"{each.get('rule')}: {each.get('headline')}"
            yield event("diagnosis", level, text, **facts)
    for key in old.keys() - new.keys():
        text = f"No longer diagnosed: {key[0]}: {old[key].get('headline')}"
        yield event("diagnosis-gone", "info", text, rule=key[0])


def task_of(hung: Row) -> str:
    """The id of a hung task; empty for a driver."""
    return str((hung.get("task") or {}).get("id") or "")


def hangs(before: Sequence[Row], now: Sequence[Row]) -> Iterator[WatchEvent]:
    """Tasks and drivers that are newly hung."""
    known = {_hang(each) for each in before}
    for each in now:
        if _hang(each) in known:
            continue
        task = each.get("task") or {}
        name = task.get("name") or task.get("id") or "of a driver"
        evidence = (each.get("evidence") or [""])[0]
        text = f"Task {name} (pid {each.get('pid')}) is hung: {each.get('kind')}"
        text += f", {evidence}" if isinstance(evidence, str) and evidence else ""
        keys = ("kind", "task", "actor", "pid", "node", "age_s", "waits_for")
        yield event("task-hung", "error", text, **{key: each.get(key) for key in keys})


def _hang(row: Row) -> tuple[str, str, str]:
    return task_of(row), str(row.get("pid")), str(row.get("kind"))
