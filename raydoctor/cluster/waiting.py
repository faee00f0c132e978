"""Who waits for resources at this moment, and what there is, by the tables of a live collection.

The state API (Ray 2.9 to 2.60) gives a task's state with its times, what it asks for, its parent; an actor's
resources; a node's total. Resources of a placement group have its id in their name (`CPU_group_<id>`), for
those who ask and on the nodes that have them, so that they compare like any others. Read on clusters of
2.9.3, 2.40 and 2.60.
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
"""Seconds that a request must have waited before it is worth a word: what fits is granted within one."""
QUEUE = 60.0
"""Seconds after which a wait for actors that work is worth one, too."""
LAUNCH = 600.0
"""Seconds that an autoscaler may take to start a node that fits."""
_PENDING = "PENDING_NODE_ASSIGNMENT"
UNDER_WAY = ("RUNNING", "SUBMITTED_TO_WORKER")


class Node(NamedTuple):
    """A node, alive or lost."""

    id: str
    total: resources.Needs
    labels: Mapping[str, str]
    event: Event


class Request(NamedTuple):
    """Tasks and actors that wait for the same."""

    needs: resources.Needs
    selectors: tuple[Mapping[str, str], ...]
    """Labels that a node must bear, in order of preference."""
    group: str
    """The placement group that they are to run in."""
    waiters: tuple[Event, ...]
    """Rows of tasks (an actor's is its creation task), of actors, or of demands, the oldest first."""
    age: float | None
    """Seconds since the first of them was ready to be placed; None where nobody knows."""
    cut: bool = False
    """There may be more: not all tasks were collected."""

    @property
    def plain(self) -> resources.Needs:
        """What they ask for, without a placement group's names."""
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
        """How many wait, as far as they were collected."""
        return sum(live.whole(event, "count") or 1 for event in self.waiters)

    @property
    def entities(self) -> Iterator[Entity]:
        """All who wait."""
        for event in self.waiters:
            if event["task_id"]:
                yield Entity("task", event["task_id"])
            if event["actor_id"]:
                yield Entity("actor", event["actor_id"])


@dataclass(frozen=True, slots=True)
class Picture:
    """A cluster as its tables show it."""

    at: float
    nodes: tuple[Node, ...]
    lost: tuple[Node, ...]
    """Nodes that are no longer alive."""
    holders: tuple[holding.Holder, ...]
    requests: tuple[Request, ...]
    tasks: tuple[Event, ...]

    @property
    def newest(self) -> float:
        """Seconds since the last node joined: others may still be on their way."""
        joined = [ms for n in self.nodes if (ms := live.number(n.event, "start_time_ms"))]
        return self.at - max(joined) / 1000 if joined else LAUNCH


def picture(case: Case) -> Picture | None:
    """What was collected, or None where this is no live case or the tables are missing."""
    looked = (
        live.looked(case, "tasks") or live.looked(case, "actors") or live.looked(case, "demands")
    )
    nodes = _nodes(case, alive=True)
    if looked is None or looked.at is None or not nodes:
        return None
    tasks = tuple(live.rows(case, "tasks"))
    requests = tuple(_requests(case, tasks, looked.at))
    holders = tuple(holding.holders(case, tasks))
    lost = tuple(_nodes(case, alive=False))
    return Picture(looked.at, tuple(nodes), lost, holders, requests, tasks)


def tasks_known(case: Case) -> bool:
    """Whether the cluster was asked for its tasks: who is not among them waits no more."""
    return live.looked(case, "tasks") is not None


# ---------------------------------------------------------------- nodes


def _nodes(case: Case, *, alive: bool) -> list[Node]:
    """Nodes that are alive, or those that are dead; totals are from the table `resources`."""
    measured = {e["node_id"]: e for e in live.rows(case, "resources")}
    listed = {e["node_id"]: e for e in live.rows(case, "nodes")} or measured
    found = []
    for node, event in listed.items():
        if (event["state"] == "DEAD") == alive:
            continue
        more = measured.get(node)
        total = rows.amounts(more, "total") if more else rows.amounts(event, "resources_total")
        labels = live.mapping(event, "labels") or (live.mapping(more, "labels") if more else {})
        found.append(Node(node, total, {k: str(v) for k, v in labels.items()}, event))
    return found


_IN = pattern(r"(?P<no>!)?in\((?P<values>.{0,4000})\)")


def bears(node: Node, selectors: tuple[Mapping[str, str], ...]) -> bool:
    """Whether a node's labels are as one of the selectors demands (`x`, `!x`, `in(x,y)`, `!in(x,y)`)."""
    return not selectors or any(
        all(_is(node.labels.get(name), wanted) for name, wanted in selector.items())
        for selector in selectors
    )


def _is(value: str | None, wanted: str) -> bool:
    if found := _IN.fullmatch(wanted):
        within = value in [v.strip() for v in found["values"].split(",")]
        return within != bool(found["no"])
    return value != wanted[1:] if wanted.startswith("!") else value == wanted


# ---------------------------------------------------------------- who waits


def _requests(case: Case, tasks: Iterable[Event], at: float) -> Iterator[Request]:
    """Pending tasks and actors by what they ask for, the oldest first."""
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
    cut = _is_cut(case)
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
    """Tasks and actor creations that wait for a node, and pending actors that have no task row."""
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


def _is_cut(case: Case) -> bool:
    """Whether there are more tasks than were collected."""
    head = live.looked(case, "tasks")
    return head is not None and (live.whole(head, "total") or 0) > (live.whole(head, "rows") or 0)


def _demands(case: Case) -> Iterator[Request]:
    """What raylets say is asked for, by shape and without names: nothing of it is cut off."""
    for event in live.rows(case, "demands"):
        needs = rows.amounts(event, "shape")
        if event["kind"] == "task-or-actor" and not any("_group_" in name for name in needs):
            told = [_selector(s) for s in live.records(event, "label_selectors") if s]
            yield Request(needs, tuple(s for s in told if s), "", (event,), None)


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
    """The labels asked for, then the alternatives; none where any node will do."""
    own = live.mapping(event, "label_selector")
    if not own:
        return ()
    others = live.records_of(live.mapping(event, "fallback_strategy").get("options"))
    more = [o.get("label_selector") for o in others]
    return tuple(_selector(s) for s in (own, *more) if isinstance(s, dict))


def _selector(told: Mapping[str, object]) -> Mapping[str, str]:
    """One selector as a program writes it; alternatives come as lists of constraints."""
    constraints = told.get("label_constraints")
    if not isinstance(constraints, list):
        return {name: str(value) for name, value in told.items()}
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
    # Of a thousand rows, as text: parsing each would take ten times as long.
    times = _CREATED.findall(event["events"])
    return int(times[-1]) / 1000 if times else None


def who(waiters: Iterable[Event]) -> str:
    """`3 train tasks and 1 Evaluator actor`."""
    counts: dict[tuple[str, str], int] = {}
    for event in waiters:
        is_actor = not event["task_id"] or event["type"] == "ACTOR_CREATION_TASK"
        key = (rows.named(event), "request" if event["shape"] else "actor" if is_actor else "task")
        counts[key] = counts.get(key, 0) + (live.whole(event, "count") or 1)
    return rows.listed(counts)


# ---------------------------------------------------------------- what may still come


def expected(case: Case, needs: resources.Needs, age: float) -> bool:
    """Whether an autoscaler is about to start a node that fits: it has a type for it, or has said so."""
    if age >= LAUNCH:
        return False
    if any(rows.fits(each.holds, needs) for each in autoscaler.node_types(case)):
        return True
    at = max((e.at for e in case.of("live.table") if e.at is not None), default=None)
    added = [e for e in case.of("autoscaler.adding") if e.at is not None and at is not None]
    return any(at - e.at < age + AGE for e in added if e.at is not None and at is not None)
