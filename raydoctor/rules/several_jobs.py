"""Several jobs ran on the cluster at the same time and shared its memory, CPUs and disk.

## What you see
`ray list jobs` shows two or more running drivers. Each may wait for resources that the others hold. When one job fills
the memory, Ray may kill a worker of another job.

## Why
Ray gives every job the whole cluster, without quotas or isolation. The memory monitor chooses among all workers of a
node, all jobs share the object store and the disk, and a job's actors keep their CPUs until that job ends.

## Confirm
- `ray list jobs` and `ray list actors --filter state=ALIVE` show the job of each actor.

## Fix
Use one cluster per job if jobs must not affect each other (a RayJob of KubeRay creates one, and deletes it if
`shutdownAfterJobFinishes` is true). Otherwise choose the requests of all jobs (`num_cpus`, `memory`) so that together
they fit into the cluster.

## Not this when
- the jobs ran one after the other.
- one of the two jobs is Ray's own job manager.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import Job
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import DRIVER_GONE, JOB_FINISHED, JOB_STARTED
from raydoctor.cluster import tables as live
from raydoctor.model import ids
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.live import examples as sample

_DOC = "https://docs.ray.io/en/latest/cluster/key-concepts.html"
_BRIEF = 20.0
"""Seconds that two drivers may overlap: one ends while the next starts, or one program starts another."""
_OURS = "raydoctor"


@rule(
    tier="root",
    severity="info",
    rank=98,
    explains=(),
    looks_for=(*JOB_STARTED, *JOB_FINISHED, DRIVER_GONE, jobs.SUBMITTED),
)
def several_jobs(case: Case) -> Iterator[Finding]:
    """At most one finding: the jobs that overlapped with another."""
    managers = {e.pid for e in case.of("submission.started")}
    managers |= {live.whole(e, "pid") for e in live.rows(case, "own-drivers")}
    now = _running(case)
    known = {
        **case.ledger.jobs,
        **{id_: _job(e) for id_, e in now.items() if id_ not in case.ledger.jobs},
    }
    own = _own(case)
    ours = [
        j for j in known.values() if j.driver_pid not in managers and j.started and j.id not in own
    ]
    last = max((e.at for e in case.events if e.at is not None), default=0.0)
    together = {
        job.id: job
        for job in ours
        if any(_overlap(job, other, last) > _BRIEF for other in ours if other is not job)
    }
    if together:
        yield _finding(case, list(together.values()), last, now)


def _running(case: Case) -> dict[str, Event]:
    """JobID -> the row of a job that is running now and has a driver."""
    return {
        e["job_id"]: e
        for e in live.rows(case, "jobs")
        if e["job_id"] and e["status"] == "RUNNING" and live.mapping(e, "driver_info")
    }


def _own(case: Case) -> set[str]:
    """raydoctor's own jobs, by their metadata: a collection from all nodes is a job of a few seconds."""
    return {e["job_id"] for e in live.rows(case, "jobs") if _OURS in live.mapping(e, "metadata")}


def _job(row: Event) -> Job:
    pid = live.whole_of(live.mapping(row, "driver_info").get("pid"))
    milliseconds = live.number(row, "start_time")
    started = milliseconds / 1000 if milliseconds else None
    return Job(row["job_id"], pid, started)


def _overlap(one: Job, other: Job, last: float) -> float:
    begin = max(one.started or 0.0, other.started or 0.0)
    return min(one.ended or last, other.ended or last) - begin


def _finding(case: Case, together: list[Job], last: float, now: dict[str, Event]) -> Finding:
    seconds = max(_overlap(a, b, last) for a in together for b in together if a is not b)
    names = evidence.join_names(
        f"job {ids.job_number(j.id)} (driver pid {j.driver_pid})" for j in together
    )
    wanted = {job.id for job in together}
    started = [e for e in case.of("job.started") if e["job"] in wanted]
    running = [e for id_, e in now.items() if id_ in wanted]
    run = (
        "have been running on this cluster at the same time for"
        if len(running) > 1
        else "ran on this cluster at the same time for up to"
    )
    return Finding(
        f"{len(together)} jobs {run} {seconds:.0f} s and {'share' if len(running) > 1 else 'shared'} its resources: {names}",
        (
            *(Link(e, f"job {ids.job_number(e['job'])} started") for e in started[:3]),
            *(Link(e, f"job {ids.job_number(e['job_id'])} is running now") for e in running[:3]),
        ),
        subjects=tuple(Subject("job", j.id, None, j.driver_pid) for j in together[:10]),
        count=len(together),
        remedies=(
            Remedy(
                "Run each job on its own cluster if jobs must not affect each other",
                (
                    "kubectl apply -f rayjob.yaml   # KubeRay: a RayJob starts its own cluster, and with shutdownAfterJobFinishes: true deletes it when the job ends",
                ),
                doc=_DOC,
            ),
            Remedy(
                f"Otherwise limit the requests of the {len(together)} jobs so that together they fit into the cluster",
                ("@ray.remote(num_cpus=1, memory=2 * 1024**3)",),
            ),
        ),
    )


# ------------------------------------------------------------------ examples


def _gcs(second: int, text: str) -> str:
    return (
        f"[2026-11-21 11:20:{second:02d},000 I 13 13] (gcs_server) gcs_job_manager.cc:115: {text}\n"
    )


_FIRST = _gcs(1, "Registering job. job_id=01000000 driver_pid=7")
_SECOND = _gcs(10, "Registering job. job_id=02000000 driver_pid=8")
_FIRST_ENDS = "Marking job as finished. job_id=01000000"
_SECOND_ENDS = _gcs(50, "Marking job as finished. job_id=02000000")
_MANAGER = '{"source_type": "JOBS", "source_pid": 7, "message": "Started a ray job raysubmit_x1.", "timestamp": "1795260001", "severity": "INFO"}\n'


def _jobs(*running: tuple[str, int, str]) -> dict[str, str]:
    """The state API's rows of running jobs (id, pid, metadata), ten minutes after they started."""
    rows = [
        {
            "type": "DRIVER", "job_id": job, "driver_info": {"id": job, "pid": str(pid)}, "status": "RUNNING",
            "entrypoint": "python a.py", "start_time": 1795260000000, "metadata": {metadata: "0"},
        }
        for job, pid, metadata in running
    ]  # fmt: skip
    return sample.tables(1795260600.0, jobs=rows)


EXAMPLES: tuple[Example, ...] = (
    Example(
        "two drivers at the same time",
        {
            "logs/gcs_server.out": _FIRST + _SECOND + _gcs(40, _FIRST_ENDS) + _SECOND_ENDS,
            "logs/raylet.out": "",
        },
        says=("2 jobs", "30 s", "job 1 (driver pid 7)"),
    ),
    Example(
        "two jobs are running now, and the log of the GCS is on another machine",
        {"logs/raylet.out": "", **_jobs(("01000000", 7, ""), ("02000000", 8, ""))},
        says=("2 jobs have been running", "job 2 (driver pid 8)"),
    ),
    Example(
        "the second job is raydoctor's own",
        {"logs/raylet.out": "", **_jobs(("01000000", 7, ""), ("02000000", 8, _OURS))},
    ),
    Example(
        "two jobs, one after the other",
        {
            "logs/gcs_server.out": _FIRST + _gcs(9, _FIRST_ENDS) + _SECOND + _SECOND_ENDS,
            "logs/raylet.out": "",
        },
    ),
    Example(
        "the job manager registers as a driver, but runs no job",
        {
            "logs/gcs_server.out": _FIRST + _SECOND + _SECOND_ENDS,
            "logs/raylet.out": "",
            "logs/events/event_JOBS.log": _MANAGER,
            "logs/job-driver-raysubmit_x1.log": "Running entrypoint for job raysubmit_x1: python train.py\ndone\n",
        },
    ),
)
