"""A watched cluster -> one page that fits a terminal, or JSON lines.

JSON (`raydoctor/watch/1`): one object a line, each with `schema`, `event` and `at` (epoch seconds); keys are
added, never renamed. `event` is `round` for the state after a round, otherwise the kind of an event:

    round           state (up, lost, refused), problem, session, nodes, workers, drivers, every_s, cost
                    (share of one CPU), beside_s (CPU seconds of child processes), tasks {running,
                    waiting, by_state, counted_at}, waits_for [{resources, count}], slowest [{task_id, name,
                    attempt, age_s, peers_median_s, hang, pid, ip, node_id, worker_id, actor_id}], gauges
                    [{node_id, ip, what, path, used, limit, threshold, threshold_assumed, level, users
                    [{pid, name, bytes, path}]}], leftovers, diagnoses [{rule, severity, headline}], hung,
                    problems [{what, why, hint}],
                    guard {timeout_s, on_timeout, reported, ended, under_way}
    task-slow       a task has run ten times longer than its peers: as in slowest, median_s
    task-overdue    a task exceeds --timeout: as in slowest, timeout_s, action, why_not
    task-ended      the guard ended a task: by, seconds, steps, survivors
    task-not-ended  a cancel had no effect: as task-ended, why
    task-hung       a row of `raydoctor hung --json`
    tasks-failed    name, count
    diagnosis       rule, severity, tier, headline; diagnosis-gone: rule
    gauge           memory or a disk came near Ray's threshold, exceeded it or recovered: a row of gauges with
                    gauge_level (ok, near, over) as its level
    look-failed     some data could not be collected: what, why, hint
    log-silent      no line has matched --silence for too long: pattern, silent_s; log-resumed: pattern
    node-joined, node-gone, worker-silent, leftovers, cluster-lost, cluster-back, cluster-new, token-refused,
    notify-failed

Every event has `level` (ok, info, warning, error) and `text`, one sentence.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from raydoctor.model import text
from raydoctor.render.machine import prometheus
from raydoctor.render.page import Line, Page, Part, columns, fitted, line
from raydoctor.render.status import limit, users
from raydoctor.watch import guard as guards
from raydoctor.watch.controls import HELP, Controls, PaneOutput, row_of, shown
from raydoctor.watch.event import WatchEvent
from raydoctor.watch.rounds import Watch
from raydoctor.watch.view import TaskLine as Row
from raydoctor.watch.view import WatchView

SCHEMA = "raydoctor/watch/1"
_STYLES = {"ok": "ok", "info": "info", "warning": "warning", "error": "error"}
_LEVELS = {"ok": "", "near": "warning", "over": "error"}
_LEAST = 2
"""Lines, with its title, that each section gets before another gets more."""
_NAME = 30
_NARROW, _WIDE = 76, 120
"""Columns below which a table leaves out what matters least, and from which it shows more."""
_DEMANDS = 3
_SLOWEST = 10
"""Number of running tasks in JSON."""
_SERIES = 2_000
"""Memories and disks in the metrics."""


class _Section(NamedTuple):
    """A part of the page of which some lines may be cut."""

    title: Line
    rows: Page
    kept: int = 0
    """The row that is never cut; the last ones go first."""

    def fitted(self, count: int) -> Page:
        """The title and as many rows as `count` lines have room for."""
        room = count - 1
        first = max(0, min(self.kept - room // 2, len(self.rows) - room))
        return [self.title, *self.rows[first : first + room]]


# ------------------------------------------------------------------ JSON


def round_to_json(watch: Watch) -> str:
    """The current state as one line of JSON."""
    view = watch.view
    return _json(
        "round", view.snapshot.at, {**_state(watch), **_known(view), "guard": _guard(watch)}
    )


def to_metrics(watch: Watch) -> str:
    """The current state for Prometheus. Labels are rules, kinds, and the nodes' addresses and disks."""
    view = watch.view
    snapshot, is_up = view.snapshot, watch.state == "up"
    single, counts = prometheus.single, prometheus.counts
    found = Counter((str(d.get("rule")), str(d.get("severity"))) for d in view.diagnoses)
    levels: dict[tuple[str, str, str], float] = {}
    for g in view.gauges[:_SERIES]:
        key = (
            g.what,
            g.ip,
            g.path,
        )  # several nodes of a machine share its address: the fullest counts
        if g.threshold:
            levels[key] = max(levels.get(key, 0.0), g.share / g.threshold)
    families = [
        single("cluster_up", "Whether the GCS replies.", is_up),
        single("nodes", "Live nodes.", len(snapshot.nodes)),
        single("running_tasks", "Running tasks and methods.", len(snapshot.running)),
        single("waiting_tasks", "Tasks that wait for a worker.", snapshot.waiting),
        prometheus.Family(
            "threshold_used_ratio",
            "Usage of memory and disks as a share of Ray's threshold.",
            [
                (dict(zip(("what", "node", "path"), key, strict=True)), used)
                for key, used in levels.items()
            ],
        ),
        single("last_round_timestamp_seconds", "When the state was read.", snapshot.at),
    ]
    if watch.options.diagnose:  # otherwise nothing is looked for, and zero would be an all-clear
        families += [
            counts(
                "hung_tasks",
                "Hung tasks, methods and drivers.",
                "kind",
                (str(each.get("kind")) for each in view.hung),
            ),
            prometheus.Family(
                "diagnoses",
                "Current diagnoses, by rule.",
                [({"rule": r, "severity": s}, n) for (r, s), n in sorted(found.items())],
            ),
            *prometheus.evidence(len(view.problems) + (not is_up), "could have hidden a diagnosis"),
        ]
    if view.leftovers is not None:
        families.append(single("leftover_processes", "Leftover processes.", view.leftovers))
    return prometheus.text(families)


def event_to_json(event: WatchEvent) -> str:
    """An event as one line of JSON."""
    fields = {"level": event.level, "text": text.one_line(event.text), **event.facts}
    return _json(event.event, event.at, fields)


def _json(name: str, at: float, fields: dict[str, Any]) -> str:
    document = {"schema": SCHEMA, "event": name, "at": round(at, 3), **fields}
    return json.dumps(document, separators=(",", ":"), default=str) + "\n"


def _state(watch: Watch) -> dict[str, Any]:
    snapshot = watch.view.snapshot
    return {
        "state": watch.state,
        "problem": watch.problem or None,
        "session": snapshot.session or None,
        "nodes": len(snapshot.nodes),
        "workers": snapshot.workers,
        "drivers": snapshot.drivers,
        "every_s": round(watch.interval, 2),
        "cost": round(watch.cost, 5),
        "beside_s": round(watch.background_s, 2),
    }


def _known(view: WatchView) -> dict[str, Any]:
    snapshot = view.snapshot
    states = {name: number for name, number in (view.counts or {}).items() if number > 0}
    return {
        "tasks": {
            "running": len(snapshot.running),
            "waiting": snapshot.waiting,
            "by_state": states,
            "counted_at": round(view.counted_at, 3) if view.counts is not None else None,
        },
        "waits_for": [
            {"resources": dict(d.resources), "count": d.number} for d in snapshot.demands
        ],
        "slowest": [_row(each, snapshot.at) for each in view.lines[:_SLOWEST]],
        "gauges": [each.as_row() for each in view.gauges],
        "leftovers": view.leftovers,
        "diagnoses": [
            {key: each.get(key) for key in ("rule", "severity", "headline")}
            for each in view.diagnoses
        ],
        "hung": view.hung,
        "problems": [each._asdict() for each in view.problems],
    }


def _row(row: Row, now: float) -> dict[str, Any]:
    median = row.peers.median if row.peers else None
    facts = guards.facts(row.running, now)
    return {**facts, "name": row.name, "peers_median_s": median, "hang": row.hang or None}


def _guard(watch: Watch) -> dict[str, Any] | None:
    guard = watch.guard
    if guard is None:
        return None
    return {
        "timeout_s": guard.limits.timeout,
        "on_timeout": guard.limits.mode,
        "reported": guard.reported,
        "ended": guard.cancelled,
        "under_way": guard.under_way,
    }


# ------------------------------------------------------------------ page


def page(
    watch: Watch,
    width: int,
    height: int,
    controls: Controls = Controls(),  # noqa: B008 - it is immutable
    output: PaneOutput | None = None,
) -> Page:
    """The current state, in at most `height` lines of at most `width` columns."""
    view = watch.view
    if controls.pane == "tasks":
        head = _head(watch)
        sections = [
            _running(view, controls, width),
            _Section(_title("hung"), _hung(view)),
            _Section(_title("memory and disks"), _gauges(view)),
            _Section(_title("diagnoses"), _diagnoses(view)),
            _Section(_title("events"), _events(watch.events)),
        ]
    else:
        head, sections = _head(watch)[:1], [_pane(controls, output, height)]
    room = max(0, height - len(head) - 1)
    wanted = [s for s in sections if s.rows]
    body = [each for part in _fitted(wanted, room) for each in part]
    whole = [*head[: height - 1], *body, _foot(watch, controls)]
    return [fitted(each, width) for each in whole[-height:]]


def _title(text: str) -> Line:
    return line((text, "strong"))


def _pane(controls: Controls, output: PaneOutput | None, height: int) -> _Section:
    """The keys, or the output of the last command."""
    if controls.pane == "help":
        return _Section(_title("keys"), columns([((k, "strong"), does) for k, does in HELP], 2))
    rows = [line(each) for each in output.lines] if output else []
    top = min(controls.top, max(0, len(rows) - height + 3))
    title = output.title if output else "no output"
    return _Section(_title(f"{title}  (Esc goes back)"), rows[top:] or [line(" ")])


def _head(watch: Watch) -> Page:
    view, at = watch.view, text.moment(time.time(), "%H:%M:%S")
    snapshot = view.snapshot
    where = snapshot.session or watch.cluster.gcs_address
    lines = [line(("raydoctor watch", "strong"), f"  {where}  ", (at, "dim"))]
    if watch.state != "up":
        since = text.duration(max(0.0, time.time() - snapshot.at))
        lines.append(line((watch.problem, "error"), (f"  (last state: {since} ago)", "dim")))
    lines += [line((f"unknown: {text.one_line(p.text)}", "warning")) for p in view.problems]
    parts = [
        text.plural(len(snapshot.nodes), "node"),
        text.plural(snapshot.workers, "worker"),
        text.plural(snapshot.drivers, "driver"),
    ]
    lines.append(line(" · ".join(parts), "  ", *_tasks(view)))
    elsewhere = sum(each.node not in watch.cluster.node_ids for each in snapshot.nodes)
    if elsewhere and watch.options.hung:
        # `watch/inspections.py` sees at once which tasks of its own machine do not run, and of no other.
        where = text.plural(elsewhere, "other node")
        late = f"hung tasks of {where} appear later; raydoctor hung finds them immediately"
        lines.append(line((late, "dim")))
    if snapshot.demands:
        waiting = [f"{d.number:,} × {_resources(d.resources)}" for d in snapshot.demands[:_DEMANDS]]
        more = " …" if len(snapshot.demands) > _DEMANDS else ""
        lines.append(line(f"waiting for resources: {', '.join(waiting)}{more}"))
    return lines


def _tasks(view: WatchView) -> list[Part]:
    snapshot = view.snapshot
    parts: list[Part] = [
        (f"{len(snapshot.running):,} running", "strong"),
        f", {snapshot.waiting:,} waiting",
    ]
    if view.counts is not None:
        failed = view.counts["FAILED"]
        parts.append(f", {view.counts['FINISHED']:,} finished, ")
        parts.append((f"{failed:,} failed", "error" if failed else ""))
        # Ray's metrics are up to half a minute old: another screen may show another number.
        parts.append(f" {text.duration(snapshot.at - view.counted_at)} ago")
    return parts


def _resources(resources: Sequence[tuple[str, float]]) -> str:
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in resources) + "}"


def _running(view: WatchView, controls: Controls, width: int) -> _Section:
    """One row for each running task; the first row has the names of the columns."""
    now, tasks = view.snapshot.at, shown(view.lines, controls)
    selected = row_of(tasks, controls)
    order = {"age": "longest first"}.get(controls.sort, f"by {controls.sort}")
    head: list[Part] = [f"running, {order}", "for", "hang", "peers", "where", "task"]
    rows = [_kept([_bold(each) for each in head], width)]
    for n, each in enumerate(tasks):
        style = "error" if each.hang else "warning" if each.is_slow(now) else ""
        run = each.running.run
        name = text.cut(text.one_line(each.name), _NAME if width < _WIDE else 2 * _NAME)
        cells: list[Part] = [
            (f"> {name}", "strong") if n == selected else f"  {name}",
            (text.duration(each.running.age(now)), style),
            (each.hang, "error"),
            text.duration(each.peers.median) if each.peers else "",
            f"pid {run.pid}" + (f" on {run.ip}" if width >= _NARROW else ""),
            text.short_id(run.task),
        ]
        rows.append(_kept(cells, width))
    if not tasks and controls.filter:
        rows.append((f"  no running task has {text.one_line(controls.filter)!r}",))
    title, *made = columns(rows)
    return _Section(title, made, max(0, selected))


def _bold(name: Part) -> Part:
    return (str(name), "strong")


def _kept(cells: Sequence[Part], width: int) -> tuple[Part, ...]:
    """Of name, age, hang, peers, place and id, those that a terminal of this width has room for."""
    if width >= _WIDE:
        return tuple(cells)
    return tuple(cells[:5]) if width >= _NARROW else (*cells[:3], cells[4])


def _hung(view: WatchView) -> Page:
    rows: list[tuple[Part, ...]] = []
    for each in view.hung:
        task = each.get("task") or {}
        waits = ", ".join(str(w.get("name") or w.get("id")) for w in each.get("waits_for") or ())
        name = text.cut(text.one_line(str(task.get("name") or each.get("pid"))), _NAME)
        rows.append((name, (str(each.get("kind")), "error"), f"waits for {waits}" if waits else ""))
    return columns(rows, 2)


def _gauges(view: WatchView) -> Page:
    rows: list[tuple[Part, ...]] = []
    for each in sorted(view.gauges, key=lambda g: -g.share / g.threshold):
        name = f"{each.what} {each.path}".strip()
        share = (f"{each.share:.0%}", _LEVELS[each.level])
        rows.append((name, each.ip or "here", share, limit(each), (users(each), "dim")))
    if view.leftovers:
        rows.append(("leftovers", "here", (f"{view.leftovers}", "warning"), "raydoctor zombies"))
    return columns(rows, 2)


def _diagnoses(view: WatchView) -> Page:
    return [
        line(
            (str(each.get("rule")), _style(str(each.get("severity")))),
            f"  {text.one_line(str(each.get('headline')))}",
            indent=2,
        )
        for each in view.diagnoses
    ]


def _style(severity: str) -> str:
    return severity if severity in ("critical", "error", "warning") else "info"


def _events(events: Sequence[WatchEvent]) -> Page:
    """The newest first."""
    return [
        line(
            (text.moment(each.at, "%H:%M:%S"), "dim"),
            " ",
            (text.one_line(each.text), _STYLES[each.level]),
            indent=2,
        )
        for each in reversed(events)
    ]


def _foot(watch: Watch, controls: Controls) -> Line:
    if controls.cancels is not None:
        task = controls.cancels
        name = text.cut(text.one_line(task.name), _NAME)
        what = f"cancel {name} (task {text.short_id(task.running.run.task)}…)?"
        return line((f"{what} y cancels it, any other key does not", "warning"))
    if controls.is_typing:
        return line(
            (f"filter: {text.one_line(controls.filter)}_  Enter keeps it, Esc removes it", "info")
        )
    parts = ["q quits", "? keys"]
    if controls.filter:
        parts.append(f"filter {text.one_line(controls.filter)!r}")
    parts.append(f"every {watch.interval:.1f} s · {watch.cost:.1%} of a CPU")
    if (guard := watch.guard) is not None:
        limit = text.duration(guard.limits.timeout)
        parts.append(f"over {limit}: {guard.limits.mode}, {guard.reported:,} so far")
        if guard.limits.mode != "report":
            parts.append(f"{guard.cancelled:,} ended")
    return line((" · ".join(parts), "dim"))


def _fitted(sections: Sequence[_Section], room: int) -> list[Page]:
    """As much of each section as fits: all get a few lines before one gets many."""
    wanted = [len(each.rows) + 1 for each in sections]
    given = [0] * len(sections)
    for n, want in enumerate(wanted):
        given[n] = min(want, _LEAST) if sum(given) + min(want, _LEAST) <= room else 0
    while sum(given) < min(room, sum(wanted)):
        grew = False
        for n, want in enumerate(wanted):
            if given[n] and given[n] < want and sum(given) < room:
                given[n] += 1
                grew = True
        if not grew:
            break
    return [each.fitted(count) for each, count in zip(sections, given, strict=True) if count]
