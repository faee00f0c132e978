"""Workers that ended: their names in headlines, and remedies that let Ray repeat what they ran."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.model import ids, paste, text
from raydoctor.model.values import Remedy

TASK = (
    "@ray.remote(max_retries=10)   # tasks that may run twice: the default is 3, -1 means no limit"
)
ACTOR = "@ray.remote(max_restarts=3, max_task_retries=3)   # actors whose methods may run twice. The default of both options is 0"
NODE = (TASK, ACTOR.replace("=3", "=-1"))
"""What survives the loss of a node: an actor is restarted there without a limit."""
_DOC = "https://docs.ray.io/en/latest/ray-core/fault-tolerance.html"
_OBJECTS = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html"


def worker(label: str, is_named: bool, is_actor: bool = False) -> str:
    """`The worker of train (pid 379)`, `Actor Trainer (pid 379)`; without a name `The worker (pid 379)`."""
    if is_named and is_actor:
        return f"Actor {label}"
    return f"The {'worker of ' if is_named else ''}{label}"


def workers(exits: Sequence[WorkerExit], where: str = "") -> str:
    """One worker by its label, or `3 workers` with `where` and then their labels; those of one actor by their pids."""
    count = evidence.deaths(exits)
    if count == 1:
        return worker(exits[0].label, bool(exits[0].names), bool(exits[0].actor))
    actor, pids = exits[0].actor, [str(e.pid) for e in exits]
    if actor and not where and all(e.actor == actor and e.pid is not None for e in exits):
        name = f"actor {exits[0].names[-1]}" if exits[0].names else "one actor"
        return f"{count} workers of {name}, one after the other (pids {text.join_names(pids, 5)}),"
    names = evidence.join_names(exit_.label for exit_ in exits)
    return f"{count} workers{where}, {names},"


def retries(case: Case, exits: Sequence[WorkerExit], title: str) -> tuple[Remedy, ...]:
    """Retries for the tasks and actors of these workers, and what keeps their ray.put values, where these were lost.

    Actors that Ray restarts already are left out: the program has set their numbers.
    """
    restarted = {
        a.id
        for a in case.ledger.actors.values()
        if a.failures[:1] and a.failures[0]["remaining"] != "0"
    }
    left = [e for e in exits if e.actor not in restarted]
    of_actors = bool(left) and all(e.actor for e in left)
    unnamed = (ACTOR,) if of_actors else (TASK, ACTOR)
    steps = _steps(left, _switched_off(case)) if any(e.names for e in exits) else unnamed
    retry = (Remedy(title, steps, doc=_DOC),) if steps else ()
    return (*retry, _RETURN) if _lost_values(case, exits) else retry


_RETURN = Remedy(
    "Return plain values, not ray.put references: a retry does not bring back what a dead worker has put",
    ("return value            # instead of return ray.put(value): then the caller owns the value",),
    doc=_OBJECTS,
)


def is_of_library(name: str) -> bool:
    """Whether a function or class is Ray Data's, Train's or Serve's: a program cannot set its options."""
    return name in _TRAIN or name.startswith(_OF_LIBRARIES)


_TRAIN = ("RayTrainWorker", "_RayTrainWorker")
_OF_LIBRARIES = (
    "_map_task",
    "_MapWorker",
    "MapWorker(",
    "ServeReplica:",
    "ServeController",
    "ProxyActor",
)


def _switched_off(case: Case) -> frozenset[str]:
    """Functions whose caller logged that a call failed for good with max_retries=0: the program disables retries."""
    failed = case.ledger.tasks.values()
    return frozenset(e["name"] for e in failed if e["max_retries"] == "0")


def _steps(exits: Iterable[WorkerExit], once: Collection[str]) -> tuple[str, ...]:
    """One line for each function or class of the program, and one for Ray Train; `once`: functions without retries."""
    named = {(e.actor != "", e.names[-1]) for e in exits if e.names}
    train = any(name in _TRAIN for _, name in named)
    return (
        *(
            _decorator(is_actor, name, is_once=name in once)
            for is_actor, name in sorted(named)
            if not is_of_library(name)
        ),
        *((_RESTART,) if train else ()),
    )


_RESTART = "RunConfig(failure_config=FailureConfig(max_failures=3))   # Ray Train continues from its last checkpoint. The default is 0"


def _decorator(is_actor: bool, name: str, *, is_once: bool) -> str:
    name = name.rpartition("<locals>.")[2]
    if is_actor:
        return paste.python(
            "@ray.remote(max_restarts=3, max_task_retries=3)   # class {name}, if its methods may run twice. The default of both options is 0",
            name=name,
        )
    if is_once:
        return paste.python(
            "@ray.remote(max_retries=3)   # {name}, only if it is safe to run twice. The program set max_retries=0, which disables retries",
            name=name,
        )
    return paste.python(
        "@ray.remote(max_retries=10)   # {name}, if it may run twice: Ray's default is 3, -1 means no limit",
        name=name,
    )


def _lost_values(case: Case, exits: Iterable[WorkerExit]) -> bool:
    """Whether an exception reports a ray.put value as lost with one of these workers."""
    workers = {e.worker for e in exits if e.worker}
    return any(
        e["owner"] in workers and (parts := ids.parse_object_id(e["object"])) and parts.put
        for e in case.of("object.owner_died")
    )
