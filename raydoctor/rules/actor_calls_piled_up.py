"""Calls to an actor are submitted faster than the actor executes them.

## What you see
If the actor has `max_pending_calls`, the caller gets `ray.exceptions.PendingCallsLimitExceeded`. Otherwise the driver
prints the warning `More than 5000 tasks are pending submission to actor …`, and its memory grows.

## Why
By default an actor runs one method at a time. A loop that calls it without waiting keeps every call and its arguments
in the caller's memory until the actor executes the call.

## Confirm
- `ray summary tasks` shows many calls of one method in state `SUBMITTED_TO_WORKER` or
  `PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY` (Ray 2.40 and later).

## Fix
Wait for some calls before submitting more (`ray.wait`), or spread the calls over several actors (`ray.util.ActorPool`).

## Not this when
- the actor executes no calls at all (`actor-deadlock`, `task-hung`, `async-actor-blocked`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, RAY_EXCEPTION
from raydoctor.cluster import tables as live
from raydoctor.cluster.calls import QUEUED
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.live import examples as live_examples

_A = "87ae91bbc5a67aec9872266c01000000"

PILED_UP = Signal(
    "actor.calls_pending", " tasks are pending submission to actor ",
    r"More than (?P<pending>\d+) tasks are pending submission to actor (?P<class_name>\S+)(?: with actor_id (?P<actor>[0-9a-f]{32}))?",
    (*DRIVER, *CORE, "raylet-echo", "event"),
    f"Warning: More than 5000 tasks are pending submission to actor Slow with actor_id {_A}. To reduce memory usage, wait for these "
    "tasks to finish before sending more.",
)  # fmt: skip
LIMIT = Signal(
    "actor.calls_limit", "This limit can be adjusted with the `max_pending_calls` actor option",
    r"PendingCallsLimitExceeded: The task (?P<method>\S+) could not be submitted to (?P<handle>.*?) because more than (?P<limit>\d+) "
    r"tasks are queued on the actor\. This limit can be adjusted with the `max_pending_calls` actor option", DRIVER,
    f"ray.exceptions.PendingCallsLimitExceeded: The task write could not be submitted to Actor(Writer, {_A}) because more than 100 "
    "tasks are queued on the actor. This limit can be adjusted with the `max_pending_calls` actor option.",
)  # fmt: skip

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html"


@rule(
    tier="cause",
    severity="error",
    rank=83,
    explains=("actor-queue",),
    looks_for=(PILED_UP, LIMIT, RAY_EXCEPTION),
)  # fmt: skip
def actor_calls_piled_up(case: Case) -> Iterator[Finding]:
    """One finding per actor with its highest warning, and per method that exceeded the limit."""
    raised = evidence.grouped(case.of("actor.calls_limit"), lambda e: (e["handle"], e["method"]))
    for (handle, method), events in raised.items():
        yield _limited(case, _class(handle), method, events)
    warned = evidence.grouped(
        case.of("actor.calls_pending"), lambda e: e["actor"] or e["class_name"]
    )
    for actor, events in warned.items():
        yield _warned(actor, events)
    yield from _queued_now(case)


_MANY = 5000
"""Calls of one actor from which on Ray warns (`More than 5000 tasks are pending submission`)."""


def _queued_now(case: Case) -> Iterator[Finding]:
    """Calls that wait right now, by the cluster's own counts: Ray warns only the caller, and only where a call is submitted."""
    living = evidence.grouped(
        (e for e in live.rows(case, "actors") if e["state"] == "ALIVE"), lambda e: e["class_name"]
    )
    waiting = [
        e for e in live.rows(case, "task-counts") if e["state"] in QUEUED and "." in e["name"]
    ]
    for name, rows in evidence.grouped(waiting, lambda e: e["name"]).items():
        class_name, _, method = name.rpartition(".")
        actors = living.get(class_name, [])
        count = sum(live.whole(row, "count") or 0 for row in rows)
        if not actors or count < _MANY * len(actors):
            continue
        ids = {e["actor_id"] for e in actors}
        busy = [
            e
            for e in live.rows(case, "worker-stats")
            if e["actor_id"] in ids and (live.whole(e, "task_queue_length") or 0) > 0
        ]
        of = class_name if len(actors) == 1 else f"{len(actors)} {class_name} actors"
        yield Finding(
            f"Calls to {called(name)} are submitted faster than {of} can execute them: {count} calls wait now",
            (
                *(
                    Link(row, f"Ray counts {row['count']} calls in state {row['state']}")
                    for row in rows[:1]
                ),
                *(
                    Link(e, f"the queue in pid {e.pid} has {e['task_queue_length']} calls")
                    for e in busy[:1]
                ),
            ),
            explains=tuple(Entity("actor-queue", id_) for id_ in sorted(ids)),
            subjects=tuple(Subject("actor", e["actor_id"], class_name, e.pid) for e in actors[:10]),
            severity="warning",
            remedies=_remedies(class_name, method, str(_MANY)),
        )


def _class(handle: str) -> str:
    """`Actor(Writer, 87ae…)` -> `Writer`."""
    return handle.removeprefix("Actor(").partition(",")[0].rstrip(")") or "an actor"


def _limited(case: Case, name: str, method: str, events: list[Event]) -> Finding:
    limit = events[0]["limit"]
    covered = [e for e in case.of("driver.exception") if e["type"] == "PendingCallsLimitExceeded"]
    return Finding(
        f"Calls to {name}.{method}() were submitted faster than the actor executes them: {limit} calls waited, the limit of max_pending_calls",
        (Link(events[0], f"Ray refused the call because {limit} calls were waiting"),),
        explains=(Entity("actor-queue", name),),
        subjects=(Subject("actor", None, name),),
        count=sum(e.count for e in events),
        remedies=_remedies(name, method, limit),
        covers=(*events, *covered),
    )


def _warned(actor: str, events: list[Event]) -> Finding:
    last = max(events, key=lambda e: int(e["pending"]))
    name = last["class_name"]
    return Finding(
        f"Calls to {name} are submitted faster than the actor executes them: more than {last['pending']} calls wait in the caller's memory",
        (Link(last, f"Ray reports more than {last['pending']} calls that wait to be sent"),),
        explains=(Entity("actor-queue", actor),),
        subjects=(Subject("actor", last["actor"] or None, name),),
        severity="warning",
        remedies=_remedies(name, "method", last["pending"]),
        covers=tuple(events),
    )


def _remedies(name: str, method: str, limit: str) -> tuple[Remedy, ...]:
    # Of calls whose results ray.wait has returned, Ray counts some as pending for a moment.
    some = max(1, min(int(limit) // 2, 1000))
    return (
        Remedy(
            f"Wait for calls to return once {some} are pending",
            (
                "pending = []",
                "for item in items:",
                paste.python(
                    "    while len(pending) >= {some}: done, pending = ray.wait(pending)", some=some
                ),
                paste.python("    pending.append(actor.{method:name}.remote(item))", method=method),
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Or spread the calls over 4 {name} actors",
            (
                paste.python(
                    "pool = ray.util.ActorPool([{actor:name}.remote() for _ in range(4)])",
                    actor=name,
                ),
                paste.python(
                    "results = list(pool.map(lambda actor, item: actor.{method:name}.remote(item), items))",
                    method=method,
                ),
            ),
            doc="https://docs.ray.io/en/latest/ray-core/actors/actor-utils.html",
        ),
    )


# ------------------------------------------------------------------ examples


EXAMPLES: tuple[Example, ...] = (
    console(
        "a warning without a limit",
        f"(raylet) {PILED_UP.sample}\n(raylet) {PILED_UP.sample.replace('5000', '10000')}\ndone\n",
        logs=QUIET_LOGS,
        says=("more than 10000 calls", "Slow"),
        severity="warning",
    ),
    Example(
        "a running cluster: 49942 calls wait for one actor, and the callers that Ray warned have ended",
        live_examples.tables(
            actors=[live_examples.actor(1, "Slow", {})],
            task_counts=[
                {"state": "RUNNING", "name": "Slow.f", "count": 1},
                {"state": "SUBMITTED_TO_WORKER", "name": "Slow.f", "count": 49942},
            ],
        ),
        says=("49942 calls wait now",),
        severity="warning",
    ),
    Example(
        "a running cluster: as many calls for 1,000 actors, and queued tasks",
        live_examples.tables(
            actors=[live_examples.actor(n, "Slow", {}) for n in range(1, 1001)],
            task_counts=[
                {"state": "SUBMITTED_TO_WORKER", "name": "Slow.f", "count": 49942},
                {"state": "SUBMITTED_TO_WORKER", "name": "load", "count": 49942},
            ],
        ),
    ),
    Example(
        "the calls reached the limit of the actor",
        {**QUIET_LOGS, "driver.log": f"{LIMIT.sample}\n"},
        says=("Writer.write", "100 calls", "while len(pending) >= 50"),
    ),
    console(
        "a program prints a similar message",
        "(load pid=7) more than 100 tasks are queued on the actor, waiting\n",
        logs=QUIET_LOGS,
    ),
)
