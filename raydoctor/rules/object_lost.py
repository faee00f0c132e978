"""Every copy of an object is gone with its node, and nothing made it again.

## What you see
`ray.exceptions.ObjectLostError: … All copies of … have been lost due to node failure.`

## Why
Objects live in the memory of nodes. When a node goes, so do the objects whose only copy it held. Ray
runs the task that made such an object again, unless the object came from `ray.put` or from an actor's method, or the
task has `max_retries=0`. Up to Ray 2.53 the error does not say which of these it was (measured: 2.9.3 to 2.50); the
object's id tells a `ray.put` and an actor's result from a task's. `Attempting to recover … lost objects` alone is no
failure: it is the attempt.

## Confirm
- `ray list nodes --filter state=DEAD`, and the diagnosis of that node above this one.
- The object's id names its creator: its first 48 digits are the task, an index from `01e1f505` on means `ray.put`.
- The core-worker log of the owner: `Node failure. All objects pinned on that node will be lost …`.

## Fix
Let the object be made again (`max_retries` on its task; return values instead of `ray.put`; for actors
`max_restarts` and `max_task_retries`), or store what must survive outside the object store. And mend
the node.

## Not this when
Ray says why it cannot make it again (`object-unreconstructable`). The object's owner ended (`owner-died`): then no copy
helps. Nobody could tell where a copy is (`object-fetch-timeout`). It was freed, or its references were gone
(`object-owner-unknown`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model.values import Finding, Remedy
from raydoctor.rules.shared import objects


def _all_copies(object_: str) -> str:
    return objects.error(
        f"All copies of {object_} have been lost due to node failure. Check cluster logs (`/tmp/ray/session_latest/logs`) for more "
        "information about the failure.",
        object_,
    )


LOST = Signal(
    "object.lost", objects.HEAD, objects.HEAD_PATTERN + r"All copies of [0-9a-f]{56} have been lost", DRIVER,
    _all_copies(objects.A_TASKS), extent="record",
)  # fmt: skip


@rule(
    tier="symptom",
    severity="error",
    rank=81,
    daemons_record=True,
    looks_for=(LOST, *objects.NODE_SIGNALS, RAY_EXCEPTION),
)  # fmt: skip
def object_lost(case: Case) -> Iterator[Finding]:
    """One finding per kind of creator: all objects that are gone."""
    by_maker: dict[str, list[objects.Loss]] = {}
    events = case.of("object.lost")
    known = objects.named(e["object"] for e in events)
    for event in events:
        # A failed argument is told without its id: that of another loss, if there is one.
        maker = objects.made_by(event["object"] if event["object"] in known else known[0])
        by_maker.setdefault(maker, []).append(objects.Loss(event, event["object"], maker))
    for maker, losses in by_maker.items():
        yield objects.finding(case, losses, _WHY[maker], _remedies(case, maker, losses[0].object))


_WHY = {
    "PUT": "a ray.put value has no task that could make it again",
    "ACTOR": "its actor's methods are not run again (max_task_retries=0, or used up)",
    "TASK": "its task may not be run again (max_retries=0, or its retries are used up)",
    "UNKNOWN": "Ray could not make it again",
}


def _remedies(case: Case, maker: str, object_: str) -> tuple[Remedy, ...]:
    first = {"PUT": objects.RETURN, "ACTOR": objects.RESTART_ACTOR}
    return (first.get(maker) or objects.run_again(case, object_), objects.PERSIST)


# ------------------------------------------------------------------ examples


_HEADS = {"logs/gcs_server.out": "", "logs/raylet.out": ""}
_RAISED = "ray.exceptions.ObjectLostError: "

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a task's result; Ray 2.9 does not say why nothing made it again",
        {
            **_HEADS,
            "driver.log": f"{_RAISED}{_all_copies(objects.A_TASKS)}",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
        roots=("object-lost",),
        says=("1 object", "may not be run again", "@ray.remote(max_retries=3)"),
    ),
    Example(
        "the id says that it was a ray.put",
        {**_HEADS, "driver.log": f"{_RAISED}{_all_copies(objects.A_PUT)}"},
        roots=("object-lost",),
        says=("ray.put", "return the value"),
    ),
    Example(
        "objects that were recovered, and a task that prints the error",
        {
            **_HEADS,
            "driver.log": f"(check pid=12) {_all_copies(objects.A_TASKS)}",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
    ),
)
