"""Far more tasks are queued than the cluster can run for a long time.

## What you see
The raylet's memory and the time to schedule anything grow. In raylet.out: `More than 1000 tasks are queued for
scheduling on this node. This can slow down the raylet.` (`… queued in this node. This can cause slow down.` up to Ray
2.40), or `Starting too many worker processes for a single type of task. Worker process startup is being throttled`.

## Why
A loop submits without waiting, tasks are too small to be worth their overhead, every file gets an actor of its own, or
tasks start tasks that wait for tasks: each waiting one keeps a worker process, and a new one is needed for its child.

(From Ray 2.55 on core logs also say `Task submission is being throttled: pending lease requests (10) reached limit (10)`. Any
program that submits a few hundred equal tasks does that, and it harms nothing; it counts here from 100,000 waiting tasks on.)

## Confirm
- `ray summary tasks`: how many of which function wait.
- `ray status`: what is asked for beside what there is.

## Fix
Keep a bounded number in flight (`ray.wait`), give each task more to do (batches), reuse a few actors for many items, and
return references from nested tasks instead of waiting for them.

## Not this when
Nothing moves at all: then see what holds the resources (`cluster-starved`, `nested-get-deadlock`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import CORE, RAYLET
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy

QUEUED = (
    Signal(
        "queue.long", "tasks are queued for scheduling on this node",
        r"^More than (?P<queued>\d+) tasks are queued for scheduling on this node\.", (*RAYLET, "raylet-echo"),
        "More than 1000 tasks are queued for scheduling on this node. This can slow down the raylet.",
    ),
    Signal(
        "queue.long", "tasks are queued in this node. This can cause slow down",
        r"^More than (?P<queued>\d+) tasks are queued in this node\. This can cause slow down", (*RAYLET, "raylet-echo"),
        "More than 1000 tasks are queued in this node. This can cause slow down.",
    ),
)  # fmt: skip
START_THROTTLED = Signal(
    "queue.start_throttled", "Starting too many worker processes for a single type of task",
    r"^Starting too many worker processes for a single type of task\. Worker process startup is being throttled"
    r"(?: \(wait_time=(?P<wait>\d+)ms\))?", (*RAYLET, "raylet-echo"),
    "Starting too many worker processes for a single type of task. Worker process startup is being throttled (wait_time=2000ms).",
)  # fmt: skip
SUBMIT_THROTTLED = Signal(
    "queue.submit_throttled", "Task submission is being throttled: pending lease requests",
    r"^Task submission is being throttled: pending lease requests .*?, with (?P<waiting>\d{6,}) tasks waiting for lease requests", CORE,
    "Task submission is being throttled: pending lease requests (10) reached limit (10), with 250000 tasks waiting for lease requests. "
    "This especially affects workloads submitting many tasks of the same type to a cluster with few nodes but many cores per node.",
)  # fmt: skip

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html"


@rule(
    tier="cause",
    severity="warning",
    rank=85,
    looks_for=(*QUEUED, START_THROTTLED, SUBMIT_THROTTLED),
)  # fmt: skip
def task_queue_backlog(case: Case) -> Iterator[Finding]:
    """One finding per kind of backlog."""
    long = case.of("queue.long")
    if long:
        most = max(int(e["queued"]) for e in long)
        yield _finding(
            long, f"More than {most} requests wait on one node: scheduling itself becomes slow", _BOUND
        )  # fmt: skip
    throttled = case.of("queue.start_throttled")
    if throttled:
        waits = max((int(e["wait"] or 0) for e in throttled), default=0)
        after = f" by up to {waits / 1000:g} s each" if waits else ""
        yield _finding(
            throttled,
            f"Ray delays the start of further workers{after}: tasks of one kind hold a worker each and wait (nested ray.get), "
            "or more run at once than there are CPUs",
            _NESTED,
        )  # fmt: skip
    submitted = case.of("queue.submit_throttled")
    if submitted:
        most = max(int(e["waiting"]) for e in submitted)
        yield _finding(
            submitted, f"{most} tasks of one kind wait in their caller's memory for a worker", _BOUND
        )  # fmt: skip


def _finding(events: list[Event], headline: str, remedies: tuple[Remedy, ...]) -> Finding:
    return Finding(
        headline,
        (Link(events[0], "Ray says so itself"),),
        explains=(Entity("backlog", events[0].kind),),
        caused_by=(Entity("waiting", "cluster"),),
        count=sum(e.count for e in events),
        remedies=remedies,
        covers=tuple(events),
    )


_BOUND = (
    Remedy(
        "Keep a bounded number of tasks in flight",
        (
            "pending = []",
            "for item in items:",
            "    while len(pending) >= 1000: done, pending = ray.wait(pending)",
            "    pending.append(work.remote(item))",
        ),
        doc=_DOC,
    ),
    Remedy(
        "Give each task more to do, and reuse a few actors for many items",
        (
            "work.remote(items[i : i + 100])                  # batches instead of single items",
            "pool = ray.util.ActorPool([Worker.remote() for _ in range(4)])",
        ),
        doc="https://docs.ray.io/en/latest/ray-core/patterns/too-fine-grained-tasks.html",
    ),
)
_NESTED = (
    Remedy(
        "Let nested tasks return references instead of waiting in ray.get",
        (
            "return [child.remote(part) for part in parts]    # in the parent",
            "ray.get(ray.get(parent.remote(case)))            # in the caller",
        ),
        doc="https://docs.ray.io/en/latest/ray-core/patterns/nested-tasks.html",
    ),
    Remedy(
        "If no task waits for another, turn the delay off",
        ("RAY_worker_cap_enabled=false ray start ...       # on every node",),
        risk="disruptive",
    ),
)


# ------------------------------------------------------------------ examples


def _raylet(*texts: str) -> dict[str, str]:
    return {
        "logs/gcs_server.out": "",
        "logs/raylet.out": "".join(
            f"[2026-11-21 10:50:{n:02},405 W 293 293] (raylet) cluster_lease_manager.cc:60: {text}\n"
            for n, text in enumerate(texts)
        ),
    }


EXAMPLES: tuple[Example, ...] = (
    Example(
        "more than a thousand requests on one node",
        _raylet(QUEUED[0].sample),
        roots=("task-queue-backlog",),
        says=("1000 requests", "ray.wait"),
    ),
    Example(
        "the same in the words of Ray up to 2.40",
        _raylet(QUEUED[1].sample),
        roots=("task-queue-backlog",),
    ),
    Example(
        "workers for nested tasks",
        _raylet(START_THROTTLED.sample),
        roots=("task-queue-backlog",),
        says=("2 s", "nested"),
    ),
    Example(
        "a few hundred equal tasks: Ray says so, and goes on",
        {
            **_raylet(),
            "logs/python-core-driver-01000000"
            + "f" * 48
            + "_7.log": "[2026-11-21 10:50:16,405 W 16 401] normal_task_submitter.cc:270: "
            f"{SUBMIT_THROTTLED.sample.replace('250000', '2987')}\n",
        },
    ),
)
