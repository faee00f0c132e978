"""Which actors, placement groups and tasks in `ray.get` hold resources right now, from live tables.

Read on clusters of 2.9.3, 2.40 and 2.60: an actor keeps the resources that it requested until it ends. A
task in `ray.get` gives back only its CPUs. The state API lists such a task as RUNNING; the metrics port
(table `ray-get`) counts waiting tasks by function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.cluster import resources, rows
from raydoctor.cluster import tables as live
from raydoctor.model import ids
from raydoctor.model.text import called
from raydoctor.model.values import Event, Subject


class ResourceHolder(NamedTuple):
    """A holder of resources: a live actor, a task in `ray.get`, or a placement group."""

    kind: Literal["actor", "task", "placement group"]
    id: str
    name: str
    pid: int | None
    node: str
    held: resources.Needs
    busy: bool
    """Whether it runs a task."""
    waits: bool
    """Whether everything that it runs waits in `ray.get` or `ray.wait`."""
    event: Event

    @property
    def label(self) -> str:
        """`Simulator (pid 812)`, `load() (pid 812)`, `placement group 'ranks'`."""
        if self.kind == "placement group":
            return f"placement group '{self.name}'"
        name = called(self.name) if self.kind == "task" else self.name
        return f"{name} (pid {self.pid})" if self.pid else name

    @property
    def does(self) -> str:
        """What it is doing while it holds them."""
        return "waits in ray.get" if self.waits else "is busy" if self.busy else "runs nothing"

    @property
    def subject(self) -> Subject:
        """Its subject for reports."""
        kind = "pg" if self.kind == "placement group" else self.kind
        return Subject(kind, self.id, self.name or None, self.pid, self.node or None)


def each_once(holders: Iterable[ResourceHolder]) -> list[ResourceHolder]:
    """Each holder once: a placement group with its resources on all nodes."""
    found: dict[str, ResourceHolder] = {}
    for holder in holders:
        held = dict(found[holder.id].held) if holder.id in found else {}
        for name, amount in holder.held.items():
            held[name] = held.get(name, 0.0) + amount
        found[holder.id] = holder._replace(held=held)
    return list(found.values())


def held_by(holders: Iterable[ResourceHolder]) -> str:
    """`2 Simulator actors and 1 plan() task`."""
    counts: dict[tuple[str, str], int] = {}
    for key in {(h.kind, h.id): (h.name, h.kind) for h in holders}.values():
        counts[key] = counts.get(key, 0) + 1
    return rows.listed(counts)


def hold(
    holders: Sequence[ResourceHolder],
    shares: Iterable[str],
    waiters: Iterable[Event],
    *,
    at_work: bool,
) -> str:
    """`2 Simulator actors of job 1 hold 2 of 2 CPUs and run nothing`; the job, if it is not the waiters'."""
    many = len({h.id for h in holders}) > 1
    does = ""
    if at_work:
        does = f" and {'are' if many else 'is'} busy"
    elif not any(h.busy for h in holders):
        does = f" and {'run' if many else 'runs'} nothing"
    jobs, own = {_job(h.event) for h in holders} - {""}, {_job(e) for e in waiters} - {""}
    of_job = ""
    if jobs and own and not jobs & own:
        of_job = f" of job {ids.job_number(min(jobs))}" if len(jobs) == 1 else " of other jobs"
    return f"{held_by(holders)}{of_job} {'hold' if many else 'holds'} {' and '.join(shares)}{does}"


def _job(event: Event) -> str:
    return event["job_id"] or event["creator_job_id"]


def holders(case: Case, tasks: tuple[Event, ...]) -> Iterator[ResourceHolder]:
    """Live actors, placement groups, and tasks in `ray.get`.

    A task that is working does not count: it will end and give back its resources.
    """
    running = [e for e in tasks if e["state"] == "RUNNING"]
    waiting = in_ray_get(case, running)
    busy = {
        e["actor_id"]
        for e in live.rows(case, "worker-stats")
        if live.sequence(e, "running_task_ids")
    }
    busy |= {e["actor_id"] for e in running}
    at_work = {e["actor_id"] for e in running if e["task_id"] not in waiting}
    # A group whose members are queued or starting is in use.
    active = {e["placement_group_id"] for e in tasks if e["state"] not in ("FINISHED", "FAILED")}
    for event in live.rows(case, "actors"):
        if event["state"] in ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING"):
            active.add(event["placement_group_id"])
        if event["state"] == "ALIVE" and (held := rows.amounts(event, "required_resources")):
            actor = event["actor_id"]
            calls = actor in busy
            waits = calls and actor not in at_work and any(e["actor_id"] == actor for e in running)
            if calls:
                active.add(event["placement_group_id"])
            yield ResourceHolder(
                "actor", actor, event["class_name"], event.pid, event["node_id"], held, calls, waits, event
            )  # fmt: skip
    for event in running:
        held = rows.amounts(event, "required_resources")
        held = {n: v for n, v in held.items() if n.partition("_group_")[0] != "CPU"}
        if event["task_id"] in waiting and event["type"] == "NORMAL_TASK" and held:
            yield ResourceHolder(
                "task", event["task_id"], rows.name_of(event), event.pid, event["node_id"],
                held, True, True, event,
            )  # fmt: skip
    yield from _groups(case, active)


def _groups(case: Case, active: set[str]) -> Iterator[ResourceHolder]:
    """What each group reserves on each node; its members' resources have other names."""
    for event in live.rows(case, "placement-groups"):
        kept: dict[str, dict[str, float]] = {}
        for bundle in live.records(event, "bundles"):
            if node := live.text_of(bundle.get("node_id")):
                of_node = kept.setdefault(node, {})
                for name, amount in rows.amounts_of(bundle.get("unit_resources")).items():
                    of_node[name] = of_node.get(name, 0.0) + amount
        if event["state"] == "CREATED":
            group = event["placement_group_id"]
            name = event["name"] or evidence.short(group)
            for node, held in kept.items():
                yield ResourceHolder(
                    "placement group", group, name, None, node, held, group in active, False, event
                )  # fmt: skip


_WAITS = ("RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT")


def in_ray_get(case: Case, running: Iterable[Event]) -> set[str]:
    """Ids of the running tasks that all, function by function, wait in `ray.get` or `ray.wait`.

    The metrics count by function: if only some of a function's tasks wait, it is unknown which.
    """
    counts: dict[tuple[str, str], int] = {}
    for event in live.rows(case, "ray-get"):
        if event["state"] in _WAITS:
            key = (event["job_id"], event["name"])
            counts[key] = counts.get(key, 0) + (live.whole(event, "count") or 0)
    by_function: dict[tuple[str, str], list[str]] = {}
    for event in running if counts else ():
        names = (event["func_or_class_name"], event["name"])
        counted = next((n for n in names if (event["job_id"], n) in counts), "")
        by_function.setdefault((event["job_id"], counted), []).append(event["task_id"])
    return {t for key, ids in by_function.items() if counts.get(key, 0) >= len(ids) for t in ids}
