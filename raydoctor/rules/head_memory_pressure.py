"""A driver or one of Ray's own daemons, not a task, used up the node's memory.

## What you see
Ray kills small tasks or idle workers to free memory (`OutOfMemoryError`, `NODE_OUT_OF_MEMORY`) again and again, and the
memory use stays high. In Ray's list `Top 10 memory users` the first process is the driver's script, `gcs_server`,
`dashboard.py`, an agent or the raylet. Or Ray finds no worker to kill: `Worker killer did not select any workers to
kill even though memory usage is high.`

## Why
Ray's memory monitor kills only workers. Drivers share the node's memory with them, and so do the GCS and the dashboard
on the head. A driver grows when it collects results with `ray.get` or loads data before it passes the data on. The GCS
grows with task events, dead actors and dead workers, and the dashboard with the events that it caches.

## Confirm
- Ray's list in the `raylet.out` of that node begins with a process that is not a worker, and all workers together hold
  less.
- `ps -eo pid,rss,args --sort=-rss | head` on the node shows the same. `ray memory` lists the references that a driver
  keeps.

## Fix
Keep data out of the driver: pass references instead of values, and write results from tasks. Run the driver on another
node, keep tasks off the head (`--num-cpus=0`), or give that node more memory.

## Not this when
- workers hold most of the memory (`ray-oom-kill`).
- the kernel's OOM killer acted first (`kernel-oom-kill`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import JOB_STARTED, RAYLET
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.oom import kills
from raydoctor.rules.shared.oom.kills import OOM_KILL, OOM_SUMMARY, MemoryUser, OomReport
from raydoctor.rules.shared.oom.remedies import gib

NONE_LEFT = (
    Signal(
        "oom.none_to_kill",
        "to kill even though memory usage is high",
        r"^Worker killer did not select (?:a worker|any workers) to kill even though memory usage is high",
        RAYLET,
        "Worker killer did not select any workers to kill even though memory usage is high. Other Ray processes (e.g. driver, "
        "raylet, dashboard agent, runtime environment agent, GCS server, API server, etc.) or other non-ray processes may be",
    ),
    Signal(
        "oom.none_to_kill",
        "but no workers are available for killing",
        r"^Memory usage above threshold but no workers are available for killing",
        RAYLET,
        "Memory usage above threshold but no workers are available for killing.",
    ),
)

_GCS, _DASHBOARD = "the GCS", "the dashboard"
_DAEMONS = {
    _GCS: pattern(r"/gcs_server\b"),
    "the raylet": pattern(r"/raylet/raylet\b"),
    "a dashboard agent": pattern(r"^ray::DashboardAgent|/dashboard/agent\.py"),
    "a runtime environment agent": pattern(r"^ray::RuntimeEnvAgent|/runtime_env/agent/main\.py"),
    _DASHBOARD: pattern(r"^ray-dashboard-|/dashboard/dashboard\.py"),
    "the log monitor": pattern(r"/log_monitor\.py"),
    "the autoscaler's monitor": pattern(r"/autoscaler/_private/monitor\.py"),
    "a Ray Client server": pattern(r"ray\.util\.client\.server"),
}
"""Command lines of Ray 2.9 to 2.60."""
_SHARE = 0.4
"""Share of the used memory from which one process counts as the cause."""
_NEGLIGIBLE = 0.1
"""Share of the cause's memory below which a victim held almost nothing."""

_DOC = "https://docs.ray.io/en/latest/ray-core/head-node-memory-management.html"


@rule(
    tier="root",
    severity="error",
    rank=19,
    explains=("memory", "process", "worker"),
    looks_for=(*OOM_KILL, OOM_SUMMARY, *NONE_LEFT, *JOB_STARTED),
)  # fmt: skip
def head_memory_pressure(case: Case) -> Iterator[Finding]:
    """One finding per node and episode; one per node where Ray found no worker to kill."""
    nodes = set()
    for strikes in kills.episodes(kills.reports(case)):
        hog = _hog(case, max(strikes, key=lambda r: r.used_gb))
        nodes.add(strikes[0].node)
        if hog:
            yield _finding(case, strikes, hog)
    by_node = evidence.grouped(
        (e for e in case.of(NONE_LEFT[0].kind) if not case.torn_down(e)),
        lambda e: case.node_of(e.source),
    )
    for node, events in by_node.items():
        if node not in nodes:
            yield _nothing_to_kill(case, node, events)


class _Hog(NamedTuple):
    """The process that held the memory."""

    name: str
    """`the driver python train.py`, `the GCS`."""
    holder: MemoryUser
    report: OomReport
    is_driver: bool


def _hog(case: Case, report: OomReport) -> _Hog | None:
    """The largest user, if it is a driver or a daemon and holds more than all workers together."""
    if not report.holders:
        return None
    first = report.holders[0]
    workers = sum(h.gb for h in report.holders if h.is_worker and not _daemon(h))
    if first.gb < _SHARE * report.used_gb or first.gb <= workers:
        return None
    if name := _daemon(first):
        return _Hog(name, first, report, False)
    if first.pid in {job.driver_pid for job in case.ledger.jobs.values()}:
        return _Hog(f"the driver {first.program}", first, report, True)
    return None


def _daemon(holder: MemoryUser) -> str:
    return next((name for name, words in _DAEMONS.items() if words.search(holder.name)), "")


def _finding(case: Case, strikes: list[OomReport], hog: _Hog) -> Finding:
    victims = [v for s in strikes for v in s.victims]
    exits = kills.exits_of(case, strikes, victims)
    others = tuple(e for s in strikes for e in s.others if e.kind != "worker.exit")
    killed = max(sum(s.killed * s.event.count for s in strikes), evidence.deaths(exits))
    links = [Link(s.event, _shows(s, hog)) for s in dict.fromkeys((strikes[0], strikes[-1]))]
    links += evidence.exit_links(exits[0], most=1) if exits else ()
    links += [Link(e, f"the driver got {e['type']}") for e in others if e.kind == "driver.exception"][:1]  # fmt: skip
    return Finding(
        f"{_headline(hog, victims, killed)}{evidence.recovery(case, exits)}",
        tuple(links),
        explains=(
            *evidence.exit_entities(exits),
            *(Entity("worker", v.worker) for v in victims if v.worker),
            Entity("memory", f"{strikes[0].node}@{strikes[0].event.at or 0:.3f}"),
        ),
        subjects=(Subject("process", None, hog.holder.program, hog.holder.pid, hog.report.node),),
        count=killed,
        severity=evidence.severity(case, exits) if exits else None,
        remedies=tuple(_remedies(hog)),
        covers=(
            *(s.event for s in strikes),
            *others,
            *evidence.exit_events(exits),
            *kills.summaries(case, strikes),
            *case.of(NONE_LEFT[0].kind),
        ),
    )  # fmt: skip


def _headline(hog: _Hog, victims: list[MemoryUser], killed: int) -> str:
    holder, report = hog.holder, hog.report
    names = evidence.join_names(v.label for v in victims)
    workers = f"{evidence.many(killed, 'worker')}{f' ({names})' if names else ''}"
    small = bool(victims) and max(v.gb for v in victims) < _NEGLIGIBLE * holder.gb
    return (
        f"{hog.name[0].upper()}{hog.name[1:]} (pid {holder.pid}) held {gib(holder.gb)} of {gib(report.limit_gb)} on node {report.ip}, so Ray's memory "
        f"monitor killed {workers}{' that held almost no memory' if small else ''}"
    )


def _shows(strike: OomReport, hog: _Hog) -> str:
    pid = hog.holder.pid
    held = next((f" ({gib(h.gb)} by pid {pid})" for h in strike.holders if h.pid == pid), "")
    used = f"memory monitor: {gib(strike.used_gb)} of {gib(strike.limit_gb)} used{held}"
    return f"{used}, so it kills {evidence.many(strike.killed, 'worker')}"


def _nothing_to_kill(case: Case, node: str, events: list[Event]) -> Finding:
    ip = case.ledger.node_ips.get(node, "")
    return Finding(
        f"A driver, a daemon or another program fills the memory{f' of node {ip}' if ip else ''}, and Ray finds no worker to "
        "kill",
        (Link(events[0], "the memory monitor must free memory and finds no worker to kill"),),
        explains=(Entity("memory", f"{node}@none"),),
        subjects=(Subject("node", node or None, ip or None),),
        count=evidence.total(events),
        severity="warning",
        remedies=(
            Remedy(
                "Find the process that holds the memory",
                ("ps -eo pid,rss,args --sort=-rss | head   # on that node",),
                doc=_DOC,
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _remedies(hog: _Hog) -> Iterator[Remedy]:
    held, limit = gib(hog.holder.gb), gib(hog.report.limit_gb)
    if hog.is_driver:
        yield Remedy(
            f"Keep the {held} out of the driver: pass references, and get results one at a time",
            (
                "refs = [summarize.remote(load.remote(part)) for part in parts]   # values stay in the object store",
                "while refs:\n    ready, refs = ray.wait(refs)\n    handle(ray.get(ready[0]))   # one result in memory, not all",
            ),
            doc="https://docs.ray.io/en/latest/ray-core/patterns/ray-get-too-many-objects.html",
        )
        yield Remedy(
            f"Or run the driver on a node with more than {limit}, apart from the workers",
            (
                "ray job submit --entrypoint-memory=BYTES --working-dir . -- python your_script.py   # Ray chooses a node for the driver",
            ),
            doc="https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html",
        )
        return
    yield Remedy(
        f"Run no tasks on the node of {hog.name}, so that it keeps the memory",
        (
            "ray start --head --num-cpus=0   # if other nodes run the tasks, plus your other options. KubeRay: rayStartParams: num-cpus: '0'",
        ),
        risk="disruptive",
        doc=_DOC,
    )
    if hog.name == _GCS:
        yield Remedy(
            "Let the GCS keep at most 10000 task events",
            (
                "export RAY_task_events_max_num_task_in_gcs=10000   # on the head, before ray start, or before your program if it starts Ray (default: 100000)",
            ),
            risk="disruptive",
            doc=_DOC,
        )
    if hog.name == _DASHBOARD:
        yield Remedy(
            "Let the dashboard cache at most 1000 events",
            (
                "export RAY_DASHBOARD_MAX_EVENTS_TO_CACHE=1000   # on the head, before ray start, or before your program if it starts Ray",
            ),
            risk="disruptive",
            doc=_DOC,
        )
    yield Remedy(f"Or give the node more than {limit} of memory", risk="disruptive")


# ------------------------------------------------------------------ examples

_N = "b602e060e05b305dcaf6e8561907c08d88f316e2e5c2c4bd8cdda05d"
_W = "da7080329b294e229ba3bfab493f95062e40fa3514e5e0d48058dabb"
_JOB = "[2026-11-21 10:48:37,600 I 17 17] (gcs_server) gcs_job_manager.cc:80: Registering job. job_id=01000000 driver_pid=300\n"


def _kill(top: str) -> str:
    return (
        "[2026-11-21 10:49:14,541 I 291 291] (raylet) node_manager.cc:3199: Killing 1 worker(s), kill details: Memory on the node "
        f"(IP: 10.0.0.2, ID: {_N}) was 3.43GB used / 4.00GB limit (0.856664)\n"
        "OOM kill reason: Memory usage 3679399936B exceeded threshold of 3650722304B (85.0% of 4294967296B limit)\n"
        "Ray killed 1 worker(s) based on the killing policy\nConsidered workers: [\n"
        f"Selected to kill: (Task: job ID=01000000, lease ID={'0' * 64}, task name=summarize, required resources={{CPU: 1}}, pid=400, "
        f"actual memory used=0.05GB, worker ID={_W})\n]\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n{top}\n400\t0.05\tray::summarize\n"
    )


EXAMPLES: tuple[Example, ...] = (
    Example(
        "the driver holds the memory, and a small task is killed",
        {
            "logs/raylet.out": _kill("300\t2.80\tpython train.py --epochs 3"),
            "logs/gcs_server.out": _JOB,
        },
        says=("train.py", "2.80 GiB of 4.00 GiB", "summarize", "driver"),
    ),
    Example(
        "the GCS holds the memory",
        {
            "logs/raylet.out": _kill(
                "17\t2.80\t/home/user/venv/lib/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp"
            ),
            "logs/gcs_server.out": _JOB,
        },
        says=("The GCS", "--num-cpus=0", "RAY_task_events_max_num_task_in_gcs"),
    ),
    Example(
        "Ray finds no worker to kill",
        {
            "logs/raylet.out": f"[2026-11-21 10:49:14,541 W 291 291] (raylet) worker_killing_policy_by_time.cc:65: {NONE_LEFT[0].sample}\n",
            "logs/gcs_server.out": _JOB,
        },
        says=("no worker",),
        severity="warning",
    ),
    Example(
        "the largest process is not a driver of this cluster: Ray's kill is the root cause",
        {
            "logs/raylet.out": _kill("999\t2.80\tjava -Xmx3g Server"),
            "logs/gcs_server.out": _JOB,
        },
        roots=("ray-oom-kill",),
    ),
    Example(
        "the driver is the largest process, but the workers together hold more",
        {
            "logs/raylet.out": _kill(
                "300\t1.20\tpython train.py\n401\t1.00\tray::load\n402\t1.00\tray::load"
            ),
            "logs/gcs_server.out": _JOB,
        },
        roots=("ray-oom-kill",),
    ),
)
