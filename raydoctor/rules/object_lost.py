"""Every copy of an object is gone, and Ray could not make it again.

## What you see
`ray.exceptions.ObjectLostError: … All copies of … have been lost due to node failure`,
`ObjectReconstructionFailedError` (with `[OBJECT_UNRECONSTRUCTABLE_…]` from Ray 2.54 on), or
`ObjectFetchTimedOutError: … no locations were found for the object`.

## Why
Objects live in the memory of nodes. When a node goes, so do the objects whose only copy it held. Ray
runs the task that made such an object again, unless the object came from `ray.put` or an actor, the task
has `max_retries=0` or has used up its retries, somebody else owns the object, or Ray had to forget how
it was made. Up to Ray 2.53 a task without retries gives plain ObjectLostError (2.9.3 to 2.50), from 2.54
on the reason is in brackets (2.60). `Attempting to recover … lost objects` alone is no failure: it is the
attempt.

## Confirm
- `ray list nodes --filter state=DEAD`, and the diagnosis of that node above this one.
- The object's id names its creator: its first 48 digits are the task.
- The core-worker log of the owner: `Node failure. All objects pinned on that node will be lost …`.

## Fix
Let the object be made again (`max_retries` on its task; return values instead of `ray.put`; for actors
`max_restarts` and `max_task_retries`), or store what must survive outside the object store. And mend
the node.

## Not this when
The object's owner ended (`owner-died`): then no copy helps. ObjectFreedError and
ReferenceCountingAssertionError are references used after their object was given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raydoctor import ids
from raydoctor.case import Case
from raydoctor.model import Entity, Event, Finding, Link, Remedy, Subject
from raydoctor.rule import Example, Signal, rule
from raydoctor.rules import _evidence as evidence
from raydoctor.rules import _objects as objects
from raydoctor.signals import CORE, DRIVER, NODE_DEAD, RAY_EXCEPTION

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html"
_O = "c8ef45ccd0112571ffffffffffffffffffffffff0100000001000000"
_PUT = "00ffffffffffffffffffffffffffffffffffffff0100000003e1f505"
_N = "3b389b91d7f85259a7684efa4a087d351c4c650f1bafe9b5c7e9ba23"


def _error(body: str, object_: str = _O) -> str:
    return (
        f"Failed to retrieve object {object_}. To see information about where this ObjectRef was created in Python, set the "
        f"environment variable RAY_record_ref_creation_sites=1 during `ray start` and `ray.init()`.\n\n{body}\n"
    )


_ALL_COPIES = (
    f"All copies of {_O} have been lost due to node failure. Check cluster logs (`/tmp/ray/session_latest/logs`) for more "
    "information about the failure."
)
_RETRIES_DISABLED = (
    "[OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED] The object cannot be reconstructed because the task was created with "
    "max_retries=0. Consider enabling retries using `@ray.remote(max_retries=N)`."
)
_NO_LOCATION = f"Fetch for object {_O} timed out because no locations were found for the object. This may indicate a system-level bug."

LOST = Signal(
    "object.lost", "Failed to retrieve object ",
    r"Failed to retrieve object (?P<object>[0-9a-f]{56})\..*?(?:All copies of [0-9a-f]{56} (?P<copies>have been lost)|"
    r"Fetch for object [0-9a-f]{56} (?P<fetch>timed out)|(?:\[(?P<reason>[A-Z_]+)\] )?The object cannot be reconstructed "
    r"because (?P<why>[^.\n]*))", DRIVER, _error(_RETRIES_DISABLED), extent="record",
)  # fmt: skip
CANNOT_RECOVER = Signal(
    "object.cannot_recover", "Cannot recover object: ", r"^Cannot recover object: (?P<reason>[A-Z_]+)", CORE,
    f"Cannot recover object: OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED object_id={_O}",
)  # fmt: skip
"""The owner's log, Ray 2.54 and later; earlier ones keep silent."""
NODE_LOST = Signal(
    "objects.node_lost", "All objects pinned on that node will be lost",
    r"^Node failure(?: from (?P<node_a>[0-9a-f]{56}))?\. All objects pinned on that node will be lost", CORE,
    f"Node failure. All objects pinned on that node will be lost if object reconstruction is not enabled. node_id={_N}",
)  # fmt: skip
RECOVERING = Signal(
    "objects.recovering", ":info_message: Attempting to recover ",
    r"^:info_message: Attempting to recover (?P<count>\d+) lost objects by resubmitting", (*CORE, *DRIVER),
    ":info_message: Attempting to recover 1 lost objects by resubmitting their tasks or setting a new primary location from existing "
    "copies. To disable object reconstruction, set @ray.remote(max_retries=0).",
)  # fmt: skip

_DRIVER_LOG = f"logs/python-core-driver-01000000{'f' * 48}_16.log"
_RECOVERY = f"[2026-11-21 07:58:19,579 I 16 486] core_worker.cc:1044: {NODE_LOST.sample}\n" + (
    f"[2026-11-21 07:58:19,582 E 16 486] core_worker.cc:609: {RECOVERING.sample}\n"
)
_HEADS = {"logs/gcs_server.out": "", "logs/raylet.out": ""}


@rule(
    tier="symptom",
    severity="error",
    rank=81,
    looks_for=(LOST, CANNOT_RECOVER, NODE_LOST, RECOVERING, RAY_EXCEPTION, *NODE_DEAD),
    examples=(
        Example(
            "the node died, and the task may not be run again",
            {
                **_HEADS,
                "driver.log": f"ray.exceptions.ObjectReconstructionFailedError: {_error(_RETRIES_DISABLED)}",
                _DRIVER_LOG: _RECOVERY,
            },
            roots=("object-lost",),
            says=("1 object", "max_retries=0", "@ray.remote(max_retries=3)"),
        ),
        Example(
            "Ray 2.9 does not say why; the id says that it was a ray.put",
            {**_HEADS, "driver.log": f"ray.exceptions.ObjectLostError: {_error(_ALL_COPIES, _PUT)}"},
            roots=("object-lost",),
            says=("ray.put", "return the value"),
        ),
        Example(
            "nobody knows where it is",
            {**_HEADS, "driver.log": f"ray.exceptions.ObjectFetchTimedOutError: {_error(_NO_LOCATION)}"},
            roots=("object-lost",),
            says=("no location", "fetch_fail_timeout"),
        ),
        Example(
            "objects that were recovered, and a task that prints the error",
            {**_HEADS, "driver.log": f"(check pid=12) {_error(_ALL_COPIES)}", _DRIVER_LOG: _RECOVERY},
        ),
    ),
)  # fmt: skip
def object_lost(case: Case) -> Iterator[Finding]:
    """One finding per reason: all objects that are gone for it."""
    by_reason: dict[str, list[_Loss]] = {}
    seen: set[str] = set()
    for event in case.of("object.lost", "object.cannot_recover"):
        loss = _loss(event)
        if event.kind == "object.lost" or (loss.object not in seen and not _raised(case, loss)):
            by_reason.setdefault(loss.reason, []).append(loss)
            seen.add(loss.object)
    for losses in by_reason.values():
        yield _finding(case, losses)


@dataclass(frozen=True, slots=True)
class _Loss:
    """An object and why it cannot come back: an enum name of Ray 2.54, or what it would be."""

    event: Event
    object: str
    reason: str


_PREFIX = "OBJECT_UNRECONSTRUCTABLE_"
_WORDS = {
    "created by an actor": "UNKNOWN",
    "maximum number of task retries": "MAX_ATTEMPTS_EXCEEDED",
    "lineage has been evicted": "LINEAGE_EVICTED",
}
"""What the classes that 2.54 removed said, as one of its enums."""


def _loss(event: Event) -> _Loss:
    object_ = event["object"] or event["object_id"]
    if event["fetch"]:
        return _Loss(event, object_, "FETCH_TIMED_OUT")
    if event["reason"]:
        reason = event["reason"].removeprefix(_PREFIX)
        # An actor's methods have retries of their own; Ray 2.60 says the same of both.
        actors = reason == "RETRIES_DISABLED" and _from_id(object_) == "ACTOR"
        return _Loss(event, object_, "ACTOR" if actors else reason)
    told = next((name for words, name in _WORDS.items() if words in event["why"]), "UNKNOWN")
    if told == "UNKNOWN":
        told = _from_id(object_)
    return _Loss(event, object_, told)


def _from_id(object_: str) -> str:
    """Older Rays do not say why: the id tells puts and actors' results from tasks'."""
    parts = ids.parse_object_id(object_)
    if parts is None:
        return "UNKNOWN"
    return "PUT" if parts.put else "ACTOR" if parts.actor else "RETRIES"


def _raised(case: Case, loss: _Loss) -> bool:
    return any(e["object"] == loss.object for e in case.of("object.lost"))


_WHY = {
    "PUT": "a ray.put value has no task that could make it again",
    "RETRIES_DISABLED": "its task has max_retries=0",
    "RETRIES": "its task may not be run again (max_retries=0, or its retries are used up)",
    "ACTOR": "its actor's methods are not run again (max_task_retries=0, or used up)",
    "MAX_ATTEMPTS_EXCEEDED": "its task has used up its retries",
    "LINEAGE_EVICTED": "Ray had to forget how it was made",
    "BORROWED": "the process that noticed only borrows it, and only its owner could make it again",
    "TASK_CANCELLED": "its task was cancelled",
    "LINEAGE_DISABLED": "reconstruction is switched off",
    "REF_NOT_FOUND": "its owner has no record of it",
    "FETCH_TIMED_OUT": "no location of it was found in time",
}


def _finding(case: Case, losses: list[_Loss]) -> Finding:
    lost = list(dict.fromkeys(loss.object for loss in losses))
    reason = losses[0].reason
    why = _WHY.get(reason, "Ray could not make it again")
    nodes = _dead_nodes(case)
    with_node = f" with {_nodes(case, nodes)}" if nodes else ""
    what = objects.described(case, lost[0])
    return Finding(
        f"{evidence.many(len(lost), 'object')} lost{with_node}: {what}; {why}",
        tuple(_chain(case, losses, why)),
        explains=tuple(Entity("object", o) for o in lost),
        caused_by=tuple(Entity(kind, n) for n in nodes for kind in ("node", "raylet")),
        subjects=tuple(Subject("object", o) for o in lost[:10]),
        count=len(lost),
        remedies=_remedies(reason, lost[0]),
        covers=tuple(_covered(case, losses)),
    )


def _chain(case: Case, losses: list[_Loss], why: str) -> Iterator[Link]:
    deaths = case.of("objects.node_lost") or _deaths(case)
    tries = [e for e in case.of("objects.recovering") if e.source.role in CORE] or case.of(
        "objects.recovering"
    )
    yield from (Link(e, "the node that held objects is gone") for e in deaths[-1:])
    yield from (Link(e, f"the owner tries to recover {e['count']} of them") for e in tries[:1])
    yield Link(losses[0].event, f"this one cannot come back: {why}")


def _deaths(case: Case) -> list[Event]:
    return [e for e in case.of("node.dead") if not case.torn_down(e)]


def _dead_nodes(case: Case) -> list[str]:
    """Nodes that went, by the owners' logs (they name those that held objects) or by anybody's."""
    told = [
        e["node_a"] or e["node_id"] for e in case.of("objects.node_lost") if not case.torn_down(e)
    ]
    told = told or [e["node"] or e["node_a"] or e["node_b"] for e in _deaths(case)]
    return list(dict.fromkeys(node for node in told if node))


def _nodes(case: Case, nodes: list[str]) -> str:
    named = [f"{case.ledger.node_ips.get(n, '')} {evidence.short(n)}".strip() for n in nodes]
    return f"node {named[0]}" if len(named) == 1 else f"one of {len(named)} nodes that died"


def _covered(case: Case, losses: list[_Loss]) -> Iterator[Event]:
    """The exceptions that raised these losses, plain or nested in a task's error."""
    lost = {loss.object for loss in losses}
    yield from (loss.event for loss in losses)
    yield from (e for e in case.of("object.cannot_recover") if e["object_id"] in lost)
    yield from (e for e in case.of("driver.exception") if any(o in e["what"] for o in lost))


# ---------------------------------------------------------------- remedies


def _remedies(reason: str, object_: str) -> tuple[Remedy, ...]:
    if reason in ("PUT", "BORROWED"):
        return (_RETURN, _PERSIST)
    if reason in ("ACTOR", "UNKNOWN"):
        return (_ACTOR, _RETURN, _PERSIST)
    if reason == "LINEAGE_EVICTED":
        return (_LINEAGE, _PERSIST)
    if reason == "FETCH_TIMED_OUT":
        return (_OWNER_BUSY, _PERSIST)
    if reason in ("RETRIES_DISABLED", "RETRIES", "MAX_ATTEMPTS_EXCEEDED"):
        return (_retries(object_), _PERSIST)
    return (_PERSIST,)


def _retries(object_: str) -> Remedy:
    parts = ids.parse_object_id(object_)
    task = f" (task {evidence.short(parts.task)})" if parts else ""
    return Remedy(
        f"Let Ray run the task that made it again{task}",
        (
            "@ray.remote(max_retries=3)        # the default; max_retries=0 forbids it, -1 is without end",
        ),
        doc=_DOC,
    )


_RETURN = Remedy(
    "Let a task make the object: return the value instead of a reference from ray.put",
    ("return value                      # in a @ray.remote function; Ray can run that again",),
    doc=_DOC,
)
_ACTOR = Remedy(
    "Let Ray restart the actor and run its method again",
    ("@ray.remote(max_restarts=3, max_task_retries=3)   # only where methods may run twice",),
    doc=_DOC,
)
_LINEAGE = Remedy(
    "Let owners remember more of how objects were made (default: 1 GB per process)",
    ("RAY_max_lineage_bytes=4294967296 ray start …      # on every node, and for the driver",),
    risk="disruptive",
    doc=_DOC,
)
_OWNER_BUSY = Remedy(
    "If no node was lost: the owner was too busy to answer, or the network dropped it; give it longer",
    (
        "RAY_fetch_fail_timeout_milliseconds=1800000 ray start …   # default 600000; on every node, and for the driver",
        "ray stack                                                  # on the owner's node: what its process does",
    ),
    risk="disruptive",
)
_PERSIST = Remedy(
    "Keep what must survive a node outside the object store",
    ("# write checkpoints to shared storage, and pass their paths instead of ObjectRefs",),
)
