"""The unfinished tasks, methods and drivers, how long each has been in its state, and whether that is too
long.

A task is compared with its peers: the last finished tasks of its function (table `finished`). Without peers
only its own stack can tell a hang from work, and only after some time. A task runs if its worker reports
it, before the samples (`worker-stats`) and after (`still-running`): the list of the GCS lags a second
behind, may keep tasks that have ended, and the next call may have the same stack as the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import tables as live
from raydoctor.cluster.samples import SampledProcess
from raydoctor.model import ids, text
from raydoctor.model.text import called, duration
from raydoctor.model.values import Event, Subject

MIN_AGE = 60.0
"""Seconds of idle time after which a task without peers counts as hung."""
SETTLED = 5.0
"""Seconds after which a wait counts: tables are collected one after the other, not at one moment."""
_FEW = 3
"""Peers that are needed for a comparison."""
_TIMES, _TIMES_P95 = 10.0, 3.0
_IDLE = 0.5
"""Of a CPU: a process that has used less for as long as its task runs was idle for much of that time."""
_ENDED = ("FINISHED", "FAILED")
_QUEUED = frozenset({
    "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "SUBMITTED_TO_WORKER",
    "PENDING_ACTOR_TASK_ARGS_FETCH", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
})  # fmt: skip
"""States in which the GCS still lists a task that its worker reports as running: it has just begun."""


class FinishedPeers(NamedTuple):
    """How long the last finished tasks of a function took."""

    number: int
    median: float
    p95: float
    longest: float
    event: Event

    @property
    def limit(self) -> float:
        """Seconds after which a task of this function is not merely slow."""
        return max(_TIMES * self.median, _TIMES_P95 * self.p95, SETTLED)

    def summary(self, called: str) -> str:
        """`24 finished load() tasks took 0.5 s (median), 1.2 s at most`."""
        most = f", {duration(self.longest)} at most" if self.longest > 1.5 * self.median else ""
        return f"{self.usual(called)}{most}"

    def usual(self, called: str) -> str:
        """`24 finished load() tasks took 0.5 s (median)`."""
        finished = text.plural(self.number, f"finished {called} task")
        return f"{finished} took {duration(self.median)} (median)"


class UnfinishedTask(NamedTuple):
    """A task, a method or a driver that has not ended."""

    id: str
    """Of the task; of a driver, the id that its tasks have as their parent."""
    name: str
    kind: Literal["task", "method", "creation", "driver"]
    state: str
    """Ray's own state: `RUNNING`, `PENDING_NODE_ASSIGNMENT` …"""
    age: float
    """Seconds in this state; 0 where that is unknown."""
    event: Event
    pid: int | None = None
    node: str = ""
    worker: str = ""
    actor: str = ""
    class_name: str = ""
    parent: str = ""
    peers: FinishedPeers | None = None
    process: SampledProcess | None = None
    """Its process, if that was sampled."""

    @property
    def runs(self) -> bool:
        """Whether its code has begun and not ended."""
        return self.state == "RUNNING"

    @property
    def is_ageless(self) -> bool:
        """Whether Ray records no task of it, as for Serve's actors: a worker's or an actor's row shows it."""
        return self.event["reported_by"] == "worker" or self.event.kind == "live.actors"

    @property
    def label(self) -> str:
        """`load() (pid 812)`."""
        return f"{self.called} (pid {self.pid})" if self.pid else self.called

    @property
    def called(self) -> str:
        """`load()`, `Trainer.step()`, `driver of job 1`."""
        return called(self.name)

    @property
    def job(self) -> str:
        """Its job's id."""
        return ids.job_of_task(self.id)

    @property
    def subject(self) -> Subject:
        """For reports."""
        if self.kind == "driver":
            return Subject("job", self.job, self.name, self.pid, self.node or None)
        return Subject("task", self.id, self.name, self.pid, self.node or None)


def candidates(
    case: Case, sampled: Mapping[tuple[str, int], SampledProcess]
) -> dict[str, UnfinishedTask]:
    """The unfinished work by id. `sampled`: processes by node and pid."""
    peers = dict(_peers(case))
    running = _running(case)
    answering = {e["worker_id"] for e in _last_reply(case) if live.truth(e, "answers")}
    classes = {e["actor_id"]: e["class_name"] for e in live.rows(case, "actors")}
    found = {}
    for event in live.rows(case, "tasks"):
        if event["state"] in _ENDED or event["type"] == "DRIVER_TASK":
            continue
        worker = running.get(event["task_id"])
        if event["worker_id"] in answering and worker is None and _has_begun(event):
            continue
        work = _work(event, worker, classes)
        # A library may name the tasks of one function differently, as Ray Data does for its operators.
        key = event["name" if event["type"] == "NORMAL_TASK" else "func_or_class_name"]
        process = sampled.get((work.node, work.pid or 0))
        found[work.id] = work._replace(peers=peers.get(key), process=process)
    found.update({work.id: work for work in _actors(case, found.values())})
    for work in _drivers(case):
        process = sampled.get((work.node, work.pid or 0))
        found[work.id] = work._replace(process=process)
    return found


def idle(case: Case) -> list[UnfinishedTask]:
    """The running tasks, oldest first, if none of them shows progress by the tables alone; otherwise none.

    Each runs for some seconds, far longer than its finished peers, and its process was idle for much of
    them. Ray Serve's own calls do not count.
    """
    spent = {
        row["worker_id"]: live.number(row, "cpu_seconds") for row in live.rows(case, "processes")
    }
    running = [
        work
        for work in candidates(case, {}).values()
        if work.runs and work.kind != "driver" and not work.is_ageless
    ]
    for work in running:
        used = spent.get(work.worker)
        if work.age < SETTLED or used is None or used > _IDLE * work.age:
            return []
        if work.peers and work.age <= _TIMES_P95 * work.peers.longest:
            return []
    return sorted(running, key=lambda work: (-work.age, work.id))


def too_long(work: UnfinishedTask, *, still: bool, advances: bool, min_age: float) -> str:
    """Why running work counts as hung; empty where it does not.

    `still`: its stack was the same in several samples, and it used no CPU. `advances`: its stack changed, or
    it polls. Without peers, work that makes progress is busy, however long it takes. With peers, work at one
    place must have taken many times longer than any of them. Work that advances may merely have more data
    than its peers.
    """
    if advances and not still:
        return ""
    peers = work.peers if work.peers and work.peers.number >= _FEW else None
    if peers is None:
        return (
            f"its stack has not changed after {duration(work.age)}"
            if still and work.age >= min_age
            else ""
        )
    limit = max(peers.limit, _TIMES * peers.longest, min_age)
    if still:  # a peer that took long may itself have hung
        limit = max(peers.limit, min(peers.longest, min_age))
    return (
        f"has run for {duration(work.age)}; {peers.usual(work.called)}" if work.age > limit else ""
    )


# ---------------------------------------------------------------- rows


def _work(event: Event, worker: Event | None, classes: Mapping[str, str]) -> UnfinishedTask:
    task, actor = event["task_id"], event["actor_id"] or ids.actor_of_task(event["task_id"])
    kind: Literal["task", "method", "creation"] = (
        "creation" if ids.is_creation_task(task) else "method" if actor else "task"
    )
    name = event["name"] if kind != "creation" else event["func_or_class_name"]
    runs = worker is not None or event["state"] == "RUNNING"
    has_begun_now = worker is not None and event["state"] in _QUEUED
    source = worker if worker is not None else event
    return UnfinishedTask(
        task,
        name or live_rows.name_of(event),
        kind,
        "RUNNING" if runs else event["state"],
        0.0 if has_begun_now else _age(event),
        event,
        source.pid if runs else None,
        source["node_id"] if runs else "",
        source["worker_id"] if runs else "",
        actor,
        classes.get(actor) or (event["func_or_class_name"].partition(".")[0] if actor else ""),
        event["parent_task_id"],
    )


def _actors(case: Case, listed: Iterable[UnfinishedTask]) -> Iterator[UnfinishedTask]:
    """Actors that wait to be placed without a recorded task (Ray Serve's): since when is unknown."""
    created = {work.actor for work in listed}
    for event in live.rows(case, "actors"):
        actor, name = event["actor_id"], event["class_name"]
        waits = event["state"] in ("PENDING_CREATION", "RESTARTING") and not live.whole(
            event, "pid"
        )
        if waits and actor not in created:
            yield UnfinishedTask(
                ids.creation_task(actor),
                name,
                "creation",
                "PENDING_NODE_ASSIGNMENT",
                0.0,
                event,
                actor=actor,
                class_name=name,
            )


def _age(event: Event) -> float:
    """Seconds since it entered its state, when the table was collected."""
    last = live.records(event, "events")[-1:]
    since = live.number_of(last[0].get("created_ms")) if last else None
    since = since or live.number(event, "start_time_ms") or live.number(event, "creation_time_ms")
    return max(0.0, (event.at or 0.0) - since / 1000) if since else 0.0


def _running(case: Case) -> dict[str, Event]:
    """Task -> the row of the worker that reports it as running."""
    return {
        task: event for event in _last_reply(case) for task in live.texts(event, "running_task_ids")
    }


def _last_reply(case: Case) -> list[Event]:
    """The last reply of each worker. A worker that no longer answers may still run what it ran."""
    before = live.rows(case, "worker-stats")
    if live.looked(case, "still-running") is None:
        return before
    after = {e["worker_id"]: e for e in live.rows(case, "still-running")}
    found = []
    for event in before:
        now = after.get(event["worker_id"])
        if now is not None:
            found.append(now if live.truth(now, "answers") else event)
    return found


def _has_begun(event: Event) -> bool:
    """Whether the GCS has listed it as running for some time: then its worker would report it."""
    return event["state"] == "RUNNING" and _age(event) >= SETTLED


def _peers(case: Case) -> Iterator[tuple[str, FinishedPeers]]:
    for event in live.rows(case, "finished"):
        median, p95, longest = (
            live.number(event, key) or 0.0 for key in ("median_s", "p95_s", "max_s")
        )
        yield (
            event["name"],
            FinishedPeers(live.whole(event, "count") or 0, median, p95, longest, event),
        )


def _drivers(case: Case) -> Iterator[UnfinishedTask]:
    """Drivers that have not ended. The start of their wait is unknown."""
    rows = live.rows(case, "worker-stats") or live.rows(case, "workers")
    for event in rows:
        if event["worker_type"] != "DRIVER" or event["is_alive"] == "false":
            continue
        job = ids.job_of_driver(event["worker_id"]) or event["job_id"]
        task = f"{'f' * 40}{job}"
        name = f"driver of job {ids.job_number(job)}"
        yield UnfinishedTask(task, name, "driver", "RUNNING", _since_start(case, job, event), event,
                   event.pid, event["node_id"], event["worker_id"])  # fmt: skip


def _since_start(case: Case, job: str, event: Event) -> float:
    """Seconds that a driver has run: the longest that its wait can have lasted."""
    for row in live.rows(case, "jobs"):
        if row["job_id"] == job and (started := live.number(row, "start_time")):
            return max(0.0, (event.at or 0.0) - started / 1000)
    return 0.0
