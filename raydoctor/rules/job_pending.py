"""A submitted job never started: the process that runs its program, its supervisor, was not placed or not started.

## What you see
`ray job status` says `PENDING` for many minutes, then `FAILED` with `Job supervisor actor failed to start within
900.0 seconds` (or at once `Job supervisor actor could not be scheduled`). Its log holds `Runtime env is setting up.` and nothing
else.

## Why
A job's program runs in a process that a `JobSupervisor` actor starts. That actor is tied to the head, unless the
entrypoint asks for resources (`--entrypoint-num-cpus`, `-num-gpus`, `-memory`, `-resources`): then it waits for a node
that has them, as any actor does. A full or vanished head, requests that no node can hold, and a long
`runtime_env` keep it waiting. The limit is `RAY_JOB_START_TIMEOUT_SECONDS` (900 s); Ray 2.9 and 2.40 were seen to wait on after it.

## Confirm
- `ray list actors --filter class_name=JobSupervisor`: `PENDING_CREATION`.
- `ray status`: the request stands under `Demands`.

## Fix
Ask for what a node has (or for nothing), free the head, or make the environment smaller.

## Not this when
The program started and failed (`job-failed`), or its environment could not be made (`runtime-env-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import JOB_STARTED, NODE_REGISTERED
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import jobs

_MANAGER = ("dashboard-agent", "dashboard")
_TIMED_OUT = Signal(
    "submission.timed_out", "Job supervisor actor failed to start within ",
    r"Job supervisor actor failed to start within (?P<seconds>[\d.]+) seconds(?P<asked>.*entrypoint's specified resources)?",
    (*_MANAGER, "driver", "job-driver"),
    "Job supervisor actor failed to start within 45.0 seconds. This timeout can be configured by setting the environment variable "
    "RAY_JOB_START_TIMEOUT_SECONDS. This may be because the job entrypoint's specified resources (entrypoint_num_cpus, …)",
    symptom=True,
)  # fmt: skip
_UNSCHEDULABLE = Signal(
    "submission.unschedulable", "actor could not be scheduled: ", r"upervisor actor could not be scheduled: (?P<why>[^\n]+)",
    (*_MANAGER, "event", "driver", "job-driver"),
    "Failed to schedule job raysubmit_x1 because the supervisor actor could not be scheduled: The actor is not schedulable: The node "
    "specified via NodeAffinitySchedulingStrategy doesn't exist any more or is infeasible", symptom=True,
)  # fmt: skip

_PATIENCE = 60.0
"""Seconds without any word of the program, after which a job that is to begin counts as waiting."""


@rule(
    tier="root",
    severity="error",
    rank=79,
    daemons_record=True,
    looks_for=(*jobs.SIGNALS, _TIMED_OUT, _UNSCHEDULABLE, *JOB_STARTED, *NODE_REGISTERED),
)  # fmt: skip
def job_pending(case: Case) -> Iterator[Finding]:
    """One finding per job that did not start; one for a message that names none."""
    told = case.of("submission.timed_out", "submission.unschedulable")
    idle = [s for s in jobs.submissions(case) if s.started and _did_not_start(case, s)]
    named = [s for s in idle if any(s.id in e.text for e in told)] or (idle if told else [])
    for submission in named:
        yield _finding(case, submission, told)
    if told and not named:
        yield _finding(case, None, told)
    for submission in idle if not told else []:
        if _waited(case, submission) >= _PATIENCE:
            yield _finding(case, submission, [])


def _did_not_start(case: Case, job: jobs.Submission) -> bool:
    """Nothing of the program was seen, nor of how it ended."""
    spoke = job.source is not None and job.source in case.endings
    over = job.exited or job.command or job.jobs or job.status in ("SUCCEEDED", "STOPPED")
    return not (spoke or over) or bool(job.why and "upervisor actor could not" in job.why)


def _waited(case: Case, job: jobs.Submission) -> float:
    last = max((e.at for e in case.events if e.at is not None), default=0.0)
    begun = job.started.at if job.started else None
    return last - begun if begun is not None else 0.0


def _finding(case: Case, job: jobs.Submission | None, told: list[Event]) -> Finding:
    first = told[0] if told else None
    started = job.started if job else None
    links = [Link(started, "the job is submitted")] if started else []
    links += [Link(first, "its supervisor did not start")] if first else []
    return Finding(
        f"{f'Job {job.id}' if job else 'A submitted job'} {_how(case, job, first)}",
        tuple(links),
        explains=(Entity("submission", job.id if job else ""),),
        caused_by=(Entity("waiting", "cluster"), Entity("gcs", "gcs")),
        subjects=(Subject("job", job.id, None),) if job else (),
        severity=None if told else "warning",
        remedies=tuple(_remedies(first)),
        covers=tuple(told),
    )


def _how(case: Case, job: jobs.Submission | None, first: Event | None) -> str:
    if first and first["seconds"]:
        asked = "it waits for the resources that its entrypoint asks for"
        why = asked if first["asked"] else "its supervisor did not begin"
        return f"did not start within {float(first['seconds']):g} s: {why}"
    if first:
        return f"could not be placed: {first['why'][:160]}"
    waited = _waited(case, job) if job else 0.0
    return f"had not started {waited:.0f} s after it was submitted, when the logs were taken"


def _remedies(first: Event | None) -> Iterator[Remedy]:
    yield Remedy(
        "Ask for what one node has; without entrypoint resources the program runs on the head, and only its tasks ask",
        (
            "ray job submit -- python your_script.py",
            "ray job submit --entrypoint-num-cpus 1 -- python your_script.py   # on any node with a free CPU",
        ),
        doc=jobs.JOBS_DOC,
    )
    if first is None or first["seconds"]:
        yield Remedy(
            "If it only needs longer (a large environment, a cluster that scales up), let it wait longer",
            ("RAY_JOB_START_TIMEOUT_SECONDS=1800 ray start --head …",),
            risk="disruptive",
            since=(2, 5),
        )


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 10:59:50,620\tERROR job_manager.py:231 -- "
_STARTED = (
    '{"source_type": "JOBS", "source_pid": 337, "message": "Started a ray job raysubmit_x1.", "timestamp": "1795258745", '
    '"severity": "INFO"}\n'
)
_SETTING_UP = "2026-11-21 10:59:05,240\tINFO job_manager.py:581 -- Runtime env is setting up.\n"
_NODE = "node_id=233399e68a6ec96cfd874e4b728f4405d4991263918f070383188198 node_name=10.0.0.2 node_address=10.0.0.2"


def _gcs(minute: int, text: str) -> str:
    return f"[2026-11-21 10:{minute}:04,040 I 13 25] (gcs_server) gcs_node_manager.cc:111: {text}\n"


_REGISTERED = _gcs(58, f"Registering new node. {_NODE}")
_LATER = (
    _gcs(59, f"Registering new node. {_NODE}").replace("10:59", "11:09").replace("2333", "4333")
)
_LOGS = {"logs/raylet.out": "", "logs/job-driver-raysubmit_x1.log": _SETTING_UP}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "it asks for resources and times out",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/dashboard_agent.log": f"{_STAMP}{_TIMED_OUT.sample}\n",
            "logs/gcs_server.out": _REGISTERED,
            **_LOGS,
        },
        roots=("job-pending",),
        says=("raysubmit_x1", "45 s", "entrypoint"),
    ),
    Example(
        "the node it is tied to is gone",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/dashboard_agent.log": f"{_STAMP}{_UNSCHEDULABLE.sample}\n",
            "logs/gcs_server.out": _REGISTERED,
            **_LOGS,
        },
        roots=("job-pending",),
        says=("doesn't exist any more",),
    ),
    Example(
        "`ray job submit` printed it",
        {"driver.log": f"Status message: {_TIMED_OUT.sample}\n"},
        roots=("job-pending",),
        says=("45 s",),
    ),
    Example(
        "still waiting when the logs were taken",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/gcs_server.out": _REGISTERED + _LATER,
            **_LOGS,
        },
        roots=("job-pending",),
        says=("599 s",),
    ),
    Example(
        "it began and works without a word of Ray's",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/gcs_server.out": _REGISTERED + _LATER,
            "logs/raylet.out": "",
            "logs/job-driver-raysubmit_x1.log": f"{_SETTING_UP}Running entrypoint for job raysubmit_x1: sleep 900\n",
        },
    ),
    Example(
        "submitted a moment before the logs were taken",
        {"logs/events/event_JOBS.log": _STARTED, "logs/gcs_server.out": _REGISTERED, **_LOGS},
    ),
    Example(
        "a task that prints the words",
        {
            "driver.log": f"(check pid=12) {_TIMED_OUT.sample}\n",
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
        },
    ),
)
