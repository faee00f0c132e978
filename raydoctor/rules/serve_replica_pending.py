"""Replicas of a Serve deployment are not placed, or take long to start.

## What you see
Every half minute, `Deployment 'X' in application 'Y' has 1 replicas that have taken more than 30s to be scheduled. …
Resources required for each replica: {"CPU": 8}, total resources available: {"CPU": 4.0}`, or `… to initialize. This may be
caused by a slow __init__ or reconfigure method`. `serve.run` does not return, and `serve status` shows `DEPLOYING`.

## Why
- To be scheduled: no node has room for the replica, or its runtime environment is still being created. If the logs show
  which, this diagnosis is listed under that one. If an autoscaler is adding a node, the delay ends by itself.
- To initialize: the constructor is running, for example to load a model. That is a failure only if it never ends.

## Confirm
- `ray status` compares the requested resources with those of the cluster. `serve status` shows each deployment's message.
- A constructor that does not end: run `py-spy dump --pid <replica>` on its node.

## Fix
Request fewer resources (`ray_actor_options`), or add nodes. Download large models beforehand to a disk that all nodes can
read.

## Not this when
The constructor raised an exception (`serve-replica-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import serve

_DOC = "https://docs.ray.io/en/latest/serve/resource-allocation.html"

PENDING = Signal(
    "serve.replica_pending",
    " replicas that have taken more than ",
    r"^Deployment '(?P<deployment>[^'\n]*)' in application '(?P<app>[^'\n]*)' (?:has )?(?P<replicas>\d+) replicas that have taken more "
    r"than (?P<seconds>[\d.]+)s to (?P<step>be scheduled|initialize)\."
    r"(?:.{0,1000}?[Rr]esources required for each\s{1,20}replica:\s{0,20}(?P<required>.{1,1000}?),?\s{1,20}[Tt]otal resources available:\s{0,20}(?P<available>.{1,1000}?)\.?\s{1,20}Use `ray)?",
    serve.CONTROLLER,
    "Deployment 'Generator' in application 'generation' has 1 replicas that have taken more than 30s to be scheduled. This may be due to "
    "waiting for the cluster to auto-scale or for a runtime environment to be installed. Resources required for each replica: "
    '{"CPU": 8}, total resources available: {"CPU": 4.0}. Use `ray status` for more details.',
    extent="record",
    fold=("deployment", "step"),
)


@rule(
    tier="symptom",
    severity="warning",
    rank=85,
    explains=("serve-pending",),
    caused_by=("waiting",),
    looks_for=(PENDING,),
)
def serve_replica_pending(case: Case) -> Iterator[Finding]:
    """One finding per deployment and step."""
    groups = evidence.grouped(
        serve.controllers(case, "serve.replica_pending"),
        lambda e: (e["app"], e["deployment"], e["step"]),
    )
    for (app, deployment, step), events in groups.items():
        yield _finding(app, deployment, step == "initialize", events)


def _finding(app: str, deployment: str, starting: bool, events: list[Event]) -> Finding:
    last = events[-1]
    reports = sum(event.count for event in events)
    replicas = max(int(event["replicas"]) for event in events)
    subject = f"{replicas} replicas" if replicas > 1 else "A replica"
    # Serve repeats the record every half minute: each record adds that time.
    seconds = f"{float(events[0]['seconds']) * reports:.0f} s"
    subject = f"{subject} of {deployment}{f' (application {app})' if app else ''}"
    headline = f"{subject} waited more than {seconds} to be placed"
    if starting:
        headline = f"{subject} spent more than {seconds} in the constructor"
    elif last["required"]:
        headline += f": each needs {_one_line(last['required'])}, and the cluster has {_one_line(last['available'])}"
    severity: Severity = "info" if starting or reports == 1 else "warning"
    return Finding(
        headline,
        (Link(events[0], "the controller reports the delay"),),
        explains=(Entity("serve-pending", f"{app}#{deployment} {starting}"),),
        caused_by=() if starting else (Entity("waiting", "cluster"),),
        subjects=(Subject("deployment", None, deployment),),
        count=replicas,
        severity=severity,
        remedies=tuple(_remedies(deployment, starting)),
        covers=tuple(events),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _remedies(deployment: str, starting: bool) -> Iterator[Remedy]:
    if starting:
        yield Remedy(
            f"Take a stack of the constructor of {deployment}",
            ("py-spy dump --pid PID   # of the replica, on its node",),
        )
        return
    yield Remedy(
        f"Request no more resources for a replica of {deployment} than a node has",
        (
            paste.python(
                '{deployment:name}.options(ray_actor_options={{"num_cpus": 1}})',
                deployment=deployment,
            ),
            "ray status",
        ),
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_LOADING = "Deployment 'Generator' in application 'generation' has 1 replicas that have taken more than 30s to initialize.\nThis may be caused by a slow __init__ or reconfigure method."
_LINES = (
    "Deployment 'Generator' in application 'generation' has 2 replicas that have taken more than 30s to be scheduled.\nThis may be due to "
    "waiting for the cluster to auto-scale or for a runtime environment to be installed.\nResources required for each replica:\n"
    '{"CPU": 8}\nTotal resources available:\n{"CPU": 4.0}\nUse `ray status` for more details.'
)
_LOGS = {"logs/gcs_server.out": "", "logs/raylet.out": ""}


def _line(second: int, text: str) -> str:
    return f"WARNING 2026-11-21 10:43:{second:02},589 controller 402 -- {text}\n"


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a replica that needs more than the cluster has, reported twice",
        {
            "logs/serve/controller_402.log": _line(1, PENDING.sample) + _line(31, PENDING.sample),
            **_LOGS,
        },
        roots=("serve-replica-pending",),
        says=("A replica of Generator", "60 s", '{"CPU": 8}', '{"CPU": 4.0}'),
    ),
    Example(
        "the record of Ray 2.40 has several lines: only the driver's output is available",
        {
            "driver.log": "".join(
                f"(ServeController pid=402) {line}\n" for line in _line(1, _LINES).splitlines()
            )
        },
        roots=("serve-replica-pending",),
        says=("2 replicas of Generator", '{"CPU": 8}'),
    ),
    Example(
        "a slow constructor is only a note",
        {"logs/serve/controller_402.log": _line(1, _LOADING), **_LOGS},
        roots=("serve-replica-pending",),
        says=("in the constructor",),
    ),
    Example(
        "a task prints a controller's record",
        {"driver.log": f"(report pid=12) {_line(1, PENDING.sample)}", **_LOGS},
    ),
)
