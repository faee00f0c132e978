"""Replicas of a Serve deployment are not placed, or take a long time to start.

## What you see
Every half minute, Serve logs `Deployment 'X' in application 'Y' has 1 replicas that have taken more than 30s to be
scheduled. … Resources required for each replica: {"CPU": 8}, total resources available: {"CPU": 4.0}`, or `… to
initialize. This may be caused by a slow __init__ or reconfigure method`. `serve.run` does not return, and `serve
status` shows `DEPLOYING`.

## Why
- `to be scheduled`: no node has room for the replica, or its runtime environment is still being created. If the logs
  show which of the two, the report lists it as the root. If an autoscaler is adding a node, the delay ends by itself.
- `to initialize`: the constructor is running, for example to load a model. This is a failure only if it never ends.

## Confirm
- `ray status` compares the requested resources with those of the cluster. `serve status` shows each deployment's
  message.
- If a constructor does not end, `raydoctor stack --all-nodes` shows where the replica waits, with its pid.

## Fix
Request fewer resources (`ray_actor_options={"num_cpus": 1}`), or add nodes. Download large models beforehand to a disk
that all nodes can read.

## Not this when
- the constructor raised an exception (`serve-replica-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import resources
from raydoctor.cluster import tables as live
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import serve

_NOT_RUNNING = Signal(
    "serve.not_running",
    " did not become ",
    r"^TimeoutError: (?:Application (?P<app>\S{1,200}) did not become RUNNING|Deployment '?(?P<deployment>[^'\s]{1,200})'?"
    r"(?: in application '(?P<of>[^'\n]{1,200})')? did not become HEALTHY) after (?P<seconds>\d{1,9}(?:\.\d{1,9})?)s\.",
    DRIVER,
    "TimeoutError: Application chat did not become RUNNING after 300s.",
    symptom=True,
    fold=("app", "deployment"),
)
"""`serve.run` with a time limit (`serve/_private/client.py`, 2.9 to 2.60)."""


@rule(
    tier="symptom",
    severity="warning",
    rank=85,
    explains=("serve-pending",),
    caused_by=("waiting",),
    looks_for=(serve.PENDING, _NOT_RUNNING, serve.READY, serve.REPLICA_READY),
)
def serve_replica_pending(case: Case) -> Iterator[Finding]:
    """One finding per deployment and step."""
    groups = evidence.grouped(
        serve.controllers(case, "serve.replica_pending"),
        lambda e: (e["app"], e["deployment"], e["step"]),
    )
    waited = [e for e in case.of(_NOT_RUNNING.kind) if not evidence.goes_on(case, e)]
    for events in [] if groups else evidence.grouped(waited, lambda e: e.source).values():
        yield _not_running(case, events)
    for (app, deployment, step), events in groups.items():
        starting = step == "initialize"
        finding = _finding(case, app, deployment, starting, events)
        yield (
            finding
            if starting or not _is_left(case, events[-1])
            else replace(finding, severity="warning")
        )


def _not_running(case: Case, events: list[Event]) -> Finding:
    """A deployment that was not ready when its caller stopped waiting; nothing shows why."""
    first = events[0]
    app = first["app"] or first["of"]
    what = (
        f"Application '{first['app']}'" if first["app"] else f"Deployment '{first['deployment']}'"
    )
    return Finding(
        f"{what} was not ready after {first['seconds']} s: its replicas were not placed, or their constructors still ran",
        (Link(first, "the program stops waiting for Serve"),),
        explains=(Entity("serve-pending", f"{app} running"),),
        caused_by=(Entity("waiting", "cluster"),),
        subjects=(Subject("deployment", None, first["deployment"] or app),),
        count=evidence.total(events),
        severity="error",
        remedies=(
            Remedy(
                "Read which replicas wait, and whether for resources or for their constructor",
                (
                    "serve status   # the message of each deployment",
                    "ray status   # demands that no node has room for",
                    "grep -hE 'taken more than|Exception in' /tmp/ray/session_latest/logs/serve/controller_*.log | tail -n 5   # usually on the head",
                ),
                finds_cause=True,
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


def _is_left(case: Case, last: Event) -> bool:
    """Whether a part of a log shows the replica waiting, and nothing that became ready after it."""
    ready = [e for e in case.of(serve.READY.kind) if e.source.path == last.source.path]
    ready += [
        said.event
        for said in serve.said(case, serve.REPLICA_READY.kind)
        if said.deployment == last["deployment"] and said.event.source.path == last.source.path
    ]
    return last.source.is_excerpt and not any(e.offset > last.offset for e in ready)


def _finding(case: Case, app: str, deployment: str, starting: bool, events: list[Event]) -> Finding:
    last = events[-1]
    reports = sum(event.count for event in events)
    replicas = max(int(event["replicas"]) for event in events)
    subject = f"{replicas} replicas" if replicas > 1 else "A replica"
    # Serve repeats the record every half minute: each record adds that time.
    seconds = f"{float(events[0]['seconds']) * reports:.0f} s"
    of_app = f" (application '{app}')" if app else ""
    subject = f"{subject} of {deployment}{of_app}"
    headline = f"{subject} waited more than {seconds} to be placed"
    if starting:
        headline = f"{subject} spent more than {seconds} in the constructor"
    elif last["required"]:
        each = "each needs" if replicas > 1 else "it needs"
        headline += f": {each} {_described(last, 'required')}, and the cluster has {_described(last, 'available')} free"
    severity: Severity = "info" if starting or reports == 1 else "warning"
    return Finding(
        headline,
        (Link(events[0], "the controller reports the delay"),),
        explains=(Entity("serve-pending", f"{app}#{deployment} {starting}"),),
        caused_by=() if starting else (Entity("waiting", "cluster"),),
        subjects=(Subject("deployment", None, deployment),),
        count=replicas,
        severity=severity,
        remedies=tuple(_remedies(deployment, starting, last, _alive(case, app, deployment))),
        covers=tuple(events),
    )


def _described(event: Event, which: Literal["required", "available"]) -> str:
    """`8 CPU`: of what the cluster has, only what a replica needs; the controller's own text if it is not JSON."""
    needs = serve.amounts(event["required"])
    found = serve.amounts(event[which])
    if not needs or not (found or event[which].strip() == "{}"):
        return " ".join(event[which].split())
    return resources.describe({name: found.get(name, 0.0) for name in needs})


def _alive(case: Case, app: str, deployment: str) -> int:
    """How many replicas of a live deployment run."""
    return sum(
        e["state"] == "ALIVE" and e["class_name"] == f"ServeReplica:{app}:{deployment}"
        for e in live.rows(case, "actors")
    )


def _remedies(deployment: str, starting: bool, last: Event, alive: int) -> Iterator[Remedy]:
    if starting:
        yield Remedy(
            f"Take a stack of the constructor of {deployment}",
            ("py-spy dump --pid PID   # of the replica, on its node",),
        )
        return
    given = _possible(last)
    if all(given.values()):
        yield serve.request(
            f"Request no more resources for a replica of {deployment} than a node has", given
        )
    elif alive:
        yield serve.fewer_replicas(deployment, alive, alive + int(last["replicas"]))
    else:
        yield Remedy(
            f"Start fewer replicas of {deployment} (num_replicas), or add nodes: what runs holds what it waits for",
            ("serve status   # how many replicas run",),
        )


def _possible(last: Event) -> resources.Needs:
    """What a replica may request at most: no more than the cluster has."""
    has = serve.amounts(last["available"])
    needs = serve.amounts(last["required"])
    return {name: min(v, has.get(name, 0.0)) for name, v in needs.items()} or {"CPU": 1.0}


# ------------------------------------------------------------------ examples

_LOADING = "Deployment 'Generator' in application 'generation' has 1 replicas that have taken more than 30s to initialize.\nThis may be caused by a slow __init__ or reconfigure method."
_LINES = (
    "Deployment 'Generator' in application 'generation' has 2 replicas that have taken more than 30s to be scheduled.\nThis may be due to "
    "waiting for the cluster to auto-scale or for a runtime environment to be installed.\nResources required for each replica:\n"
    '{"CPU": 8}\nTotal resources available:\n{"CPU": 4.0}\nUse `ray status` for more details.'
)


def _line(second: int, text: str) -> str:
    return f"WARNING 2026-11-21 10:43:{second:02},589 controller 402 -- {text}\n"


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a replica that needs more than the cluster has, reported twice",
        {
            "logs/serve/controller_402.log": _line(1, serve.PENDING.sample)
            + _line(31, serve.PENDING.sample),
            **QUIET_LOGS,
        },
        says=("A replica of Generator", "60 s", "needs 8 CPUs", "has 4 CPUs", '{"num_cpus": 4}'),
    ),
    console(
        "the record of Ray 2.40 has several lines: only the driver's output is available",
        "".join(f"(ServeController pid=402) {line}\n" for line in _line(1, _LINES).splitlines()),
        says=("2 replicas of Generator", "needs 8 CPUs"),
    ),
    console(
        "a console that ends while a replica waits",
        f"(ServeController pid=402) {_line(1, serve.PENDING.sample)}",
        says=("waited more than 30 s", "needs 8 CPUs"),
    ),
    console(
        "a console in which the application is ready a moment later",
        f"(ServeController pid=402) {_line(1, serve.PENDING.sample)}"
        f"2026-11-21 10:43:09,591 INFO client.py:492 -- {serve.READY.sample}\n",
        severity="info",
    ),
    console(
        "a console in which the replica starts a moment later",
        f"(ServeController pid=402) {_line(1, serve.PENDING.sample)}(ServeController pid=402) "
        + _line(9, serve.REPLICA_READY.sample.replace("Translator", "Generator")),
        severity="info",
    ),
    Example(
        "a slow constructor is only a note",
        {"logs/serve/controller_402.log": _line(1, _LOADING), **QUIET_LOGS},
        says=("in the constructor",),
        severity="info",
    ),
    Example(
        "a task prints a controller's record",
        {"driver.log": f"(report pid=12) {_line(1, serve.PENDING.sample)}", **QUIET_LOGS},
    ),
    console(
        "the program stops waiting for an application",
        'Traceback (most recent call last):\n  File "/app/deploy.py", line 5, in <module>\n    serve.run(app)\n'
        f"{_NOT_RUNNING.sample}\n",
        says=("Application 'chat' was not ready after 300 s", "serve status"),
        severity="error",
    ),
    console(
        "a deployment, in the words of its caller",
        'Traceback (most recent call last):\n  File "/app/deploy.py", line 5, in <module>\n    serve.run(app)\n'
        "TimeoutError: Deployment 'LLM' in application 'chat' did not become HEALTHY after 60s.\n",
        says=("Deployment 'LLM' was not ready after 60 s",),
        severity="error",
    ),
    console(
        "a program quotes the time-out, and deploys again",
        f"{_NOT_RUNNING.sample}\ntrying again\ndeployed\n",
    ),
)
