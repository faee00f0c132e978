"""Training loops of Ray Train, which are no tasks: where they run, and which rank waits for which.

From Ray Train's second version on (`ray/train/v2`; measured with Ray 2.60.0) a training loop runs in a
thread of an actor that has no call, so no table of Ray's lists it. Its process shows a thread of
`ThreadRunner`. All ranks have to reach the same collective operation: a rank in one waits for the ranks
that are elsewhere, in any library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.cluster.samples import SampledProcess
from raydoctor.model.values import Event, Link
from raydoctor.waits.candidates import UnfinishedTask
from raydoctor.waits.kinds import frames
from raydoctor.waits.kinds.kind import Verdict

ACTOR = "RayTrainWorker"
"""The class of the actors that run the loops."""
CONTROLLER = "TrainController"
"""The class of the actor that waits for them."""
_LOOP = "train_fn"
"""Ray's function around the user's."""


def loops(case: Case, processes: Iterable[SampledProcess]) -> Iterator[UnfinishedTask]:
    """The training loops of sampled processes; each has the id of its actor's creation."""
    actors = {e["actor_id"]: e for e in live.rows(case, "actors") if e["class_name"] == ACTOR}
    stats = live.rows(case, "worker-stats") if actors else ()
    actor_of = {e["worker_id"]: actors[e["actor_id"]] for e in stats if e["actor_id"] in actors}
    for process in processes:
        actor = actor_of.get(process.worker)
        if actor is not None and any(frames.is_training(t) for t in process.last.threads):
            yield _work(process, actor)


def _work(process: SampledProcess, actor: Event) -> UnfinishedTask:
    started = live.number(process.last.event, "started_at") or process.last.at
    return UnfinishedTask(
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


def of_controller(
    work: UnfinishedTask, candidates: Mapping[str, UnfinishedTask]
) -> list[UnfinishedTask]:
    """The loops that a controller of Ray Train waits for; empty for other work."""
    if work.class_name != CONTROLLER:
        return []
    return [w for w in candidates.values() if _is_loop(w) and w.job == work.job]


def _is_loop(work: UnfinishedTask) -> bool:
    return work.class_name == ACTOR and work.name.endswith(_LOOP)


def elsewhere(
    work: UnfinishedTask,
    candidates: Mapping[str, UnfinishedTask],
    verdicts: Mapping[str, Verdict | None],
) -> list[UnfinishedTask]:
    """The ranks of the same group that are in no collective operation: a rank in one waits for them."""
    ranks = [w for w in candidates.values() if w.runs and _group(w) == _group(work)]
    return [w for w in ranks if (does := verdicts.get(w.id)) is None or does.kind != "collective"]


def _group(work: UnfinishedTask) -> Sequence[str]:
    event = work.event
    return work.job, work.name, event["placement_group_id"], event["parent_task_id"]


def links(work: UnfinishedTask, others: Sequence[UnfinishedTask]) -> tuple[Link, ...]:
    """The evidence that one rank is in the operation and the others are not."""
    first = others[0]
    where = first.process.last.event if first.process else first.event
    own = work.process.last.event if work.process else work.event
    return (
        Link(own, f"{work.label} is in a collective operation"),
        Link(where, f"{first.label} is not"),
    )
