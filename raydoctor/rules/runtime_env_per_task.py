"""The tasks of a job use many different runtime environments, so they cannot share worker processes.

## What you see
Tasks that should take a second take much longer, the CPUs are mostly idle, and workers start all the time. While
environments are being installed, all tasks stay in state `PENDING_NODE_ASSIGNMENT`. Ray prints no error.

## Why
A worker process belongs to one runtime environment. For a task with another environment, Ray sets that environment up
and starts a new process. This takes seconds for an environment variable, and minutes for `pip`, `uv` or `conda`. If no
slot is free, Ray ends an idle worker first. If the environment differs in each task, no worker is ever used twice.

## Confirm
- `grep -c 'Creating runtime env' /tmp/ray/session_latest/logs/runtime_env_agent.log` grows with the number of tasks.
- `grep -c 'Started worker process' /tmp/ray/session_latest/logs/raylet.out` grows as well.

## Fix
Pass values that differ as arguments of the task. Set the environment once, for the whole job:

    ray.init(runtime_env={"pip": ["PACKAGE"]})

## Not this when
- the environments belong to actors: each actor has its own process anyway.
- each environment belongs to a different job.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, rule
from raydoctor.case.signals import RAYLET
from raydoctor.cluster import environments
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.setup.builds import BEGUN
from raydoctor.rules.shared.setup.errors import tool_of

_DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html#runtime-environments"
_FOR_JOB = Signal(
    "runtime_env.for_job",
    "Create runtime env for job ",
    r"^Create runtime env for job (?P<job>[0-9a-f]{8})\b",
    RAYLET,
    "Create runtime env for job 01000000",
    fold=("job",),
)
_ACTOR = Signal(
    "runtime_env.actor",
    "Registering actor",
    r"^Registering actor,? job[_ ]id ?= ?(?P<job>[0-9a-f]{8})\b",
    ("gcs-out",),
    "Registering actor job_id=01000000 actor_id=67305d78124df5026d8c07b101000000",
    fold=("job",),
)
_MANY, _MANY_INSTALLED = 10, 6
"""Environments from which on they delay a job; those with packages take minutes instead of seconds."""
_TIMES = 5
"""So many environments for each job: jobs may each have their own."""


@rule(
    tier="root",
    severity="warning",
    rank=93,
    explains=("runtime-env",),
    looks_for=(BEGUN, _FOR_JOB, _ACTOR),
)
def runtime_env_per_task(case: Case) -> Iterator[Finding]:
    """At most one finding: the largest number of environments that differ in values only."""
    jobs = evidence.grouped(case.of(_FOR_JOB.kind), lambda e: e["job"])
    alike = environments.alike(case)
    if alike is None or not jobs:
        return
    count = len(alike.events)
    least = _MANY_INSTALLED if tool_of(alike.events[0]["env"]) else _MANY
    actors = evidence.total(case.of(_ACTOR.kind))
    if count >= least and count >= _TIMES * len(jobs) and count >= 2 * actors:
        job = max(jobs, key=lambda each: evidence.total(jobs[each]))
        yield _finding(alike, jobs[job][0], evidence.total(jobs[job]))


def _finding(alike: environments.Alike, asked: Event, times: int) -> Finding:
    count, first, last = len(alike.events), alike.events[0], alike.events[-1]
    differ = evidence.join_names(alike.differ)
    return Finding(
        f"Job {ids.job_number(asked['job'])} uses {count} different runtime environments, which differ only in {differ}, "
        "so its tasks cannot share workers: Ray starts a new process for each environment",
        (
            Link(first, f"the first of {count} environments"),
            Link(last, f"the last of them differs in {differ}"),
            Link(asked, f"the raylet asked for an environment {evidence.many(times, 'time')}"),
        ),
        explains=(Entity("runtime-env", "many"),),
        count=count,
        remedies=tuple(_remedies(alike.differ)),
    )


def _remedies(differ: tuple[str, ...]) -> Iterator[Remedy]:
    variables = [name.partition(".")[2] for name in differ if name.startswith("env_vars.")]
    parts = [name for name in differ if not name.startswith("env_vars.")]
    if variables:
        yield Remedy(
            f"Pass {evidence.join_names(variables)} to the task as an argument instead of an environment variable",
            (
                paste.python("task.remote(VALUE)   # instead of an env_vars entry {name:name}", name=variables[0]),
            ),
            doc=_DOC,
        )  # fmt: skip
    if parts:
        yield Remedy(
            f"Use one environment for the whole job, with all that its tasks need in {evidence.join_names(parts)}",
            (
                paste.python(
                    "ray.init(runtime_env={{{part}: …}})   # and no runtime_env in .options()",
                    part=parts[0],
                ),
            ),
            doc=_DOC,
        )


# ------------------------------------------------------------------ examples


def _begun(envs: Iterator[str]) -> str:
    return "".join(
        f"2026-11-21 10:45:{n % 60:02},100\tINFO runtime_env_agent.py:543 -- Creating runtime env: {env} with timeout 600 seconds.\n"
        for n, env in enumerate(envs)
    )


def _asked(count: int, jobs: int = 1) -> str:
    return "".join(
        f"[2026-11-21 10:45:{n % 60:02},200 I 9 9] (raylet) runtime_env_agent_client.cc:395: Create runtime env for job "
        f"{1 + n % jobs:02x}000000\n"
        for n in range(count)
    )


def _registered(count: int) -> str:
    return "".join(
        f"[2026-11-21 10:45:{n % 60:02},150 I 8 8] (gcs_server) gcs_actor_manager.cc:341: Registering actor job_id=01000000 "
        f"actor_id={n:024x}01000000\n"
        for n in range(count)
    )


def _variable(count: int) -> str:
    return _begun(f'{{"env_vars": {{"MODE": "fast", "RUN": "{n}"}}}}' for n in range(count))


_PACKAGES = (f'{{"pip": {{"packages": ["acme=={n}.0"]}}}}' for n in range(6))

EXAMPLES: tuple[Example, ...] = (
    Example(
        "an environment variable that differs in each task",
        {
            "logs/runtime_env_agent.log": _variable(30),
            "logs/raylet.out": _asked(41),
            "logs/gcs_server.out": "",
        },
        says=("Job 1 uses 30", "env_vars.RUN", "task.remote(VALUE)"),
        severity="warning",
    ),
    Example(
        "packages that differ in each task",
        {
            "logs/runtime_env_agent.log": _begun(_PACKAGES),
            "logs/raylet.out": _asked(6),
            "logs/gcs_server.out": "",
        },
        says=("uses 6", "only in pip", '"pip"'),
        severity="warning",
    ),
    Example(
        "each actor has its rank as a variable",
        {
            "logs/runtime_env_agent.log": _variable(30),
            "logs/raylet.out": _asked(30),
            "logs/gcs_server.out": _registered(30),
        },
    ),
    Example(
        "each job has its own environment",
        {
            "logs/runtime_env_agent.log": _variable(30),
            "logs/raylet.out": _asked(30, jobs=30),
            "logs/gcs_server.out": "",
        },
    ),
    Example(
        "one environment that is created again and again",
        {
            **QUIET_LOGS,
            "logs/runtime_env_agent.log": _variable(1) * 40,
            "logs/raylet.out": _asked(40),
        },
    ),
)
