"""Starved requests in a live snapshot: they would fit, but other holders keep the resources.

A request is starved if no node had room for it even after every working task has ended: actors, placement
groups and tasks in `ray.get` keep their resources. A queue behind working tasks is not starved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import holders as holding
from raydoctor.cluster import resources
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import waiting as now
from raydoctor.model.text import called, joined
from raydoctor.model.values import Event


class Starved(NamedTuple):
    """Requests that wait for the same holders."""

    requests: tuple[now.Request, ...]
    holders: tuple[holding.ResourceHolder, ...]
    short: tuple[str, ...]
    """Resources of which there is not enough left."""
    total: resources.Needs
    """Total resources of the nodes that could run them."""
    at_work: bool
    """Whether it would not fit even if idle holders ended: it waits for working ones."""
    parents: tuple[Event, ...] = ()
    """Tasks in `ray.get` among the holders (or in actors among them) that wait for these very requests.
    They hold what is short, and no other holder can free enough: a deadlock."""
    outsiders: tuple[Event, ...] = ()
    """Tasks that run in a placement group among the holders, and wait in `ray.get` for these very requests.
    A child runs in the group of its parent only if the group captures child tasks: a deadlock."""

    @property
    def waiters(self) -> tuple[Event, ...]:
        """Rows of all waiting tasks and actors."""
        return tuple(event for request in self.requests for event in request.waiters)

    @property
    def age(self) -> float:
        """Seconds that the first has waited, at least."""
        return max((request.age or 0.0 for request in self.requests), default=0.0)

    @property
    def needs(self) -> resources.Needs:
        """What the first request asks for, without a placement group's names."""
        return live_rows.plain(self.requests[0].needs)

    @property
    def children(self) -> tuple[Event, ...]:
        """Waiting tasks for which a parent waits."""
        ids = {e["task_id"] for e in self.parents}
        return tuple(e for e in self.waiters if e["parent_task_id"] in ids)

    @property
    def wait(self) -> str:
        """`3 train tasks wait for 1 CPU each, 1 big task for 2 CPU`."""
        first, *others = self.requests
        waits = "waits" if first.number == 1 else "wait"
        summary = [f"{first.who} {waits} for {_each(first)}"]
        return ", ".join([*summary, *(f"{r.who} for {_each(r)}" for r in others)])

    @property
    def hold(self) -> str:
        """`2 Simulator actors hold 2 of 2 CPU and run nothing`."""
        held = {
            n: sum(live_rows.plain(h.held).get(n, 0.0) for h in self.holders) for n in self.short
        }
        shares = [resources.share(n, held[n], self.total.get(n, 0.0)) for n in self.short]
        hold = holding.hold(self.holders, shares, self.waiters, at_work=self.at_work)
        if not self.outsiders:
            return hold
        names = joined([*dict.fromkeys(called(live_rows.name_of(e)) for e in self.outsiders)])
        return f"{hold}, and {names}, which runs in it, waits for them"


def _each(request: now.Request) -> str:
    return request.asked if request.number == 1 else f"{request.asked} each"


def left(node: now.ClusterNode, holders: Iterable[holding.ResourceHolder]) -> dict[str, float]:
    """A node's resources without what these holders hold."""
    amounts = dict(node.total)
    for holder in holders:
        if holder.node == node.id:
            for name, amount in holder.held.items():
                amounts[name] = amounts.get(name, 0.0) - amount
    return amounts


def starved(case: Case, picture: now.Picture | None, least: float = now.AGE) -> list[Starved]:
    """Every group of requests that wait for the same holders, the oldest first.

    `least`: seconds that a request must have waited.

    Requests of unknown age count: Ray records no time for a replica of Ray Serve that waits to be placed.
    """
    found: dict[tuple[str, ...], list[Starved]] = {}
    if picture is None:
        return []
    for request in picture.requests:
        is_new = request.age is not None and request.age < least
        one = None if is_new else _starved(picture, request)
        if one and not now.expected(case, request.needs, request.age or 0.0):
            found.setdefault(tuple(sorted(h.id for h in one.holders)), []).append(one)
    merged = [_together(same) for same in found.values()]
    return [_with_parents(picture, one) for one in merged]


def _starved(picture: now.Picture, request: now.Request) -> Starved | None:
    homes = [
        n
        for n in picture.nodes
        if live_rows.fits(n.total, request.needs) and now.bears(n, request.selectors)
    ]
    rest = [left(n, picture.holders) for n in homes]
    if not homes or any(live_rows.fits(each, request.needs) for each in rest):
        return None
    names = [
        n for n, amount in request.needs.items() if any(each.get(n, 0.0) < amount for each in rest)
    ]
    ids = {n.id for n in homes}
    holders = tuple(
        h for h in picture.holders if h.node in ids and any(h.held.get(name) for name in names)
    )
    at_work = [h for h in holders if h.busy and not h.waits]
    needed = any(live_rows.fits(left(n, at_work), request.needs) for n in homes)
    plain = live_rows.plain({name: request.needs[name] for name in names})
    total = _in_group(homes, names) if request.group else _sum(homes, plain)
    return Starved((request,), holders, tuple(plain), total, not needed)


def _sum(homes: list[now.ClusterNode], names: Iterable[str]) -> resources.Needs:
    return {n: sum(home.total.get(n, 0.0) for home in homes) for n in names}


def _in_group(homes: list[now.ClusterNode], names: list[str]) -> resources.Needs:
    """A placement group's total of these resources."""
    found: dict[str, float] = {}
    for name in names:
        for word in live_rows.plain({name: 1.0}):
            found[word] = found.get(word, 0.0) + sum(n.total.get(name, 0.0) for n in homes)
    return found


def _together(same: list[Starved]) -> Starved:
    """Requests of several shapes that wait for the same holders, most waiters first."""
    requests = sorted(
        (request for one in same for request in one.requests), key=lambda r: -len(r.waiters)
    )
    short = tuple(dict.fromkeys(name for one in same for name in one.short))
    total: dict[str, float] = {}
    for one in same:
        for name, amount in one.total.items():
            total[name] = max(total.get(name, 0.0), amount)
    return Starved(tuple(requests), same[0].holders, short, total, all(one.at_work for one in same))


# ---------------------------------------------------------------- nested ray.get


def _with_parents(picture: now.Picture, one: Starved) -> Starved:
    outsiders = _outsiders(picture, one)
    return one._replace(
        parents=_parents(picture, one),
        outsiders=outsiders,
        at_work=one.at_work and not outsiders,
    )


def _outsiders(picture: now.Picture, one: Starved) -> tuple[Event, ...]:
    """Running parents of the waiting tasks that wait in `ray.get` inside a group that holds what is short."""
    groups = {h.id for h in one.holders if h.kind == "placement group"}
    stuck = {h.id: h.event["placement_group_id"] for h in picture.holders if h.waits}
    asked = {e["parent_task_id"] for e in one.waiters if not e["placement_group_id"]}
    return tuple(
        e
        for e in picture.tasks
        if e["state"] == "RUNNING"
        and e["task_id"] in asked
        and (stuck.get(e["task_id"]) or stuck.get(e["actor_id"])) in groups
    )


def _parents(picture: now.Picture, one: Starved) -> tuple[Event, ...]:
    """Tasks that wait for the starved requests and hold what these need.

    A parent with another running child may only be waiting for that one.
    """
    stuck = {h.id for h in one.holders if h.waits}
    waiting = {
        e["task_id"]: e
        for e in picture.tasks
        if e["state"] == "RUNNING" and (e["task_id"] in stuck or e["actor_id"] in stuck)
    }
    parents = {t: waiting[t] for e in one.waiters if (t := e["parent_task_id"]) in waiting}
    rest = [h for h in picture.holders if h.id not in stuck]
    needs = one.requests[0].needs
    freed = any(live_rows.fits(left(node, rest), needs) for node in picture.nodes)
    helped = any(
        e["state"] in now.UNDER_WAY
        and e["parent_task_id"] in parents
        and e["task_id"] not in waiting
        for e in picture.tasks
    )
    return tuple(parents.values()) if freed and not helped else ()
