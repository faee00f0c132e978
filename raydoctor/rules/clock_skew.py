"""A node's clock differs from the head's, or a process or machine was paused. The headline says which.

## What you see
Ray reports neither a wrong clock nor a pause, only their effects. Check NTP only if the headline names a clock. A
stopped daemon is an error, and a stopped GCS is critical.

- Different clocks: by the times in the logs, a worker ends before it starts, or an effect comes minutes before its
  cause. Tokens and certificates are rejected as not yet valid.
- A paused machine or a stopped raylet: everything on the node is late at the same time. The GCS logs failed health
  checks (`Health check failed for node …, status message Deadline Exceeded`), and later checks succeed again.
- A stopped GCS: every request to it waits, on all nodes.

## Why
**Different clocks.** Ray writes the node's local time into its logs, and raydoctor uses it to order events of several nodes. Some
pairs of records have a fixed order. The GCS logs the registration of a node before the raylet logs its start. The GCS
logs the start and the exit of a worker after the raylet does. With equal clocks the two times differ by less than 0.2 s
(measured on one host with Ray 2.9 to 2.60). If the record that must come second is stamped 30 s earlier, the clocks
differ by at least 30 s.

**A pause.** A process stops responding after SIGSTOP (Ctrl-Z, a batch system that suspends jobs, a debugger). A whole node
stops responding while its virtual machine is migrated or suspended, or while it swaps. A raylet that gets no CPU looks
the same.

## Confirm
- If the headline names a clock, `chronyc tracking` or `timedatectl timesync-status` on both nodes, or `date -u` on both at the same time,
  shows that the clocks differ.
- If the headline names a stopped process, `ps -o pid,stat,args -C raylet,gcs_server` shows `T` in the STAT column (`t` if a debugger
  stopped it).
- If the headline names a paused node, the node's `sudo dmesg -T` or the hypervisor's events report it, and the times in the node's `raylet.out`
  have a gap.

## Fix
- Different clocks: synchronize all nodes with NTP (`sudo timedatectl set-ntp true`, or `sudo systemctl enable --now
  chronyd`). `sudo chronyc makestep` corrects a large difference at once. Do so while no job runs, because some of Ray's
  timeouts use the wall clock.
- A stopped process: run `kill -CONT PID`, or detach the debugger. Then find out what stopped it.
- A paused node: leave CPU for the raylet (`--num-cpus=$(( $(nproc) - 1 ))` for `ray start`), stop swapping, or
  configure the platform not to pause it.

## Not this when
- the times differ by multiples of 15 minutes: that is a time zone, which raydoctor takes into account.
- the GCS marked the node as dead (`node-died`).
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
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live.daemons import stopped

_LEAST = 2.0
"""Seconds: far more than NTP allows, and no message delay explains it in this direction."""
_ZONE = 900.0
"""Seconds: time zones differ by multiples of 15 minutes."""
_CHECKS = 2
"""Failed health checks from which on the rule reports a pause: one may fail under load."""
_BEFORE = 30.0
"""Seconds: a health check fails after 10, and other requests wait longer."""

_ESSENTIAL = ("gcs_server", "raylet", "agent", "runtime_env_agent")
"""Daemons that a node, or the cluster, cannot work without."""


@rule(
    tier="root",
    severity="warning",
    rank=95,
    explains=("clock", "gcs", "pause", "raylet"),
    caused_by=("node", "raylet"),
    looks_for=(
        *(RAYLET_STARTED, *NODE_REGISTERED, WORKER_STARTED, WORKER_EXIT, WORKER_DISCONNECTED),
        *(*ACTOR_PLACED, NODE_HEALTH_FAILED, *NODE_DEAD),
    ),
)  # fmt: skip
def clock_skew(case: Case) -> Iterator[Finding]:
    """One finding per node whose clock differs, one per stopped daemon, one per paused node."""
    gcs = {e.source.node for e in case.of("node.registered")}
    pairs = _pairs(case) if len(gcs) == 1 else {}
    for started in case.of("raylet.started"):
        skew = _skew(pairs.get(started["node"], ()))
        if skew and started.source.node not in gcs:
            yield _of_skew(case, started, skew)
    by_node = evidence.grouped(
        (
            e
            for e in case.of("node.health_failed")
            if "Deadline" in e["status"] and not case.torn_down(e)
        ),
        lambda e: e["node"],
    )
    dead = {node_of_death(e) for e in case.of("node.dead")}
    halted = set()
    for row in stopped(case, *_ESSENTIAL):
        node = row["node_id"] if row["kind"] == "raylet" else ""
        halted.add(node)
        yield _of_stopped(case, row, by_node.get(node, []), node in dead)
    for node, checks in by_node.items():
        if node not in dead | halted and evidence.total(checks) >= _CHECKS:
            yield _of_pause(case, node, checks)


def _of_stopped(case: Case, row: Event, checks: list[Event], is_dead: bool) -> Finding:
    """A daemon that the process table shows as stopped now."""
    kind, pid, node = row["kind"], row.pid, row["node_id"]
    ip = case.ledger.node_ips.get(node, row["ip"])
    daemon = {"gcs_server": "the GCS", "raylet": "the raylet"}.get(kind, f"the {kind}")
    by = "a debugger" if row["state"] == "t" else "a signal (SIGSTOP)"
    return Finding(
        f"Stopped process, not a clock: {by} stopped {daemon} of {case.node_name(node, ip)} (pid {pid}), "
        f"{_effect(kind, is_dead)}",
        (
            Link(row, f"the process table shows {kind} {pid} as stopped (state {row['state']})"),
            *(Link(e, f"the raylet misses a health check. After {e['remaining']} more, the GCS marks the node as dead") for e in checks[-1:]),
        ),
        explains=(
            Entity("pause", f"{node}/{kind}"),
            *((Entity("pause", node), Entity("raylet", node)) if kind == "raylet" else ()),
            *((Entity("gcs", "gcs"),) if kind == "gcs_server" else ()),
        ),
        subjects=(Subject("node", node or None, ip if node else kind, pid, node or None),),
        severity="critical" if kind == "gcs_server" else "error",
        remedies=tuple(_resume(row, ip, is_dead)),
        covers=(*checks, *_complaints(case.of("log.error"))),
    )  # fmt: skip


def _effect(kind: str, is_dead: bool) -> str:
    if kind == "gcs_server":
        return "so requests to it wait, and other Ray processes exit after 60 s (RAY_gcs_rpc_server_reconnect_timeout_s)"
    if kind != "raylet":
        return "so requests to it on that node wait"
    if is_dead:
        return "and the GCS has marked the node as dead and its tasks and actors as lost"
    return "so tasks get no workers there, and the GCS marks it dead about 65 s after the stop"


def _resume(row: Event, ip: str, is_dead: bool) -> Iterator[Remedy]:
    detach = "Detach the debugger, then resume" if row["state"] == "t" else "Resume"
    pid = row.pid or ""
    yield Remedy(
        f"{detach} the process",
        (
            paste.shell("kill -CONT {pid:pid}   # on node {ip:address}", pid=pid, ip=ip)
            if ip
            else paste.shell("kill -CONT {pid:pid}   # on that node", pid=pid),
        ),
        doc=FAULT_TOLERANCE_DOC,
    )
    if is_dead:
        yield Remedy(
            "Start the node again: the GCS marked it as dead, so its raylet exits",
            ("ray start   # with the options that this node was started with",),
            doc=FAULT_TOLERANCE_DOC,
        )
    yield Remedy(
        "Find out what stopped the process: Ctrl-Z in a terminal, a batch system that suspends jobs, or a debugger",
        (
            paste.shell(
                "ps -o pid,ppid,tty,stat,args -p {pid:pid}   # on node {ip:address}. TTY: the terminal, PPID: what started the process",
                pid=pid,
                ip=ip,
            )
            if ip
            else paste.shell(
                "ps -o pid,ppid,tty,stat,args -p {pid:pid}   # TTY: the terminal, PPID: what started the process",
                pid=pid,
            ),
            "squeue --me --states=S   # Slurm: the jobs that the batch system suspended",
        ),
    )


class _Skew(NamedTuple):
    """The least seconds by which a node's clock is ahead of the head's, and the two records that prove it."""

    seconds: float
    here: Event
    there: Event


_Pair = tuple[Event, Event, str]
"""A record of a node, one of the GCS, and which of the two comes first: `here` or `there`."""


def _skew(pairs: Iterable[_Pair]) -> _Skew | None:
    """The largest contradiction between the times of a node and of the GCS."""
    found = [
        _Skew(seconds, here, there)
        for here, there, first in pairs
        if here.at is not None and there.at is not None
        for seconds in (_without_zone(here.at - there.at),)
        if (seconds > _LEAST if first == "here" else seconds < -_LEAST)
    ]
    return max(found, key=lambda s: abs(s.seconds), default=None)


def _pairs(case: Case) -> dict[str, list[_Pair]]:
    """By node: the pairs of records with a fixed order."""
    found: dict[str, list[_Pair]] = {}
    registered = evidence.grouped(case.of("node.registered"), lambda e: e["node"])
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
    """The difference without whole time zones: some logs do not record their zone."""
    zones = round(seconds / _ZONE)
    return seconds - zones * _ZONE if abs(seconds) > _ZONE / 2 else seconds


def _of_skew(case: Case, started: Event, skew: _Skew) -> Finding:
    node, by = started["node"], abs(skew.seconds)
    ip = case.ledger.node_ips.get(node, started["ip"])
    way = "ahead of" if skew.seconds > 0 else "behind"
    late = "late" if skew.seconds > 0 else "early"
    return Finding(
        f"The clock of node {case.address_of(node, ip)} is at least {by:.0f} s {way} the head's: do not trust the order of "
        "events on different nodes",
        (
            Link(skew.there, "the GCS records the step with the head's clock"),
            Link(skew.here, f"the node records the same step {by:.1f} s too {late}"),
        ),
        explains=(Entity("clock", node),),
        subjects=(Subject("node", node, ip or None, None, node),),
        remedies=(
            Remedy(
                f"Synchronize the clocks of {ip} and the head with NTP",
                (
                    "timedatectl set-ntp true   # or: systemctl enable --now chronyd",
                    "chronyc tracking; date -u   # on both nodes",
                ),
            ),
        ),
    )  # fmt: skip


def _of_pause(case: Case, node: str, checks: list[Event]) -> Finding:
    ip = case.ledger.node_ips.get(node, evidence.short(node))
    times = [e.at for e in checks if e.at is not None]
    lasted = f" in {times[-1] - times[0]:.0f} s" if len(times) > 1 else ""
    count = evidence.total(checks)
    return Finding(
        f"Node {ip} was paused, or had no CPU for its raylet: it missed {evidence.many(count, 'health check')} of the GCS{lasted}, and "
        "then recovered",
        (
            Link(checks[0], "the raylet misses a health check of the GCS"),
            *(Link(e, f"the raylet misses health check no. {count}, but the GCS does not mark the node as dead") for e in checks[-1:] if count > 1),
        ),
        explains=(Entity("pause", node),),
        caused_by=(Entity("node", node), Entity("raylet", node)),
        subjects=(Subject("node", node, ip, None, node),),
        count=count,
        remedies=(
            Remedy(
                "Find out whether the node swaps, its CPUs are overloaded, or the machine was paused",
                (
                    "vmstat 1 5   # on that node. si and so above 0: it swaps. r above the number of CPUs: no CPU is left for the raylet",
                    "sudo dmesg -T | grep -iE 'suspend|resume|clocksource|stall' | tail   # a pause of the machine, or of its CPUs",
                ),
                finds_cause=True,
            ),
            Remedy(
                "If the node swaps or is overloaded, leave CPU and memory for the raylet",
                (
                    "ray start --num-cpus=CORES   # plus your other options, on that node. CORES: one less than the node has",
                    "ray.init(num_cpus=CORES)   # if the program starts Ray",
                ),
                risk="disruptive",
                doc=FAULT_TOLERANCE_DOC,
            ),
            Remedy(
                "Or allow 10 failed health checks of 30 s each",
                ("export RAY_health_check_failure_threshold=10 RAY_health_check_timeout_ms=30000   # on the head, before ray start, or before your program if it starts Ray",),
                risk="disruptive",
                doc=FAULT_TOLERANCE_DOC,
            ),
        ),
        covers=(*checks, *_observers(case, checks)),
    )  # fmt: skip


def _observers(case: Case, checks: list[Event]) -> list[Event]:
    """Errors of the dashboard and its agent about a raylet that does not answer."""
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


def _daemons(state: str) -> dict[str, str]:
    """The process table: this cluster's raylet in that state, and a stopped raylet of another cluster."""
    rows = [
        sample.daemon("raylet", 304, state, node_id=_N, ip="10.0.0.3"),
        sample.daemon("gcs_server", 13, ip="10.0.0.3"),
        sample.daemon("raylet", 900, "T", ip="10.0.0.3", is_this=False),
    ]
    return sample.tables(1795246900.0, daemons=rows)


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
        "a raylet starts 40 s before the GCS registers it: its clock is behind",
        _two("", _started(_N, "10.0.0.3", "07:39:30,010")),
        says=("10.0.0.3", "40 s", "behind", "chronyc"),
    ),
    Example(
        "a worker starts 25 s after an actor was placed in it: its clock is ahead",
        _two(
            _placed("07:40:20,000"),
            _started(_N, "10.0.0.3", "07:40:35,010") + _worker("07:40:45,000"),
        ),
        says=("10.0.0.3", "25 s", "ahead"),
    ),
    Example(
        "another time zone",
        _two("", _started(_N, "10.0.0.3", "01:40:10,010")),
    ),
    Example(
        "a slow start",
        _two(
            _placed("07:40:50,000"),
            _started(_N, "10.0.0.3", "07:40:35,010") + _worker("07:40:45,000"),
        ),
    ),
    Example(
        "a node fails three health checks, then recovers",
        _two(
            _check("07:41:24,000", 4) + _check("07:41:37,000", 3) + _check("07:41:50,000", 2),
            _started(_N, "10.0.0.3", "07:40:10,010"),
        ),
        says=("10.0.0.3", "26 s", "3 health checks", "--num-cpus"),
    ),
    Example(
        "live: a raylet is stopped by SIGSTOP",
        {
            "logs/gcs_server.out": _registered(_N, "10.0.0.3", "07:40:10,000")
            + _check("07:41:24,000", 4),
            "logs/raylet.out": _started(_N, "10.0.0.3", "07:40:10,010"),
            **_daemons("T"),
        },
        says=("raylet of node 10.0.0.3 (pid 304)", "SIGSTOP", "kill -CONT 304"),
        severity="error",
    ),
    Example(
        "live: the raylet runs, and a raylet of another cluster is stopped",
        {
            "logs/gcs_server.out": _registered(_N, "10.0.0.3", "07:40:10,000"),
            "logs/raylet.out": _started(_N, "10.0.0.3", "07:40:10,010"),
            **_daemons("S"),
        },
    ),
    Example(
        "a single failed health check",
        _two(_check("07:41:24,000", 4), _started(_N, "10.0.0.3", "07:40:10,010")),
    ),
)
