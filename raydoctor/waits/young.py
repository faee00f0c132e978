"""What has lasted too short to be judged: requests that nothing can meet yet, and jobs that have only begun.

A report at such a moment finds nothing, but it is not an all-clear. Ray Data, Tune and Train import and start
their own actors for up to fifteen seconds before they request resources (measured with Ray 2.60.0 on two
busy processors). A job that has finished work, runs more, and waits for none of its actors is judged at
any age.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import groups as grouping
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import tables as live
from raydoctor.cluster import waiting as now
from raydoctor.model import ids
from raydoctor.model.text import duration, short_id
from raydoctor.model.values import Event
from raydoctor.waits.candidates import SETTLED, UnfinishedTask, candidates

YOUNG = 30.0
"""Seconds after which a job without progress is judged."""
_GRANTED = 1.0
"""Seconds within which Ray grants a request that fits."""
_STARTING = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")
_UNENDED = ("PENDING", "RUNNING")


class TooYoung(NamedTuple):
    """A request or a job, and when it can be judged."""

    unknown: str
    """`whether the request can be met`."""
    summary: str
    """`job 1 began 6.0 s ago and has no unfinished task; that is too early to judge it`."""
    judged_in: float
    """Seconds until then."""


def of(case: Case, tasks: Mapping[str, UnfinishedTask] | None = None) -> tuple[TooYoung, ...]:
    """The oldest request and the youngest job that cannot be judged yet. `tasks`: if they are known."""
    if live.looked(case, "jobs") is None and live.looked(case, "tasks") is None:
        return ()
    own = candidates(case, {}) if tasks is None else tasks
    return (*_requests(case, own.values()), *_jobs(case, own))


# ---------------------------------------------------------------- requests


def _requests(case: Case, tasks: Iterable[UnfinishedTask]) -> list[TooYoung]:
    """The oldest request of a task, an actor or a placement group that nothing can meet.

    Where idle holders keep the resources, only if no task runs: a task that runs may end them.
    """
    picture = now.picture(case)
    if picture is None:
        return []
    runs = any(work.runs and work.kind != "driver" for work in tasks)
    waits = [*_homeless(case, picture), *_groups(case, picture, runs)]
    if not runs:
        starved = starving.starved(case, picture, least=_GRANTED)
        waits += [(one.age, f"{one.wait}: {one.hold}") for one in starved if not one.at_work]
    young = [each for each in waits if each[0] < now.AGE]
    return [
        TooYoung(
            "whether the request can be met",
            f"{wait}; after {duration(age)} it is too early to judge that",
            now.AGE - age,
        )
        for age, wait in sorted(young, key=lambda each: -each[0])[:1]
    ]


def _homeless(case: Case, picture: now.Picture) -> Iterator[tuple[float, str]]:
    """Requests that no node can meet, since when, or since when the newest node is there."""
    for request in picture.requests:
        age = now.AGE if request.age is None else request.age
        fits = any(
            live_rows.fits(n.total, request.needs) and now.bears(n, request.selectors)
            for n in picture.nodes
        )
        if not fits and not request.group and not now.expected(case, request.needs, age):
            waits = "waits" if request.number == 1 else "wait"
            yield (
                min(age, picture.newest),
                f"{request.who} {waits} for {request.asked}, which no node has",
            )


def _groups(case: Case, picture: now.Picture, runs: bool) -> Iterator[tuple[float, str]]:
    """Pending placement groups whose bundles do not fit on the nodes."""
    for group in grouping.of(case, picture, {}, least=0.0).values():
        if group is None:
            continue
        age = min(group.age, picture.newest) if group.infeasible else group.age
        if group.infeasible or (not runs and not group.at_work and age >= _GRANTED):
            name = group.name or short_id(group.id)
            yield age, f"placement group {name} is pending: {grouping.lack(picture, group)}"


# ---------------------------------------------------------------- jobs


class _Job(NamedTuple):
    id: str
    name: str
    age: float


def _jobs(case: Case, tasks: Mapping[str, UnfinishedTask]) -> list[TooYoung]:
    """The youngest job that has only begun and shows no progress."""
    known = [*_listed(case), *_connecting(case)]
    young = [each for each in known if each.age < YOUNG and not _progresses(case, each.id, tasks)]
    return [
        TooYoung(
            "whether the job makes progress",
            f"{job.name} began {duration(job.age)} ago and {_state(job.id, tasks)}; "
            "that is too early to judge it",
            YOUNG - job.age,
        )
        for job in sorted(young, key=lambda each: (each.age, each.id))[:1]
    ]


def _listed(case: Case) -> Iterator[_Job]:
    """The jobs that have not ended, if Ray records their beginning, and the clocks agree."""
    for row in live.rows(case, "jobs"):
        began = live.number(row, "start_time")
        age = (row.at or 0.0) - began / 1000 if began else -YOUNG
        if row["status"] in _UNENDED and age > -YOUNG:
            job, submission = row["job_id"], row["submission_id"]
            name = f"job {ids.job_number(job)}" if job or not submission else f"job {submission}"
            yield _Job(job, name, max(0.0, age))


def _connecting(case: Case) -> Iterator[_Job]:
    """Drivers whose job Ray does not list yet."""
    listed = {row["job_id"] for row in live.rows(case, "jobs")}
    for row in live.rows(case, "processes") if live.looked(case, "jobs") else ():
        began, job = live.number(row, "started_at"), row["job_id"]
        is_own = row["kind"] == "driver" and live.truth(row, "is_this")
        if is_own and job and job not in listed and began and row["state"] != "Z":
            yield _Job(job, f"job {ids.job_number(job)}", max(0.0, (row.at or 0.0) - began))


def _state(job: str, tasks: Mapping[str, UnfinishedTask]) -> str:
    """What of it has not ended."""
    own = [work for work in tasks.values() if work.job == job and work.kind != "driver"]
    if not own:
        return "has no unfinished task"
    oldest = max(own, key=lambda work: (work.age, work.id))
    return f"its oldest unfinished task, {oldest.called}, {'runs' if oldest.runs else 'waits'}"


def _progresses(case: Case, job: str, tasks: Mapping[str, UnfinishedTask]) -> bool:
    """Whether a job has finished work, and now runs more of it, or has none left and sleeps.

    A driver that computes or imports may be about to request what it never gets.
    """
    finished = _finished(case, job)
    if finished is None:
        return True
    own = [work for work in tasks.values() if work.job == job and work.kind != "driver"]
    running = [work for work in own if work.runs and work.kind in ("task", "method")]
    if _starts(case, job) or (own and not running):
        return False
    is_long = any(work.age >= SETTLED for work in running)
    return is_long or (finished > 0 and (bool(running) or _sleeps(case, job)))


def _finished(case: Case, job: str) -> int | None:
    """Tasks and methods that a job's living workers have finished, without the constructors of actors.

    None if its processes do not report such numbers.
    """
    if live.looked(case, "worker-stats") is None:
        return None
    workers = [e for e in live.rows(case, "worker-stats") if _job(e) == job]
    counts = [_finished_in(e) for e in workers if e["num_executed_tasks"]]
    return sum(counts) if counts or not workers else None


def _finished_in(worker: Event) -> int:
    """Ray counts a task when it begins."""
    running = len(live.texts(worker, "running_task_ids"))
    return max(
        0, (live.whole(worker, "num_executed_tasks") or 0) - running - bool(worker["actor_id"])
    )


def _job(row: Event) -> str:
    return ids.job_of_driver(row["worker_id"]) or row["job_id"]


def _starts(case: Case, job: str) -> bool:
    """Whether an actor or a placement group of a job is still being created."""
    actors = (e for e in live.rows(case, "actors") if ids.job_of_actor(e["actor_id"]) == job)
    groups = (e for e in live.rows(case, "placement-groups") if e["creator_job_id"] == job)
    return any(e["state"] in _STARTING for e in actors) or any(
        e["state"] in grouping.WAITS for e in groups
    )


def _sleeps(case: Case, job: str) -> bool:
    """Whether the main thread of a job's driver sleeps, and no task of it is unfinished, by its own count."""
    drivers = [
        e for e in live.rows(case, "worker-stats") if ids.job_of_driver(e["worker_id"]) == job
    ]
    states = {(e["node_id"], e["pid"]): e["state"] for e in live.rows(case, "processes")}
    return bool(drivers) and all(
        states.get((e["node_id"], e["pid"])) == "S" and not live.whole(e, "num_pending_tasks")
        for e in drivers
    )
