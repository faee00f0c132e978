"""A case and its diagnoses -> the course of the incident: lanes, marks, and readings of memory and disks.

Pure. Marks come from facts (exits, kills, restarts, spills) and from the evidence of the diagnoses. Records
without a time have no mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from raydoctor.case import Case
from raydoctor.case.facts import Job, WorkerExit
from raydoctor.case.signals import WORKER_DISCONNECTED
from raydoctor.cluster import tables as live
from raydoctor.cluster.gauges import gauges
from raydoctor.cluster.pods import Pods
from raydoctor.diagnosis import cut_short, daemon_ends
from raydoctor.model import ids
from raydoctor.model.text import called, duration, join_names, one_line, plural, short_id, size
from raydoctor.model.timeline import (
    Lane,
    MarkKind,
    OwnRecords,
    Timeline,
    TimelineMark,
    UsageReading,
)
from raydoctor.model.values import CONSOLES, Diagnosis, Event
from raydoctor.rules.shared import jobs, kernel, store
from raydoctor.rules.shared.cluster import (
    AGENT_FAILED,
    GCS_LOST,
    gcs_lived_on,
    gcs_silence,
    node_of_death,
)
from raydoctor.rules.shared.oom import kills

CLUSTER = "cluster"
_SHELL = "shell"
"""The lane of the shell whose token the cluster refused."""
FAILURES = ("critical", "error")
"""Severities of diagnoses whose event the chart shows as a failure."""
_GIB = 1024**3
_HOLDERS, _HELD = 3, 0.05
"""Processes that a reading names, and their least share of the memory."""
_SILENCE = 120.0
"""Seconds between two failed health checks of one silence, or between a kill and the record of the exit."""
_TO_REGISTER_S = 120.0
"""Seconds from the first line that a driver prints until the GCS registers its job, on a busy machine."""
_SAME = 0.1
"""Seconds within which evidence in several processes is one failure, such as a deadlock."""
_EXPECTED_DEATHS = (
    "EXPECTED_TERMINATION",
    "EXPECTED",
    "AUTOSCALER_DRAIN_IDLE",
    "AUTOSCALER_DRAIN_PREEMPTED",
)
"""Reasons of `node.dead` for an end that was requested; `common.proto`, Ray 2.9 to 2.60."""
_IO_LOGS = ("io-worker", "core-io")
"""Roles of the logs of the processes that spill and restore objects for Ray."""
_REQUESTED_ENDS = ("raylet.sigterm", "gcs.sigterm", "node.dead")
"""Ends that are a failure if a diagnosis of an error cites them."""


_ALIVE = ("worker-frozen",)
"""Rules about processes that Ray recorded as ended although they were alive."""
_AFTER_END = 5.0
"""Seconds after a failed exit within which further records of the same end follow."""
_ID_LETTERS = 14
"""Letters of a submission's id that the name of a lane has room for."""


@dataclass(slots=True)
class _Draft:
    """A timeline in the making."""

    case: Case
    pods: Pods
    lanes: dict[str, Lane] = field(default_factory=dict)
    marks: list[TimelineMark] = field(default_factory=list)
    by_event: dict[int, int] = field(default_factory=dict)
    """Identity of an event -> its mark."""
    absorbed: set[int] = field(default_factory=set)
    """Marks that another mark of the same lane stands for."""

    def mark(
        self,
        lane: str,
        kind: MarkKind,
        text: str,
        *events: Event,
        count: int = 1,
        short: str = "",
    ) -> None:
        """Add a mark at the time of the first event that has one."""
        at = next((e.at for e in events if e.at is not None), None)
        if at is not None:
            self.by_event |= {id(e): len(self.marks) for e in events}
            self.marks.append(TimelineMark(lane, kind, text, at, count=count, short=short))


def timeline(
    case: Case,
    diagnoses: Iterable[Diagnosis],
    since: float | None = None,
    until: float | None = None,
    own_records: Mapping[str, OwnRecords] | None = None,
) -> Timeline:
    """The course of an incident. The diagnoses are those of this case, before redaction.

    `since` and `until` (epoch seconds) keep marks in that span, and all evidence of the diagnoses.
    `own_records`: WorkerID -> when that process wrote its own logs.
    """
    draft = _Draft(case, Pods(case))
    stop = case.ledger.stops.get("gcs")
    draft.lanes[CLUSTER] = Lane(CLUSTER, "cluster", "Cluster (GCS)", end=stop)
    diagnoses = list(diagnoses)
    _add_nodes(draft)
    _add_processes(draft, _subjects(case, diagnoses) if diagnoses else _unfinished(case))
    _mark_kills(draft)
    _mark_exits(draft)
    _mark_simple(draft)
    _mark_dead_nodes(draft)
    _mark_silences(draft)
    _mark_gcs(draft)
    _mark_restarts(draft)
    _mark_daemon_ends(draft, diagnoses)
    _bound_processes(draft, own_records or {})
    supervisors = _name_jobs(draft)
    for diagnosis in diagnoses:
        _mark_evidence(draft, diagnosis, supervisors)
    _word_exits(draft, diagnoses)
    _mark_failed_driver(draft, diagnoses)
    _mark_failed_jobs(draft, diagnoses)
    _drop_later_ends(draft)
    kept = [_of_the_living(draft, m) for n, m in enumerate(draft.marks) if n not in draft.absorbed]
    marks = tuple(
        mark
        for mark in sorted(kept, key=lambda m: (m.at, m.lane, m.kind, m.text))
        if mark.diagnoses
        or (
            (since is None or (mark.until or mark.at) >= since)
            and (until is None or mark.at <= until)
        )
    )
    used = {mark.lane for mark in marks}
    lanes = tuple(
        lane for lane in draft.lanes.values() if lane.kind != "cluster" or lane.id in used
    )
    return Timeline(lanes, marks, tuple(_readings(case)))


# ---------------------------------------------------------------- lanes


def _add_nodes(draft: _Draft) -> None:
    case, ledger = draft.case, draft.case.ledger
    began = {e["node"]: e.at for e in reversed(case.of("node.registered", "raylet.started"))}
    dead = {node_of_death(e) or e["node_id"]: e.at for e in reversed(case.of("node.dead"))}
    # A raylet that is asked to stop may drain its node first, until it takes leave of the GCS.
    left = {
        node_of_death(e) or e["node_id"]: e.at
        for e in case.of("node.dead")
        if e["reason"] in _EXPECTED_DEATHS
    }
    for event in case.of("raylet.seen_dead"):
        if event.at is not None:
            dead.setdefault(daemon_ends.node_of_witness(case, event), event.at)
    seen = {e["node"] for e in case.of("raylet.started")}
    registered = [e["node"] for e in case.of("node.registered")]
    addresses = list(ledger.node_ips.values())
    for node, ip in ledger.node_ips.items():
        same = f" ({short_id(node)})" if addresses.count(ip) > 1 else ""
        head = ", head" if len(registered) > 1 and node == registered[0] else ""
        missing = "its logs are not in the capture" if seen and node not in seen else ""
        ends = [at for at in (ledger.stops.get(node), dead.get(node)) if at is not None]
        end = left.get(node) or min(ends, default=None)
        draft.lanes[node] = Lane(
            node, "node", f"node {ip}{same}{head}", "", began.get(node), end, missing
        )


def _add_processes(draft: _Draft, subjects: Mapping[str, str]) -> None:
    case, ledger = draft.case, draft.case.ledger
    of_io = {e.value for s in case.sources if s.role in _IO_LOGS for e in s.entities}
    actors = {worker: a for a in reversed(ledger.actors.values()) for worker in a.workers}
    ranks = {e["rank_pid"]: e["rank"] for e in case.of("train.rank")}
    exits = {exit_.worker: exit_ for exit_ in ledger.exits if exit_.worker}
    began = {e["worker"]: e.at for e in case.of("worker.started")}
    of_ray, later = jobs.managers(case), jobs.begun_later(case)
    shown = [job for job in ledger.jobs.values() if job.id not in later]
    drivers = [job for job in shown if job.driver_pid not in of_ray]
    for job in shown:
        process = f" (pid {job.driver_pid})" if job.driver_pid else ""
        name = f"driver of job {ids.job_number(job.id)}{process}"
        name = f"Ray's job manager{process}" if job.driver_pid in of_ray else name
        lane = ids.driver_of_job(job.id)
        start = _first_printed(case, job) if drivers == [job] else None
        draft.lanes[lane] = Lane(
            lane,
            "process",
            name,
            "",
            start or job.started,
            job.ended,
            has_own_row=True,
            is_driver=job.driver_pid not in of_ray,
        )
    # Up to Ray 2.50 the record of a start has no worker id, but the name of the worker's log has its pid.
    for worker in dict.fromkeys((*began, *exits, *ledger.pids)):
        if not worker or ids.job_of_driver(worker):
            continue
        exit_, pid = exits.get(worker), ledger.pids.get(worker)
        names = case.names.get(worker, ())
        actor = actors.get(worker)
        ran = names[-1] if names else actor.class_name if actor else ""
        ran = ran if actor else called(ran)
        ran = ran or subjects.get(worker) or ("IO worker" if worker in of_io else "")
        name = f"{ran or 'worker'} (pid {pid})" if pid else f"{ran or 'worker'} {worker[:8]}"
        name = exit_.label if exit_ and (exit_.names or not ran) else name
        rank = ranks.get(str(pid))
        name = name if rank is None else f"rank {rank}: {name}"
        node = (exit_.node if exit_ else "") or ledger.worker_nodes.get(worker, "")
        end = exit_.at if exit_ else None
        is_named = worker in subjects or rank is not None
        draft.lanes[worker] = Lane(
            worker, "process", name, node, began.get(worker), end, has_own_row=is_named
        )


def _unfinished(case: Case) -> dict[str, str]:
    """The workers whose tasks had not finished when the driver left; their names are known otherwise."""
    return {e["worker"] or e["worker_a"] or e["worker_b"]: "" for e in cut_short.left_running(case)}


def _name_jobs(draft: _Draft) -> dict[str, str]:
    """Name the drivers and supervisors of submitted jobs after these; the lane of each job's supervisor."""
    supervisors: dict[str, str] = {}
    for each in jobs.submissions(draft.case):
        name = each.id if len(each.id) <= _ID_LETTERS else f"{each.id[: _ID_LETTERS - 2]}…"
        for job in each.jobs:
            lane = draft.lanes.get(ids.driver_of_job(job.id))
            if lane is not None:
                process = f" (pid {job.driver_pid})" if job.driver_pid else ""
                draft.lanes[lane.id] = replace(lane, name=f"job {name}: driver{process}")
        written = [e.source for e in (each.exited, each.command) if e is not None]
        found = [e.value for s in written for e in s.entities if e.kind == "worker"]
        if lane := next((draft.lanes[w] for w in found if w in draft.lanes), None):
            supervisors[each.id] = lane.id
            pid = draft.case.ledger.pids.get(lane.id)
            process = f" (pid {pid})" if pid else ""
            draft.lanes[lane.id] = replace(lane, name=f"job {name}: supervisor{process}")
    return supervisors


def _subjects(case: Case, diagnoses: Iterable[Diagnosis]) -> dict[str, str]:
    """The workers that a diagnosis is about, each with the name of the diagnosis's subject, or none."""
    by_pid: dict[int, list[str]] = {}
    for worker, pid in case.ledger.pids.items():
        by_pid.setdefault(pid, []).append(worker)
    found: dict[str, str] = {}
    for subject in (s for each in diagnoses for s in each.subjects):
        of_pid = by_pid.get(subject.pid or 0, [])
        workers = [subject.id or "", *(of_pid if len(of_pid) == 1 else ())]
        if subject.kind == "actor":
            workers += case.actor(subject.id or "").workers[-1:]
        for worker in workers:
            found[worker] = found.get(worker) or subject.name or ""
    return found


def _first_printed(case: Case, job: Job) -> float | None:
    """When the only driver printed its first dated line: the GCS registers its job only after that."""
    consoles = [s for s in case.sources if s.role == "driver" and not s.is_excerpt]
    if len(consoles) != 1 or job.started is None:
        return None
    printed = [e.at for e in case.events if e.source is consoles[0] and e.at is not None]
    first = min(printed, default=job.started)
    return first if job.started - _TO_REGISTER_S < first < job.started else None


def _bound_processes(draft: _Draft, own_records: Mapping[str, OwnRecords]) -> None:
    """Begin and end each process where no record of its start or exit is known.

    A process lives while it writes or is seen. Otherwise none outlives its node, and none begins before it.
    """
    alive = _seen_alive(draft.case)
    started = _starts_by_pid(draft.case)
    ends = [lane.end for lane in draft.lanes.values() if lane.kind == "node"]
    # A driver ends with its raylet, so none outlives the last node.
    last = None if None in ends else max((end for end in ends if end is not None), default=None)
    for lane in [each for each in draft.lanes.values() if each.kind == "process"]:
        own = own_records.get(lane.id)
        node, begin, end = lane.node, lane.begin, lane.end
        if begin is None:
            first = own.first if own is not None else end
            pid = str(draft.case.ledger.pids.get(lane.id))
            found = [
                (at, on)
                for at, on in started.get(pid, ())
                if node in ("", on) and (first is None or at <= first)
            ]
            if len({on for _, on in found}) == 1:
                begin, node = max(found)
        of = draft.lanes.get(node)
        if begin is None and own is not None:
            begin = own.first
        if of is not None and of.begin is not None:
            begin = of.begin if begin is None else max(begin, of.begin)
        if end is None and own is not None and own.has_left:
            end = own.last
        if end is None and lane.id not in alive:
            end = of.end if of is not None else last if ids.job_of_driver(lane.id) else None
        if end is not None:
            end = end if own is None else max(end, own.last)
            begin = None if begin is None else min(begin, end)
        draft.lanes[lane.id] = replace(lane, node=node, begin=begin, end=end)
    left = {e["worker"]: e for e in reversed(draft.case.of(WORKER_DISCONNECTED.kind))}
    # The GCS records the end of a driver that still writes while it disconnects.
    for number, mark in enumerate(draft.marks):
        end = draft.lanes[mark.lane].end
        if mark.kind == "end" and ids.job_of_driver(mark.lane) and end is not None:
            draft.marks[number] = replace(mark, at=max(mark.at, end))
            event = left.get(mark.lane)
            if event is not None and event.at is not None and event.at <= mark.at:
                # What ends with the driver ends when it disconnects.
                draft.marks[number] = replace(mark, at=event.at)
                draft.lanes[mark.lane] = replace(draft.lanes[mark.lane], end=event.at)


def _seen_alive(case: Case) -> set[str]:
    """The processes that a live collection saw."""
    rows = [row for row in live.rows(case, "processes") if row["state"] != "Z"]
    return {row["worker_id"] for row in rows if row["kind"] == "worker"} | {
        ids.driver_of_job(row["job_id"]) for row in rows if row["kind"] == "driver"
    }


def _starts_by_pid(case: Case) -> dict[str, list[tuple[float, str]]]:
    """Pid -> when, and on which node, a raylet started a process of this pid without naming the worker."""
    found: dict[str, list[tuple[float, str]]] = {}
    for event in case.of("worker.started"):
        if not event["worker"] and event.at is not None:
            on = case.node_of(event.source)
            found.setdefault(event["worker_pid"], []).append((event.at, on))
    return found


def _lane_of(draft: _Draft, event: Event) -> str:
    """The lane that an event belongs to: the process it names, else the one that wrote it, else its node."""
    # An agent that reports the end of its raylet quotes records about that raylet's workers.
    quotes = event.kind == "raylet.seen_dead" and event.source.role.endswith("-agent")
    entities = (*(() if quotes else sorted(event.entities)), *event.source.entities)
    named = [entity.value for entity in entities if entity.kind == "worker"]
    if event.kind == "job.finished":
        named.insert(0, ids.driver_of_job(event["job"]))
    if lane := next((each for each in named if each in draft.lanes), ""):
        return lane
    is_of_shell = event.kind == "live.probes" and event["outcome"] == "unauthenticated"
    if event.kind == "gcs.sigterm" or is_of_shell:
        name = "shell that ran raydoctor"
        if is_of_shell:
            draft.lanes[_SHELL] = Lane(_SHELL, "process", name, has_own_row=True)
        return _SHELL if is_of_shell else CLUSTER
    if event.kind.startswith("kube.") and (pod := draft.pods.node(draft.pods.pod_of(event))):
        return pod.id if pod.id in draft.lanes else CLUSTER
    if event.source.role in CONSOLES and len(draft.case.ledger.jobs) == 1:
        return ids.driver_of_job(next(iter(draft.case.ledger.jobs)))
    of = next((e.value for e in entities if e.kind == "node"), "")
    node = event["node"] or event["node_id"] or of or draft.case.node_of(event.source)
    if node not in draft.lanes and event.source.role.startswith("gcs"):
        return CLUSTER
    return _of_node(draft, node)


def _of_node(draft: _Draft, node: str) -> str:
    """The node's lane; that of the only node if it has none."""
    if node in draft.lanes:
        return node
    nodes = [lane.id for lane in draft.lanes.values() if lane.kind == "node"]
    return nodes[0] if len(nodes) == 1 else CLUSTER


# ---------------------------------------------------------------- marks


def _mark_kills(draft: _Draft) -> None:
    for report in kills.reports(draft.case):
        names = join_names([f"{v.label} (pid {v.pid})" for v in report.victims])
        full = f"{size(report.used_gb * _GIB)} of {size(report.limit_gb * _GIB)}"
        what = names or plural(report.killed, "worker")
        node = _of_node(draft, report.node)
        text = f"Ray kills {what}, {full} in use"
        ended = [draft.case.exit_of_process(victim.pid, node) for victim in report.victims]
        has_own = [e is not None and e.at is not None and e.worker in draft.lanes for e in ended]
        draft.mark(node, "kill", text, report.event, *report.others, count=report.killed)
        number = draft.by_event.get(id(report.event))
        if number is not None and has_own and all(has_own):
            draft.marks[number] = replace(draft.marks[number], is_repeat=True)
    for kill in kernel.kills(draft.case):
        nodes = kernel.nodes_beside(draft.case, kill.event)
        node = nodes.pop() if len(nodes) == 1 else CLUSTER
        where = "for its cgroup's limit" if kill.in_cgroup else "for memory"
        name = _killed_by_kernel(draft, kill, node) or f"{kill.comm} (pid {kill.pid})"
        text = f"The kernel kills {name} {where}, holding {size(kill.held)}"
        draft.mark(node, "kill", text, kill.event, *kill.evidence)


def _killed_by_kernel(draft: _Draft, kill: kernel.Kill, node: str) -> str:
    """The worker that it killed, as other marks name it: the kernel cuts the title of a process."""
    exit_ = draft.case.exit_of_process(kill.pid, node) if kill.comm.startswith("ray::") else None
    if exit_ is None or not exit_.names:
        return ""
    is_near = abs((exit_.at or 0.0) - (kill.event.at or 0.0)) < _SILENCE
    return exit_.label if is_near else ""


def _mark_exits(draft: _Draft) -> None:
    killed = {(kill.pid, kill.event.at) for kill in kernel.kills(draft.case)}
    with_owner = _killed_with_owner(draft.case)
    for exit_ in draft.case.ledger.exits:
        if exit_.at is None:
            continue
        lane = exit_.worker if exit_.worker in draft.lanes else exit_.node
        lane = _of_node(draft, lane)
        kind, text = _how(exit_, exit_.worker in with_owner)
        near = (abs((at or 0) - exit_.at) for pid, at in killed if pid == exit_.pid)
        if kind == "death" and min(near, default=_SILENCE) < _SILENCE:
            kind, text = "kill", "killed by the kernel (out of memory)"
        if lane != exit_.worker:
            text = f"{exit_.label}: {text}"
        draft.by_event |= {id(e): len(draft.marks) for e in exit_.events}
        draft.marks.append(TimelineMark(lane, kind, text, exit_.at, count=exit_.count))


def _killed_with_owner(case: Case) -> set[str]:
    """The workers that their raylet killed because the process that owned their task had ended."""
    events = case.of("worker.killed_with_owner")
    return {e["worker"] or e["worker_a"] or e["worker_b"] for e in events}


def _how(exit_: WorkerExit, is_with_owner: bool) -> tuple[MarkKind, str]:
    """The kind of an exit, and what it was in plain words, with Ray's record of it behind them."""
    if exit_.expected:
        return "end", f"exits as expected ({exit_.expected})"
    if exit_.exit_type == "NODE_OUT_OF_MEMORY":
        return "kill", "killed by Ray (out of memory)"
    said = "killed by Ray with its owner" if is_with_owner else _ENDS.get(exit_.exit_type, "exits")
    detail = one_line(exit_.detail).partition(". ")[0][:120]
    return "death", f"{said}; Ray recorded {exit_.exit_type}" + (f", {detail}" if detail else "")


_ENDS = {"SYSTEM_ERROR": "ended unexpectedly", "USER_ERROR": "ended by an exception"}
"""Exit types of Ray in plain words."""
_Words = Callable[[Event], tuple[MarkKind, str]]


def _node_dead(event: Event) -> tuple[MarkKind, str]:
    if event["reason"] in _EXPECTED_DEATHS:
        return "end", "The GCS records the node's end"
    why = event["why"] or event["reason"]
    return "death", "The GCS declares the node dead" + (f": {why}" if why else "")


def _mib(event: Event) -> str:
    return "less than 1 MiB" if event["mib"] == "0" else f"{event['mib']} MiB"


_SIMPLE: Mapping[str, _Words] = {
    "node.registered": lambda _: ("start", "joins the cluster"),
    "raylet.sigterm": lambda _: ("end", "The raylet receives SIGTERM"),
    "gcs.sigterm": lambda _: ("end", "The GCS receives SIGTERM"),
    "gcs.away": lambda e: ("silent", f"The GCS has not replied for {e['seconds']} s"),
    "gcs.lost": lambda e: ("silent", f"The GCS has not replied for {e['seconds']} s"),
    "raylet.seen_dead": lambda _: ("sign", "reports that its raylet has ended"),
    "job.finished": lambda e: ("end", f"The driver of job {ids.job_number(e['job'])} has ended"),
    "store.spilled": lambda e: ("spill", f"{_mib(e)} spilled to disk so far"),
    "store.restored": lambda e: ("spill", f"{_mib(e)} restored from disk so far"),
    "store.fallback": lambda _: ("spill", "The object store is full and writes to disk"),
    "disk.over_threshold": lambda e: (
        "sign",
        f"The disk is over Ray's threshold of {e['percent']}%",
    ),
    "object.out_of_disk": lambda _: ("failure", "An object does not fit on the disk"),
    "spill.failed": lambda _: ("failure", "Spilling fails"),
    "autoscaler.resized": lambda e: ("start", one_line(e.message)[:80]),
    "autoscaler.launch_failed": lambda _: ("sign", "A node could not be launched"),
}
"""Kinds of events that are marks by themselves."""


def _mark_simple(draft: _Draft) -> None:
    for event in draft.case.of(*_SIMPLE):
        if event.kind == "store.spilled" and event["objects"] == "0":
            continue  # Ray reports failed writes so
        if event.kind == "job.finished" and ids.driver_of_job(event["job"]) not in draft.lanes:
            continue  # on another lane it would be the end of that
        kind, text = _SIMPLE[event.kind](event)
        lane = _lane_of(draft, event)
        of = draft.lanes[lane]
        is_alive = of.kind == "cluster" or (of.kind == "node" and of.end is None)
        if event.kind == "raylet.seen_dead" and is_alive:
            continue  # nothing shows which node's raylet this is
        draft.mark(lane, kind, text, event, count=event.count)


def _mark_dead_nodes(draft: _Draft) -> None:
    """The death of each node once: the GCS, the events and other nodes record the same one."""
    by_node: dict[tuple[str, str], list[Event]] = {}
    for event in draft.case.of("node.dead"):
        node = node_of_death(event) or event["node_id"]
        lane = node if node in draft.lanes else _lane_of(draft, event)
        by_node.setdefault((lane, node), []).append(event)
    for (lane, _), records in by_node.items():
        telling = next((e for e in records if e["why"] or e["reason"]), records[0])
        kind, text = _node_dead(telling)
        draft.mark(lane, kind, text, *records, short="declared dead" if kind == "death" else "")


def _mark_daemon_ends(draft: _Draft, diagnoses: Iterable[Diagnosis]) -> None:
    """The ends of raylets and of the GCS that no SIGTERM explains."""
    for end in daemon_ends.ends(draft.case, diagnoses):
        lane = draft.lanes.get(end.node or CLUSTER)
        if lane is None:
            continue
        draft.by_event |= {id(e): len(draft.marks) for e in end.records}
        draft.marks.append(
            TimelineMark(
                lane.id,
                "sign" if end.is_consequence else "death",
                end.text,
                end.at,
                diagnoses=end.diagnoses,
                short="the raylet ends" if end.node else "",
            )
        )
        last = end.at if lane.end is None else min(lane.end, end.at)
        draft.lanes[lane.id] = replace(lane, end=last)


def _mark_silences(draft: _Draft) -> None:
    """Failed health checks of a node, as periods."""
    by_node: dict[str, list[Event]] = {}
    for event in draft.case.of("node.health_failed"):
        if event.at is not None and event["node"] in draft.lanes:
            by_node.setdefault(event["node"], []).append(event)
    for node, failed in by_node.items():
        begin: Event | None = None
        for event, following in zip(failed, [*failed[1:], None], strict=True):
            begin = begin or event
            draft.by_event[id(event)] = len(draft.marks)
            if following is None or (following.at or 0) - (event.at or 0) > _SILENCE:
                text = "does not reply to the health checks of the GCS"
                draft.marks.append(TimelineMark(node, "silent", text, begin.at or 0, event.at))
                begin = None


def _mark_gcs(draft: _Draft) -> None:
    """A GCS that did not answer for some time and went on, in its own lane.

    A raylet that lost it ends for this reason, and the GCS then finds the node gone.
    """
    lost = [e for e in draft.case.of(GCS_LOST.kind) if e.at is not None]
    alive = gcs_lived_on(draft.case, lost)
    if alive is None or alive.at is None:
        return
    first = lost[0].at or 0.0
    waited = float(lost[0]["seconds"] or 0)
    text, period = f"does not answer for at least {waited:.0f} s", (first - waited, first)
    if silent := gcs_silence(draft.case, lost, alive):
        text, period = f"does not write its log for {duration(silent[1] - silent[0])}", silent
    draft.marks.append(TimelineMark(CLUSTER, "silent", f"The GCS {text}", *period))
    ended = {draft.case.node_of(e.source) for e in lost}
    late = [
        number
        for number, mark in enumerate(draft.marks)
        if mark.kind == "silent" and mark.lane in ended and mark.at > first and mark.until
    ]
    draft.absorbed.update(late)
    text = "The GCS writes its log again" + (", and finds the node gone" if late else "")
    draft.marks.append(TimelineMark(CLUSTER, "sign", text, alive.at))


def _mark_restarts(draft: _Draft) -> None:
    """Every further attempt of a task, and every placement of an actor but its first."""
    again = draft.case.of("task.resubmitted")
    places = {(e.source, e.line) for e in again if e["task"]}
    names = {(e.source, e.line): e["function"] for e in again if e["function"]}
    for event in again:
        if (event.source, event.line - 1) in places:
            continue  # the line before it records the same attempt
        name = event["function"] or names.get((event.source, event.line + 1)) or "A task"
        draft.mark(_lane_of(draft, event), "restart", f"{name} is submitted again", event)
    placed: set[str] = set()
    for event in draft.case.of("actor.placed"):
        actor = event["actor"]
        if actor in placed:
            name = draft.case.actor(actor).class_name or f"actor {short_id(actor)}"
            draft.mark(_lane_of(draft, event), "restart", f"{name} restarts here", event)
        placed.add(actor)


def _mark_evidence(draft: _Draft, diagnosis: Diagnosis, supervisors: Mapping[str, str]) -> None:
    """The evidence of a diagnosis: marks that exist already, or new ones."""
    for link in diagnosis.chain:
        event = link.event
        number = draft.by_event.get(id(event))
        # What precedes the failure is cited for what the log lacks later.
        precedes = (event.at or 0.0) < (diagnosis.first_at or 0.0)
        if number is None and not precedes:
            kind: MarkKind = "death" if event.kind == AGENT_FAILED.kind else "sign"
            kind = "kill" if event["reason"] == "OOMKilled" else kind
            draft.mark(_lane_of(draft, event), kind, one_line(link.shows), event, count=event.count)
            number = draft.by_event.get(id(event))
        if number is not None and diagnosis.id not in draft.marks[number].diagnoses:
            mark = draft.marks[number]
            # An end that was requested can still be what failed: a raylet that ends with its agent.
            is_failure = event.kind in _REQUESTED_ENDS and diagnosis.severity in FAILURES
            draft.marks[number] = replace(
                mark,
                kind="death" if is_failure and mark.kind == "end" else mark.kind,
                diagnoses=(*mark.diagnoses, diagnosis.id),
            )
    if diagnosis.severity in FAILURES:
        _mark_failure(draft, diagnosis, supervisors)


def _mark_failure(draft: _Draft, diagnosis: Diagnosis, supervisors: Mapping[str, str]) -> None:
    """What the diagnosis is about is a failure in the chart, and not evidence only."""
    own = [n for n, mark in enumerate(draft.marks) if diagnosis.id in mark.diagnoses]
    signs = [n for n in own if draft.marks[n].kind in ("sign", "start")]
    if not signs or any(draft.marks[n].kind not in ("sign", "start", "end") for n in own):
        return
    signs.sort(key=lambda n: abs(draft.marks[n].at - (diagnosis.first_at or 0.0)))
    lane = _lane_of_subject(draft, diagnosis, supervisors)
    own = [n for n in signs if draft.marks[n].lane == lane]
    signs = own or signs
    first, lane = draft.marks[signs[0]], lane or draft.marks[signs[0]].lane
    if lane != first.lane:
        # Other processes report the end of a driver or of an actor; the failure is its own.
        at = min(first.at, draft.lanes[lane].end or first.at)
        failed = TimelineMark(
            lane,
            "failure",
            diagnosis.headline,
            at,
            diagnoses=(diagnosis.id,),
            short=_short(diagnosis),
        )
        draft.marks.append(failed)
        return
    for number in signs[1:]:
        mark = draft.marks[number]
        if abs(mark.at - first.at) >= _SAME:
            continue
        if mark.lane == first.lane:  # the headline names all of them
            draft.absorbed.add(number)
        else:
            draft.marks[number] = replace(mark, kind="failure")
    draft.marks[signs[0]] = replace(
        first, kind="failure", text=diagnosis.headline, short=_short(diagnosis)
    )


def _short(diagnosis: Diagnosis) -> str:
    """A failure in a few words: which job failed, or the rule."""
    job = next((s.id for s in diagnosis.subjects if s.kind == "job" and s.id), "")
    return f"job '{job}' failed" if job and diagnosis.rule == "job-failed" else diagnosis.rule


def _lane_of_subject(draft: _Draft, diagnosis: Diagnosis, supervisors: Mapping[str, str]) -> str:
    """The lane of the driver, job or one actor that a diagnosis is about; empty if there is none."""
    drivers = {ids.driver_of_job(s.id or "") for s in diagnosis.subjects if s.kind == "job"}
    actors = [s.id or "" for s in diagnosis.subjects if s.kind == "actor"]
    workers = draft.case.actor(actors[0]).workers[-1:] if len(actors) == 1 else []
    workers = [*(supervisors.get(s.id or "", "") for s in diagnosis.subjects), *workers]
    return min(
        drivers & draft.lanes.keys(), default=next((w for w in workers if w in draft.lanes), "")
    )


def _word_exits(draft: _Draft, diagnoses: Iterable[Diagnosis]) -> None:
    """Describe each failed exit as the one diagnosis that is about it alone, with Ray's record behind."""
    by_id = {each.id: each for each in diagnoses}
    for exit_ in draft.case.ledger.exits:
        number = next(
            (draft.by_event[id(e)] for e in exit_.events if id(e) in draft.by_event), None
        )
        mark = None if number is None else draft.marks[number]
        if number is None or mark is None or mark.kind != "death" or mark.lane != exit_.worker:
            continue
        about = by_id[mark.diagnoses[0]] if mark.diagnoses else None
        if about is not None and about.count == 1 and _is_about(about, exit_):
            record = mark.text.partition("; ")[2]
            kind: MarkKind = "silent" if about.rule in _ALIVE else "death"
            text = f"{about.headline}; {record}"
            draft.marks[number] = replace(mark, kind=kind, text=text, short=_short(about))


def _mark_failed_driver(draft: _Draft, diagnoses: Iterable[Diagnosis]) -> None:
    """The end of the only driver is a failure if an exception ended it, and evidence of that incident."""
    ends = [
        (number, mark)
        for number, mark in enumerate(draft.marks)
        if mark.kind == "end" and ids.job_of_driver(mark.lane)
    ]
    ended = next((d for d in diagnoses if d.ended_driver), None)
    if ended is not None and len(ends) == 1:
        number, mark = ends[0]
        text, cited = ended.effect or ended.headline, dict.fromkeys((*mark.diagnoses, ended.id))
        draft.marks[number] = replace(mark, kind="death", text=text, diagnoses=tuple(cited))


def _mark_failed_jobs(draft: _Draft, diagnoses: Iterable[Diagnosis]) -> None:
    """The end of the driver of a failed job is a failed exit; the lane of its supervisor says what failed."""
    failed = {
        s.id: each.id for each in diagnoses for s in each.subjects if each.rule == "job-failed"
    }
    of_job = {
        ids.driver_of_job(submission.jobs[-1].id): failed[submission.id]
        for submission in jobs.submissions(draft.case)
        if submission.jobs and submission.id in failed
    }
    for number, mark in enumerate(draft.marks):
        if mark.kind == "end" and mark.lane in of_job:
            cited = dict.fromkeys((*mark.diagnoses, of_job[mark.lane]))
            draft.marks[number] = replace(
                mark, kind="death", diagnoses=tuple(cited), is_repeat=True
            )


def _drop_later_ends(draft: _Draft) -> None:
    """A process that failed has no second mark for its end, and ends there."""
    ends = {m.lane: m for m in draft.marks if m.kind in ("death", "kill") if not m.is_repeat}
    for number, mark in enumerate(draft.marks):
        end, lane = ends.get(mark.lane), draft.lanes[mark.lane]
        if end is None or end is mark or lane.kind != "process":
            continue
        if mark.kind in ("end", "death") and abs(mark.at - end.at) < _AFTER_END:
            draft.absorbed.add(number)
        if lane.end is not None and abs(lane.end - end.at) < _AFTER_END:
            draft.lanes[lane.id] = replace(lane, end=end.at)


def _is_about(diagnosis: Diagnosis, exit_: WorkerExit) -> bool:
    names = {exit_.worker, exit_.actor} - {""}
    return any(s.id in names or s.pid == exit_.pid is not None for s in diagnosis.subjects)


def _of_the_living(draft: _Draft, mark: TimelineMark) -> TimelineMark:
    """What happened after the end of a process, such as with its children, is a mark of its node."""
    lane = draft.lanes[mark.lane]
    is_late = lane.end is not None and mark.at > lane.end + _SAME
    if is_late and mark.kind in ("sign", "failure") and lane.node in draft.lanes:
        return replace(mark, lane=lane.node)
    return mark


# ---------------------------------------------------------------- readings


def _readings(case: Case) -> list[UsageReading]:
    nodes = list(case.ledger.node_ips)
    only = nodes[0] if len(nodes) == 1 else ""
    found = [*_memory(case, only), *_store(case, only), *_disks(case, only), *_now(case, only)]
    return sorted(dict.fromkeys(found), key=lambda r: (r.node, r.what, r.scope, r.at))


def _memory(case: Case, only: str) -> Iterator[UsageReading]:
    for report in kills.reports(case):
        if report.event.at is not None:
            used, limit = report.used_gb * _GIB, report.limit_gb * _GIB
            threshold, node = report.threshold_gb * _GIB, report.node or only
            at = report.event.at
            yield UsageReading(node, "memory", "", at, used, limit, threshold, _held_by(report))
    for event in case.of("usage.memory"):
        used, limit, threshold = (float(event[k]) for k in ("used", "limit", "threshold"))
        node = case.node_of(event.source) or only
        yield UsageReading(node, "memory", "", event.at or 0, used, limit, threshold)
    for kill in kernel.kills(case):
        for event in kill.evidence:
            if event.kind == "kernel.oom_limit" and event.at is not None:
                nodes = kernel.nodes_beside(case, event)
                used, limit = float(event["usage"]) * 1024, float(event["limit"]) * 1024
                node = nodes.pop() if len(nodes) == 1 else only
                scope = f"cgroup {kill.memcg}" if kill.memcg else ""
                yield UsageReading(node, "memory", scope, event.at, used, limit)


def _held_by(report: kills.OomReport) -> tuple[tuple[str, float], ...]:
    return tuple(
        (f"{user.label if user.is_worker else user.program} (pid {user.pid})", user.gb * _GIB)
        for user in report.holders[:_HOLDERS]
        if user.gb >= _HELD * report.limit_gb
    )


def _store(case: Case, only: str) -> Iterator[UsageReading]:
    for event in case.of("usage.store"):
        node = case.node_of(event.source) or only
        capacity = store.capacity_of(case, node)
        used = capacity - float(event["available"])
        # With a disk as fallback, more than its capacity may be in use, and no room is left.
        if capacity and used >= -0.01 * capacity:
            yield UsageReading(node, "object store", "", event.at or 0, max(used, 0.0), capacity)


def _disks(case: Case, only: str) -> Iterator[UsageReading]:
    for event in case.of("disk.over_threshold"):
        if event.at is None or not event["capacity"] or event["gb"] not in (" GB", " GiB"):
            continue
        capacity, free = float(event["capacity"]) * _GIB, float(event["free"]) * _GIB
        threshold = capacity * float(event["percent"]) / 100
        node = store.node_of(case, event) or only
        used = capacity - free
        yield UsageReading(node, "disk", event["dir"], event.at, used, capacity, threshold)


def _now(case: Case, only: str) -> Iterator[UsageReading]:
    """The readings of a live collection: gauges of all nodes, disks and memory of this machine."""
    times = [e.at for e in case.of("live.table") if e.at is not None]
    if not times:
        return
    at = max(times)
    for gauge in gauges(case):
        threshold = gauge.limit * gauge.threshold
        yield UsageReading(
            gauge.node, gauge.what, gauge.path, at, gauge.used, gauge.limit, threshold
        )
    measured = {row["node_id"] for row in live.rows(case, "gauges")}
    for row in (*live.rows(case, "disks"), *live.rows(case, "memory")):
        if (node := row["node_id"] or only) not in measured:
            yield from _measured(row, node, at)


def _measured(row: Event, node: str, at: float) -> Iterator[UsageReading]:
    """A row of `disks` or `memory`, from collections without gauges."""
    if row.kind == "live.disks":
        limit, free = live.number(row, "capacity"), live.number(row, "free")
        if limit and free is not None:
            threshold = limit * (live.number(row, "threshold") or 0.0)
            yield UsageReading(node, "disk", row["mount"], at, limit - free, limit, threshold)
        return
    limit, used = live.number(row, "limit"), live.number(row, "used")
    if limit and used is not None:
        scope = f"cgroup {row['path']}" if row["kind"] == "cgroup" else ""
        yield UsageReading(node, "memory", scope, at, used, limit)
