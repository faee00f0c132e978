"""Shared by rules about single objects: descriptions of ids, the head of Ray's errors, losses with a node.

`ObjectLostError` and its subclasses (`ray/exceptions.py`, 2.9.3 to 2.60) all begin with `Failed to retrieve object
<id>.` and a remark on creation sites. The next paragraph contains the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import CORE, DRIVER, NODE_DEAD
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import ended
from raydoctor.rules.shared.cluster import FAULT_TOLERANCE_DOC

DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html"
HEAD = "Failed to retrieve object "
HEAD_PATTERN = (
    r"Failed to retrieve object (?P<object>[0-9a-f]{56})\.(?:(?!Failed to retrieve object ).)*?"
)
"""Up to the next paragraph, but not into the next error."""

A_TASKS = "c8ef45ccd0112571ffffffffffffffffffffffff0100000001000000"
A_PUT = "00ffffffffffffffffffffffffffffffffffffff0100000003e1f505"
NODE = "3b389b91d7f85259a7684efa4a087d351c4c650f1bafe9b5c7e9ba23"
"""For samples and examples."""


def error(body: str, object_: str = A_TASKS) -> str:
    """The text of one of these errors."""
    return (
        f"{HEAD}{object_}. To see information about where this ObjectRef was created in Python, set the environment variable "
        f"RAY_record_ref_creation_sites=1 during `ray start` and `ray.init()`.\n\n{body}\n"
    )


NODE_LOST = Signal(
    "objects.node_lost", "All objects pinned on that node will be lost",
    r"^Node failure(?: from (?P<node_a>[0-9a-f]{56}))?\. All objects pinned on that node will be lost", CORE,
    f"Node failure. All objects pinned on that node will be lost if object reconstruction is not enabled. node_id={NODE}",
)  # fmt: skip
RECOVERING = Signal(
    "objects.recovering", ":info_message: Attempting to recover ",
    r"^:info_message: Attempting to recover (?P<count>\d+) lost objects by resubmitting", (*CORE, *DRIVER),
    ":info_message: Attempting to recover 1 lost objects by resubmitting their tasks or setting a new primary location from existing "
    "copies. To disable object reconstruction, set @ray.remote(max_retries=0).",
)  # fmt: skip
NODE_SIGNALS = (NODE_LOST, RECOVERING, *NODE_DEAD)
"""Records of the node's end and of the attempt to recover."""

DRIVER_LOG = f"logs/python-core-driver-01000000{'f' * 48}_16.log"
RECOVERY = f"[2026-11-21 07:58:19,579 I 16 486] core_worker.cc:1044: {NODE_LOST.sample}\n" + (
    f"[2026-11-21 07:58:19,582 E 16 486] core_worker.cc:609: {RECOVERING.sample}\n"
)


NIL = "f" * 56
"""The id in place of the object if a task's argument failed: the task got the error instead of the object."""


def named(listed: Iterable[str]) -> list[str]:
    """The objects among these ids, each once; the nil id only if there are no others."""
    unique = list(dict.fromkeys(listed))
    return [o for o in unique if o != NIL] or unique


def described(case: Case, object_: str) -> str:
    """How an object was created, from its id: `a return value of task make_features (c8ef45cc)`."""
    parts = ids.parse_object_id(object_)
    if object_ == NIL:
        return "an argument of a task"
    if parts is None:
        return f"object {evidence.short(object_)}"
    how = "a ray.put value" if parts.put else "a return value"
    if parts.actor:
        name = case.actor(parts.actor).class_name
        return f"{how} of actor {name or evidence.short(parts.actor)}"
    if ids.is_driver_task(parts.task):
        return f"{how} of the driver of job {ids.job_number(parts.job)}"
    return f"{how} of task {task_named(case, parts.task)}"


def counted(case: Case, lost: Sequence[str]) -> str:
    """`4 objects (a return value of task c8ef45cc and 3 more)`."""
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return f"{evidence.many(len(lost), 'object')} ({described(case, lost[0])}{more})"


def task_named(case: Case, task: str) -> str:
    """`make_features (c8ef45cc)` if a log names the task, otherwise the id alone."""
    failed = case.ledger.tasks.get(task)
    name = failed["name"] if failed else ""
    return f"{name} ({evidence.short(task)})" if name else evidence.short(task)


def made_by(object_: str) -> str:
    """`PUT`, `ACTOR`, `TASK` or `UNKNOWN`, from the id."""
    parts = ids.parse_object_id(object_)
    if parts is None or object_ == NIL:
        return "UNKNOWN"
    return "PUT" if parts.put else "ACTOR" if parts.actor else "TASK"


# ---------------------------------------------------------------- losses with a node


class Loss(NamedTuple):
    """A lost object, why Ray cannot recover it, and the record of it."""

    event: Event
    object: str
    reason: str


_PREFIX = "OBJECT_UNRECONSTRUCTABLE_"
_WORDS = {
    "maximum number of task retries": "MAX_ATTEMPTS_EXCEEDED",
    "lineage has been evicted": "LINEAGE_EVICTED",
}
"""Messages of the exception classes that 2.54 removed, as its reasons."""


def loss(event: Event) -> Loss:
    """One event of an object that Ray cannot recreate, with the reason in the words of Ray 2.54 and later."""
    object_ = event["object"] or event["object_id"]
    reason = event["reason"].removeprefix(_PREFIX)
    if not reason:
        reason = next((name for words, name in _WORDS.items() if words in event["why"]), "")
    maker = made_by(object_)
    if not reason:  # "an actor, ray.put() call, or its ObjectRef was created by a different worker"
        reason = maker if maker in ("PUT", "ACTOR") else "BORROWED"
    if reason == "RETRIES_DISABLED" and maker == "ACTOR":
        reason = "ACTOR"  # an actor's methods have retries of their own; Ray 2.60 prints the same for both
    return Loss(event, object_, reason)


def finding(case: Case, losses: list[Loss], why: str, remedies: tuple[Remedy, ...]) -> Finding:
    """One finding for all objects that are lost for one reason."""
    lost = named(loss.object for loss in losses)
    nodes = dead_nodes(case)
    with_node = f" with {_nodes(case, nodes)}" if nodes else ""
    be = "was" if len(lost) == 1 else "were"
    return Finding(
        f"{counted(case, lost)} {be} lost{with_node} and cannot be recreated: {why}",
        (*recovery(case), Link(losses[0].event, f"Ray cannot recover this object: {why}")),
        explains=tuple(Entity("object", o) for o in lost),
        caused_by=with_nodes(nodes),
        subjects=tuple(Subject("object", o) for o in lost[:10]),
        count=len(lost),
        remedies=remedies,
        covers=(
            *(loss.event for loss in losses),
            *raised_for(case, {loss.object for loss in losses}),
        ),
    )


def recovery(case: Case) -> Iterator[Link]:
    """The node's end in the owners' logs, and their attempt to recover its objects."""
    deaths = case.of("objects.node_lost") or [
        e for e in case.of("node.dead") if not case.torn_down(e)
    ]
    tries = [e for e in case.of("objects.recovering") if e.source.role in CORE] or case.of(
        "objects.recovering"
    )
    yield from (Link(e, "the node that held the objects is dead") for e in deaths[-1:])
    yield from (
        Link(e, f"the owner tries to recover {e['count']} of the objects") for e in tries[:1]
    )


def dead_nodes(case: Case) -> list[str]:
    """Dead nodes, from the owners' logs (which name those that held objects) or from any log."""
    found = [
        e["node_a"] or e["node_id"] for e in case.of("objects.node_lost") if not case.torn_down(e)
    ]
    found = found or [
        e["node"] or e["node_a"] or e["node_b"]
        for e in case.of("node.dead")
        if not case.torn_down(e)
    ]
    return list(dict.fromkeys(node for node in found if node))


def with_nodes(nodes: Iterable[str]) -> tuple[Entity, ...]:
    """The causes of a loss: these nodes, or their raylets."""
    return tuple(Entity(kind, n) for n in nodes for kind in ("node", "raylet"))


def _nodes(case: Case, nodes: list[str]) -> str:
    labels = [
        f"{ip} ({evidence.short(n)})" if (ip := case.ledger.node_ips.get(n)) else evidence.short(n)
        for n in nodes
    ]
    return f"node {labels[0]}" if len(labels) == 1 else f"one of {len(labels)} nodes that died"


def raised_for(case: Case, lost: Iterable[str]) -> Iterator[Event]:
    """The exceptions that report these losses, plain or nested in a task's error."""
    wanted = list(lost)
    yield from (e for e in case.of("driver.exception") if any(o in e["what"] for o in wanted))


# ---------------------------------------------------------------- remedies

RETURN = Remedy(
    "Create the object in a task: return the value instead of a reference from ray.put",
    ("return value                      # in a @ray.remote function, which Ray can run again",),
    doc=DOC,
)
RESTART_ACTOR = Remedy(
    "Allow Ray to restart the actor and to run its method again",
    ("@ray.remote(max_restarts=3, max_task_retries=3)   # only if methods may run twice",),
    doc=DOC,
)
_LINEAGE = Remedy(
    "Keep up to 4 GiB of lineage in each owner process, instead of the default 1 GiB: no retry brings back an object whose "
    "lineage is gone",
    (
        "echo $RAY_max_lineage_bytes   # where the driver starts. If it is set below the default, remove it there instead",
        "export RAY_max_lineage_bytes=4294967296   # on every node before ray start, and in the shell that starts the driver",
    ),
    risk="disruptive",
    doc=DOC,
)
_OWNER_GETS = Remedy(
    "Let the owner (the process that called .remote() or ray.put) read the object and pass on the value",
    (
        "value = ray.get(ref)              # where ref was created; Ray makes the object again there",
    ),
    doc=DOC,
)
BESIDE_RETRIES = {
    "PUT": (RETURN,),
    "ACTOR": (RESTART_ACTOR, RETURN),
    "LINEAGE_EVICTED": (_LINEAGE,),
    "BORROWED": (_OWNER_GETS,),
}
"""By the reason for which Ray could not recreate an object: what more retries do not achieve."""


def survive(case: Case, title: str) -> tuple[Remedy, ...]:
    """Retries for work that a lost node takes with it, and what the objects that Ray could not recreate need besides.

    With one node, Ray can repeat nothing anywhere.
    """
    events = case.of("object.unreconstructable", "object.cannot_recover")
    reasons = dict.fromkeys(loss(e).reason for e in events)
    beside = dict.fromkeys(each for r in reasons for each in BESIDE_RETRIES.get(r, ()))
    if len({e["node"] for e in case.of("node.registered")}) == 1:
        title = "Add a second node, and set retries and restarts: work then survives the loss of a node that is not the head"
    return (*beside, Remedy(title, ended.NODE, doc=FAULT_TOLERANCE_DOC))


PERSIST = Remedy(
    "Write data that must survive the loss of a node to storage outside the object store",
    ("# write checkpoints to shared storage, and pass their paths instead of ObjectRefs",),
)


def run_again(case: Case, object_: str) -> Remedy:
    """Retries for the task that created an object."""
    parts = ids.parse_object_id(object_)
    known = parts is not None and object_ != NIL
    task = f" (task {task_named(case, parts.task)})" if parts and known else ""
    return Remedy(
        f"Allow Ray to run the task that created the object again{task}",
        (
            "@ray.remote(max_retries=10)   # only if it may run twice: the default is 3, 0 disables retries, -1 means no limit",
        ),
        doc=DOC,
    )
