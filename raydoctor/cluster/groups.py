"""Placement groups that are pending now, and which of their bundles no node has room for, from live tables.

The rows of `placement-groups` are those of the state API (Ray 2.9 to 2.60), which lacks the strategy. The
GCS's own rows, its demands and its log contain it. `scheduling_state` is the GCS's view: INFEASIBLE (the GCS
does not try again before a node joins) or NO_RESOURCES (it tries once a second).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import holders as holding
from raydoctor.cluster import resources
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import tables as live
from raydoctor.cluster import waiting as now
from raydoctor.model.text import join_names, plural
from raydoctor.model.values import Event, Remedy

DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html"
WAITS = ("PENDING", "RESCHEDULING")
"""States of a placement group that has no place yet."""
_STRATEGIES = ("STRICT_SPREAD", "STRICT_PACK", "SPREAD", "PACK")


class GroupBundle(NamedTuple):
    """Resources that a group reserves together on one node."""

    needs: resources.Needs
    selectors: tuple[dict[str, str], ...]


class Pending(NamedTuple):
    """A group that is not created yet, and why."""

    id: str
    name: str
    strategy: str
    bundles: tuple[GroupBundle, ...]
    """Bundles that are not placed."""
    event: Event
    age: float
    waiters: tuple[Event, ...]
    """Tasks and actors that wait to run in it."""
    infeasible: bool
    """Even the empty cluster has no room for it."""
    homeless: tuple[GroupBundle, ...]
    """Bundles for which no node has room beside the holders (or at all, if the group is infeasible)."""
    holders: tuple[holding.ResourceHolder, ...]
    at_work: bool
    """There would be no room even if the idle holders ended."""

    @property
    def scheduling_state(self) -> str:
        """The GCS's own view of it."""
        return _scheduling_state(self.event)


def of(
    case: Case, snapshot: now.Picture, logged: Mapping[str, str], least: float = now.AGE
) -> dict[str, Pending | None]:
    """Every group that is pending now, by id; None for one that is new or waits for tasks that will end.

    `logged`: strategies by id, from the GCS's log. `least`: seconds for which a group
    has waited, and the newest node has been there.
    """
    rows = [e for e in live.rows(case, "placement-groups") if e["state"] in WAITS]
    return {
        (group := e["placement_group_id"]): _pending(
            case, snapshot, e, logged.get(group, ""), least
        )
        for e in rows
    }


def _pending(
    case: Case, snapshot: now.Picture, event: Event, logged: str, least: float
) -> Pending | None:
    bundles = [
        GroupBundle(live_rows.amounts_of(b.get("unit_resources")), _selectors(b))
        for b in live.records(event, "bundles")
        if not b.get("node_id")
    ]
    age = _age(event, snapshot.at)
    strategy = _strategy(case, event) or logged
    awaited = any(now.expected(case, b.needs, age) for b in bundles)
    if not bundles or age < least or awaited:
        return None
    rooms = [_NodeRoom(n, starving.left(n, ())) for n in snapshot.nodes]
    infeasible = _unplaced(strategy, bundles, rooms)
    if not strategy and _scheduling_state(event) == "INFEASIBLE":
        infeasible = bundles
    if infeasible and snapshot.newest < least:
        return None
    rooms = [_NodeRoom(n, starving.left(n, snapshot.holders)) for n in snapshot.nodes]
    homeless = infeasible or _unplaced(strategy, bundles, rooms)
    if not homeless:
        return None
    working = [h for h in snapshot.holders if h.busy and not h.waits]
    rooms = [_NodeRoom(n, starving.left(n, working)) for n in snapshot.nodes]
    names = {name for bundle in bundles for name in bundle.needs}
    group = event["placement_group_id"]
    return Pending(
        group,
        event["name"],
        strategy,
        tuple(bundles),
        event,
        age,
        tuple(e for r in snapshot.requests if r.group == group for e in r.waiters),
        bool(infeasible),
        tuple(homeless),
        () if infeasible else tuple(h for h in snapshot.holders if names & set(h.held)),
        not infeasible and bool(_unplaced(strategy, bundles, rooms)),
    )


def _scheduling_state(event: Event) -> str:
    return str(live.mapping(event, "stats").get("scheduling_state") or "")


def _age(event: Event, at: float) -> float:
    """Seconds since the group was requested; a group that lost a node has waited for less."""
    since = live.number_of(live.mapping(event, "stats").get("creation_request_received_ns"))
    return now.AGE if since is None else max(at - since / 1e9, 0.0)


def _strategy(case: Case, event: Event) -> str:
    """The strategy from the group's row or from its demand; empty if neither has it."""
    group = event["placement_group_id"]
    demands = [
        e["strategy"]
        for e in live.rows(case, "demands")
        if e["kind"] == "placement-group" and e["placement_group_id"] == group
    ]
    return next((s for s in (event["strategy"], *demands) if s in _STRATEGIES), "")


def _selectors(bundle: dict[str, object]) -> tuple[dict[str, str], ...]:
    labels = bundle.get("label_selector")
    return ({k: str(v) for k, v in labels.items()},) if isinstance(labels, dict) and labels else ()


# ---------------------------------------------------------------- room


class _NodeRoom(NamedTuple):
    """A node and its free resources, which shrink as bundles are placed."""

    node: now.ClusterNode
    left: dict[str, float]


def _unplaced(
    strategy: str, bundles: Sequence[GroupBundle], rooms: Sequence[_NodeRoom]
) -> list[GroupBundle]:
    """Bundles that do not fit; like Ray's scheduler, this places the largest first."""
    if strategy == "STRICT_PACK":
        every = GroupBundle(total(b.needs for b in bundles), bundles[0].selectors)
        return [] if any(_takes(room, every) for room in rooms) else list(bundles)
    free = [_NodeRoom(room.node, dict(room.left)) for room in rooms]
    homeless = []
    for bundle in sorted(bundles, key=lambda b: -sum(b.needs.values())):
        room = next((r for r in free if _takes(r, bundle)), None)
        if room is None:
            homeless.append(bundle)
        elif strategy == "STRICT_SPREAD":
            free.remove(room)
        else:
            for name, amount in bundle.needs.items():
                room.left[name] -= amount
    return homeless


def _takes(room: _NodeRoom, bundle: GroupBundle) -> bool:
    return live_rows.fits(room.left, bundle.needs) and now.bears(room.node, bundle.selectors)


def total(parts: Iterable[resources.Needs]) -> resources.Needs:
    """The sum of these resources."""
    found: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, 0.0) + amount
    return found


def missed(snapshot: now.Picture, pending: Pending) -> list[now.ClusterNode]:
    """Lost nodes that would have had room for the group."""
    nodes = (*snapshot.nodes, *snapshot.lost)
    if not pending.infeasible or not snapshot.lost:
        return []
    rooms = [_NodeRoom(node, starving.left(node, ())) for node in nodes]
    return [] if _unplaced(pending.strategy, pending.bundles, rooms) else list(snapshot.lost)


# ---------------------------------------------------------------- sentences


def remove(holders: Iterable[holding.ResourceHolder]) -> Iterator[Remedy]:
    """Remove unused groups: a placement group keeps its reservation until it is removed."""
    names = {h.id: h.name for h in holders if h.kind == "placement group"}
    if names:
        yield Remedy(
            f"Find out whether these placement groups are still used: {join_names(names.values())}",
            ("ray list placement-groups --detail --filter state=CREATED",),
            doc=DOC,
        )
        yield Remedy(
            "Remove those that are not, in the program that created them",
            ("ray.util.remove_placement_group(pg)     # also ends its tasks and actors",),
            risk="destructive",
            doc=DOC,
        )


def shape(bundles: Iterable[GroupBundle]) -> str:
    """The bundles, equal ones counted together."""
    counts: dict[str, int] = {}
    for bundle in bundles:
        words = resources.describe(bundle.needs)
        counts[words] = counts.get(words, 0) + 1
    return " + ".join(f"{n} × {words}" for words, n in counts.items())


def held(snapshot: now.Picture, pending: Pending) -> str:
    """`no node has room for 1 of 2 bundles: 1 Holder actor holds 1 of 2 CPU`."""
    wanted = total(b.needs for b in pending.homeless)
    found = total(h.held for h in pending.holders)
    whole = total(n.total for n in snapshot.nodes)
    shares = [resources.share(n, found[n], whole.get(n, 0.0)) for n in wanted if found.get(n)]
    homeless, bundles = len(pending.homeless), plural(len(pending.bundles), "bundle")
    which = f"{homeless} of {bundles}" if len(pending.bundles) > 1 else "it"
    hold = holding.hold(pending.holders, shares, [pending.event], at_work=pending.at_work)
    return f"no node has room for {which}: {hold}"


def lack(snapshot: now.Picture, pending: Pending) -> str:
    """Why a pending group has no room: on these nodes at all, or beside the holders of its resources."""
    if not pending.infeasible:
        return held(snapshot, pending)
    needs = [bundle.needs for bundle in pending.bundles]
    if reason := misfit(pending.strategy, needs, [node.total for node in snapshot.nodes]):
        return reason
    if not pending.strategy:
        return "the GCS reports it as infeasible on these nodes, and the capture does not show the reason"
    unplaced = shape(pending.homeless)
    return f"no node has room for {unplaced} in addition to the other bundles, or the labels that it asks for"


def misfit(
    strategy: str, bundles: Sequence[resources.Needs], nodes: Sequence[resources.Needs]
) -> str:
    """Why even the empty cluster has no room for the group; empty if it has."""
    largest = max(nodes, key=lambda t: (t.get("GPU", 0.0), t.get("CPU", 0.0)))
    every = total(bundles)
    has = resources.describe({name: largest.get(name, 0.0) for name in every})
    if strategy == "STRICT_PACK" and not any(resources.fits(t, every) for t in nodes):
        return f"its bundles need {resources.describe(every)} on one node, and the largest node has {has}"
    if strategy == "STRICT_SPREAD" and len(nodes) < len(bundles):
        return (
            f"it needs {len(bundles)} nodes (one per bundle), but the cluster has only {len(nodes)}"
        )
    too_large = next((b for b in bundles if not any(resources.fits(t, b) for t in nodes)), None)
    if too_large:
        return f"a bundle needs {resources.describe(too_large)}, and the largest node has {has}"
    cluster = total(nodes)
    if not resources.fits(cluster, every):
        there = resources.describe({n: cluster.get(n, 0.0) for n in every})
        return f"its bundles need {resources.describe(every)} together, and the cluster has {there}"
    return ""
