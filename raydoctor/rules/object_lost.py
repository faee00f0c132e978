"""All copies of an object were lost with a node, and Ray did not recreate the object.

## What you see
`ray.exceptions.ObjectLostError: … All copies of … have been lost due to node failure.`

## Why
Objects are stored in the memory of nodes. When a node dies, objects whose only copy was on that node are lost. Ray
reruns the task that created such an object, unless the object came from `ray.put` or from an actor's method, or the
task has `max_retries=0`. The error does not say which of these it was (measured with Ray 2.9.3 to 2.50; later versions
print the reason). The object's id distinguishes a `ray.put`, an actor's result and a task's result. `Attempting to
recover … lost objects` alone records the attempt, not a failure.

## Confirm
- `ray list nodes --filter state=DEAD` lists the node that held the object.
- The object's id names its creator: the first 48 digits are the id of the task. If a method of an actor created the
  object, digits 17 to 48 are the actor's id; otherwise digits 17 to 40 are all `f`. The last 8 digits are `01e1f505`,
  `02e1f505`, … for a `ray.put`, and `01000000`, `02000000`, … for a result.
- The core-worker log of the owner contains `Node failure. All objects pinned on that node will be lost …`.

## Fix
Let Ray recreate the object, if its task or method may run twice: set `max_retries` for a task, `max_restarts` and
`max_task_retries` for an actor, and return values instead of `ray.put` references. Or keep data that must not be lost
outside the object store. In any case, fix the cause of the node's death.

## Not this when
- Ray prints why it cannot recreate the object (`object-unreconstructable`).
- the object's owner exited (`owner-died`): a copy then does not help.
- Ray could not find a copy in time (`object-fetch-timeout`).
- the object was freed, or its references were deleted (`object-owner-unknown`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
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

OLD = Signal(
    "object.lost", "Error: Object ",
    r"\bray\.exceptions\.(?:ObjectLostError|UnreconstructableError): Object (?P<object>[0-9a-f]{40,56}) is lost "
    r"(?:due to node failure|(?P<evicted>\(either LRU evicted or deleted by user\)))", DRIVER,
    f"ray.exceptions.ObjectLostError: Object {objects.A_TASKS} is lost due to node failure.",
)  # fmt: skip
"""0.8 to 1.x."""

CUT = Signal(
    "object.lost_cut", "All copies of ",
    r"^(?:ray\.exceptions\.ObjectLostError: )?All copies of (?P<object>[0-9a-f]{56}) have been lost due to node failure\. Check cluster logs",
    DRIVER,
    f"All copies of {objects.A_TASKS} have been lost due to node failure. Check cluster logs (`/tmp/ray/session_latest/logs`) for more "
    "information about the failure.",
)  # fmt: skip
"""The last paragraph alone: an excerpt may begin with it."""

HEAD_ONLY = Signal(
    "object.lost_head", "ObjectLostError: Failed to retrieve object ",
    rf"^ray\.exceptions\.ObjectLostError: {objects.HEAD}(?P<object>[0-9a-f]{{56}})\.", DRIVER,
    f"ray.exceptions.ObjectLostError: {objects.HEAD}{objects.A_TASKS}. To see information about where this ObjectRef was created in Python,",
)  # fmt: skip
"""The error's first paragraph: an excerpt may end with it."""


@rule(
    tier="symptom",
    severity="error",
    rank=81,
    explains=("object",),
    caused_by=("node", "raylet"),
    daemons_record=True,
    looks_for=(LOST, OLD, CUT, HEAD_ONLY, *objects.NODE_SIGNALS, RAY_EXCEPTION),
)  # fmt: skip
def object_lost(case: Case) -> Iterator[Finding]:
    """One finding per kind of creator, for all objects that were lost."""
    by_maker: dict[str, list[objects.Loss]] = {}
    events = case.of("object.lost") or [e for e in case.of(CUT.kind) if e.line == 1]
    events = events or [
        e
        for e in case.of(HEAD_ONLY.kind)
        if e.source.is_excerpt
        and case.is_last_of_console(e)
        and not evidence.later_output(case, e, is_line=True)
    ]
    if not events:
        return
    known = objects.named(e["object"] for e in events)
    for event in events:
        # Ray prints a failed argument without its id: use the id of another loss, if there is one.
        maker = objects.made_by(event["object"] if event["object"] in known else known[0])
        maker = "EVICTED" if event["evicted"] else maker
        by_maker.setdefault(maker, []).append(objects.Loss(event, event["object"], maker))
    for maker, losses in by_maker.items():
        yield objects.finding(case, losses, _WHY[maker], _remedies(case, maker, losses[0].object))


_WHY = {
    "PUT": "no task can recreate a ray.put value",
    "ACTOR": "Ray is not allowed to run the actor's method again (max_task_retries is 0 or used up)",
    "TASK": "Ray is not allowed to run the task again (max_retries is 0 or used up)",
    "UNKNOWN": "Ray gives no reason",
    "EVICTED": "it was evicted or deleted, or its id came from another program",
}


def _remedies(case: Case, maker: str, object_: str) -> tuple[Remedy, ...]:
    first = {"PUT": objects.RETURN, "ACTOR": objects.RESTART_ACTOR}
    return (first.get(maker) or objects.run_again(case, object_), objects.PERSIST)


# ------------------------------------------------------------------ examples


_RAISED = "ray.exceptions.ObjectLostError: "

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a task's result, and Ray 2.9 does not print why it was not recreated",
        {
            **QUIET_LOGS,
            "driver.log": f"{_RAISED}{_all_copies(objects.A_TASKS)}",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
        says=("1 object", "not allowed to run the task again", "@ray.remote(max_retries=10)"),
    ),
    Example(
        "the object's id shows that it came from ray.put",
        {**QUIET_LOGS, "driver.log": f"{_RAISED}{_all_copies(objects.A_PUT)}"},
        says=("ray.put", "return the value"),
    ),
    Example(
        "the objects were recovered, and a task prints the error",
        {
            **QUIET_LOGS,
            "driver.log": f"(check pid=12) {_all_copies(objects.A_TASKS)}",
            objects.DRIVER_LOG: objects.RECOVERY,
        },
    ),
    console(
        "the words of Ray 1.2",
        f"{OLD.sample}\n",
        says=("1 object (",),
    ),
    console(
        "the words of Ray 0.8",
        f"ray.exceptions.UnreconstructableError: Object {'f' * 24}0100008001000000 is lost (either LRU evicted or "
        "deleted by user) and cannot be reconstructed. Try increasing the object store memory\n",
        says=("its id came from another program",),
    ),
    console(
        "an excerpt begins with the error's last paragraph",
        f"{CUT.sample}\n",
        says=("1 object (",),
    ),
    console(
        "an excerpt ends with the error's first paragraph",
        f"{HEAD_ONLY.sample} set the environment variable\n",
        says=("1 object (",),
    ),
    console(
        "the paragraph below what a program printed",
        f"recovered after this error:\n{CUT.sample}\nstep 10\n",
    ),
    console(
        "a program reports the loss of an object of its own",
        "Error: Object 4dfe is lost due to node failure of the archive\n",
    ),
)
