"""A node's clock differs from the head's, or a node stood still for a while.

## What you see
Nothing that Ray would say. Stories that run backwards: a worker that ended before it was started, an effect minutes
before its cause, tokens and certificates that are not valid yet. Or everything on a node is late at once: health
checks of the GCS time out (`Health check failed for node …, status message Deadline Exceeded`) and then succeed
again.

## Why
Ray's logs carry the local time of their node, and this diagnosis orders events of several nodes by it. Some of them can
only happen in one order: the GCS registers a node before its raylet reports to be started, and hears of a worker's start
and end after the raylet knew them (measured on one host with Ray 2.9 to 2.60: within 0.2 s). Where the times contradict
that, the clocks differ by at least as much. A node that stands still was paused (a virtual machine that is
moved or saved, SIGSTOP), swapped, or had no CPU left for its raylet.

## Confirm
- `chronyc tracking` or `timedatectl timesync-status` on both nodes; `date -u` on both at once.
- For a process that is stopped: `ps -eo pid,stat,args | grep -E 'raylet|gcs_server'` shows `T`.
- For a pause: the node's `dmesg -T`, the hypervisor's events, gaps in the times of its `raylet.out`.

## Fix
Let all nodes keep time by NTP. For a node that stands still: leave CPU for the raylet (`--num-cpus=<cores - 1>`), stop
swapping, or tell the platform not to pause it.

## Not this when
The times differ by whole quarters of an hour: that is a time zone, and is taken into account. A node that was
counted as dead is `node-died`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import (
    ACTOR_PLACED,
    NODE_DEAD,
    NODE_HEALTH_FAILED,
    NODE_REGISTERED,
    RAYLET_STARTED,
    WORKER_DISCONNECTED,
    WORKER_EXIT,
    WORKER_STARTED,
)
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import FAULT_TOLERANCE_DOC, node_of_death
from raydoctor.rules.shared.live.daemons import stopped

_LEAST = 2.0
"""Seconds: what NTP keeps by far, and no queue of messages explains in this direction."""
_ZONE = 900.0
"""Zones differ by quarters of an hour."""
_CHECKS = 2
"""Health checks in a row that nobody answered: one may be lost under load."""
_BEFORE = 30.0
"""Seconds: a check gives up after 10, and others wait longer."""

_STAND_STILL = ("gcs_server", "raylet", "agent", "runtime_env_agent")
"""Daemons without which a node, or the cluster, stands still."""


@rule(
    tier="root",
    severity="warning",
    rank=95,
    looks_for=(
        *(RAYLET_STARTED, *NODE_REGISTERED, WORKER_STARTED, WORKER_EXIT, WORKER_DISCONNECTED),
        *(*ACTOR_PLACED, NODE_HEALTH_FAILED, *NODE_DEAD),
    ),
)  # fmt: skip
def clock_skew(case: Case) -> Iterator[Finding]:
    """One finding per node whose clock differs, one per node that stood still."""
    gcs = {e.source.node for e in case.of("node.registered")}
    pairs = _pairs(case) if len(gcs) == 1 else {}
    for started in case.of("raylet.started"):
        skew = _skew(pairs.get(started["node"], ()))
        if skew and started.source.node not in gcs:
            yield _of_skew(case, started, skew)
    by_node: dict[str, list[Event]] = {}
    for event in case.of("node.health_failed"):
        if "Deadline" in event["status"] and not case.torn_down(event):
            by_node.setdefault(event["node"], []).append(event)
    dead = {node_of_death(e) for e in case.of("node.dead")}
    still = set()
    for row in stopped(case, *_STAND_STILL):
        node = row["node_id"] if row["kind"] == "raylet" else ""
        still.add(node)
        yield _of_stopped(case, row, by_node.get(node, []), node in dead)
    for node, checks in by_node.items():
        if node not in dead | still and evidence.total(checks) >= _CHECKS:
            yield _of_pause(case, node, checks)


def _of_stopped(case: Case, row: Event, checks: list[Event], is_dead: bool) -> Finding:
    """A daemon that the process table shows as stopped, now."""
    kind, pid, node = row["kind"], row.pid, row["node_id"]
    ip = case.ledger.node_ips.get(node, row["ip"])
    what = {"gcs_server": "The GCS", "raylet": "The raylet"}.get(kind, f"The {kind}")
    by = "a debugger" if row["state"] == "t" else "a signal (SIGSTOP)"
    return Finding(
        f"{what} of node {ip or evidence.short(node)} (pid {pid}) stands still, stopped by {by}: {_follows(kind, is_dead)}",
        (
            Link(row, f"the process table shows {kind} {pid} as stopped (state {row['state']})"),
            *(Link(e, f"health check without an answer, {e['remaining']} left") for e in checks[-1:]),
        ),
        explains=(
            Entity("pause", f"{node}/{kind}"),
            *((Entity("pause", node), Entity("raylet", node)) if kind == "raylet" else ()),
            *((Entity("gcs", "gcs"),) if kind == "gcs_server" else ()),
        ),
        subjects=(Subject("node", node or None, kind, pid, node or None),),
        severity="critical" if kind == "gcs_server" else "error",
        remedies=(_go_on(row, ip, is_dead),),
        covers=(*checks, *_complaints(case.of("log.error"))),
    )  # fmt: skip


def _follows(kind: str, is_dead: bool) -> str:
    if kind == "gcs_server":
        return "every `ray` command and every new task waits, and after 60 s raylets, workers and drivers give it up"
    if kind != "raylet":
        return "what it serves on that node waits"
    if is_dead:
        return "the GCS counts the node as dead by now, and what ran there as lost"
    return "nothing starts or ends there, and after 5 health checks without an answer (about 65 s) the node counts as dead"


def _go_on(row: Event, ip: str, is_dead: bool) -> Remedy:
    held = " (detach the debugger)" if row["state"] == "t" else ""
    again = (
        "ray start …   # it ends itself once it learns that it counts as dead: start the node anew",
    )
    return Remedy(
        f"Let it go on, once it is known who stopped it{held}",
        (
            paste.shell(
                "ps -o pid,stat,wchan,etime,args -p {pid:pid}   # on {node}",
                pid=row.pid or "",
                node=ip or "that node",
            ),
            paste.shell("kill -CONT {pid:pid}", pid=row.pid or ""),
            *(again if is_dead else ()),
        ),
        doc=FAULT_TOLERANCE_DOC,
    )


class _Skew(NamedTuple):
    """By how much a node's clock is ahead of the head's, at least, and the two records that show it."""

    seconds: float
    here: Event
    there: Event


_Pair = tuple[Event, Event, str]
"""A record of a node, one of the GCS, and which of them comes first."""


def _skew(pairs: Iterable[_Pair]) -> _Skew | None:
    """The plainest contradiction between a node's times and the GCS's."""
    found = [
        _Skew(seconds, here, there)
        for here, there, first in pairs
        if here.at is not None and there.at is not None
        for seconds in (_without_zone(here.at - there.at),)
        if (seconds > _LEAST if first == "here" else seconds < -_LEAST)
    ]
    return max(found, key=lambda s: abs(s.seconds), default=None)


def _pairs(case: Case) -> dict[str, list[_Pair]]:
    """The pairs of each node."""
    found: dict[str, list[_Pair]] = {}
    registered: dict[str, list[Event]] = {}
    for event in case.of("node.registered"):
        registered.setdefault(event["node"], []).append(event)
    for started in case.of("raylet.started"):
        there = registered.get(started["node"], ())
        found.setdefault(started["node"], []).extend((started, e, "there") for e in there)
    for exit_ in case.all_exits:
        exits = [e for e in exit_.events if e.kind == "worker.exit"]
        for here in exit_.events:
            if here.kind == "worker.disconnected":
                pairs = found.setdefault(case.node_of(here.source), [])
                pairs.extend((here, e, "here") for e in exits)
    placed = {e["worker"]: e for e in case.of("actor.placed")}
    for here in case.of("worker.started"):
        if here["worker"] in placed:
            pairs = found.setdefault(case.node_of(here.source), [])
            pairs.append((here, placed[here["worker"]], "here"))
    return found


def _without_zone(seconds: float) -> float:
    """Logs of nodes in other zones may be hours apart where nothing tells the zone."""
    zones = round(seconds / _ZONE)
    return seconds - zones * _ZONE if abs(seconds) > _ZONE / 2 else seconds


def _of_skew(case: Case, started: Event, skew: _Skew) -> Finding:
    node, by = started["node"], abs(skew.seconds)
    ip = case.ledger.node_ips.get(node, started["ip"])
    way = "ahead of" if skew.seconds > 0 else "behind"
    order = "after" if skew.seconds > 0 else "before"
    return Finding(
        f"The clock of node {ip} is at least {by:.0f} s {way} the head's: do not trust the order of events on different nodes",
        (
            Link(skew.there, "what the GCS writes by the head's clock"),
            Link(skew.here, f"what the node writes of the same, {by:.1f} s too {'late' if order == 'after' else 'early'}"),
        ),
        explains=(Entity("clock", node),),
        subjects=(Subject("node", node, ip or None, None, node),),
        remedies=(
            Remedy(
                f"Let {ip} and the head keep the same time",
                (
                    "timedatectl set-ntp true   # or: systemctl enable --now chronyd",
                    "chronyc tracking; date -u   # on both",
                ),
            ),
        ),
    )  # fmt: skip


def _of_pause(case: Case, node: str, checks: list[Event]) -> Finding:
    ip = case.ledger.node_ips.get(node, evidence.short(node))
    times = [e.at for e in checks if e.at is not None]
    lasted = f" within {times[-1] - times[0]:.0f} s" if len(times) > 1 else ""
    count = evidence.total(checks)
    return Finding(
        f"Node {ip} left {count} health checks of the GCS without an answer{lasted}, and went on: it was paused, or had no CPU for "
        "its raylet",
        (
            Link(checks[0], "the GCS asks, and the raylet does not answer in time"),
            *(Link(e, f"nor to check no. {count}; the node was not counted as dead") for e in checks[-1:] if count > 1),
        ),
        explains=(Entity("pause", node),),
        caused_by=(Entity("node", node), Entity("raylet", node)),
        subjects=(Subject("node", node, ip, None, node),),
        count=count,
        remedies=(
            Remedy(
                "Leave CPU and memory for the raylet",
                (
                    "ray start --num-cpus=CORES …   # on that node: one less than it has",
                    "vmstat 1 5; dmesg -T | tail   # swapping? a pause of the machine?",
                ),
                risk="disruptive",
                doc=FAULT_TOLERANCE_DOC,
            ),
            Remedy(
                "Or give health checks more time (on the head, before ray start)",
                ("RAY_health_check_failure_threshold=10 RAY_health_check_timeout_ms=30000 ray start --head …",),
                risk="disruptive",
                doc=FAULT_TOLERANCE_DOC,
            ),
        ),
        covers=(*checks, *_observers(case, checks)),
    )  # fmt: skip


def _observers(case: Case, checks: list[Event]) -> list[Event]:
    """What the dashboard and its agent say of a raylet that does not answer."""
    first, last = checks[0], checks[-1]
    span = (last.at or 0) - (first.at or 0)
    return _complaints(case.near(first, "log.error", before=_BEFORE, after=span + _BEFORE))


def _complaints(errors: Iterable[Event]) -> list[Event]:
    return [
        e
        for e in errors
        if e.source.role in ("dashboard", "dashboard-agent")
        and ("from raylet" in e.message or "Cannot reach the node" in e.message)
    ]


# ------------------------------------------------------------------ examples


_N, _H = "fd875f52489dc9a2f53c85a6f87fba13611a3340ab1d20bc262561bf", "a" * 56
_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"


def _registered(node: str, ip: str, at: str) -> str:
    return (
        f"[2026-11-21 {at} I 13 13] (gcs_server) gcs_node_manager.cc:111: Registering new node. node_id={node} node_name={ip} "
        f"node_address={ip}\n"
    )


def _started(node: str, ip: str, at: str) -> str:
    return (
        f"[2026-11-21 {at} I 304 304] (raylet) node_manager.cc:355: Raylet of id, {node} started. Raylet consists of node_manager "
        f"and object_manager. node_manager address: {ip}:0 object_manager address: {ip}:46637 hostname: n\n"
    )


def _worker(at: str) -> str:
    return f"[2026-11-21 {at} I 304 304] (raylet) worker_pool.cc:564: Started worker process with pid 451 worker_id={_W}\n"


def _placed(at: str) -> str:
    return f"[2026-11-21 {at} I 13 13] (gcs_server) gcs_actor_scheduler.cc:300: {ACTOR_PLACED[0].sample.replace('4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483', _N)}\n"


def _check(at: str, remaining: int, why: str = "Deadline Exceeded") -> str:
    return (
        f"[2026-11-21 {at} W 13 13] (gcs_server) gcs_health_check_manager.cc:209: Health check failed for node {_N}, remaining "
        f"checks {remaining}, status 4, response status 0, status message {why}, status details \n"
    )


def _daemons(state: str) -> str:
    """The process table: this cluster's raylet in that state, and a stopped one of another."""
    head = '{"table": "daemons", "at": 1795246900.0, "from": "proc", "total": 3, "rows": [\n'
    rows = (
        f'{{"kind":"raylet","pid":304,"state":"{state}","node_id":"{_N}","ip":"10.0.0.3","is_this":true}},\n'
        '{"kind":"gcs_server","pid":13,"state":"S","node_id":"","ip":"10.0.0.3","is_this":true},\n'
        '{"kind":"raylet","pid":900,"state":"T","node_id":"","ip":"10.0.0.3","is_this":false}\n'
    )
    return f"{head}{rows}]}}\n"


def _two(gcs: str, worker: str) -> dict[str, str]:
    return {
        "head/logs/gcs_server.out": _registered(_H, "10.0.0.2", "07:40:00,000")
        + _registered(_N, "10.0.0.3", "07:40:10,000")
        + gcs,
        "head/logs/raylet.out": _started(_H, "10.0.0.2", "07:40:00,010"),
        "worker/logs/raylet.out": worker,
    }


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a raylet that starts 40 s before the GCS knows of it: its clock is behind",
        _two("", _started(_N, "10.0.0.3", "07:39:30,010")),
        roots=("clock-skew",),
        says=("10.0.0.3", "40 s", "behind", "chronyc"),
    ),
    Example(
        "an actor is placed in a worker 25 s before that is started: its clock is ahead",
        _two(
            _placed("07:40:20,000"),
            _started(_N, "10.0.0.3", "07:40:35,010") + _worker("07:40:45,000"),
        ),
        roots=("clock-skew",),
        says=("10.0.0.3", "25 s", "ahead"),
    ),
    Example(
        "another time zone is none",
        _two("", _started(_N, "10.0.0.3", "01:40:10,010")),
    ),
    Example(
        "a slow start is none",
        _two(
            _placed("07:40:50,000"),
            _started(_N, "10.0.0.3", "07:40:35,010") + _worker("07:40:45,000"),
        ),
    ),
    Example(
        "three health checks without an answer, then it goes on",
        _two(
            _check("07:41:24,000", 4) + _check("07:41:37,000", 3) + _check("07:41:50,000", 2),
            _started(_N, "10.0.0.3", "07:40:10,010"),
        ),
        roots=("clock-skew",),
        says=("10.0.0.3", "26 s", "3 health checks", "--num-cpus"),
    ),
    Example(
        "a raylet that is stopped by SIGSTOP, now",
        {
            "logs/gcs_server.out": _registered(_N, "10.0.0.3", "07:40:10,000")
            + _check("07:41:24,000", 4),
            "logs/raylet.out": _started(_N, "10.0.0.3", "07:40:10,010"),
            "live/live-daemons.json": _daemons("T"),
        },
        roots=("clock-skew",),
        says=("raylet of node 10.0.0.3 (pid 304)", "SIGSTOP", "kill -CONT 304"),
    ),
    Example(
        "a raylet that runs, and one of another cluster that is stopped",
        {
            "logs/gcs_server.out": _registered(_N, "10.0.0.3", "07:40:10,000"),
            "logs/raylet.out": _started(_N, "10.0.0.3", "07:40:10,010"),
            "live/live-daemons.json": _daemons("S"),
        },
    ),
    Example(
        "one that was lost is none",
        _two(_check("07:41:24,000", 4), _started(_N, "10.0.0.3", "07:40:10,010")),
    ),
)
