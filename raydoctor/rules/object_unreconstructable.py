"""An object was lost with its node, and Ray prints why it cannot recreate the object.

## What you see
`ray.exceptions.ObjectReconstructionFailedError: Failed to retrieve object …`, from Ray 2.54 on with the reason in
brackets: `[OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED] The object cannot be reconstructed because …`. Earlier versions
raise `ObjectReconstructionFailedMaxAttemptsExceededError` or `ObjectReconstructionFailedLineageEvictedError` for two of
the reasons. Ray 2.57 and later can also raise `StreamingGeneratorReplayInconsistentError: … was re-executed and
produced 4 objects, expected 6`.

## Why
To replace a lost object, its owner reruns the task that created it. The owner cannot do that in these cases:

- no task created the object (`ray.put`);
- the task must not run again: `max_retries=0`, no retries left, or a method of an actor with `max_task_retries=0`;
- the owner discarded the description of the task: it keeps at most 1 GiB of task descriptions
  (`RAY_max_lineage_bytes`);
- the process that needs the object is not its owner, because it only borrowed the reference.

A generator that runs again must also yield as many objects as the first time.

## Confirm
- The reason is in brackets in the error, and after `Cannot recover object: ` in the owner's core-worker log (both in
  Ray 2.54 and later).
- `ray list nodes --filter state=DEAD` lists the node that held the object.
- The object's id names its creator: the first 48 digits are the id of the task.

## Fix
First fix the cause of the node's death. Then fix the printed reason: allow retries of the task or actor, return values
instead of `ray.put`, keep more lineage, or make the generator yield the same objects at every run.

## Not this when
- the message only says that all copies are lost, and gives no reason (`object-lost`).
- the owner exited (`owner-died`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, RAY_EXCEPTION
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import objects

_RETRIES_DISABLED = objects.error(
    "[OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED] The object cannot be reconstructed because the task was created with "
    "max_retries=0. Consider enabling retries using `@ray.remote(max_retries=N)`."
)
_T = objects.A_TASKS[:48]
_REPLAYED = (
    f"Streaming generator task {_T} was re-executed and produced 4 objects, expected 6. The generator output is non-deterministic, "
    "which can hang downstream consumers (when fewer objects are produced) or silently truncate their input (when more objects are "
    "produced)."
)

FAILED = Signal(
    "object.unreconstructable", objects.HEAD,
    objects.HEAD_PATTERN + r"(?:\[(?P<reason>[A-Z_]+)\] )?The object cannot be reconstructed because (?P<why>[^.\n]*)", DRIVER,
    _RETRIES_DISABLED, extent="record",
)  # fmt: skip
CANNOT_RECOVER = Signal(
    "object.cannot_recover", "Cannot recover object: ", r"^Cannot recover object: (?P<reason>[A-Z_]+)", CORE,
    f"Cannot recover object: OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED object_id={objects.A_TASKS}",
)  # fmt: skip
"""The owner's log, Ray 2.54 and later; earlier versions do not log it."""
REPLAYED = Signal(
    "generator.replay_differs", " was re-executed and produced ",
    r"Streaming generator task (?P<task>[0-9a-f]{48}) was re-executed and produced (?P<made>\d+) objects, expected (?P<expected>\d+)",
    (*CORE, *DRIVER), _REPLAYED, symptom=True, fold=("task",),
)  # fmt: skip
"""Ray 2.57 and later (`task_manager.cc`); the driver also gets it as an exception."""


@rule(
    tier="symptom",
    severity="error",
    rank=81,
    explains=("object", "task"),
    caused_by=("node", "raylet"),
    daemons_record=True,
    looks_for=(FAILED, CANNOT_RECOVER, REPLAYED, *objects.NODE_SIGNALS, RAY_EXCEPTION),
)  # fmt: skip
def object_unreconstructable(case: Case) -> Iterator[Finding]:
    """One finding per reason, and one per generator."""
    by_reason: dict[str, list[objects.Loss]] = {}
    raised = {e["object"] for e in case.of("object.unreconstructable")}
    for event in case.of("object.unreconstructable", "object.cannot_recover"):
        loss = objects.loss(event)
        if event.kind == "object.unreconstructable" or loss.object not in raised:
            by_reason.setdefault(loss.reason, []).append(loss)
    for reason, losses in by_reason.items():
        yield _finding(case, reason, losses)
    by_task = evidence.grouped(case.of("generator.replay_differs"), lambda e: e["task"])
    for task, events in by_task.items():
        yield _replayed(case, task, events)


_WHY = {
    "PUT": "no task can recreate a ray.put value",
    "RETRIES_DISABLED": "the task has max_retries=0",
    "ACTOR": "Ray is not allowed to run the actor's method again (max_task_retries=0)",
    "MAX_ATTEMPTS_EXCEEDED": "the task has used up its retries",
    "LINEAGE_EVICTED": "the owner had discarded the task's lineage (limit: RAY_max_lineage_bytes)",
    "BORROWED": "the process that needed it only borrows the reference, and only the owner can recreate the object",
    "TASK_CANCELLED": "the task was cancelled",
    "LINEAGE_DISABLED": "reconstruction is switched off",
    "REF_NOT_FOUND": "the owner has no record of it",
}


def _finding(case: Case, reason: str, losses: list[objects.Loss]) -> Finding:
    why = _WHY.get(reason, f"Ray's reason is {reason}")
    found = objects.finding(case, losses, why, _remedies(case, reason, losses[0].object))
    lost = {loss.object for loss in losses}
    logged = [e for e in case.of("object.cannot_recover") if e["object_id"] in lost]
    only_logged = all(loss.event.kind == "object.cannot_recover" for loss in losses)
    return Finding(
        found.headline,
        found.chain,
        found.explains,
        found.caused_by,
        found.subjects,
        found.count,
        # No process got an exception: the object may no longer have been needed.
        "warning" if only_logged else None,
        found.remedies,
        (*found.covers, *logged),
    )


# ---------------------------------------------------------------- generators


def _replayed(case: Case, task: str, events: list[Event]) -> Finding:
    first = events[0]
    name = objects.task_named(case, task)
    made = evidence.many(int(first["made"]), "object")
    errors = [
        e
        for e in case.of("driver.exception")
        if e["type"] == "StreamingGeneratorReplayInconsistentError" and task in e["what"]
    ]
    return Finding(
        f"Generator task {called(name)} yielded {made} when Ray ran it again to replace lost objects, but {first['expected']} in the "
        "first run, so Ray stopped reconstructing its objects",
        (
            *objects.recovery(case),
            Link(first, f"the second run yielded {made}, the first {first['expected']}"),
            *(Link(e, "the driver received the same as an exception") for e in errors[:1] if e is not first),
        ),
        explains=(Entity("task", task),),
        caused_by=objects.with_nodes(objects.dead_nodes(case)),
        subjects=(Subject("task", task, name),),
        remedies=(_SAME_OUTPUT, objects.PERSIST),
        covers=(*events, *errors),
    )  # fmt: skip


_SAME_OUTPUT = Remedy(
    "Make the generator yield the same number of objects at every run",
    (
        "# pass what it reads (a list of files, queue items, a time, a random seed) as arguments",
        "@ray.remote(max_retries=0)        # or let the task fail immediately instead of running twice",
    ),
    doc=objects.DOC,
)


# ---------------------------------------------------------------- remedies


def _remedies(case: Case, reason: str, object_: str) -> tuple[Remedy, ...]:
    if reason in ("MAX_ATTEMPTS_EXCEEDED", "RETRIES_DISABLED"):
        return (objects.run_again(case, object_), objects.PERSIST)
    return (*objects.BESIDE_RETRIES.get(reason, ()), objects.PERSIST)


# ------------------------------------------------------------------ examples

_EVICTED = objects.error(
    "The object cannot be reconstructed because its lineage has been evicted to reduce memory pressure. To prevent this error, set "
    "the environment variable RAY_max_lineage_bytes=<bytes> (default 1GB) during `ray start`."
)
_ANY_OF_THREE = (
    "The object cannot be reconstructed because it was created by an actor, ray.put() call, or its ObjectRef was created by a "
    "different worker."
)

_RAISED = "ray.exceptions.ObjectReconstructionFailedError: "

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the node died, and Ray is not allowed to run the task again",
        {
            **QUIET_LOGS,
            "driver.log": f"{_RAISED}{_RETRIES_DISABLED}",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
        says=("1 object", "max_retries=0", "@ray.remote(max_retries=10)"),
    ),
    console(
        "the lineage was evicted, Ray 2.40",
        f"ray.exceptions.ObjectReconstructionFailedLineageEvictedError: {_EVICTED}",
        logs=QUIET_LOGS,
        says=(
            "had discarded the task's lineage",
            "RAY_max_lineage_bytes=4294967296",
        ),
    ),
    Example(
        "up to 2.53 one sentence for three reasons: the object's id shows a ray.put",
        {**QUIET_LOGS, "driver.log": f"{_RAISED}{objects.error(_ANY_OF_THREE, objects.A_PUT)}"},
        says=("a ray.put value of the driver of job 1",),
    ),
    Example(
        "a generator yields fewer objects in its second run",
        {
            **QUIET_LOGS,
            "driver.log": f"ray.exceptions.StreamingGeneratorReplayInconsistentError: System error: {_REPLAYED}\n",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
        says=("4 objects", "6", "same number"),
    ),
    Example(
        "the objects were recovered, a task prints the error, and the program prints a similar sentence",
        {
            **QUIET_LOGS,
            "driver.log": f"(check pid=12) {_RETRIES_DISABLED}The object cannot be reconstructed because we say so\n",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
    ),
)
