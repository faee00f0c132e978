"""What has not ended: tasks, actors' methods and drivers, for how long each has stood so,
and whether that is too long.

A task is compared with its peers: the last finished ones of its function (table `finished`). Without peers
nothing but its own stack can tell a hang from work, and only after some time. What runs is what workers say
that they run, before they were looked at (`worker-stats`) and after (`still-running`): the GCS's own list
lags a second behind and may keep what has ended, and a next call may stand where the last one stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import tables as live
from raydoctor.cluster.samples import Process
from raydoctor.model import ids
from raydoctor.model.text import duration
from raydoctor.model.values import Event, Subject

MIN_AGE = 60.0
"""Seconds after which something without peers may be called hung."""
SETTLED = 5.0
"""Seconds after which a wait is no passing one: tables are taken one after the other, not at one moment."""
_FEW = 3
"""As many peers prove something."""
_TIMES, _TIMES_P95 = 10.0, 3.0
_ENDED = ("FINISHED", "FAILED")
_QUEUED = frozenset({
    "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "SUBMITTED_TO_WORKER",
    "PENDING_ACTOR_TASK_ARGS_FETCH", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
})  # fmt: skip
"""Where the GCS still believes something that its worker says to run: it has begun just now."""


class Peers(NamedTuple):
    """How long the last finished tasks of a function took."""

    number: int
    median: float
    p95: float
    longest: float
    event: Event

    @property
    def limit(self) -> float:
        """Seconds beyond which a task of this function does not merely take long."""
        return max(_TIMES * self.median, _TIMES_P95 * self.p95, SETTLED)

    @property
    def told(self) -> str:
        """`24 before it took 0.5 s, 1.2 s at most`."""
        most = f", {duration(self.longest)} at most" if self.longest > 1.5 * self.median else ""
        return f"{self.number:,} before it took {duration(self.median)}{most}"


class Work(NamedTuple):
    """A task, a method or a driver that has not ended."""

    id: str
    """Of the task; of a driver the id that stands for it as a parent."""
    name: str
    kind: Literal["task", "method", "creation", "driver"]
    state: str
    """`RUNNING`, or what it waits for in Ray's words."""
    age: float
    """Seconds in this state; 0 where nobody knows."""
    event: Event
    pid: int | None = None
    node: str = ""
    worker: str = ""
    actor: str = ""
    class_name: str = ""
    parent: str = ""
    peers: Peers | None = None
    process: Process | None = None
    """Its process, if that was looked at."""

    @property
    def runs(self) -> bool:
        """Whether its code runs (or stands)."""
        return self.state == "RUNNING"

    @property
    def is_ageless(self) -> bool:
        """Whether only its worker knows of it: of some actors (Ray Serve's) Ray notes no calls."""
        return self.event["told_by"] == "worker"

    @property
    def label(self) -> str:
        """`loader (pid 812)`."""
        return f"{self.name} (pid {self.pid})" if self.pid else self.name

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


def works(case: Case, looked_at: Mapping[tuple[str, int], Process]) -> dict[str, Work]:
    """All that has not ended, by id. `looked_at`: processes by node and pid."""
    peers = dict(_peers(case))
    running = _running(case)
    answering = {e["worker_id"] for e in _last_word(case) if live.truth(e, "answers")}
    classes = {e["actor_id"]: e["class_name"] for e in live.rows(case, "actors")}
    found = {}
    for event in live.rows(case, "tasks"):
        if event["state"] in _ENDED or event["type"] == "DRIVER_TASK":
            continue
        worker = running.get(event["task_id"])
        if event["worker_id"] in answering and worker is None and _has_begun(event):
            continue
        work = _work(event, worker, classes)
        # Functions that a library calls differ by the names that it gives their tasks: Ray Data's operators.
        key = event["name" if event["type"] == "NORMAL_TASK" else "func_or_class_name"]
        process = looked_at.get((work.node, work.pid or 0))
        found[work.id] = work._replace(peers=peers.get(key), process=process)
    for work in _drivers(case):
        process = looked_at.get((work.node, work.pid or 0))
        found[work.id] = work._replace(process=process)
    return found


def too_long(work: Work, *, still: bool, min_age: float) -> str:
    """Why what runs is called hung; empty where it is not.

    `still`: looked at several times it stood at one place and used no processor. Without peers, what
    moves is at work, however long it takes; with peers it must have taken many times longer than any of
    them: a part with more data than the others takes longer, too.
    """
    peers = work.peers if work.peers and work.peers.number >= _FEW else None
    if peers is None:
        return f"stands still after {duration(work.age)}" if still and work.age >= min_age else ""
    limit = max(peers.limit, _TIMES * peers.longest, min_age)
    if still:  # one that took long before may have hung, too
        limit = max(peers.limit, min(peers.longest, min_age))
    return f"has run for {duration(work.age)}; {peers.told}" if work.age > limit else ""


# ---------------------------------------------------------------- rows


def _work(event: Event, worker: Event | None, classes: Mapping[str, str]) -> Work:
    task, actor = event["task_id"], event["actor_id"] or ids.actor_of_task(event["task_id"])
    kind: Literal["task", "method", "creation"] = (
        "creation" if ids.is_creation_task(task) else "method" if actor else "task"
    )
    name = event["name"] if kind != "creation" else event["func_or_class_name"]
    runs = worker is not None or event["state"] == "RUNNING"
    has_begun_now = worker is not None and event["state"] in _QUEUED
    whose = worker if worker is not None else event
    return Work(
        task,
        name or live_rows.name_of(event),
        kind,
        "RUNNING" if runs else event["state"],
        0.0 if has_begun_now else _age(event),
        event,
        whose.pid if runs else None,
        whose["node_id"] if runs else "",
        whose["worker_id"] if runs else "",
        actor,
        classes.get(actor) or (event["func_or_class_name"].partition(".")[0] if actor else ""),
        event["parent_task_id"],
    )


def _age(event: Event) -> float:
    """Seconds since it came into its state, at the moment when the table was taken."""
    last = live.records(event, "events")[-1:]
    since = live.number_of(last[0].get("created_ms")) if last else None
    since = since or live.number(event, "start_time_ms") or live.number(event, "creation_time_ms")
    return max(0.0, (event.at or 0.0) - since / 1000) if since else 0.0


def _running(case: Case) -> dict[str, Event]:
    """Task -> the row of the worker that says it runs it."""
    return {
        task: event for event in _last_word(case) for task in live.texts(event, "running_task_ids")
    }


def _last_word(case: Case) -> list[Event]:
    """What the workers said last. Who does not answer any more may still run what it ran."""
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
    """Whether the GCS takes it for running, and not since just now: its worker would know it."""
    return event["state"] == "RUNNING" and _age(event) >= SETTLED


def _peers(case: Case) -> Iterator[tuple[str, Peers]]:
    for event in live.rows(case, "finished"):
        median, p95, longest = (
            live.number(event, key) or 0.0 for key in ("median_s", "p95_s", "max_s")
        )
        yield event["name"], Peers(live.whole(event, "count") or 0, median, p95, longest, event)


def _drivers(case: Case) -> Iterator[Work]:
    """Drivers that live. Since when they stand where they stand, nobody knows."""
    told = live.rows(case, "worker-stats") or live.rows(case, "workers")
    for event in told:
        if event["worker_type"] != "DRIVER" or event["is_alive"] == "false":
            continue
        job = ids.job_of_driver(event["worker_id"]) or event["job_id"]
        task = f"{'f' * 40}{job}"
        name = f"driver of job {ids.job_number(job)}"
        yield Work(task, name, "driver", "RUNNING", _since_start(case, job, event), event,
                   event.pid, event["node_id"], event["worker_id"])  # fmt: skip


def _since_start(case: Case, job: str, event: Event) -> float:
    """Seconds that a driver has run, at most."""
    for row in live.rows(case, "jobs"):
        if row["job_id"] == job and (started := live.number(row, "start_time")):
            return max(0.0, (event.at or 0.0) - started / 1000)
    return 0.0
