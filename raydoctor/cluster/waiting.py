"""Requests that wait for resources right now, and the nodes' resources, from the tables of a live collection.

The state API (Ray 2.9 to 2.60) returns a task's state with its times, its request and its parent; an actor's
resources; a node's total. Resources of a placement group contain its id in their name (`CPU_group_<id>`), in
requests and on nodes alike, so that they compare like any others. Read on clusters of 2.9.3, 2.40 and 2.60.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import autoscaler, resources, rows
from raydoctor.cluster import holders as holding
from raydoctor.cluster import tables as live
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event

AGE = 5.0
"""Seconds after which a waiting request is reported: a request that fits is granted within one second."""
QUEUE = 60.0
"""Seconds after which a wait for working actors is reported as well."""
LAUNCH = 600.0
"""Seconds that an autoscaler may take to start a node that fits."""
_PENDING = "PENDING_NODE_ASSIGNMENT"
UNDER_WAY = ("RUNNING", "SUBMITTED_TO_WORKER")


class ClusterNode(NamedTuple):
    """A node, alive or lost."""

    id: str
    total: resources.Needs
    labels: Mapping[str, str]
    event: Event


class Request(NamedTuple):
    """Tasks and actors that wait for the same resources."""

    needs: resources.Needs
    selectors: tuple[Mapping[str, str], ...]
    """Labels that a node must have, in order of preference."""
    group: str
    """The placement group in which they must run."""
    waiters: tuple[Event, ...]
    """Rows of tasks (an actor's creation task), of actors, or of demands, oldest first."""
    age: float | None
    """Seconds since the first of them was ready to be placed; None if unknown."""
    cut: bool = False
    """Whether there may be more: not all tasks were collected."""

    @property
    def plain(self) -> resources.Needs:
        """Their request without a placement group's names."""
        return rows.plain(self.needs)

    @property
    def asked(self) -> str:
        """`1 GPU and 4 CPU`."""
        return resources.describe(self.plain)

    @property
    def who(self) -> str:
        """`3 train tasks and 1 Evaluator actor`."""
        return f"{'at least ' if self.cut else ''}{who(self.waiters)}"

    @property
    def number(self) -> int:
        """How many of the collected ones wait."""
        return sum(live.whole(event, "count") or 1 for event in self.waiters)

    @property
    def entities(self) -> Iterator[Entity]:
        """All waiting tasks and actors."""
        for event in self.waiters:
            if event["task_id"]:
                yield Entity("task", event["task_id"])
            if event["actor_id"]:
                yield Entity("actor", event["actor_id"])


@dataclass(frozen=True, slots=True)
class Picture:
    """A snapshot of a cluster from its tables."""

    at: float
    nodes: tuple[ClusterNode, ...]
    lost: tuple[ClusterNode, ...]
    """Nodes that are no longer alive."""
    holders: tuple[holding.ResourceHolder, ...]
    requests: tuple[Request, ...]
    tasks: tuple[Event, ...]

    @property
    def newest(self) -> float:
        """Seconds since the last node joined: others may still be joining."""
        joined = [ms for n in self.nodes if (ms := live.number(n.event, "start_time_ms"))]
        return self.at - max(joined) / 1000 if joined else LAUNCH


def picture(case: Case) -> Picture | None:
    """The collected snapshot, or None if this is not a live case or the tables are missing."""
    table = (
        live.looked(case, "tasks") or live.looked(case, "actors") or live.looked(case, "demands")
    )
    nodes = _nodes(case, alive=True)
    if table is None or table.at is None or not nodes:
        return None
    tasks = tuple(live.rows(case, "tasks"))
    requests = tuple(_requests(case, tasks, table.at))
    holders = tuple(holding.holders(case, tasks))
    lost = tuple(_nodes(case, alive=False))
    return Picture(table.at, tuple(nodes), lost, holders, requests, tasks)


def tasks_known(case: Case) -> bool:
    """Whether the cluster's tasks were collected: a task that is not among them no longer waits."""
    return live.looked(case, "tasks") is not None


# ---------------------------------------------------------------- nodes


def _nodes(case: Case, *, alive: bool) -> list[ClusterNode]:
    """Live nodes, or dead ones; totals are from the table `resources`."""
    measured = {e["node_id"]: e for e in live.rows(case, "resources")}
    listed = {e["node_id"]: e for e in live.rows(case, "nodes")} or measured
    found = []
    for node, event in listed.items():
        if (event["state"] == "DEAD") == alive:
            continue
        more = measured.get(node)
        total = rows.amounts(more, "total") if more else rows.amounts(event, "resources_total")
        labels = live.mapping(event, "labels") or (live.mapping(more, "labels") if more else {})
        found.append(ClusterNode(node, total, {k: str(v) for k, v in labels.items()}, event))
    return found


_IN = pattern(r"(?P<no>!)?in\((?P<values>.{0,4000})\)")


def bears(node: ClusterNode, selectors: tuple[Mapping[str, str], ...]) -> bool:
    """Whether a node's labels match one of the selectors (`x`, `!x`, `in(x,y)`, `!in(x,y)`)."""
    return not selectors or any(
        all(_is(node.labels.get(name), wanted) for name, wanted in selector.items())
        for selector in selectors
    )


def _is(value: str | None, wanted: str) -> bool:
    if found := _IN.fullmatch(wanted):
        within = value in [v.strip() for v in found["values"].split(",")]
        return within != bool(found["no"])
    return value != wanted[1:] if wanted.startswith("!") else value == wanted


# ---------------------------------------------------------------- waiting requests


def _requests(case: Case, tasks: Iterable[Event], at: float) -> Iterator[Request]:
    """Pending tasks and actors by request, oldest first."""
    as_written: dict[tuple[str, ...], list[tuple[float | None, Event]]] = {}
    for event in _waiters(case, tasks):
        key = tuple(event[name] for name in _SHAPE)
        as_written.setdefault(key, []).append((_since(event), event))
    by_shape: dict[tuple[str, ...], list[tuple[float | None, Event]]] = {}
    for (written, *more), waiters in as_written.items():
        needs = (
            json.dumps(sorted(rows.amounts(waiters[0][1], _SHAPE[0]).items())) if written else "[]"
        )
        by_shape.setdefault((needs, *more), []).extend(waiters)
    cut = is_cut(case)
    found = [_request(shape, waiters, at, cut=cut) for shape, waiters in by_shape.items()]
    if cut or not tasks_known(case):
        known = {resources.key(request.needs) for request in found}
        found += [r for r in _demands(case) if resources.key(r.needs) not in known]
    yield from sorted(
        (request for request in found if request.needs or request.selectors),
        key=lambda r: (r.age is None, -(r.age or 0.0)),
    )


_SHAPE = ("required_resources", "label_selector", "fallback_strategy", "placement_group_id")


def _waiters(case: Case, tasks: Iterable[Event]) -> Iterator[Event]:
    """Tasks and actor creations that wait for a node, and pending actors without a task row."""
    seen: set[str] = set()
    for event in tasks:
        if event["type"] == "ACTOR_CREATION_TASK":
            seen.add(event["actor_id"])
        if event["state"] == _PENDING and event["type"] in ("NORMAL_TASK", "ACTOR_CREATION_TASK"):
            yield event
    for event in live.rows(case, "actors"):
        pending = event["state"] in ("PENDING_CREATION", "RESTARTING")
        if pending and event["actor_id"] not in seen and not live.whole(event, "pid"):
            yield event


def is_cut(case: Case) -> bool:
    """Whether there are more tasks than were collected."""
    head = live.looked(case, "tasks")
    return head is not None and (live.whole(head, "total") or 0) > (live.whole(head, "rows") or 0)


def _demands(case: Case) -> Iterator[Request]:
    """Requests that raylets report, by shape and without names: this table is always complete."""
    for event in live.rows(case, "demands"):
        needs = rows.amounts(event, "shape")
        if event["kind"] == "task-or-actor" and not any("_group_" in name for name in needs):
            found = [_selector(s) for s in live.records(event, "label_selectors") if s]
            yield Request(needs, tuple(s for s in found if s), "", (event,), None)


def _request(
    shape: tuple[str, ...], waiters: list[tuple[float | None, Event]], at: float, *, cut: bool
) -> Request:
    needs, *_, group = shape
    waiters = sorted(waiters, key=lambda w: (w[0] is None, w[0] or 0.0, w[1].line))
    since, first = waiters[0]
    return Request(
        dict(json.loads(needs)),
        _selectors(first),
        group,
        tuple(event for _, event in waiters),
        None if since is None else max(at - since, 0.0),
        cut,
    )


def _selectors(event: Event) -> tuple[Mapping[str, str], ...]:
    """The requested labels, then the alternatives; empty if any node is allowed."""
    own = live.mapping(event, "label_selector")
    if not own:
        return ()
    others = live.records_of(live.mapping(event, "fallback_strategy").get("options"))
    more = [o.get("label_selector") for o in others]
    return tuple(_selector(s) for s in (own, *more) if isinstance(s, dict))


def _selector(row: Mapping[str, object]) -> Mapping[str, str]:
    """One selector as a program writes it; alternatives are lists of constraints."""
    constraints = row.get("label_constraints")
    if not isinstance(constraints, list):
        return {name: str(value) for name, value in row.items()}
    found = {}
    for each in live.records_of(constraints):
        no = "!" if "NOT_IN" in live.text_of(each.get("operator")) else ""
        values = ",".join(live.texts_of(each.get("label_values")))
        found[live.text_of(each.get("label_key"))] = f"{no}in({values})"
    found.pop("", None)
    return found


_CREATED = pattern(rf'"{_PENDING}","created_ms":(\d{{1,15}})\b')


def _since(event: Event) -> float | None:
    """When a task became ready to be placed."""
    # Searched as text: parsing a thousand rows would take ten times as long.
    times = _CREATED.findall(event["events"])
    return int(times[-1]) / 1000 if times else None


def who(waiters: Iterable[Event]) -> str:
    """`3 train tasks and 1 Evaluator actor`."""
    counts: dict[tuple[str, str], int] = {}
    for event in waiters:
        kind = "request" if event["shape"] else "actor" if rows.is_actor(event) else "task"
        key = (rows.named(event), kind)
        counts[key] = counts.get(key, 0) + (live.whole(event, "count") or 1)
    return rows.listed(counts)


# ---------------------------------------------------------------- nodes that may still join


def expected(case: Case, needs: resources.Needs, age: float) -> bool:
    """Whether an autoscaler is about to start a node that fits: it has such a type, or is adding one."""
    if age >= LAUNCH:
        return False
    if any(rows.fits(each.holds, needs) for each in autoscaler.node_types(case)):
        return True
    at = max((e.at for e in case.of("live.table") if e.at is not None), default=None)
    added = [e for e in case.of("autoscaler.adding") if e.at is not None and at is not None]
    return any(at - e.at < age + AGE for e in added if e.at is not None and at is not None)
