"""What unplaced tasks and actors wait for: resources, a placement group, the start of a worker.

The judgement is that of the rules about waiting (`cluster/waiting.py`, `starved.py`, `groups.py`). Here it
becomes part of the graph: a request waits for the tasks that hold the resources it needs, if there are any.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.cluster import environments, resources
from raydoctor.cluster import groups as grouping
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import tables as live
from raydoctor.cluster import waiting as now
from raydoctor.model import ids
from raydoctor.model.text import called, cut, short_id
from raydoctor.model.values import Event, Link
from raydoctor.waits.candidates import SETTLED, UnfinishedTask
from raydoctor.waits.edges import Scene, Waiting, WaitTarget, target
from raydoctor.waits.graph import Needs

_LATELY = 2 * SETTLED
_CUT = 200
"""Characters of a command line in the table `processes`: a longer one ends anywhere."""
_MADE = "/runtime_resources/"
"""The folder in which the node's agent creates runtime environments."""


def unplaced(scene: Scene) -> dict[str, Waiting]:
    """Task -> what it waits for before it can be placed, as far as that is known."""
    picture = now.picture(scene.case)
    if picture is None:
        return {}
    groups = grouping.of(scene.case, picture, {})
    starved = starving.starved(scene.case, picture)
    found = {}
    for request in picture.requests:
        waiting = (
            _in_group(scene, picture, groups.get(request.group))
            or _infeasible(scene, picture, request)
            or _starved(scene, request, starved)
            or _taken(scene, picture, request)
        )
        for event in request.waiters if waiting else ():
            task = event["task_id"] or ids.creation_task(event["actor_id"])
            if waiting and task in scene.candidates:
                found[task] = waiting._replace(links=(*waiting.links, _request(event, request)))
    homes = {node.id for node in picture.nodes}
    modest = [w for w in scene.candidates.values() if _asks_nothing(w)] if homes else []
    for work in modest if not _moves(scene, homes) else ():
        found[work.id] = _no_worker(scene, "it asks for no resources")
    return found


def of_groups(scene: Scene) -> dict[str, Waiting]:
    """Job -> the wait of a process in `pg.wait()` or `ray.get(pg.ready())`: for its oldest pending group.

    In Ray 2.60 no task makes the object of `pg.ready()`, and its id does not contain the group's.
    """
    picture = now.picture(scene.case)
    if picture is None:
        return {}
    groups = [each for each in grouping.of(scene.case, picture, {}).values() if each is not None]
    found: dict[str, Waiting] = {}
    for group in sorted(groups, key=lambda each: -each.age):
        waiting = _of_group(scene, picture, group)._replace(rested=group.age)
        found.setdefault(group.event["creator_job_id"], waiting)
    return found


def _asks_nothing(work: UnfinishedTask) -> bool:
    """Whether unplaced work fits on any node."""
    asked = ("required_resources", "label_selector")
    is_free = not any(live.mapping(work.event, name) for name in asked)
    is_pending = work.state == "PENDING_NODE_ASSIGNMENT" and work.kind != "method"
    return is_pending and is_free and not work.event["placement_group_id"]


def _request(event: Event, request: now.Request) -> Link:
    return Link(event, f"{called(live_rows.name_of(event))} waits for {request.asked}")


def _in_group(
    scene: Scene, picture: now.Picture, pending: grouping.Pending | None
) -> Waiting | None:
    """The placement group of the request, which is itself not placed."""
    return None if pending is None else _of_group(scene, picture, pending)


def _of_group(scene: Scene, picture: now.Picture, pending: grouping.Pending) -> Waiting:
    name = pending.name or short_id(pending.id)
    strategy = f" ({pending.strategy})" if pending.strategy else ""
    busy = _at_work(scene, [h.id for h in pending.holders]) if pending.at_work else []
    return Waiting(
        "placement-group",
        f"waits for placement group {name}{strategy}: {grouping.lack(picture, pending)}",
        (WaitTarget("placement-group", pending.id, name), *map(target, busy)),
        Needs(frozenset(w.id for w in busy), "any") if busy else None,
        (Link(pending.event, f"placement group {name} is {pending.event['state']}"),),
        is_hopeless=not busy,
        never_fits=pending.infeasible,
    )


def _infeasible(scene: Scene, picture: now.Picture, request: now.Request) -> Waiting | None:
    """A request that no node can satisfy."""
    fits = any(
        live_rows.fits(n.total, request.needs) and now.bears(n, request.selectors)
        for n in picture.nodes
    )
    if fits or request.group or now.expected(scene.case, request.needs, request.age or now.AGE):
        return None
    largest = max(picture.nodes, key=lambda n: sum(map(bool, _had(n, request))))
    return Waiting(
        "resources",
        f"waits for {request.asked}, which no node has",
        (WaitTarget("resources", None, request.asked),),
        None,
        (Link(largest.event, f"no node has {request.asked}"),),
        is_hopeless=True,
        never_fits=True,
    )


def _had(node: now.ClusterNode, request: now.Request) -> Iterator[bool]:
    for name, amount in request.needs.items():
        yield node.total.get(name, 0.0) >= amount


def _starved(scene: Scene, request: now.Request, starved: list[starving.Starved]) -> Waiting | None:
    """A request for resources whose holders run nothing, or wait for this very request."""
    for one in starved:
        if not any(own is request or own == request for own in one.requests):
            continue
        parents = [
            scene.candidates[p["task_id"]] for p in one.parents if p["task_id"] in scene.candidates
        ]
        busy = _at_work(scene, [h.id for h in one.holders]) if one.at_work else []
        needs = parents or busy
        return Waiting(
            "resources",
            f"waits for {request.asked}: {one.hold}",
            tuple(map(target, needs))
            or tuple(WaitTarget(h.kind.replace(" ", "-"), h.id, h.name) for h in one.holders),
            Needs(frozenset(w.id for w in needs), "any") if needs else None,
            tuple(
                Link(h.event, f"{h.label} holds {_held(h.held)} and {h.does}")
                for h in one.holders[:3]
            ),
            is_hopeless=not needs,
            short=tuple(one.short),
        )
    return None


def _held(needs: resources.Needs) -> str:
    return resources.describe(live_rows.plain(needs))


def _at_work(scene: Scene, holders: list[str]) -> list[UnfinishedTask]:
    """The work of holders of resources: tasks themselves, methods of actors."""
    found = [
        scene.candidates[h] for h in holders if h in scene.candidates and scene.candidates[h].runs
    ]
    return found + [w for h in holders for w in scene.of_actor.get(h, ())]


def _taken(scene: Scene, picture: now.Picture, request: now.Request) -> Waiting | None:
    """A request for what running tasks and constructors hold, or for what is free while no worker starts."""
    homes = {
        n.id
        for n in picture.nodes
        if live_rows.fits(n.total, request.needs) and now.bears(n, request.selectors)
    }
    free = {
        e["node_id"]: live_rows.amounts(e, "available") for e in live.rows(scene.case, "resources")
    }
    if any(node in free and live_rows.fits(free[node], request.needs) for node in homes):
        return None if _moves(scene, homes) else _no_worker(scene, f"{request.asked} is available")
    holders = [
        w
        for w in scene.candidates.values()
        if w.runs and w.node in homes and w.kind in ("task", "creation") and _holds(w, request)
    ]
    if not holders:
        return None
    names = now.who([w.event for w in holders])
    return Waiting(
        "resources",
        f"waits for {request.asked}, held by {names}",
        tuple(map(target, holders)),
        Needs(frozenset(w.id for w in holders), "any"),
        tuple(
            Link(
                w.event,
                f"{w.label} holds {_held(live_rows.amounts(w.event, 'required_resources'))}",
            )
            for w in holders[:3]
        ),
    )


def _moves(scene: Scene, homes: set[str]) -> bool:
    """Whether tasks have begun on these nodes lately: then its turn is still to come."""
    tasks = (w for w in scene.candidates.values() if w.runs and w.kind != "driver")
    return any(w.node in homes and w.age < _LATELY for w in tasks)


def _holds(work: UnfinishedTask, request: now.Request) -> bool:
    held = live_rows.amounts(work.event, "required_resources")
    return any(held.get(name) for name in request.needs)


def _no_worker(scene: Scene, though: str) -> Waiting:
    """It has room and does not begin: its runtime environment is being created, or no worker starts."""
    creating = [
        e
        for e in live.rows(scene.case, "processes")
        if _MADE in e["title"] and e["kind"] != "worker" and e["state"] != "Z"
    ]
    if creating:
        title = _command(creating[0])
        rests = (r for r in live.rows(scene.case, "rests") if r.pid == creating[0].pid)
        return Waiting(
            "runtime-env",
            f"waits for its runtime environment: pid {creating[0].pid} runs `{title}`",
            (WaitTarget("process", None, title),),
            None,
            (Link(creating[0], "the node's agent creates a runtime environment"),),
            is_hopeless=True,
            rested=next((live.number(row, "family_s") for row in rests), None),
        )
    several = environments.many(scene.case)
    own = f": its job uses {several}, and each needs workers of its own" if several else ""
    return Waiting(
        "worker-start",
        f"waits for a worker to start{own or f', though {though}'}",
        (),
        None,
        is_hopeless=True,
    )


def _command(process: Event) -> str:
    """`python -m pip install -r requirements.txt`: without long folders, and cut between words."""
    title = process["title"]
    words = title.split()
    if len(title) >= _CUT:
        words[-1] = "…"
    return cut(" ".join(w.rpartition("/")[2] if w.startswith("/") else w for w in words), 80)
