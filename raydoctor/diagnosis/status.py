"""The state of a running cluster: from the tables of a live collection, and the logs of environments.

The reasons of pending tasks are those of `raydoctor hung`; the numbers of tasks and the gauges are those of
`raydoctor watch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from raydoctor.case import Case
from raydoctor.cluster import environments, gauges
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import tables as live
from raydoctor.model import ids
from raydoctor.model.status import (
    EnvironmentBuild,
    LiveStatus,
    ResourceUse,
    SilentNode,
    TaskAge,
    TaskCounts,
    WaitingGroup,
)
from raydoctor.model.values import Event
from raydoctor.rules.shared.live import daemons
from raydoctor.rules.shared.setup import builds
from raydoctor.waits import edges, pending
from raydoctor.waits.candidates import UnfinishedTask

SIGNALS = builds.SIGNALS
"""The records that the state needs besides tables."""
ROLES = frozenset(role for signal in SIGNALS for role in signal.roles) | {"live"}
"""The files that hold them."""
_FIRST = ("CPU", "GPU", "memory", "object_store_memory")
_HIDDEN = ("node:", "accelerator_type:")
"""Resources that Ray creates to place tasks, not to count them."""
_ON_ITS_WAY = {
    "PENDING_NODE_ASSIGNMENT": "waits to be placed on a node",
    "PENDING_OBJ_STORE_MEM_AVAIL": "waits for object store memory",
    "SUBMITTED_TO_WORKER": "was sent to a worker",
}


def status(case: Case) -> LiveStatus | None:
    """The state of the cluster; None if its nodes are not known."""
    nodes = live.rows(case, "nodes") or live.rows(case, "resources")
    if not nodes:
        return None
    at = max(e.at for e in case.of("live.table") if e.at is not None)
    dead = sum(e["state"] == "DEAD" for e in nodes)
    stats = live.rows(case, "worker-stats")
    drivers = sum(e["worker_type"] == "DRIVER" for e in stats)
    has_stats = live.looked(case, "worker-stats") is not None
    found = tuple(build.at(at) for build in builds.builds(case))
    return LiveStatus(
        at,
        len(nodes) - dead,
        dead,
        sum(e["status"] == "DRAINING" for e in live.rows(case, "resources")),
        len(stats) - drivers if has_stats else None,
        drivers if has_stats else None,
        tuple(_resources(live.rows(case, "resources"))),
        _tasks(case, found),
        _actors(case),
        tuple(gauges.gauges(case)),
        found,
        tuple(_silent(case, nodes)),
    )


def _silent(case: Case, nodes: Iterable[Event]) -> Iterator[SilentNode]:
    """Nodes whose processes show at once what the GCS reports half a minute later."""
    alive = {e["node_id"] for e in nodes if e["state"] != "DEAD"}
    stopped = {e["node_id"]: e.pid or 0 for e in daemons.stopped(case, "raylet")}
    running = {e["node_id"] for e in daemons.daemons(case, "raylet")}
    heads = {e["node_id"] for e in daemons.daemons(case, "gcs_server")}
    for node in sorted(alive & (stopped.keys() | (heads - running))):
        yield SilentNode(node, stopped.get(node, 0))


def _resources(rows: Iterable[Event]) -> Iterator[ResourceUse]:
    """Totals of the live nodes: well-known resources first."""
    total: dict[str, float] = {}
    free: dict[str, float] = {}
    is_known = False
    for row in rows:
        if row["state"] == "DEAD":
            continue
        is_known = is_known or bool(row["available"])
        for name, amount in live_rows.amounts(row, "total").items():
            if "_group_" not in name and not name.startswith(_HIDDEN):
                total[name] = total.get(name, 0.0) + amount
        for name, amount in live_rows.amounts(row, "available").items():
            free[name] = free.get(name, 0.0) + amount
    names = sorted(total, key=lambda n: (_FIRST.index(n) if n in _FIRST else len(_FIRST), n))
    for name in names:
        used = max(0.0, total[name] - free.get(name, 0.0)) if is_known else None
        yield ResourceUse(name, used, total[name])


def _actors(case: Case) -> Mapping[str, int] | None:
    if live.looked(case, "actors") is None:
        return None
    counts: dict[str, int] = {}
    for event in live.rows(case, "actors"):
        counts[event["state"]] = counts.get(event["state"], 0) + 1
    return dict(sorted(counts.items()))


# ---------------------------------------------------------------- tasks


def _tasks(case: Case, found: Sequence[EnvironmentBuild]) -> TaskCounts | None:
    head = live.looked(case, "tasks")
    if head is None:
        return None
    scene = edges.read_scene(case)
    # Neither a training loop nor a driver is a Ray task.
    tasks = [w for w in scene.candidates.values() if w.event.kind == "live.tasks"]
    jobs = _jobs(case)
    running = [w for w in tasks if w.runs]
    waiting = [w for w in tasks if not w.runs and _is_owned(w, jobs)]
    owned = _owned(case)
    number = len(waiting) if owned is None else max(0, owned - len(running))
    is_cut = (live.whole(head, "total") or 0) > (live.whole(head, "rows") or 0)
    return TaskCounts(
        len(running),
        number,
        _oldest(running),
        _oldest(waiting),
        tuple(_groups(scene, [*waiting, *(w for w in running if w.worker in scene.ended)], found)),
        not is_cut,
    )


def _jobs(case: Case) -> frozenset[str] | None:
    """The jobs of all live processes; None if one of them did not reply."""
    rows = live.rows(case, "worker-stats")
    jobs = [ids.job_of_driver(row["worker_id"]) or row["job_id"] for row in rows]
    known = all(live.truth(row, "answers") for row in rows)
    return frozenset(jobs) if rows and known else None


def _is_owned(work: UnfinishedTask, jobs: frozenset[str] | None) -> bool:
    """Whether a process of its job lives: for some seconds, Ray lists the tasks of a driver that exited."""
    return jobs is None or work.job in jobs


def _owned(case: Case) -> int | None:
    """Unfinished tasks, according to the processes that submitted them; None if one did not reply."""
    rows = live.rows(case, "worker-stats")
    counts = [live.whole(row, "num_pending_tasks") for row in rows]
    known = [count for count in counts if count is not None]
    return sum(known) if rows and len(known) == len(rows) else None


def _oldest(tasks: Iterable[UnfinishedTask]) -> TaskAge | None:
    oldest = max(tasks, key=lambda w: (w.age, w.id), default=None)
    return TaskAge(oldest.name, oldest.age) if oldest is not None else None


def _groups(
    scene: edges.Scene, waiting: Iterable[UnfinishedTask], found: Sequence[EnvironmentBuild]
) -> list[WaitingGroup]:
    """Pending tasks by function and reason, most tasks first."""
    placed = pending.unplaced(scene)
    groups: dict[tuple[str, str, str], list[UnfinishedTask]] = {}
    for work in waiting:
        kind, reason = _reason(scene, work, placed, found)
        groups.setdefault((kind, work.name, reason), []).append(work)
    made = [
        WaitingGroup(*key, len(tasks), max(work.age for work in tasks))
        for key, tasks in groups.items()
    ]
    return sorted(made, key=lambda g: (-g.count, -g.oldest, g.name, g.reason))


def _reason(
    scene: edges.Scene,
    work: UnfinishedTask,
    placed: Mapping[str, edges.Waiting],
    found: Sequence[EnvironmentBuild],
) -> tuple[str, str]:
    waiting = edges.queued(scene, work) or placed.get(work.id)
    several = environments.many(scene.case)
    if waiting is None and several and work.state == "PENDING_NODE_ASSIGNMENT":
        return "worker-start", f"waits for a worker of its own: the job uses {several}"
    if waiting is None:
        state = work.state.lower().replace("_", " ")
        return work.state.lower(), _ON_ITS_WAY.get(work.state, f"is {state}")
    if waiting.kind == "worker-start" and found and not several:
        return "runtime-env", "waits for a worker, while a runtime environment is being set up"
    return waiting.kind, waiting.summary
