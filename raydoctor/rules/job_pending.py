"""A submitted job never started: Ray could not place or start its supervisor, the actor that runs the job's program.

## What you see
- `ray job status` prints `PENDING` for many minutes, then `FAILED` with `Job supervisor actor failed to start within
  900.0 seconds`. The job's log contains only `Runtime env is setting up.`
- `ray job status` immediately prints `Job supervisor actor could not be scheduled` or `Failed to start supervisor actor
  …`.
- The status message is `Unexpected error occurred: The actor died because of an error raised in its creation task,
  ray::_ray_internal_job_actor_…:JobSupervisor.__init__()`.
- `ray job submit` fails with `No available agent to submit job`.

## Why
A `JobSupervisor` actor starts the job's program. Ray places that actor on the head, unless the entrypoint requests
resources (`--entrypoint-num-cpus`, `--entrypoint-num-gpus`, …). With such a request the supervisor waits for a node
that has the resources, like any actor. It keeps waiting if no node can meet the request, if the head is gone, or while
Ray sets up a `runtime_env`. The limit is `RAY_JOB_START_TIMEOUT_SECONDS` (900 s). Ray 2.9 and 2.40 were observed to
wait longer.

The dashboard passes each job to a dashboard agent, normally the head's, and waits 10 s for one. No agent is available
while the head is starting, if an earlier Ray still holds the agent's port (52365), or if the agent has died.

## Confirm
- `ray list actors --filter class_name=JobSupervisor` shows an actor in state `PENDING_CREATION`.
- `ray status` lists the request under `Pending Demands` (older Ray: `Demands`).

## Fix
Request resources that a node has, or none, or make the runtime environment smaller. For `No available agent`: wait
until the head has started, end the earlier Ray that holds port 52365, or restart the head (`agent-died`).

## Not this when
- the program started and failed (`job-failed`).
- the job's runtime environment could not be created (`runtime-env-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, JOB_STARTED, NODE_REGISTERED
from raydoctor.model.entities import Entity
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.failures import program
from raydoctor.rules.shared.traceback import BEGIN, cut_off, parse

_MANAGER = ("dashboard-agent", "dashboard")
_TIMED_OUT = Signal(
    "submission.timed_out", "Job supervisor actor failed to start within ",
    r"Job supervisor actor failed to start within (?P<seconds>\d{1,20}(?:\.\d{1,20})?) seconds(?P<asked>.*entrypoint's specified resources)?",
    (*_MANAGER, *DRIVER),
    "Job supervisor actor failed to start within 45.0 seconds. This timeout can be configured by setting the environment variable "
    "RAY_JOB_START_TIMEOUT_SECONDS. This may be because the job entrypoint's specified resources (entrypoint_num_cpus, …)",
    symptom=True,
)  # fmt: skip
_UNSCHEDULABLE = Signal(
    "submission.unschedulable", "actor could not be scheduled: ", r"upervisor actor could not be scheduled: (?P<why>[^\n]+)",
    (*_MANAGER, "event", *DRIVER),
    "Failed to schedule job raysubmit_x1 because the supervisor actor could not be scheduled: The actor is not schedulable: The node "
    "specified via NodeAffinitySchedulingStrategy doesn't exist any more or is infeasible", symptom=True,
)  # fmt: skip
_NO_AGENT = Signal(
    "submission.no_agent", "No available agent to submit job, please try again later.",
    r"(?:^|[\"'`])(?:(?:\w+: )?Request failed with status code 5\d\d: )?No available agent to submit job, please try again later\.", DRIVER,
    "RuntimeError: Request failed with status code 500: No available agent to submit job, please try again later.", symptom=True,
)  # fmt: skip
"""`dashboard/modules/job/job_head.py`, 2.9 to 2.60, after 10 s."""
_REFUSED = Signal(
    "submission.refused", "Request failed with status code ",
    r"^(?:RuntimeError: )?Request failed with status code (?P<code>[45]\d\d): (?P<what>Traceback \(most recent call last\):\n.*"
    r"/dashboard/modules/job/.*)", DRIVER,
    "RuntimeError: Request failed with status code 400: Traceback (most recent call last):\n"
    '  File "/venv/site-packages/ray/dashboard/modules/job/job_manager.py", line 553, in submit_job\n    raise ValueError(\n'
    "ValueError: Job with submission_id etl-7 already exists. Please use a different submission_id.\n.", extent="record", symptom=True,
)  # fmt: skip
"""`dashboard/modules/dashboard_sdk.py`, 2.9 to 2.60: the reply is the traceback of the server, and a full stop."""
_OF_OTHERS = "HTTPRequestEntityTooLarge"
"""The exception that `package-too-large` reports."""
_NOT_CREATED = Signal(
    "submission.not_created", "Failed to start supervisor actor ",
    r"^(?:Status message: )?Failed to start supervisor actor (?:for job )?(?P<submission>[\w:.-]{1,100}): '(?P<why>[^\n]{1,300}?)(?:'\. Full traceback:[^\n]{0,300})?$",
    (*_MANAGER, *DRIVER),
    "Failed to start supervisor actor raysubmit_x1: 'There was timeout in registering an actor. It is probably because GCS server is "
    "dead or there's a high load there.'. Full traceback:", symptom=True,
)  # fmt: skip
"""`job_manager.py`, 2.9 to 2.60: the request for the actor itself failed."""
_RAISED = Signal(
    "submission.raised", "Unexpected error occurred: The actor died because of an error raised in its creation task",
    r"^(?:Status message: )?Unexpected error occurred: The actor died because of an error raised in its creation task, "
    r"ray::_ray_internal_job_actor_(?P<submission>[\w.-]{1,100}):JobSupervisor\.__init__\(\)(?P<what>.*)", (*_MANAGER, *DRIVER),
    "Status message: Unexpected error occurred: The actor died because of an error raised in its creation task, "
    "ray::_ray_internal_job_actor_raysubmit_x1:JobSupervisor.__init__() (pid=2561, ip=10.0.0.2)\n"
    '  File "/venv/site-packages/ray/dashboard/modules/job/job_supervisor.py", line 74, in __init__\nRuntimeError: no GCS',
    extent="record",
)  # fmt: skip
"""`job_manager.py`, 2.9 to 2.60, with the traceback of the supervisor's constructor."""
_CANCELLED = Signal(
    "submission.cancelled", "Task failed: SchedulingCancelled: ",
    r"^Task failed: SchedulingCancelled: .{0,4000}?task_name=_ray_internal_job_actor_(?P<submission>[\w:.-]{1,100}):JobSupervisor\.__init__", (*CORE, *DRIVER),
    "Task failed: SchedulingCancelled: Actor creation cancelled.: Type=ACTOR_CREATION_TASK, Language=PYTHON, Resources: {}, "
    "function_descriptor={type=PythonFunctionDescriptor, module_name=ray.dashboard.modules.job.job_manager, class_name=JobSupervisor, "
    "function_name=__init__, function_hash=311d}, task_id=ffffffffffffffff35e305b2f42ca28de15bbbee01000000, "
    "task_name=_ray_internal_job_actor_raysubmit_x1:JobSupervisor.__init__, job_id=01000000",
)  # fmt: skip
"""The dashboard's or an agent's core log: the GCS gave up the supervisor's creation."""

_LONGEST = 200
_PENDING_AFTER = 60.0
"""Seconds without any output after which a submitted job counts as pending."""


@rule(
    tier="root",
    severity="error",
    rank=79,
    explains=("program", "submission"),
    caused_by=("gcs", "raylet", "waiting"),
    daemons_record=True,
    looks_for=(
        *jobs.SIGNALS, _TIMED_OUT, _UNSCHEDULABLE, _NO_AGENT, _REFUSED, _NOT_CREATED, _RAISED, _CANCELLED, jobs.ACCEPTED, *JOB_STARTED, *NODE_REGISTERED,
    ),
)  # fmt: skip
def job_pending(case: Case) -> Iterator[Finding]:
    """One finding per job that did not start; one for messages that name no job."""
    yield from _without_agent(case)
    yield from _refused(case)
    reports = case.of(
        "submission.timed_out", "submission.unschedulable", "submission.not_created", _RAISED.kind
    )
    if evidence.is_console(case) and not reports:
        reports = case.of(_CANCELLED.kind)
    idle = jobs.unstarted(case)
    named = [s for s in idle if any(s.id in e.text for e in reports)] or (idle if reports else [])
    for submission in named:
        yield _finding(case, submission, reports)
    if reports and not named:
        yield _finding(case, None, reports)
    for submission in idle if not reports else []:
        if _waited(case, submission) >= _PENDING_AFTER:
            yield _finding(case, submission, [])


def _refused(case: Case) -> Iterator[Finding]:
    """One finding for the requests that Ray's job server answered with an exception, if none was accepted later."""
    left = [
        e
        for e in case.of(_REFUSED.kind)
        if not _is_accepted_after(case, e) and _OF_OTHERS not in e["what"]
    ]
    if not left:
        return
    last = left[-1]
    raised = parse(last["what"].rstrip().removesuffix(".").rstrip())
    said = str(raised) if raised else f"its reply has the status code {last['code']}"
    inside = [e for e in case.of("log.traceback", "driver.exception") if e.source is last.source]
    yield Finding(
        f"Ray's job server refused the request: {cut(said, _LONGEST)}",
        (Link(last, f"the server's reply, with the status code {last['code']}"),),
        explains=(Entity("submission", ""), *(program(e) for e in case.endings.values() if e.source is last.source)),
        caused_by=(Entity("raylet", "local"), Entity("gcs", "gcs")),
        count=len(left),
        remedies=tuple(_refused_remedies(said)),
        covers=(*left, *inside),
    )  # fmt: skip


def _is_accepted_after(case: Case, event: Event) -> bool:
    return any(
        a.source is event.source and a.offset > event.offset for a in case.of(jobs.ACCEPTED.kind)
    )


def _refused_remedies(said: str) -> Iterator[Remedy]:
    if "already exists" in said:
        yield Remedy(
            "Submit the job under another ID, or delete the earlier one",
            (
                "ray job delete SUBMISSION_ID   # only after it has ended",
                "ray job submit --working-dir . -- python your_script.py   # Ray chooses the ID",
            ),
            doc=jobs.JOBS_DOC,
        )
    elif "Timeout" in said or "onnect" in said:
        yield from _agent_remedies()
    else:
        yield Remedy(
            "Correct what the server's exception names, and submit the job again",
            ("less /tmp/ray/session_latest/logs/dashboard.log   # on the head",),
            doc=jobs.JOBS_DOC,
        )


def _without_agent(case: Case) -> Iterator[Finding]:
    """Submissions that the dashboard refused, unless a later one in the same output was accepted."""
    refused = case.of("submission.no_agent")
    left = [e for e in refused if not _is_accepted_after(case, e)]
    if not left:
        return
    yield Finding(
        "The dashboard refused a job: for 10 s it found no dashboard agent on a node that may start the job (normally the head)",
        (Link(left[-1], "no agent accepts the job"),),
        explains=(Entity("submission", ""),),
        caused_by=(Entity("raylet", "local"), Entity("gcs", "gcs")),
        count=len(left),
        remedies=tuple(_agent_remedies()),
        covers=(*refused, *(e for e in case.of("log.traceback") if _NO_AGENT.find in e.message)),
    )


def _agent_remedies() -> Iterator[Remedy]:
    yield Remedy(
        "Wait until the head's agent runs: it starts some seconds after the dashboard",
        ("until ray job submit --working-dir . -- python your_script.py; do sleep 5; done",),
        doc=jobs.JOBS_DOC,
    )
    yield Remedy(
        "If the agent never runs, find out on the head why it is missing",
        (
            "pgrep -af dashboard/agent.py; tail -n 50 /tmp/ray/session_latest/logs/dashboard_agent.log",
            "ss -ltnp | grep 52365   # its HTTP port: held by an earlier Ray? ray start --dashboard-agent-listen-port=PORT",
            "pip show ray aiohttp   # the agent serves jobs only with ray[default]",
        ),
        doc=jobs.JOBS_DOC,
    )


def _waited(case: Case, job: jobs.Submission) -> float:
    last = max((e.at for e in case.events if e.at is not None), default=0.0)
    submitted = job.started.at if job.started else None
    return last - submitted if submitted is not None else 0.0


def _finding(case: Case, job: jobs.Submission | None, reports: list[Event]) -> Finding:
    first = reports[0] if reports else None
    started = job.started if job else None
    links = [Link(started, "the job was submitted")] if started else []
    links += [Link(first, "the job's supervisor actor did not start")] if first else []
    name = job.id if job else first["submission"] if first else ""
    return Finding(
        f"{f'Job {name!r}' if name else 'A submitted job'} {_how(case, job, first)}",
        tuple(links),
        explains=(Entity("submission", job.id if job else ""),),
        caused_by=(Entity("waiting", "cluster"), Entity("gcs", "gcs")),
        subjects=(Subject("job", job.id, None),) if job else (),
        severity=None if reports else "warning",
        remedies=tuple(_remedies(first)),
        covers=(
            *reports,
            *(e for e in case.events if first and first.kind == _RAISED.kind and e.source is first.source and e.line >= first.line),
        ),
    )  # fmt: skip


def _how(case: Case, job: jobs.Submission | None, first: Event | None) -> str:
    if first and first["seconds"]:
        requested = "its supervisor waits for the resources that the entrypoint requests"
        why = requested if first["asked"] else "its supervisor actor was not ready"
        return f"did not start within {float(first['seconds']):g} s: {why}"
    if first and first.kind == "submission.not_created":
        return f"did not start, because Ray could not create its supervisor actor: {clause(first['why'])}"
    if first and first.kind == _RAISED.kind:
        text = first["what"].partition("\n")[2]
        raised = parse(f"{BEGIN}\n{text}") or cut_off(f"{BEGIN}\n{text}")
        what = (
            cut(str(raised), _LONGEST)
            if raised and raised.type
            else "an exception that the console cut off"
        )
        place = f", in {raised.place}" if raised and raised.place else ""
        return (
            f"did not start, because the constructor of its supervisor actor raised {what}{place}"
        )
    if first and first.kind == _CANCELLED.kind:
        return "did not start, because Ray cancelled the creation of its supervisor actor before a worker was ready for it"
    if first:
        return f"could not be placed: {clause(first['why'])}"
    waited = _waited(case, job) if job else 0.0
    return f"had not started {waited:.0f} s after its submission, when the logs were collected"


def _remedies(first: Event | None) -> Iterator[Remedy]:
    if (
        first
        and first.kind == "submission.not_created"
        and "timeout in registering" in first["why"]
    ):
        yield Remedy(
            "Find out on the head whether the GCS runs and what keeps it busy, then submit the job again",
            (
                "ray health-check; pgrep -a gcs_server; uptime",
                "tail -n 50 /tmp/ray/session_latest/logs/gcs_server.out   # KubeRay: more CPU for the head, and num-cpus: '0'",
            ),
            doc=jobs.JOBS_DOC,
        )
        return
    if first and first.kind == "submission.not_created":
        yield Remedy(
            "Correct what this reason names in the head's Python environment or cluster, and submit the job again",
            (
                "grep -A60 'Failed to start supervisor actor' /tmp/ray/session_latest/logs/dashboard*.log   # on the head: the whole traceback",
            ),
            doc=jobs.JOBS_DOC,
        )
        return
    if first and first.kind == _RAISED.kind:
        yield Remedy(
            "Read the whole exception of the supervisor's constructor",
            (
                "grep -A60 'JobSupervisor.__init__' /tmp/ray/session_latest/logs/dashboard_agent.log   # on the head",
            ),
            doc=jobs.JOBS_DOC,
        )
        return
    yield jobs.entrypoint({})
    if first is None or first["seconds"]:
        yield Remedy(
            "Raise the time limit to 1800 s, if a large environment or a cluster that scales up needs longer",
            (
                "export RAY_JOB_START_TIMEOUT_SECONDS=1800   # on the head, before ray start, or before your program if it starts Ray",
            ),
            risk="disruptive",
            since=(2, 5),
        )


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 10:59:50,620\tERROR job_manager.py:231 -- "
_STARTED = (
    '{"source_type": "JOBS", "source_pid": 337, "message": "Started a ray job raysubmit_x1.", "timestamp": "1795258745", '
    '"severity": "INFO"}\n'
)
_FRAMES = 'Traceback (most recent call last):\n  File "/app/submit.py", line 9, in <module>\n    client.submit_job(entrypoint=run)\n'
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
        "the entrypoint requests resources, the only node is 10.0.0.2, and the job times out",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/dashboard_agent.log": f"{_STAMP}{_TIMED_OUT.sample}\n",
            "logs/gcs_server.out": _REGISTERED,
            **_LOGS,
        },
        says=("raysubmit_x1", "45 s", "entrypoint"),
    ),
    console(
        "the server refuses an ID that is in use",
        f"{_REFUSED.sample}\n",
        says=(
            "refused the request: ValueError: Job with submission_id etl-7 already exists",
            "another ID",
        ),
    ),
    console(
        "the head cannot reach the agent that starts jobs",
        'Traceback (most recent call last):\n  File "/app/submit.py", line 8, in <module>\n    client.submit_job(entrypoint="python a.py")\n'
        "RuntimeError: Request failed with status code 500: Traceback (most recent call last):\n"
        '  File "/venv/site-packages/ray/dashboard/modules/job/job_head.py", line 400, in submit_job\n    resp = await client.submit()\n'
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 10.0.0.5:52365 ssl:default [Connect call failed]\n.\n",
        says=("Cannot connect to host 10.0.0.5:52365", "agent"),
    ),
    console(
        "the server refuses one request and accepts the next; a program's own request fails in the same words",
        f"{_REFUSED.sample}\n{jobs.ACCEPTED.sample}\nRequest failed with status code 500: Traceback (most recent call last): see shop.log\n",
    ),
    Example(
        "the node of the supervisor is gone",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/dashboard_agent.log": f"{_STAMP}{_UNSCHEDULABLE.sample}\n",
            "logs/gcs_server.out": _REGISTERED,
            **_LOGS,
        },
        says=("doesn't exist any more",),
    ),
    console(
        "the constructor of the supervisor raised",
        f"{_RAISED.sample}\n",
        says=(
            "Job 'raysubmit_x1' did not start",
            "RuntimeError: no GCS, in __init__() (ray/dashboard/modules/job/job_supervisor.py:74)",
        ),
    ),
    console(
        "the same, and the console ends within the traceback",
        _RAISED.sample.partition("\nRuntimeError")[0] + "\n",
        says=("raised an exception that the console cut off",),
    ),
    console(
        "ray job submit printed the time-out",
        f"Status message: {_TIMED_OUT.sample}\n",
        says=("45 s",),
    ),
    console(
        "a part of a core log, in which the supervisor's creation is cancelled",
        f"[2026-11-21 10:59:50,620 I 47 180] task_manager.cc:507: {_CANCELLED.sample}\n",
        says=("raysubmit_x1", "cancelled the creation of its supervisor"),
    ),
    console(
        "the creation of another actor is cancelled, as the program asked for",
        "[2026-11-21 10:59:50,620 I 47 180] task_manager.cc:507: "
        + _CANCELLED.sample.replace("_ray_internal_job_actor_raysubmit_x1:JobSupervisor", "Trainer")
        + "\n",
    ),
    console(
        "the dashboard finds no agent for the job",
        f"{_FRAMES}{_NO_AGENT.sample}\n",
        says=("no dashboard agent", "52365"),
    ),
    console(
        "the GCS did not answer the request for the supervisor",
        f"Status: FAILED\nStatus message: {_NOT_CREATED.sample}\n",
        says=("raysubmit_x1", "GCS server is dead", "ray health-check"),
    ),
    console(
        "the agent accepted a later attempt, and a program quotes the words",
        f"{_NO_AGENT.sample}\nretry\n{jobs.ACCEPTED.sample}\n"
        f"(check pid=12) {_NO_AGENT.sample}\nknown: {_NOT_CREATED.sample}\n",
        logs=QUIET_LOGS,
    ),
    Example(
        "the job was still waiting when the logs were collected",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/gcs_server.out": _REGISTERED + _LATER,
            **_LOGS,
        },
        says=("599 s",),
        severity="warning",
    ),
    Example(
        "the program started and runs without further log records",
        {
            "logs/events/event_JOBS.log": _STARTED,
            "logs/gcs_server.out": _REGISTERED + _LATER,
            "logs/raylet.out": "",
            "logs/job-driver-raysubmit_x1.log": f"{_SETTING_UP}Running entrypoint for job raysubmit_x1: sleep 900\n",
        },
    ),
    Example(
        "the job was submitted a moment before the logs were collected",
        {"logs/events/event_JOBS.log": _STARTED, "logs/gcs_server.out": _REGISTERED, **_LOGS},
    ),
    console(
        "a task prints the message",
        f"(check pid=12) {_TIMED_OUT.sample}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "the dashboard's machine cannot import what the request needs",
        "Status: FAILED\nStatus message: Failed to start supervisor actor raysubmit_x2: 'cannot load the module shop.hooks'. Full traceback:\n"
        'Traceback (most recent call last):\n  File "/opt/ray/job_manager.py", line 544, in submit_job\n',
        says=(
            "actor: cannot load the module shop.hooks",
            "head's Python environment",
            "dashboard*.log",
        ),
    ),
)
