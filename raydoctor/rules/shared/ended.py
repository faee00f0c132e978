"""Workers that ended: their names in headlines, and remedies that let Ray repeat what they ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.model import ids, paste
from raydoctor.model.values import Remedy

TASK = "@ray.remote(max_retries=10)   # tasks: default 3, -1 means no limit"
ACTOR = "@ray.remote(max_restarts=3, max_task_retries=3)   # actors: both are 0 by default"
NODE = (TASK, "@ray.remote(max_restarts=-1, max_task_retries=-1)   # actors: both are 0 by default")
"""What survives the loss of a node: an actor is restarted there without a limit."""
_DOC = "https://docs.ray.io/en/latest/ray-core/fault-tolerance.html"
_OBJECTS = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html"


def worker(label: str, is_named: bool) -> str:
    """`The worker of train (pid 379)`; without a task or class name `The worker (pid 379)`."""
    return f"The {'worker of ' if is_named else ''}{label}"


def workers(exits: Sequence[WorkerExit], where: str = "") -> str:
    """One worker by its label, or `3 workers` with `where` and their labels in brackets."""
    count = evidence.deaths(exits)
    if count == 1:
        return worker(exits[0].label, bool(exits[0].names))
    return f"{count} workers{where} ({evidence.join_names(exit_.label for exit_ in exits)})"


def retries(case: Case, exits: Sequence[WorkerExit], title: str) -> tuple[Remedy, ...]:
    """Retries for the tasks and actors of these workers, and what keeps their ray.put values, where these were lost."""
    retry = Remedy(title, tuple(_steps(exits)) or (TASK, ACTOR), doc=_DOC)
    return (retry, _RETURN) if _lost_values(case, exits) else (retry,)


_RETURN = Remedy(
    "Return the values that were lost instead of ray.put references: a retry does not bring back what a dead worker put",
    ("return value            # instead of: return ray.put(value); the caller then owns it",),
    doc=_OBJECTS,
)


def _steps(exits: Iterable[WorkerExit]) -> Iterable[str]:
    """One decorator for each function or class; a worker without a name may have run either."""
    named = {(e.actor != "", e.names[-1]) for e in exits if e.names}
    for is_actor, name in sorted(named):
        yield (
            paste.python(
                "@ray.remote(max_restarts=3, max_task_retries=3)   # class {name}; both are 0 by default",
                name=name,
            )
            if is_actor
            else paste.python(
                "@ray.remote(max_retries=10)   # {name}; default 3, -1 means no limit", name=name
            )
        )


def _lost_values(case: Case, exits: Iterable[WorkerExit]) -> bool:
    """Whether an exception reports a ray.put value as lost with one of these workers."""
    workers = {e.worker for e in exits if e.worker}
    return any(
        e["owner"] in workers and (parts := ids.parse_object_id(e["object"])) and parts.put
        for e in case.of("object.owner_died")
    )
