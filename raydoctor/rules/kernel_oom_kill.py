"""The kernel's OOM killer killed a Ray process because a cgroup or the whole machine ran out of memory.

## What you see
- Ray reports `WorkerCrashedError` or `ActorDiedError` with `connection error code 2. End of file` or `The leased worker
  has unrecoverable failure`, as after any SIGKILL.
- Only the kernel log has the cause: `Memory cgroup out of memory: Killed process <pid> (ray::train)` or `Out of memory:
  Killed process …`.

## Why
A process asked for memory that its cgroup (a container's limit) or the machine no longer had. The kernel then killed
the process with the highest score: Ray gives its workers `oom_score_adj` 1000, so that they are killed before the
daemons. Ray's own memory monitor did not act first because it is off, uses another limit than the kernel, or checks
only every 250 ms while memory use rose within that time.

## Confirm
- `sudo dmesg -T | grep -i 'killed process'` on that node shows the pid, or the name `ray::…` (cut to 15 characters).
- In a container with its own pid namespace the kernel logs the host's pids: compare names and times.
- `oom_kill` in the cgroup's `memory.events` (v2) or `memory.oom_control` (v1) counts such kills. Kubernetes shows
  `OOMKilled` and exit code 137.

## Fix
Make the batches of the function that uses the memory smaller, or raise the limit. To run fewer of its calls at once,
declare what one needs: `@ray.remote(memory=…)`. Let Ray's memory monitor act before the kernel does, on every node:

    unset RAY_memory_monitor_refresh_ms; export RAY_memory_usage_threshold=0.85; ray start   # plus your options

The value 0 of the first variable switches the monitor off. In a container, the monitor uses the limit of the container.

## Not this when
- Ray's memory monitor killed the process (`ray-oom-kill`).
- the kernel killed a process that does not belong to Ray: raydoctor reports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import Job, WorkerExit
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import JOB_STARTED, RAYLET, RAYLET_STARTED, WORKER_EXIT
from raydoctor.cluster import resources
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called, size
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared.cluster import DeadRaylet, dead_raylets
from raydoctor.rules.shared.kernel import (
    OOM_SIGNALS,
    Kill,
    driver_logs,
    gcs_logs,
    is_beside_others,
    is_named,
    is_program,
    kills,
    nodes_beside,
    outlived,
)
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.oom.kills import MONITOR_STARTED, OFFERED
from raydoctor.rules.shared.oom.remedies import DOC, MONITOR_FIRST

MONITOR_OFF = Signal(
    "oom.monitor_off",
    "MemoryMonitor disabled.",
    r"MemoryMonitor disabled\.",
    RAYLET,
    "ThresholdMemoryMonitor disabled. Specify `RAY_memory_monitor_refresh_ms` > 0 to enable the monitor.",
)

_BY_PID, _BY_NAME = 60.0, 15.0
"""Seconds between the kernel's record and the recorded exit: a large process takes long to end, and a
name alone needs a closer match than a pid."""
_HEAD_FIRST = 60.0
"""Seconds by which a GCS may be older than the first raylet."""
_EPISODE = 300.0
_HEADROOM = 1.15
"""A killed process was still growing: the memory it held is a lower bound."""
_ISOLATION_DOC = "https://docs.ray.io/en/latest/ray-core/resource-isolation-with-cgroupv2.html"


@rule(
    tier="root",
    severity="error",
    rank=25,
    explains=("daemon", "job", "process", "worker"),
    looks_for=(
        *OOM_SIGNALS,
        MONITOR_OFF,
        MONITOR_STARTED,
        OFFERED,
        WORKER_EXIT,
        RAYLET_STARTED,
        *JOB_STARTED,
    ),
)
def kernel_oom_kill(case: Case) -> Iterator[Finding]:
    """One finding per kernel log and episode for workers, and one for each daemon or driver."""
    taken: set[int] = set()
    victims = [v for kill in kills(case) if (v := _victim(case, kill, taken))]
    for victim in victims:
        if victim.exit is None:
            yield _daemon_finding(case, victim)
    episode: list[_Victim] = []
    for victim in (v for v in victims if v.exit is not None):
        if episode and not _together(episode[-1].kill.event, victim.kill.event):
            yield _finding(case, episode)
            episode = []
        episode.append(victim)
    if episode:
        yield _finding(case, episode)


def _together(before: Event, event: Event) -> bool:
    if before.source != event.source:
        return False
    return before.at is None or event.at is None or event.at - before.at <= _EPISODE


# ---------------------------------------------------------------- the killed process


class _Victim(NamedTuple):
    """A kernel record joined to one of Ray's processes."""

    kill: Kill
    label: str
    joined: str
    """Evidence that both are the same process, for the link."""
    exit: WorkerExit | None = None
    entities: tuple[Entity, ...] = ()
    severity: Severity = "error"


def _victim(case: Case, kill: Kill, taken: set[int]) -> _Victim | None:
    by_pid = [
        e
        for e in case.exits
        if e.pid == kill.pid
        and is_program(kill.comm)
        and _near(e, kill, _BY_PID)
        and _here(case, e, kill)
    ]
    if by_pid:
        best = min(by_pid, key=lambda e: (not _has_name(e, kill), _apart(e, kill)))
        taken.add(id(best))
        return _Victim(kill, _label(best, kill), "the pid is the same", best)
    if daemon := _daemon(case, kill):
        return daemon
    if _is_alone(case, kill):
        name = f"{kill.comm} (pid {kill.pid})"
        entity = Entity("process", f"{kill.event.source.node}/{kill.pid}")
        is_rays = kill.comm.startswith("ray::") or kill.comm in ("raylet", "gcs_server")
        joined = "a name of Ray's processes" if is_rays else "Ray may have started it"
        severity: Severity = "error" if is_rays else "warning"
        return _Victim(kill, name, joined, None, (entity,), severity)
    if not kill.comm.startswith("ray::") or kill.event.at is None:
        return None
    by_name = [
        e
        for e in case.exits
        if id(e) not in taken and e.at is not None and e.exit_type == "SYSTEM_ERROR"
        and _has_name(e, kill)
        and _near(e, kill, _BY_NAME) and _here(case, e, kill)
    ]  # fmt: skip
    if not by_name:
        return None
    best = min(by_name, key=lambda e: _apart(e, kill))
    taken.add(id(best))
    how = f"pid {kill.pid} is the host's, but the name {kill.comm} matches and the times are {_apart(best, kill):.0f} s apart"
    return _Victim(kill, best.label, how, best)


def _has_name(exit_: WorkerExit, kill: Kill) -> bool:
    return any(is_named(kill.comm, name) for name in exit_.names)


def _apart(exit_: WorkerExit, kill: Kill) -> float:
    """Seconds between the kernel's record and the recorded exit."""
    return abs((exit_.at or 0.0) - (kill.event.at or 0.0))


def _is_alone(case: Case, kill: Kill) -> bool:
    """Whether a pasted kernel log is all there is, and the name is that of a program that Ray may have started."""
    alone = kill.event.source.is_excerpt and not case.roles and not case.all_exits
    return alone and (is_program(kill.comm) or kill.comm in ("raylet", "gcs_server"))


def _label(exit_: WorkerExit, kill: Kill) -> str:
    """The process's name; the kernel's truncated name if no log records its task."""
    return exit_.label if exit_.names else f"{kill.comm} (pid {exit_.pid})"


def _near(exit_: WorkerExit, kill: Kill, seconds: float) -> bool:
    """Whether the times match; a record without a time must at least name a worker."""
    at = kill.event.at
    if at is None:
        return kill.comm.startswith(("ray::", "python"))
    return exit_.at is None or abs(exit_.at - at) <= seconds + kill.event.slack


def _here(case: Case, exit_: WorkerExit, kill: Kill) -> bool:
    """Whether this kernel log may be from the worker's node."""
    nodes = nodes_beside(case, kill.event)
    return not nodes or not exit_.node or exit_.node in nodes


_AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")
"""The two agents, as the kernel cuts their names (titles seen with Ray 2.60): the raylet dies with either."""


def _daemon(case: Case, kill: Kill) -> _Victim | None:
    """A raylet (or its agent), the GCS or a driver: by its name, by the time, and because it no longer runs."""
    if kill.comm in ("raylet", *_AGENTS):
        return _raylet(case, kill)
    if kill.comm == "gcs_server":
        return _gcs(case, kill)
    return _driver(case, kill)


def _raylet(case: Case, kill: Kill) -> _Victim | None:
    ended = {raylet.node: raylet for raylet in dead_raylets(case)}
    then = {node for node, raylet in ended.items() if _ended_then(raylet, kill)}
    beside = nodes_beside(case, kill.event)
    running = [e for e in case.of("raylet.started") if _during(case, e, kill)]
    # Of several, the log of another machine lies here: in a folder of its own, or with the logs of the wrong node.
    elsewhere = {e["node"] for e in running if e["node"] in then - beside}
    found = [
        e
        for e in running
        if (e["node"] in beside and (e["node"] in then or not elsewhere))
        or (not beside and e["node"] in elsewhere)
    ]
    by_pid = [e for e in found if e.pid == kill.pid]
    for started in by_pid or (found if beside or len(found) == 1 else ()):
        node = started["node"]
        # A raylet exits when one of its agents does.
        if outlived(case, kill, "raylet"):
            continue
        ip = case.ledger.node_ips.get(node, started["ip"])
        entity = Entity("daemon", f"{ip}/{started.pid}")
        name = "an agent of the raylet" if kill.comm in _AGENTS else "the raylet"
        how = "the pid is the same" if kill.pid == started.pid else f"its name is {kill.comm}"
        return _Victim(kill, f"{name} of {case.node_name(node, ip)}", how, None, (entity,))
    return None


def _ended_then(raylet: DeadRaylet, kill: Kill) -> bool:
    """Whether the first record of this raylet's end is from about the time of the kill."""
    at = min((e.at for e in (*raylet.seen, *raylet.said) if e.at is not None), default=None)
    if at is None or kill.event.at is None:
        return False
    return abs(at - kill.event.at) <= _BY_PID + kill.event.slack


def _gcs(case: Case, kill: Kill) -> _Victim | None:
    begun = min((e.at for e in case.of("raylet.started") if e.at), default=None)
    at = kill.event.at
    if begun and at and not begun - _HEAD_FIRST <= at <= case.ledger.stops.get("gcs", math.inf):
        return None
    if is_beside_others(case, kill.event, gcs_logs(case)) or outlived(case, kill, "gcs_server"):
        return None
    entity = Entity("daemon", "gcs_server")
    return _Victim(kill, "the GCS", "its name is gcs_server", None, (entity,), "critical")


def _driver(case: Case, kill: Kill) -> _Victim | None:
    for job in case.ledger.jobs.values():
        if job.driver_pid != kill.pid or not _ended_with(job, kill):
            continue
        if is_beside_others(case, kill.event, driver_logs(case, kill.pid)):
            continue
        if outlived(case, kill, "driver", kill.pid):
            continue
        label = f"the driver of job {ids.job_number(job.id)} (pid {kill.pid})"
        process = Entity("daemon", f"driver/{job.driver_pid}")
        owned = (Entity("job", job.id), process)
        return _Victim(kill, label, "the pid is the same", None, owned, "critical")
    return None


def _ended_with(job: Job, kill: Kill) -> bool:
    """Whether this driver may be the killed process: it was running, and its name matches or it ended just then."""
    at = kill.event.at
    if at is None or job.started is None or at < job.started - 5:
        return False
    if job.ended is None:
        return is_program(kill.comm)
    return abs(job.ended - at) <= _BY_PID + kill.event.slack


def _during(case: Case, started: Event, kill: Kill) -> bool:
    """Whether this raylet was running at the time of the kill: earlier or later, its name and pid prove nothing."""
    if started.at is None or kill.event.at is None:
        return False
    return started.at - 5 <= kill.event.at <= case.stopped_at(started["node"]) + _BY_PID


# ---------------------------------------------------------------- findings


def _finding(case: Case, victims: list[_Victim]) -> Finding:
    exits = [v.exit for v in victims if v.exit]
    biggest = max(victims, key=lambda v: v.kill.held)
    kill = biggest.kill
    crashed = evidence.attempts_covered(case, exits)
    links = [*_kernel_links(biggest), *evidence.exit_links(biggest.exit or exits[0], most=1)]
    links += [Link(event, "the driver got WorkerCrashedError") for event in crashed[:1]]
    return Finding(
        f"The kernel's OOM killer killed {_names(victims)}: {_memory(biggest)}{evidence.recovery(case, exits)}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=len(exits),
        severity=evidence.severity(case, exits),
        remedies=tuple(_remedies(case, biggest.exit, kill)),
        covers=(*_records(victims), *evidence.exit_events(exits), *crashed),
    )


def _names(victims: list[_Victim]) -> str:
    if len(victims) == 1:
        return victims[0].label
    return f"{len(victims)} workers ({evidence.join_names(v.label for v in victims)})"


def _daemon_finding(case: Case, victim: _Victim) -> Finding:
    return Finding(
        f"The kernel's OOM killer killed {victim.label}: {_memory(victim)}",
        tuple(_kernel_links(victim)),
        explains=victim.entities,
        subjects=(Subject("process", None, victim.kill.comm, victim.kill.pid),),
        severity=victim.severity,
        remedies=tuple(_remedies(case, None, victim.kill)),
        covers=tuple(_records([victim])),
    )


def _memory(victim: _Victim) -> str:
    kill = victim.kill
    held = f"it held {size(kill.held)}" if kill.held else ""
    alike = kill.alike()
    if len(alike) > 1:
        held += f", {len(alike)} × {kill.comm} held {size(sum(alike))} together"
    where = f"its cgroup's limit is {size(kill.limit)}" if kill.limit else "its cgroup was full"
    return ", and ".join(
        part
        for part in (held, where if kill.in_cgroup else "the machine was out of memory")
        if part
    )


def _kernel_links(victim: _Victim) -> Iterator[Link]:
    kill = victim.kill
    for event in kill.evidence:
        if event.kind == "kernel.oom_limit" and kill.limit:
            usage = size(int(event["usage"]) * 1024)
            yield Link(event, f"the cgroup is full: {usage} used, limit {size(kill.limit)}")
    yield Link(
        kill.event, f"the kernel killed {victim.label}, logged as {kill.comm}: {victim.joined}"
    )


def _records(victims: list[_Victim]) -> Iterator[Event]:
    for victim in victims:
        yield victim.kill.event
        yield from victim.kill.evidence


# ---------------------------------------------------------------- remedies


def _remedies(case: Case, exit_: WorkerExit | None, kill: Kill) -> Iterator[Remedy]:
    if exit_ is not None and kill.held:
        yield from _reserve(exit_, kill, _offered(case, exit_, kill))
    yield from _monitor(case, kill)
    if kill.limit:
        need = _gib(kill.limit + max(kill.held, kill.limit // 4))
        yield Remedy(
            f"Raise the cgroup's limit from {size(kill.limit)} to {need} GiB",
            (
                paste.python(
                    "resources: {{limits: {{memory: {need}Gi}}}}   # on Kubernetes. With Docker: docker run --memory={need}g",
                    need=need,
                ),
            ),
            risk="disruptive",
        )
    yield Remedy(
        "Reserve memory for Ray's daemons (cgroup v2 only)",
        (
            "ray start --enable-resource-isolation   # plus your other options",
            "ray.init(enable_resource_isolation=True)   # if the program starts Ray",
        ),
        risk="disruptive",
        doc=_ISOLATION_DOC,
        since=(2, 51),
    )


def _offered(case: Case, exit_: WorkerExit, kill: Kill) -> float:
    """Bytes of `memory=` that a task can request at most on this node: never more than its cgroup's limit."""
    here = [
        resources.amounts(event["total"]).get("memory", 0.0)
        for event in case.of("raylet.offers")
        if not exit_.node or case.node_of(event.source) in ("", exit_.node)
    ]
    return max(filter(None, here), default=float(kill.limit or math.inf))


def _reserve(exit_: WorkerExit, kill: Kill, offered: float) -> Iterator[Remedy]:
    """`memory=` from the memory that the victim held: Ray then starts only as many as fit."""
    name = exit_.names[-1] if exit_.names else kill.comm.removeprefix("ray::")
    need = math.ceil(kill.held * _HEADROOM / evidence.GB * 10) / 10
    what = f"class {name}" if exit_.actor else name
    say = f"{name} actor" if exit_.actor else f"{called(name)} task"
    held = f"it held {size(kill.held)} when it was killed"
    running = len(kill.alike())
    if running > 1 and kill.limit and math.isfinite(offered):
        most = max(1, min(int(kill.limit / (_HEADROOM * kill.held)), running - 1))
        yield Remedy(
            f"Run at most {most} {say} at the same time instead of {running}: {held}, and the limit is {size(kill.limit)}",
            (
                paste.python(
                    "@ray.remote(memory={share} * 1024**2)   # {what}: of the {offered} MiB that Ray counts on its node",
                    share=int(offered / 2**20 / (most + 0.5)),
                    what=what,
                    offered=int(offered / 2**20),
                ),
            ),
            doc=DOC,
        )
        return
    offers = (
        f", and its node offers tasks {size(offered)} of memory in all"
        if need * evidence.GB > offered
        else ""
    )
    yield Remedy(
        f"Make each {say} smaller: {held}{offers}",
        (
            paste.python(
                "# {name}: read less data at a time (smaller batches, streaming). memory= does not limit what it uses",
                name=name,
            ),
        ),
        doc=DOC,
    )
    if math.isfinite(offered):
        need = max(
            need, math.ceil(offered / evidence.GB * 10 + 1) / 10
        )  # no longer fits on this node
    yield Remedy(
        f"Or run {name if exit_.actor else called(name)} on a machine with more memory, on which Ray offers at least {need:.1f} GiB to tasks",
        (
            "ray start --address=HEAD:6379   # on that machine",
            paste.python("@ray.remote(memory={need} * 1024**3)   # {what}", need=need, what=what),
        ),
        doc=DOC,
    )


def _monitor(case: Case, kill: Kill) -> Iterator[Remedy]:
    """Why Ray's memory monitor did not act first."""
    if case.of("oom.monitor_off"):
        yield Remedy(
            "Switch Ray's memory monitor on: this session ran without it",
            (
                "unset RAY_memory_monitor_refresh_ms   # on every node, before ray start. The value 0 switched it off",
            ),
            risk="disruptive",
            doc=DOC,
        )
        return
    seen = [int(e["limit"]) for e in case.of("oom.monitor_started")]
    if seen and kill.limit and max(seen) > kill.limit * 1.05:
        yield Remedy(
            f"Give Ray's monitor the kernel's limit: it assumes {size(max(seen))}, the kernel enforces "
            f"{size(kill.limit)}",
            (
                paste.shell(
                    "ray start --memory={size}   # plus your other options. Start Ray inside the limited cgroup",
                    size=int(kill.limit * 0.7),
                ),
                paste.shell(
                    "export RAY_memory_usage_threshold={share:.2f}   # on every node, before ray start, or before your program if it starts Ray",
                    share=0.9 * kill.limit / max(seen),
                ),
            ),
            risk="disruptive",
            doc=DOC,
        )
        return
    yield MONITOR_FIRST


def _gib(number: float) -> int:
    return math.ceil(number / evidence.GB)


# ------------------------------------------------------------------ examples


_W = "9b055e27aa418f1d3f4bd5f36bf9ac22d1d0c0f9d4f30a1adcbb3c11"
_N = "941f35aa418f1d3f4bd5f36bf9ac22d1d0c0f9d4f30a1adcbb3c1122"


def _kernel(pid: int, comm: str) -> str:
    stamp = "[Sat Nov 21 07:43:56 2026]"
    return (
        f"{stamp} {comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000\n"
        f"{stamp} memory: usage 3145728kB, limit 3145728kB, failcnt 415\n"
        f"{stamp} [  {pid}]     0 {pid}  1149240   630069   619398    10671         0  5292032        0          1000 {comm}\n"
        f"{stamp} oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pod1,task_memcg=/pod1,"
        f"task={comm},pid={pid},uid=0\n"
        f"{stamp} Memory cgroup out of memory: Killed process {pid} ({comm}) total-vm:4596960kB, anon-rss:2477592kB, "
        "file-rss:42684kB, shmem-rss:0kB, UID:0 pgtables:5168kB oom_score_adj:1000\n"
    )


def _iso(log: str, stamp: str) -> str:
    """The log with time stamps as in a live collection."""
    return log.replace("[Sat Nov 21 07:43:56 2026]", f"{stamp} host kernel:")


_AT = 1795247700.0


def _alive(kind: str, pid: int) -> sample.Row:
    """A row of the table `daemons`: started some seconds before the kill."""
    return sample.daemon(kind, pid, started_at=1795246000.0)


_EXIT = (
    "[2026-11-21 07:43:56,700 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 127.0.0.1, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a connection "
    "error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage\n"
)
_LOGS = {
    "logs/gcs_server.out": _EXIT,
    "logs/raylet.out": f"[2026-11-21 07:43:40,000 I 9 9] (raylet) worker_pool.cc:514: Started worker process with pid 379 worker_id={_W}\n",
    f"logs/worker-{_W}-01000000-379.out": ":job_id:01000000\n:task_name:load_embeddings\n",
}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the kernel killed this pid, in its cgroup",
        {**_LOGS, "dmesg.txt": _kernel(379, "ray::load_embed")},
        says=("load_embeddings() (pid 379)", "2.4 GiB", "3.0 GiB", "memory="),
    ),
    Example(
        "the node offers tasks less memory than the process held",
        {
            **_LOGS,
            "logs/raylet.out": f"{_LOGS['logs/raylet.out']}[2026-11-21 07:43:40,100 I 9 9] (raylet) node_manager.cc:355: \n{OFFERED.sample}\n",
            "dmesg.txt": _kernel(379, "ray::load_embed"),
        },
        says=(
            "offers tasks 1.8 GiB of memory",
            "Make each load_embeddings() task smaller",
            "on a machine with more memory",
        ),
    ),
    Example(
        "the node offers more than the process held, in ten-thousandths as up to 2.40",
        {
            **_LOGS,
            "logs/raylet.out": f"{_LOGS['logs/raylet.out']}[2026-11-21 07:43:40,100 I 9 9] (raylet) node_manager.cc:355: \n"
            "[state-dump] InitialConfigResources: {CPU: 20000, memory: 40000000000000}\n",
            "dmesg.txt": _kernel(379, "ray::load_embed"),
        },
        says=("Make each load_embeddings() task smaller: it held 2.4 GiB", "memory=3.9 * 1024**3"),
    ),
    Example(
        "the kernel logs the host's pids: name and time match",
        {**_LOGS, "dmesg.txt": _kernel(22082, "ray::load_embed")},
        says=("load_embeddings() (pid 379)",),
    ),
    Example(
        "the kernel killed the raylet, and its node died with it",
        {
            "logs/raylet.out": f"[2026-11-21 07:43:30,993 I 305 305] (raylet) main.cc:355: {RAYLET_STARTED.sample}\n",
            "logs/gcs_server.out": "",
            f"logs/python-core-worker-{'b' * 56}_424.log": "[2026-11-21 07:43:57,100 W 424 439] core_worker.cc:1: "
            "Shutting down the core worker because the local raylet failed. Check out the raylet.out log file. Raylet pid: 305\n",
            "dmesg.txt": _kernel(305, "raylet"),
        },
        consequences=("raylet-died",),
        says=("the raylet of node 127.0.0.1",),
    ),
    Example(
        "the kernel killed another program at that moment",
        {**_LOGS, "dmesg.txt": _kernel(4711, "mysqld")},
        roots=("worker-vanished",),
    ),
    Example(
        "the kernel killed a task with another name elsewhere on the host",
        {**_LOGS, "dmesg.txt": _kernel(22082, "ray::evaluate")},
        roots=("worker-vanished",),
    ),
    Example(
        "the kernel killed the same pid a day before",
        {**_LOGS, "dmesg.txt": _kernel(379, "ray::load_embed").replace("Nov 21", "Nov 20")},
        roots=("worker-vanished",),
    ),
    Example(
        "in a container: the host's pid 379 is another program",
        {**_LOGS, "dmesg.txt": _kernel(379, "mysqld")},
        roots=("worker-vanished",),
    ),
    Example(
        "live: the raylet and the GCS of another cluster, hours ago and just now, while this cluster's keep running",
        {
            "logs/raylet.out": f"[2026-11-21 07:43:30,993 I 305 305] (raylet) main.cc:355: {RAYLET_STARTED.sample}\n",
            "logs/gcs_server.out": "",
            "live/dmesg.txt": "".join(
                _iso(_kernel(pid, comm), stamp)
                for stamp in (
                    "2026-11-21T02:10:00.123456+00:00",
                    "2026-11-21T07:43:56.123456+00:00",
                )
                for pid, comm in (
                    (305, "raylet"),
                    (22082, "raylet"),
                    (301, "gcs_server"),
                    (16, "postgres"),
                )
            ),
            **sample.tables(_AT, daemons=[_alive("raylet", 305), _alive("gcs_server", 301)]),
        },
    ),
    Example(
        "live: the raylet is gone",
        {
            "logs/raylet.out": f"[2026-11-21 07:43:30,993 I 305 305] (raylet) main.cc:355: {RAYLET_STARTED.sample}\n",
            "logs/gcs_server.out": "",
            "live/dmesg.txt": _iso(_kernel(305, "raylet"), "2026-11-21T07:43:56.123456+00:00"),
            **sample.tables(_AT, daemons=[_alive("gcs_server", 301)]),
        },
        says=("the raylet of node 127.0.0.1",),
    ),
    console(
        "a pasted kernel log, alone",
        _kernel(22082, "ray::load_embed"),
        says=("ray::load_embed (pid 22082)", "2.4 GiB"),
    ),
    console(
        "a pasted kernel log about another program",
        _kernel(4711, "mysqld"),
    ),
    Example(
        "a task prints the kernel's message",
        {
            **_LOGS,
            f"logs/worker-{_W}-01000000-379.err": "Out of memory: Killed process 379 (python) total-vm:1kB\n",
        },
        roots=("worker-vanished",),
    ),
    console(
        "a pasted kernel log about a Python program that may not be Ray's",
        _kernel(4711, "python3"),
        severity="warning",
    ),
)
