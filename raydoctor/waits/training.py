"""Loops of Ray Train, which are no tasks: who runs them, and who waits for whom in a collective operation.

From Ray Train's second version on (`ray/train/v2`; measured with Ray 2.60.0) a training loop runs in a thread
of an actor that has no call: no table of Ray's tells that it runs. Its process does, by a thread of
`ThreadRunner`. All ranks have to reach the same collective operation: who waits in one waits for those who
are elsewhere, whatever library it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.cluster.samples import Process
from raydoctor.model.values import Event, Link
from raydoctor.waits.candidates import Work
from raydoctor.waits.kinds import frames
from raydoctor.waits.kinds.kind import Verdict

ACTOR = "RayTrainWorker"
"""The class of the actors that run the loops."""
CONTROLLER = "TrainController"
"""That of the one which waits for them."""
_LOOP = "train_fn"
"""The function of Ray's around the user's."""


def loops(case: Case, processes: Iterable[Process]) -> Iterator[Work]:
    """The training loops of processes that were looked at; each stands for its actor."""
    actors = {e["actor_id"]: e for e in live.rows(case, "actors") if e["class_name"] == ACTOR}
    told = live.rows(case, "worker-stats") if actors else ()
    whose = {e["worker_id"]: actors[e["actor_id"]] for e in told if e["actor_id"] in actors}
    for process in processes:
        actor = whose.get(process.worker)
        if actor is not None and any(frames.is_training(t) for t in process.last.threads):
            yield _work(process, actor)


def _work(process: Process, actor: Event) -> Work:
    started = live.number(process.last.event, "started_at") or process.last.at
    return Work(
        "f" * 16 + actor["actor_id"],
        f"{ACTOR}.{_LOOP}",
        "creation",
        "RUNNING",
        max(0.0, process.last.at - started),
        actor,
        process.pid,
        process.node,
        process.worker,
        actor["actor_id"],
        ACTOR,
        process=process,
    )


def of_controller(work: Work, works: Mapping[str, Work]) -> list[Work]:
    """The loops that a controller of Ray Train waits for."""
    if work.class_name != CONTROLLER:
        return []
    return [w for w in works.values() if _is_loop(w) and w.job == work.job]


def _is_loop(work: Work) -> bool:
    return work.class_name == ACTOR and work.name.endswith(_LOOP)


def elsewhere(
    work: Work, works: Mapping[str, Work], verdicts: Mapping[str, Verdict | None]
) -> list[Work]:
    """The ranks that one in a collective operation waits for: of its kind, and in no such operation."""
    ranks = [w for w in works.values() if w.runs and _group(w) == _group(work)]
    return [w for w in ranks if (does := verdicts.get(w.id)) is None or does.kind != "collective"]


def _group(work: Work) -> Sequence[str]:
    event = work.event
    return work.job, work.name, event["placement_group_id"], event["parent_task_id"]


def links(work: Work, those: Sequence[Work]) -> tuple[Link, ...]:
    """That one is in the operation and the others are not."""
    first = those[0]
    where = first.process.last.event if first.process else first.event
    own = work.process.last.event if work.process else work.event
    return (
        Link(own, f"{work.label} is in a collective operation"),
        Link(where, f"{first.label} is not"),
    )
