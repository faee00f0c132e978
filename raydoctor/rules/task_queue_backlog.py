"""So many tasks are queued that the cluster needs a long time to run them.

## What you see
The raylet's memory grows, and so does the time to schedule a task. `raylet.out` contains `More than 1000 tasks are
queued for scheduling on this node. This can slow down the raylet.` (`… queued in this node. This can cause slow
down.` up to Ray 2.40), or `Starting too many worker processes for a single type of task. Worker process startup is
being throttled`.

## Why
Usual causes:

- A loop submits tasks without waiting for results.
- The tasks are so small that scheduling takes longer than the work.
- The program starts one actor for every file or item.
- Tasks start child tasks and wait for them: each waiting task keeps a worker process, and its child needs another.

From Ray 2.55 on, core logs also contain `Task submission is being throttled: pending lease requests (10) reached limit
(10)`. Any program that submits a few hundred equal tasks causes this line, which does no harm. This rule reports it
only from 100,000 waiting tasks on.

## Confirm
- `ray summary tasks` counts the waiting tasks of each function.
- `ray status` compares the resources that are requested with those of the cluster.

## Fix
Keep a bounded number of tasks in flight (`ray.wait`), give each task more to do (batches), reuse a few actors for many
items, and return references from nested tasks instead of waiting for them.

## Not this when
- no task finishes at all: find what holds the resources (`cluster-starved`, `nested-get-deadlock`).
- the only message is `Task submission is being throttled: pending lease requests (10) reached limit (10)` in core
  logs (Ray 2.55 and later): any program that submits a few hundred equal tasks causes it, and it does no harm.
  raydoctor reports it only from 100,000 waiting tasks on.
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
    explains=("backlog",),
    caused_by=("waiting",),
    looks_for=(*QUEUED, START_THROTTLED, SUBMIT_THROTTLED),
)  # fmt: skip
def task_queue_backlog(case: Case) -> Iterator[Finding]:
    """One finding per kind of backlog."""
    long = case.of("queue.long")
    if long:
        most = max(int(e["queued"]) for e in long)
        yield _finding(
            long, f"More than {most} tasks are queued on one node, which slows down scheduling", _BOUND
        )  # fmt: skip
    throttled = case.of("queue.start_throttled")
    if throttled:
        waits = max((int(e["wait"] or 0) for e in throttled), default=0)
        after = f" by up to {waits / 1000:g} s each" if waits else ""
        yield _finding(
            throttled,
            f"Ray delays the start of more workers{after} because tasks hold workers while they wait (nested ray.get), "
            "or more tasks run at once than there are CPUs",
            _NESTED,
        )  # fmt: skip
    submitted = case.of("queue.submit_throttled")
    if submitted:
        most = max(int(e["waiting"]) for e in submitted)
        yield _finding(
            submitted, f"{most} tasks of one kind wait for a worker, in the memory of the process that submitted them", _BOUND
        )  # fmt: skip


def _finding(events: list[Event], headline: str, remedies: tuple[Remedy, ...]) -> Finding:
    return Finding(
        headline,
        (Link(events[0], "Ray reports the backlog"),),
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
        "Turn the delay off if no task waits for another",
        (
            "export RAY_worker_cap_enabled=false   # on every node, before ray start, or before your program if it starts Ray",
        ),
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
        "more than a thousand queued tasks on one node",
        _raylet(QUEUED[0].sample),
        says=("1000 tasks are queued", "ray.wait"),
    ),
    Example(
        "the same as Ray up to 2.40 reports it",
        _raylet(QUEUED[1].sample),
        roots=("task-queue-backlog",),
    ),
    Example(
        "workers for nested tasks",
        _raylet(START_THROTTLED.sample),
        says=("2 s", "nested"),
    ),
    Example(
        "a few hundred equal tasks: Ray reports them and continues",
        {
            **_raylet(),
            "logs/python-core-driver-01000000"
            + "f" * 48
            + "_7.log": "[2026-11-21 10:50:16,405 W 16 401] normal_task_submitter.cc:270: "
            f"{SUBMIT_THROTTLED.sample.replace('250000', '2987')}\n",
        },
    ),
)
