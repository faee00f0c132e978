"""The ledger: which processes ran on which node and when they ended, built from events alone.

Ray records one worker's exit up to six times (raylet, GCS, event file, driver, submitter's core log,
exception text). Here they become one `WorkerExit`, keyed by worker id, or by other facts if only the
driver's output is left. Exits that are not failures (Ray's pool management, the end of the driver,
`ray stop`) are marked `expected`, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called, short_id
from raydoctor.model.values import Event, Source

_DISCONNECT_TYPES = {
    "0": "SYSTEM_ERROR",
    "1": "INTENDED_SYSTEM_EXIT",
    "2": "USER_ERROR",
    "3": "INTENDED_USER_EXIT",
    "4": "NODE_OUT_OF_MEMORY",
}
"""WorkerExitType, stable over 2.3 to 2.60 (`common.proto`)."""

TEARDOWN_SLACK = 0.1
"""Seconds by which a worker's exit may be recorded before its cause, if nothing shows a failure."""

_INTERRUPTED = "Worker exits unexpectedly. Worker exits with an exit code 1."

_ACTOR_FRAME = pattern(
    # Begins with characters that are always there: `search` skips to them.
    r"\n\t(?:class_name: (?P<class>[^\n]*)\n\t)?actor_id: (?P<actor>[0-9a-f]{32})"
    r"(?:\n\tpid: (?P<pid>\d{1,20}))?"
    r"(?:\n\tname: (?P<name>[^\n]*))?(?:\n\tnamespace: [^\n]*)?(?:\n\tip: (?P<ip>[^\n]*))?\n(?P<cause>.*)",
    re.DOTALL,
)
_EXIT_IN_CAUSE = pattern(
    r"Worker exit type: (?P<exit_type>\w+) Worker exit detail: (?P<detail>.*)", re.DOTALL
)
_DELIBERATE = (
    "Force-killed by ray.cancel(force=True)",
    "has received a force ray.cancel request",
)


@dataclass(slots=True)
class WorkerExit:
    """The exit of one worker process, from all files together."""

    worker: str
    """WorkerID; empty if only the driver's output is left."""
    exit_type: str
    detail: str
    events: list[Event]
    """Records of it, the most informative first."""
    at: float | None = None
    node: str = ""
    ip: str = ""
    pid: int | None = None
    job: str = ""
    actor: str = ""
    """The actor that ran in it, if any."""
    names: tuple[str, ...] = ()
    """Tasks that it ran, oldest first, or its actor class."""
    expected: str = ""
    """Why this exit is not a failure; empty if it is one."""

    @property
    def entity(self) -> Entity:
        """The entity that findings explain."""
        if self.worker:
            return Entity("worker", self.worker)
        if self.pid is not None:
            return Entity("process", f"{self.ip}/{self.pid}")
        return Entity("actor-exit", self.actor)

    @property
    def is_driver(self) -> bool:
        """Whether the process is a driver, which ends its job with it."""
        return bool(ids.job_of_driver(self.worker))

    @property
    def entities(self) -> tuple[Entity, ...]:
        """The exit under all of its names."""
        process = (Entity("process", f"{self.ip}/{self.pid}"),) if self.pid is not None else ()
        return tuple(dict.fromkeys((self.entity, *process)))

    @property
    def count(self) -> int:
        """How many exits this one represents: the middle of a storm is counted, not kept."""
        return self.events[0].count if self.events else 1

    @property
    def label(self) -> str:
        """`train() (pid 379)`; without a name `worker (pid 379)`, `worker 4f059f01`, `driver of job 1`."""
        job = ids.job_of_driver(self.worker)
        worker = "worker" if self.pid is not None else f"worker {short_id(self.worker)}".rstrip()
        unnamed = f"driver of job {ids.job_number(job)}" if job else worker
        name = self.called or unnamed
        return f"{name} (pid {self.pid})" if self.pid is not None else name

    @property
    def called(self) -> str:
        """`train()` or `Trainer`; empty without a name."""
        name = self.names[-1] if self.names else ""
        return name if self.actor else called(name)

    @property
    def noun(self) -> str:
        """The label in a sentence: `train() (pid 379)`, `the worker (pid 379)`, `worker 4f059f01`."""
        is_id = self.pid is None and self.worker and not self.is_driver
        return self.label if self.names or is_id else f"the {self.label}"


@dataclass(slots=True)
class ActorInfo:
    """The known facts about an actor."""

    id: str
    class_name: str = ""
    name: str = ""
    workers: list[str] = field(default_factory=list)
    """Workers in which it ran, in order: more than one means restarts."""
    failures: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """A job, from its start to its end."""

    id: str
    driver_pid: int | None = None
    started: float | None = None
    ended: float | None = None
    end_event: Event | None = None


@dataclass(slots=True)
class Ledger:
    """All facts by id."""

    version: tuple[int, int] | None = None
    versions: tuple[str, ...] = ()
    exits: list[WorkerExit] = field(default_factory=list)
    actors: dict[str, ActorInfo] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    """WorkerID -> pid."""
    worker_nodes: dict[str, str] = field(default_factory=dict)
    node_ips: dict[str, str] = field(default_factory=dict)
    raylet_files: dict[str, str] = field(default_factory=dict)
    """Path of a raylet's log -> NodeID."""
    stops: dict[str, float] = field(default_factory=dict)
    """NodeID (or `gcs`) -> when it received SIGTERM."""
    tasks: dict[str, Event] = field(default_factory=dict)
    """TaskID -> the submitter's record of its final failure."""

    def exit_of(self, worker: str) -> WorkerExit | None:
        """The recorded exit of a worker."""
        return next((e for e in self.exits if e.worker == worker), None)


def build(
    events: Iterable[Event],
    sources: Iterable[Source] = (),
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> Ledger:
    """Build the ledger from events in time order; `names`: WorkerID -> what it ran."""
    by_kind: dict[str, list[Event]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(event)
    ledger = Ledger()
    for source in sources:
        for entity in source.entities:
            if entity.kind == "worker" and source.pid is not None:
                ledger.pids[entity.value] = source.pid
    _versions(ledger, by_kind)
    _nodes(ledger, by_kind)
    _jobs(ledger, by_kind)
    _workers(ledger, by_kind)
    _actors(ledger, by_kind)
    _exits(ledger, by_kind)
    for event in by_kind.get("task.failed", ()):
        ledger.tasks.setdefault(event["task"], event)
    for exit_ in ledger.exits:
        _complete(ledger, exit_, names or {})
    _mark_expected(ledger)
    ledger.exits.sort(key=lambda e: (e.at is None, e.at or 0.0))
    return ledger


def _all(by_kind: Mapping[str, list[Event]], *kinds: str) -> list[Event]:
    return [event for kind in kinds for event in by_kind.get(kind, ())]


def _versions(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    found = dict.fromkeys(e["version"] for e in by_kind.get("ray.version", ()))
    ledger.versions = tuple(sorted(found))
    numbers = [tuple(int(p) for p in v.split(".")[:2]) for v in found if re.match(r"\d+\.\d+", v)]
    if numbers:
        ledger.version = min((n[0], n[1]) for n in numbers)


def _nodes(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    for event in by_kind.get("node.registered", ()):
        ledger.node_ips[event["node"]] = event["ip"]
    for event in by_kind.get("raylet.started", ()):
        ledger.node_ips.setdefault(event["node"], event["ip"])
        ledger.raylet_files[event.source.path] = event["node"]
    _rotated_raylets(ledger, by_kind)
    itself = {(e.source.node, e.pid) for e in by_kind.get("raylet.ends_itself", ())}
    for event in by_kind.get("raylet.sigterm", ()):
        node = node_of_file(ledger, event.source.path)
        if event.at is not None and (event.source.node, event.pid) not in itself:
            ledger.stops.setdefault(node, event.at)
    for event in by_kind.get("gcs.sigterm", ()):
        if event.at is not None:
            ledger.stops.setdefault("gcs", event.at)


def _rotated_raylets(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    """`raylet.1.out` is a second raylet or a rotation: the pid of its writer decides.

    Files without their own start line belong to the node whose raylet has the same pid.
    """
    by_process = {(e.source.node, e.pid): e["node"] for e in by_kind.get("raylet.started", ())}
    for event in (e for events in by_kind.values() for e in events):
        if event.source.role.startswith("raylet") and event.source.path not in ledger.raylet_files:
            node = by_process.get((event.source.node, event.pid))
            if node:
                ledger.raylet_files[event.source.path] = node


def node_of_file(ledger: Ledger, path: str) -> str:
    """The NodeID whose raylet wrote a file; `raylet.err` and rotations follow `raylet.out`."""
    if path in ledger.raylet_files:
        return ledger.raylet_files[path]
    stem = path.removesuffix(".err") + ".out"
    return ledger.raylet_files.get(stem, "")


def _jobs(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    for event in by_kind.get("job.started", ()):
        pid = event["driver_pid"]
        ledger.jobs.setdefault(event["job"], Job(event["job"], int(pid) if pid else None, event.at))
        if pid:
            ledger.pids.setdefault(ids.driver_of_job(event["job"]), int(pid))
    for event in _all(by_kind, "job.finished", "driver.disconnected"):
        job = event["job"] or _job_of_pid(ledger, event["driver_pid"])
        if not job:
            continue
        known = ledger.jobs.setdefault(job, Job(job))
        if event.at is not None and (known.ended is None or event.at < known.ended):
            known.ended, known.end_event = event.at, event


def _job_of_pid(ledger: Ledger, pid: str) -> str:
    return next((j.id for j in ledger.jobs.values() if pid and j.driver_pid == int(pid)), "")


def _workers(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    for event in by_kind.get("worker.started", ()):
        if event["worker"]:
            ledger.pids[event["worker"]] = int(event["worker_pid"])
            ledger.worker_nodes[event["worker"]] = node_of_file(ledger, event.source.path)


def _actors(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    for event in by_kind.get("actor.placed", ()):
        actor = _actor(ledger, event["actor"])
        if event["worker"] not in actor.workers:
            actor.workers.append(event["worker"])
        ledger.worker_nodes.setdefault(event["worker"], event["node"])
    for event in by_kind.get("actor.failed", ()):
        actor = _actor(ledger, event["actor_a"] or event["actor_b"])
        actor.failures.append(event)
        if event["worker"] not in actor.workers:
            actor.workers.append(event["worker"])
    for event in by_kind.get("export.actor", ()):
        actor = _actor(ledger, event["actor"])
        actor.class_name, actor.name = (
            actor.class_name or event["class_name"],
            actor.name or event["name"],
        )
    for event in by_kind.get("driver.exception", ()):
        if frame := _ACTOR_FRAME.search(event["what"]):
            actor = _actor(ledger, frame["actor"])
            actor.class_name = actor.class_name or (frame["class"] or "")
            actor.name = actor.name or (frame["name"] or "")
    for event in by_kind.get("task.failed", ()):
        if event["class_name"] and (owner := ids.actor_of_task(event["task"])):
            actor = _actor(ledger, owner)
            actor.class_name = actor.class_name or event["class_name"].rpartition(".")[2]


def _actor(ledger: Ledger, actor: str) -> ActorInfo:
    return ledger.actors.setdefault(actor, ActorInfo(actor))


# ---------------------------------------------------------------- worker exits


def _exits(ledger: Ledger, by_kind: Mapping[str, list[Event]]) -> None:
    known: dict[str, WorkerExit] = {}
    unnamed: dict[str, WorkerExit] = {}
    for event in _all(by_kind, "worker.exit", "worker.died"):
        exit_type = event["exit_type"] or "SYSTEM_ERROR"  # the raylet pushes no other to drivers
        own = known if event["worker"] else unnamed
        _sight(own, event["worker"], event, exit_type, event["detail"])
    for event in by_kind.get("worker.disconnected", ()):
        exit_type = _DISCONNECT_TYPES.get(event["disconnect_type"], "SYSTEM_ERROR")
        worker = event["worker"]
        if event["what"] == "driver" or ids.job_of_driver(worker):
            continue
        if worker in known or not exit_type.startswith("INTENDED"):
            _sight(known, worker, event, exit_type, "")
    ledger.exits = list((known or unnamed).values())
    for event in by_kind.get("driver.exception", ()):
        _sight_in_exception(ledger, event)


def _sight(
    known: dict[str, WorkerExit], worker: str, event: Event, exit_type: str, detail: str
) -> None:
    seen = known.get(worker)
    if seen is None:
        known[worker] = seen = WorkerExit(worker, exit_type, detail, [])
    seen.events.append(event)
    if len(detail) > len(seen.detail):
        seen.detail = detail
    seen.node = seen.node or event["node"]
    seen.ip = seen.ip or event["ip"]
    seen.job = seen.job or event["job"] or event["job_id"]
    if event["worker_pid"]:
        seen.pid = int(event["worker_pid"])
    if ids.is_creation_task(event["task"]):
        # Only this form is reliable: up to 2.49 a normal task's lease has a TaskID of random digits.
        seen.actor = seen.actor or ids.actor_of_task(event["task"])


def _sight_in_exception(ledger: Ledger, event: Event) -> None:
    """`ActorDiedError … Worker exit type: …`: joined by actor and pid, otherwise a separate exit."""
    frame = _ACTOR_FRAME.search(event["what"])
    cause = _EXIT_IN_CAUSE.search(frame["cause"]) if frame else None
    if not frame or not cause or "its owner has died" in frame["cause"]:
        return
    pid = int(frame["pid"]) if frame["pid"] else None
    actor = ledger.actors.get(frame["actor"])
    by_pid = [s for s in ledger.exits if pid is not None and _pid(ledger, s) == pid]
    by_actor = [
        s
        for s in ledger.exits
        if (s.actor == frame["actor"] or (actor is not None and s.worker in actor.workers))
        and (pid is None or _pid(ledger, s) is None)
    ]
    if seen := next(iter(by_pid or by_actor[-1:]), None):
        seen.events.append(event)
        seen.actor = seen.actor or frame["actor"]
        seen.pid = seen.pid or pid
        return
    ledger.exits.append(
        WorkerExit(
            "",
            cause["exit_type"],
            cause["detail"],
            [event],
            event.at,
            "",
            frame["ip"] or "",
            pid,
            ids.job_of_actor(frame["actor"]),
            frame["actor"],
            (frame["class"] or "",),
        )
    )


def _pid(ledger: Ledger, exit_: WorkerExit) -> int | None:
    return exit_.pid if exit_.pid is not None else ledger.pids.get(exit_.worker)


def _when(events: Iterable[Event]) -> float | None:
    """The earliest timestamp; event files round down to a second, so any log's timestamp takes precedence."""
    timed = [(e.at, e.slack) for e in events if e.at is not None]
    exact = [at for at, slack in timed if not slack]
    return min(exact) if exact else min((at + slack for at, slack in timed), default=None)


def _complete(ledger: Ledger, exit_: WorkerExit, names: Mapping[str, tuple[str, ...]]) -> None:
    exit_.at = _when(exit_.events)
    exit_.pid = exit_.pid if exit_.pid is not None else ledger.pids.get(exit_.worker)
    exit_.node = exit_.node if exit_.node.strip("f") else ledger.worker_nodes.get(exit_.worker, "")
    exit_.node = exit_.node or next(
        (
            node
            for e in exit_.events
            if e.source.role.startswith("raylet") and (node := node_of_file(ledger, e.source.path))
        ),
        "",
    )
    exit_.ip = exit_.ip or ledger.node_ips.get(exit_.node, "")
    if not exit_.actor:
        exit_.actor = next((a.id for a in ledger.actors.values() if exit_.worker in a.workers), "")
    exit_.job = exit_.job or ids.job_of_actor(exit_.actor)
    exit_.names = names.get(exit_.worker) or exit_.names
    if exit_.actor:
        actor = _actor(ledger, exit_.actor)
        if exit_.names:
            actor.class_name = actor.class_name or exit_.names[-1]
        elif actor.class_name:
            exit_.names = (actor.class_name,)
    exit_.events.sort(key=_informative)


_MOST_INFORMATIVE = {"gcs-out": 0, "event": 1, "raylet-out": 2, "gcs-err": 3, "raylet-err": 4}


def _informative(event: Event) -> tuple[int, int]:
    """Sort key: the GCS's record has type and detail, the raylet's only the type; the driver's is an echo."""
    bare = 1 if event.kind == "worker.disconnected" else 0
    return (bare, _MOST_INFORMATIVE.get(event.source.role, 9))


def _mark_expected(ledger: Ledger) -> None:
    for exit_ in ledger.exits:
        exit_.expected = _why_expected(ledger, exit_)


def _why_expected(ledger: Ledger, exit_: WorkerExit) -> str:
    if exit_.exit_type.startswith("INTENDED"):
        return "intended"
    if any(text in exit_.detail for text in _DELIBERATE):
        return "cancelled with force"
    if exit_.at is None:
        return ""
    if exit_.is_driver:
        return _stopped(ledger, exit_, exit_.at + TEARDOWN_SLACK)  # its exit is what ends its job
    slack = 0.0 if _is_witnessed(exit_) else TEARDOWN_SLACK
    return _torn_down(ledger, exit_, exit_.at + slack)


def _is_witnessed(exit_: WorkerExit) -> bool:
    """Whether a record shows that it was no part of a tear-down: its raylet or a caller reported a failure.

    Ctrl-C reaches workers as well: they may exit with code 1 just before their driver.
    """
    kinds = {event.kind for event in exit_.events}
    if "driver.exception" in kinds or "Traceback (most recent call last)" in exit_.detail:
        return True
    return "worker.died" in kinds and not exit_.detail.startswith(_INTERRUPTED)


def _torn_down(ledger: Ledger, exit_: WorkerExit, at: float) -> str:
    """Why its exit was expected by then: its job had ended or its node was being stopped; otherwise empty."""
    job = ledger.jobs.get(exit_.job)
    if job and job.ended is not None and at >= job.ended:
        return "its job had ended"
    if stopped := _stopped(ledger, exit_, at):
        return stopped
    ends = [j.ended for j in ledger.jobs.values()]
    if not exit_.job and ends and all(end is not None and at >= end for end in ends):
        return "every job had ended"
    return ""


def _stopped(ledger: Ledger, exit_: WorkerExit, at: float) -> str:
    stop = ledger.stops.get(exit_.node)
    return "its node was being stopped" if stop is not None and at >= stop else ""
