"""A placement group was never created, so its tasks and actors keep waiting.

## What you see
- `pg.wait()` returns False, or `ray.get(pg.ready())` does not return.
- Tasks in the group stay in state `PENDING_NODE_ASSIGNMENT`. Train and Tune report pending trials.
- `Failed to reserve TPU slice` or `TPU slice placement group was not ready within 100s`: a slice is a placement group.
- `gcs_server.out` has `Registering placement group` for the group, and no later line records that it was created.

## Why
Ray reserves either all bundles of a group together or none. `STRICT_PACK` needs room for all of them on one node, and
`STRICT_SPREAD` needs one node per bundle. `PACK` and `SPREAD` may use any nodes, but all bundles must fit at the same
time. Resources that actors hold are not free for a group.

If a group waits for resources that busy actors hold, it waits in a queue: raydoctor reports it only after a minute,
with severity info.

## Confirm
- `ray list placement-groups --detail` shows the group's bundles and its `scheduling_state` (`INFEASIBLE`,
  `NO_RESOURCES`).
- In `ray status`, `Pending Demands` shows `{…} * 2 (STRICT_PACK): 1+ pending placement groups`.
- `ray list nodes --detail` shows what each node has.

## Fix
Make the bundles smaller, choose a less strict strategy, add nodes, or end what holds the resources. Wait with a timeout
(`pg.wait(60)`) and remove the group if the timeout expires.

## Not this when
- a task outside any group requests too much (`infeasible-request`).
- the group was created (`Successfully created placement group`), and tasks in it request more than its bundles hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import GCS, JOB_FINISHED, RAY_EXCEPTION
from raydoctor.cluster import autoscaler, resources
from raydoctor.cluster import groups as live_groups
from raydoctor.cluster import holders as holding
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import waiting as now
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import waiting
from raydoctor.rules.shared.failures import ended_programs, is_certain_end, program
from raydoctor.rules.shared.live import examples as sample

_DOC = live_groups.DOC
_MOST_BUNDLES = 1000
"""Of a group that a log describes; for a larger one, no sizes that fit are computed."""
_TOGETHER = 1.0
"""Seconds within which the GCS removes the groups of a job that ended."""
_LONG = 10.0
"""Seconds. A group that fits was created within one second in every Ray from 2.9.3 to 2.60."""
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""`PlacementStrategy` of common.proto, which the GCS prints as a number."""

_PG = "b8ce3c6e15178ae3a2509ec035e001000000"

REGISTERED = Signal(
    "pg.registered", "Registering placement group, placement group id = ",
    r"^Registering placement group, placement group id = (?P<pg>[0-9a-f]{36}), name = (?P<name>.*?), strategy = (?P<strategy>\d)", GCS,
    f"Registering placement group, placement group id = {_PG}, name = ranks, strategy = 2",
)  # fmt: skip
CREATED = Signal(
    "pg.created", "Successfully created placement group ",
    r"^Successfully created placement group .*?, id: (?P<pg>[0-9a-f]{36})", GCS,
    f"Successfully created placement group ranks, id: {_PG}",
)  # fmt: skip
REMOVED = (
    Signal(
        "pg.removed", "Placement group of an id, ",
        r"^Placement group of an id, (?P<pg>[0-9a-f]{36}) is (?:(?P<by_user>removed successfully)|successfully removed because the job)",
        GCS, f"Placement group of an id, {_PG} is removed successfully.",
    ),
    Signal(
        "pg.removed", "Removed placement group because its ",
        r"^Removed placement group because its (?:job finished|creator actor exited)\.(?:.*?placement_group_id=(?P<pg>[0-9a-f]{36}))?",
        GCS, f"Removed placement group because its job finished. placement_group_id={_PG}",
    ),
)  # fmt: skip
NEVER_READY = Signal(
    "pg.never_ready", "Failed to waiting for placement group until ready, placement group id = ",
    r"^Failed to waiting for placement group until ready, placement group id = (?P<pg>[0-9a-f]{36}), cause: "
    r"(?:NotFound: )?Placement group is removed before it is created", GCS,
    f"Failed to waiting for placement group until ready, placement group id = {_PG}, cause: NotFound: Placement group is removed "
    "before it is created.",
)  # fmt: skip


@rule(
    tier="root",
    severity="error",
    rank=75,
    explains=("pg", "program", "task", "waiting"),
    caused_by=("autoscaler",),
    daemons_record=True,
    looks_for=(
        REGISTERED, CREATED, *REMOVED, NEVER_READY, *JOB_FINISHED, waiting.GROUP_PENDING, *waiting.NO_NODE_TYPE, waiting.STATUS, *waiting.DRIVER_END, RAY_EXCEPTION,
        autoscaler.CONFIG, autoscaler.ADDING,
    ),
)  # fmt: skip
def placement_group_pending(case: Case) -> Iterator[Finding]:
    """One finding per group that was never created."""
    snapshot = now.picture(case)
    logged = {group.id: group for group in _groups(case)}
    strategies = {group.id: group.strategy for group in logged.values()}
    pending = live_groups.of(case, snapshot, strategies) if snapshot else {}
    for found in pending.values():
        if snapshot and found and (not found.at_work or found.age >= now.QUEUE):
            yield _live_finding(case, snapshot, found, logged.get(found.id))
    groups = [g for g in logged.values() if g.id not in pending and _lasts(case, g)]
    groups = [g for g in groups if not _is_in_queue(case, g)]
    for group in groups:
        yield _finding(case, group, over=now.tasks_known(case))
    if not groups and not pending and not case.of("pg.registered"):
        reported = list(_without_gcs_log(case)) or list(_of_status(case))
        yield from reported or _cut_off(case)
        yield from () if reported else _tpu(case)


class _LoggedGroup(NamedTuple):
    """A placement group as the GCS's log records it."""

    id: str
    name: str
    strategy: str
    registered: Event
    removed: Event | None
    waiters: tuple[Event, ...]

    @property
    def label(self) -> str:
        return f"Placement group {_named(self.name, self.id)}"


def _named(name: str, id_: str) -> str:
    """The name in quotes, as it may be any words; else the start of the id."""
    return f"'{name}'" if name else evidence.short(id_)


def _groups(case: Case) -> Iterator[_LoggedGroup]:
    """Groups that were registered and never created."""
    created = {e["pg"] for e in case.of("pg.created")}
    for event in case.of("pg.registered"):
        pg = event["pg"]
        if pg in created:
            continue
        removed = next((e for e in case.of("pg.removed") if e["pg"] == pg), None)
        waiters = tuple(e for e in case.of("pg.never_ready") if e["pg"] == pg)
        strategy = _STRATEGIES[int(event["strategy"])] if int(event["strategy"]) < 4 else ""
        yield _LoggedGroup(pg, event["name"], strategy, event, removed, waiters)


def _lasts(case: Case, group: _LoggedGroup) -> bool:
    """Whether the group waited long or a caller's wait failed: a program may remove its own group."""
    began, end = group.registered.at, _end(case, group)
    waited = end - began if began is not None and end is not None else 0.0
    if waiting.gave_up(case) or group.waiters:
        return waited >= 1
    by_user = group.removed is not None and group.removed["by_user"]
    return waited >= _LONG and not by_user


def _is_in_queue(case: Case, group: _LoggedGroup) -> bool:
    """Whether other groups of its job held what it needs until its wait ended, and no program failed.

    Trials of Ray Tune wait like this. With Ctrl-C or SIGTERM, all groups of the job end at once.
    """
    end = _end(case, group)
    failed = any(each["ended_by"] for each in case.endings.values())
    if waiting.gave_up(case) or failed or end is None:
        return False
    if _Lack.of(case, group, _demand(case, group)).infeasible:
        return False
    gone = {e["pg"]: e.at for e in case.of("pg.removed") if e.at is not None}
    return any(
        e["pg"][28:] == group.id[28:] and gone.get(e["pg"], end) >= end - _TOGETHER
        for e in case.of("pg.created")
    )


def _demand(case: Case, group: _LoggedGroup) -> waiting.ListedGroup | None:
    """The pending group of the autoscaler's status, if only one has this strategy."""
    demands = [d for d in waiting.pending_groups(case) if d.strategy == group.strategy]
    return demands[0] if len(demands) == 1 else None


def _end(case: Case, group: _LoggedGroup) -> float | None:
    """When the wait ended: at its removal, its job's end, or the end of the capture."""
    if group.removed is not None:
        return group.removed.at
    job = case.job(group.id[28:])
    return job.ended or max((e.at for e in case.events if e.at is not None), default=None)


# ---------------------------------------------------------------- findings


def _finding(case: Case, group: _LoggedGroup, *, over: bool) -> Finding:
    demand = _demand(case, group)
    lack = _Lack.of(case, group, demand)
    refused = [
        e for e in waiting.one_role(case.of("request.no_node_type")) if e["combined"] or e["gang"]
    ]
    strategy = ", ".join(part for part in (group.strategy, _bundles(demand)) if part)
    return Finding(
        f"{group.label}{f' ({strategy})' if strategy else ''} was never created: {lack.reason}",
        (
            Link(group.registered, "the GCS registers the group and never reports it as created"),
            *(Link(d.event, f"the autoscaler still lists the group as pending: {_bundles(d)}") for d in filter(None, (demand,))),
            *(Link(e, "the autoscaler has no node type that fits") for e in refused[:1]),
            *(Link(e, "the group is removed before it is created, while a caller waits for it") for e in group.waiters[:1]),
        ),
        explains=(Entity("pg", group.id), Entity("waiting", "cluster")),
        caused_by=autoscaler.launches(case, *_on_one_node(group.strategy, _each(demand))),
        subjects=(Subject("pg", group.id, group.name or None),),
        severity=waiting.severity(case, over=over),
        remedies=_remedies(
            group.strategy, lack, _each(demand), _logged_room(case, group, lack)
        ),
        covers=(*group.waiters, *(e for e in case.of("request.no_node_type") if e["combined"] or e["gang"])),
    )  # fmt: skip


def _on_one_node(strategy: str, bundles: Sequence[resources.Needs]) -> Sequence[resources.Needs]:
    """What a group needs on one node: its bundles, or all of them together."""
    if strategy != "STRICT_PACK" or not bundles:
        return bundles
    names = {name for bundle in bundles for name in bundle}
    return [{name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}]


def _live_finding(
    case: Case, snapshot: now.Picture, found: live_groups.Pending, logged: _LoggedGroup | None
) -> Finding:
    """A group that is pending now; the GCS's log may add its strategy and when it was registered."""
    shape = live_groups.shape(found.bundles)
    request = ", ".join(part for part in (found.strategy, shape) if part)
    lack = _Lack(live_groups.lack(snapshot, found), infeasible=found.infeasible)
    many = len(found.waiters) > 1
    awaited = (
        f", and {now.who(found.waiters)} wait{'' if many else 's'} for the group"
        if found.waiters
        else ""
    )
    merged = [e for e in case.of("request.no_node_type") if e["combined"] or e["gang"]]
    return Finding(
        f"Placement group {_named(found.name, found.id)} ({request}) is pending: {lack.reason}{awaited}",
        (
            *(Link(logged.registered, "the GCS registers the group and never reports it as created") for _ in (1,) if logged),
            *(Link(h.event, f"{h.label} holds {resources.describe(live_rows.plain(h.held))} and {h.does}") for h in holding.each_once(found.holders)[:2]),
            Link(found.event, f"the group has been {found.event['state']} for {found.age:.0f} s{f', and the GCS reports {found.scheduling_state}' if found.scheduling_state else ''}"),
            *(Link(e, f"{live_rows.name_of(e)} waits to run in the group") for e in found.waiters[:1]),
        ),
        # A group in a queue does not explain why others wait.
        explains=(
            Entity("pg", found.id),
            *_waiters(found),
            *(() if found.at_work else (Entity("waiting", "cluster"),)),
        ),
        caused_by=(*(Entity("node", n.id) for n in live_groups.missed(snapshot, found)), *autoscaler.launches(case, *_on_one_node(found.strategy, [b.needs for b in found.bundles]))),
        subjects=(Subject("pg", found.id, found.name or None),),
        severity="info" if found.at_work else "error",
        remedies=(
            *live_groups.remove(found.holders),
            *_remedies(found.strategy, lack, [b.needs for b in found.bundles], _room(snapshot, found), actors=_actors(found)),
        ),
        covers=tuple(merged),
    )  # fmt: skip


def _room(snapshot: now.Picture, found: live_groups.Pending) -> _Room:
    """What the nodes have left beside the holders that the group waits for."""
    left = [starving.left(node, found.holders) for node in snapshot.nodes]
    return _Room(left, [node.total for node in snapshot.nodes])


def _logged_room(case: Case, group: _LoggedGroup, lack: _Lack) -> _Room:
    """The nodes of the raylets' dumps; what holders leave is unknown."""
    totals = waiting.totals(case, group.registered.at)
    return _Room(totals if lack.infeasible else (), totals)


def _each(demand: waiting.ListedGroup | None) -> list[resources.Needs]:
    if demand is None or sum(times for _, times in demand.bundles) > _MOST_BUNDLES:
        return []
    return [dict(b) for b, times in demand.bundles for _ in range(times)]


def _actors(found: live_groups.Pending) -> bool:
    return any(h.kind == "actor" for h in found.holders)


def _waiters(found: live_groups.Pending) -> Iterator[Entity]:
    for event in found.waiters:
        for kind in ("task", "actor"):
            if event[f"{kind}_id"]:
                yield Entity(kind, event[f"{kind}_id"])


def _bundles(demand: waiting.ListedGroup | None) -> str:
    """The bundles of a listed group, equal ones counted together."""
    if demand is None:
        return ""
    return " + ".join(
        f"{times} × {resources.describe(dict(bundle))}" for bundle, times in demand.bundles
    )


def _without_gcs_log(case: Case) -> Iterator[Finding]:
    """Findings from the autoscaler alone: v2 names groups, v1 merges the bundles of a STRICT_PACK group."""
    reported = waiting.one_role(
        e for e in case.of("request.no_node_type") if e["combined"] or e["gang"]
    )
    by_shape = evidence.grouped(reported, lambda e: e["asked"])
    for shape, events in by_shape.items():
        lasts = (
            evidence.total(events) > 1
            or waiting.gave_up(case)
            or any(waiting.is_beyond(case, each) for each in resources.python_amounts(shape))
        )
        if not lasts and not waiting.is_last_word(case, events):
            continue
        packed = bool(events[0]["combined"])
        asked = " + ".join(resources.describe(each) for each in resources.python_amounts(shape))
        needs = f"needs {asked}{' on one node' if packed else ''}, and no node has that much"
        lack = _Lack(needs, infeasible=True)
        yield Finding(
            f"A placement group was never created: it {needs}",
            tuple(Link(e, "the autoscaler finds no node type that fits") for e in events[:1]),
            explains=(Entity("pg", shape), Entity("waiting", "cluster")),
            count=1,
            severity=None if lasts else "warning",
            remedies=_remedies("STRICT_PACK" if packed else "", lack, (), _Room((), ())),
            covers=tuple(e for e in case.of("request.no_node_type") if e["asked"] == shape),
        )


_READY = pattern(r"\bray\.get\(\s{0,9}[\w.\[\]]{1,80}\.ready\(\)")
"""A call that waits for a placement group; a method `ready` of an actor has `.remote`."""


def _cut_off(case: Case) -> Iterator[Finding]:
    """Programs that end in the wait for a group, and whose console cuts off with which exception."""
    for ending, raised in ended_programs(case):
        if raised.type or not any(_READY.search(frame.code) for frame in raised.frames):
            continue
        yield Finding(
            f"The program waited for a placement group in {raised.place}, and the console cut off how the wait failed",
            (Link(ending, "the program ends in the wait for the group", raised.code),),
            explains=(program(ending), Entity("waiting", "cluster")),
            severity="warning",
            remedies=_remedies("", _Lack("", infeasible=False), (), _Room((), ())),
        )


_TPU = pattern(
    r"^(?:Failed to reserve TPU (?:slice|head)\b.{0,300}?(?:(?:of topology|with shape:?) '?(?P<shape>[\w.-]{1,60})|$)"
    r"|TPU slice placement group was not ready within (?P<seconds>\d{1,9}(?:\.\d{1,9})?)s)"
)
"""`util/tpu.py` and `_private/accelerators/tpu.py`, 2.49 to 2.60."""


def _tpu(case: Case) -> Iterator[Finding]:
    """Programs that end because no slice of TPUs was free."""
    for ending, raised in ended_programs(case):
        if not (found := _TPU.match(raised.message)):
            continue
        which = f" of shape {found['shape']}" if found["shape"] else ""
        within = f" within {found['seconds']} s" if found["seconds"] else ""
        yield Finding(
            f"The program could not reserve a slice of TPUs{which}{within}: no such slice is in the cluster, or other work holds its hosts",
            (Link(ending, f"the program ends with {raised.name}"),),
            explains=(program(ending), Entity("waiting", "cluster")),
            severity=None if is_certain_end(ending) else "warning",
            remedies=(
                Remedy(
                    "Compare the TPUs and slice labels of the nodes with the request, and find what holds them",
                    (
                        "ray list nodes --detail   # TPU in resources_total, and the labels ray.io/tpu-slice-name, tpu-topology, tpu-pod-type",
                        "ray list placement-groups --detail --filter state=CREATED",
                    ),
                    doc="https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/tpu.html",
                ),
                Remedy(
                    "KubeRay: set numOfHosts and both node selectors of the TPU group, so that a whole slice starts at once",
                    ("cloud.google.com/gke-tpu-topology: 4x4   # and cloud.google.com/gke-tpu-accelerator. 4x4: the requested topology",),
                ),
            ),
        )  # fmt: skip


def _of_status(case: Case) -> Iterator[Finding]:
    """Findings from a pasted table of `ray status`: groups that the empty cluster has no room for."""
    table = waiting.status(case)
    if table is None or table.event is not case.of("cluster.status")[-1]:
        return
    reports = case.of("request.no_node_type")
    refused = {
        resources.key(needs)
        for e in reports
        if not (e["combined"] or e["gang"]) and e.source is table.event.source
        for needs in resources.python_amounts(e["asked"])
    }
    for group in waiting.pending_groups(case):
        if group.event.source is not table.event.source or group.event.line < table.event.line:
            continue
        bundles = _each(group)
        every = live_groups.total(bundles)
        if reports:
            pinned = (dict(one) for one, _ in group.bundles if one in refused)
            lacking = next((one for one in pinned if waiting.addresses(one)), None)
            if lacking:
                yield _refused_bundle(group, lacking, reports)
            continue  # `infeasible-request` reports the others
        reason = (
            live_groups.misfit(group.strategy, bundles, [table.total]) if table.nodes == 1 else ""
        )
        if not reason and table.lacks(every):
            has = resources.describe({n: table.total.get(n, 0.0) for n in every})
            reason = (
                f"its bundles need {resources.describe(every)} together, and the cluster has {has}"
            )
        elif not reason and table.nodes != 1 and _is_listed_before(case, group, table):
            free = waiting.free(table, every)
            if free is not None:
                reason = f"the cluster has {resources.describe(free)} free, but its nodes have no room for the bundles"
        if not reason:
            continue
        shape = ", ".join((group.strategy, _bundles(group)))
        yield Finding(
            f"A placement group ({shape}) is pending: {reason}",
            (Link(group.event, "ray status lists the group as pending, and no node is starting"),),
            explains=(Entity("pg", shape), Entity("waiting", "cluster")),
            remedies=_remedies(
                group.strategy,
                _Lack(reason, infeasible=True),
                bundles,
                _Room([table.total], [table.total]) if table.nodes == 1 else _Room((), ()),
            ),
        )


def _refused_bundle(
    group: waiting.ListedGroup, bundle: resources.Needs, reports: list[Event]
) -> Finding:
    """A group with a bundle that names a node by its address, if no node has this address with the rest."""
    shape = ", ".join((group.strategy, _bundles(group)))
    reason = f"no node can hold its bundle with {resources.describe(bundle)}"
    return Finding(
        f"A placement group ({shape}) is pending: {reason}",
        (
            Link(reports[0], "the autoscaler finds no node type that fits"),
            Link(group.event, "ray status lists the group as pending, and no node is starting"),
        ),
        explains=(Entity("pg", shape), Entity("waiting", "cluster")),
        severity="warning",
        remedies=(
            *waiting.addresses(bundle),
            *_remedies(group.strategy, _Lack(reason, infeasible=True), (), _Room((), ())),
        ),
        covers=tuple(reports),
    )


def _is_listed_before(case: Case, group: waiting.ListedGroup, table: waiting.ClusterStatus) -> bool:
    """Whether an earlier table lists the same group: Ray places one that fits within a second or so."""
    same = (
        e
        for e in case.of("pg.demand")
        if all(e[key] == group.event[key] for key in ("strategy", "bundles"))
    )
    return any(e.count > 1 or e.line < table.event.line for e in same)


# ---------------------------------------------------------------- what is missing


class _Lack(NamedTuple):
    """Why a group cannot be placed."""

    reason: str
    infeasible: bool = False
    """Waiting does not help."""

    @classmethod
    def of(cls, case: Case, group: _LoggedGroup, demand: waiting.ListedGroup | None) -> _Lack:
        """Compare the bundles with what the nodes have."""
        nodes = waiting.totals(case, group.registered.at)
        if demand is None or not nodes:
            return cls("the GCS's log does not show what is missing")
        bundles = _each(demand)
        if reason := live_groups.misfit(group.strategy, bundles, nodes):
            return cls(reason, infeasible=True)
        found, _ = waiting.holders(case)
        wanted = {name for bundle in bundles for name in bundle}
        holders = [h for h in found if any(h.held.get(n) for n in wanted)]
        by = f" by {waiting.held_by(holders)}" if holders else ""
        return cls(f"it would fit, but the resources that it needs are held{by}")


# ---------------------------------------------------------------- remedies


_TOO_MANY = {
    "STRICT_SPREAD": "this strategy needs one node per bundle",
    "STRICT_PACK": "more of this size do not fit on one node",
}
"""Why fewer bundles fit."""


class _Room(NamedTuple):
    """The nodes' resources; empty if they are unknown."""

    left: Sequence[resources.Needs]
    """What each has for the group."""
    totals: Sequence[resources.Needs]


def _remedies(
    strategy: str,
    lack: _Lack,
    bundles: Sequence[resources.Needs],
    room: _Room,
    *,
    actors: bool = True,
) -> tuple[Remedy, ...]:
    free = Remedy(
        "End the actors that hold the resources",
        waiting.END_ACTORS,
        risk="destructive",
    )
    first = (
        *_less_strict(strategy, lack, bundles, room.left),
        *((free,) if actors and bundles and not lack.infeasible else ()),
    )
    return (
        *first,
        *_smaller(strategy, bundles, room.left, is_first=not first),
        _more(strategy, bundles, room),
        Remedy(
            "Wait with a timeout, and report what is missing",
            (
                "if not pg.wait(timeout_seconds=60):",
                "    remove_placement_group(pg); raise RuntimeError(…)",
            ),
            doc=_DOC,
        ),
    )


def _less_strict(
    strategy: str, lack: _Lack, bundles: Sequence[resources.Needs], nodes: Sequence[resources.Needs]
) -> Iterator[Remedy]:
    """The strategy without `STRICT_`, unless the nodes have no room for the bundles then either."""
    looser = strategy.removeprefix("STRICT_")
    if looser != strategy and lack.infeasible and (not nodes or _places(looser, bundles, nodes)):
        then_fits = f". All {len(bundles)} bundles then fit" if nodes else ""
        yield Remedy(
            f"Use {looser} instead of {strategy}: {looser} prefers the same placement, but does not require it{then_fits}",
            (paste.python("placement_group(bundles, strategy={strategy})", strategy=looser),),
            doc=_DOC,
        )


_OF_TUNE = (
    "tune.with_resources(trainable, tune.PlacementGroupFactory([{{{bundle}}}] * {times}))"
    "   # or: if Ray Tune made the group"
)
"""Tune's own strategy is PACK."""


def _smaller(
    strategy: str,
    bundles: Sequence[resources.Needs],
    nodes: Sequence[resources.Needs],
    *,
    is_first: bool,
) -> Iterator[Remedy]:
    """As many equal bundles, each as large as possible, and as many of the same size as fit."""
    if not (nodes and bundles and bundles[0]) or any(each != bundles[0] for each in bundles):
        return
    every, count = bundles[0], len(bundles)
    short = [n for n in every if sum(node.get(n, 0.0) for node in nodes) < every[n] * count] or [
        *every
    ]

    def sized(size: int) -> dict[str, float]:
        return {**every, **{n: float(size) for n in short}}

    asked = int(max(every[n] for n in short))
    size = _largest(asked - 1, lambda n: _places(strategy, [sized(n)] * count, nodes))
    fewer = _largest(count - 1, lambda n: _places(strategy, [every] * n, nodes))
    smaller = (sized(size), count, "bundles of this size all fit")
    choices: list[tuple[resources.Needs, int, str]] = [smaller] if size else []
    choices += (
        [(every, fewer, _TOO_MANY.get(strategy, "more of this size do not fit"))] if fewer else []
    )
    kept = f"keep {strategy}, and request" if strategy.startswith("STRICT_") else "request"
    for number, (each, times, why) in enumerate(choices):
        if times:
            filled: dict[str, paste.Values] = {
                "bundle": [paste.python("{n}: {v:g}", n=n, v=v) for n, v in each.items()],
                "times": times,
                "strategy": strategy or "PACK",
            }
            verb = f"{kept[0].upper()}{kept[1:]}" if is_first and not number else f"Or {kept}"
            yield Remedy(
                f"{verb} {times} × {resources.describe(each)} instead of {count} × {resources.describe(every)}: {why}",
                (
                    paste.python(
                        "placement_group([{{{bundle}}}] * {times}, strategy={strategy})", **filled
                    ),
                    *((paste.python(_OF_TUNE, **filled),) if filled["strategy"] == "PACK" else ()),
                ),
                doc=_DOC,
            )


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, where every smaller one fits as well; 0 if none does."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _more(
    strategy: str,
    bundles: Sequence[resources.Needs],
    room: _Room,
) -> Remedy:
    """Nodes with room for the bundles that find none."""
    title = "Or give the cluster a node that has room for the bundles"
    nodes, totals = room
    if not bundles or not nodes:
        return Remedy(title, ("ray start --address=HEAD:6379   # on another machine",), doc=_DOC)
    if strategy == "STRICT_SPREAD":
        missing = evidence.many(len(_unplaced(strategy, bundles, nodes)), "node")
        return waiting.add(f"Or add {missing}, each with room for a bundle", bundles[0])
    needs = live_groups.total(
        bundles if strategy == "STRICT_PACK" else _unplaced(strategy, bundles, nodes)
    )
    local = _enough(bundles, nodes[0], totals[0]) if len(nodes) == len(totals) == 1 else None
    return waiting.add(title, needs, local)


def _enough(
    bundles: Sequence[resources.Needs], left: resources.Needs, total: resources.Needs
) -> resources.Needs:
    """What the only node must have in total for all bundles, beside what others hold of it."""
    return {
        name: amount + max(total.get(name, 0.0) - left.get(name, 0.0), 0.0)
        for name, amount in live_groups.total(bundles).items()
    }


def _places(
    strategy: str, bundles: Sequence[resources.Needs], nodes: Sequence[resources.Needs]
) -> bool:
    return not _unplaced(strategy, bundles, nodes)


def _unplaced(
    strategy: str, bundles: Sequence[resources.Needs], nodes: Sequence[resources.Needs]
) -> list[resources.Needs]:
    """Bundles for which these nodes have no room; like Ray's scheduler, this places the largest first."""
    if strategy == "STRICT_PACK":
        every = live_groups.total(bundles)
        return [] if any(resources.fits(node, every) for node in nodes) else list(bundles)
    free, homeless = [dict(node) for node in nodes], []
    for bundle in sorted(bundles, key=lambda b: -sum(b.values())):
        home = next((node for node in free if resources.fits(node, bundle)), None)
        if home is None:
            homeless.append(bundle)
        elif strategy == "STRICT_SPREAD":
            free.remove(home)
        else:
            for name, amount in bundle.items():
                home[name] -= amount
    return homeless


# ------------------------------------------------------------------ examples


def _gcs(second: int, text: str) -> str:
    return f"[2026-11-21 07:45:{second:02d},637 I 13 13] (gcs_server) gcs_placement_group_manager.cc:367: {text}\n"


_TIMEOUT = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_NO_TYPE = (
    "(autoscaler +{}s) Error: No available node types can fulfill resource request defaultdict(<class 'float'>, {{'CPU': 8.0}}). Add "
    "suitable node types to this cluster to resolve this issue.\n"
)
_MONITOR = f"2026-11-21 07:45:43,805\tINFO autoscaler.py:408 -- \nPending Demands:\n{waiting.GROUP_PENDING.sample}\n"
_NODES = (
    'NodeManager:\nLocal id: 53 Local resources: {} Cluster resources: node id: 53{"total":{CPU: 40000, memory: 270616658000000}}, '
    '"available": {}}\nResource usage {\n    - (language=PYTHON actor_or_task=Holder.__init__ pid=215): {CPU: 30000}\n}\n'
)


def _group(pg: str, name: str, bundles: int, seconds: int = 15, **more: object) -> sample.Row:
    """A row of `placement-groups`."""
    return {
        "placement_group_id": pg, "name": name, "state": "PENDING", "bundles": [{"unit_resources": {"CPU": 1}, "node_id": ""}] * bundles,
        "stats": {"creation_request_received_ns": str(int(sample.AT - seconds) * 10**9), "scheduling_state": "INFEASIBLE"}, **more,
    }  # fmt: skip


_ONE = sample.node({"CPU": 4, "memory": 27061665800.0})
_HOLDER = sample.actor(1, "Holder", {"CPU": 1})
_RANK = sample.task(
    1, "rank", {f"CPU_group_{_PG}": 1, f"bundle_group_{_PG}": 0.001}, placement_group_id=_PG
)

_STATUS = (
    "======== Autoscaler status: 2026-11-21 07:36:14.406028 ========\nNode status\n-----------\nActive:\n 1 ray.head.default\n"
    " 1 ray.worker.default\nPending:\n (no pending nodes)\nRecent failures:\n (no failures)\n\nResources\n-----------\nUsage:\n"
    " 0.0/2.0 CPU\n 0B/2.33GiB memory\n\nDemands:\n {'CPU': 2.0} * 1 (SPREAD): 1+ pending placement groups\n"
)

_CUT_OFF = (
    'Traceback (most recent call last):\n  File "/app/setup.py", line 45, in setup\n    ray.get({}, timeout=900)\n'
    '  File "/venv/lib/python3.12/site-packages/ray/_private/worker.py", line 942, in get_objects\n'
    "    ] = self.core_worker.get_objects(\n"
)

_OF_ADDRESS = (
    "(autoscaler +34s) Error: No available node types can fulfill resource request {'node:10.0.0.9': 0.001, 'GPU': 1.0}. "
    "Add suitable node types to this cluster to resolve this issue.\n"
)
_PENDING = {
    "logs/gcs_server.out": _gcs(11, REGISTERED.sample) + _gcs(52, NEVER_READY.sample) + _gcs(52, REMOVED[1].sample),
    "logs/raylet.out": "",
    "logs/monitor.log": _MONITOR,
    "logs/debug_state.txt": _NODES,
}  # fmt: skip
_GAVE_UP = (
    'started\nTraceback (most recent call last):\n  File "/app/ranks.py", line 19, in <module>\n    group = reserve(2)\n'
    '  File "/app/ranks.py", line 12, in reserve\n    raise {}\nTimeoutError: no room for 2 ranks\n'
)
_NO_ANSWER = (
    'started\nTraceback (most recent call last):\n  File "/app/ranks.py", line 8, in <module>\n    http.connect()\n'
    '  File "/usr/lib/python3.12/socket.py", line 864, in create_connection\n    raise exceptions[0]\n'
    "TimeoutError: timed out\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "two bundles of 4 CPUs that must share a node of 4 CPUs",
        {
            "logs/gcs_server.out": _gcs(11, REGISTERED.sample)
            + _gcs(52, NEVER_READY.sample)
            + _gcs(52, REMOVED[1].sample),
            "logs/raylet.out": "",
            "logs/monitor.log": _MONITOR,
            "logs/debug_state.txt": _NODES,
            "driver.log": _NO_TYPE.format(5) + _NO_TYPE.format(40) + _TIMEOUT,
        },
        consequences=("get-timeout",),
        says=(
            "ranks",
            "2 × 4 CPUs",
            "STRICT_PACK",
            "8 CPUs on one node",
            "4 CPUs",
            '[{"CPU": 2}] * 2',
        ),
    ),
    Example(
        "the group would fit, but an actor holds the CPUs",
        {
            "logs/gcs_server.out": _gcs(
                11, REGISTERED.sample.replace("strategy = 2", "strategy = 0")
            )
            + _gcs(52, REMOVED[1].sample),
            "logs/raylet.out": "",
            "logs/monitor.log": _MONITOR.replace(
                "{'CPU': 4.0} * 2 (STRICT_PACK)", "{'CPU': 2.0} * 2 (PACK)"
            ),
            "logs/debug_state.txt": _NODES,
        },
        says=("2 × 2 CPUs", "1 Holder actor"),
    ),
    console(
        "only the driver's output is in the capture",
        _NO_TYPE.format(5) + _NO_TYPE.format(40) + _TIMEOUT,
        consequences=("get-timeout",),
        says=("8 CPUs on one node",),
    ),
    Example(
        "trials hold the CPUs in groups of their own until SIGTERM ends the program",
        {
            **_PENDING,
            "logs/gcs_server.out": _gcs(10, REGISTERED.sample.replace("b8ce", "a1f0"))
            + _gcs(10, CREATED.sample.replace("b8ce", "a1f0"))
            + _gcs(11, REGISTERED.sample.replace("strategy = 2", "strategy = 0"))
            + _gcs(52, NEVER_READY.sample)
            + _gcs(52, REMOVED[1].sample)
            + _gcs(52, REMOVED[1].sample.replace("b8ce", "a1f0")),
            "logs/monitor.log": _MONITOR.replace(
                "{'CPU': 4.0} * 2 (STRICT_PACK)", "{'CPU': 2.0} * 1 (PACK)"
            ),
        },
    ),
    Example(
        "the program's own time limit ends it",
        {**_PENDING, "driver.log": _GAVE_UP.format("TimeoutError(f'no room for {n} ranks')")},
        consequences=("job-failed",),
        says=("ranks",),
    ),
    Example(
        "another exception ends the program, and a group is pending as well",
        {
            **_PENDING,
            "driver.log": _GAVE_UP.format("KeyError('ranks')").replace(
                "TimeoutError: no room for 2 ranks", "KeyError: 'ranks'"
            ),
        },
        roots=("placement-group-pending", "job-failed"),
    ),
    Example(
        "a server of the program does not answer in time, and a group is pending as well",
        {**_PENDING, "driver.log": _NO_ANSWER},
        roots=("placement-group-pending", "job-failed"),
    ),
    Example(
        "live: the group needs three nodes and there is one, before any log shows it",
        sample.tables(
            nodes=[_ONE],
            placement_groups=[_group(_PG, "ranks", 3, strategy="STRICT_SPREAD")],
            tasks=[_RANK],
        ),
        says=(
            "'ranks' (STRICT_SPREAD, 3 × 1 CPU)",
            "it needs 3 nodes",
            'strategy="SPREAD"',
            "and 1 rank() task waits for the group",
        ),
    ),
    Example(
        "live with the registration in the GCS's log: one finding, and an idle actor holds the resources",
        {
            "logs/gcs_server.out": _gcs(
                11, REGISTERED.sample.replace("strategy = 2", "strategy = 0")
            ),
            "logs/raylet.out": "",
            **sample.tables(
                nodes=[_ONE], placement_groups=[_group(_PG, "ranks", 4)], actors=[_HOLDER]
            ),
        },
        says=(
            "'ranks' (PACK, 4 × 1 CPU)",
            "no node has room for 1 of 4 bundles: 1 Holder actor holds 1 of 4 CPUs and runs nothing",
            'tune.with_resources(trainable, tune.PlacementGroupFactory([{"CPU": 1}] * 3))',
        ),
    ),
    Example(
        "live: running tasks hold the resources, or the group is new",
        sample.tables(
            nodes=[_ONE],
            tasks=[sample.running(1, "train", {"CPU": 4})],
            placement_groups=[
                _group(_PG, "ranks", 4, strategy="PACK"),
                _group("c" * 36, "new", 9, seconds=1),
            ],
        ),
    ),
    Example(
        "live: a tuner's next trial waits for a running one",
        sample.tables(
            nodes=[_ONE],
            actors=[_HOLDER],
            tasks=[sample.call(1, "Holder.train", _HOLDER)],
            placement_groups=[_group(_PG, "trial", 4, strategy="PACK")],
        ),
    ),
    Example(
        "live: the same after a minute, reported as information",
        sample.tables(
            nodes=[_ONE],
            actors=[_HOLDER],
            tasks=[sample.call(1, "Holder.train", _HOLDER)],
            placement_groups=[_group(_PG, "trial", 4, seconds=90, strategy="PACK")],
        ),
        says=("1 Holder actor holds 1 of 4 CPUs and is busy",),
        severity="info",
    ),
    Example(
        "a group that waited and was created, and one that was removed immediately",
        {
            "logs/gcs_server.out": _gcs(11, REGISTERED.sample)
            + _gcs(24, CREATED.sample)
            + _gcs(25, REMOVED[0].sample)
            + _gcs(25, REGISTERED.sample.replace("b8ce", "c9df"))
            + _gcs(26, REMOVED[0].sample.replace("b8ce", "c9df")),
            "logs/raylet.out": "",
            "logs/monitor.log": _MONITOR,
        },
    ),
    console(
        "a pasted table of `ray status` with a group that no node has room for, although nothing is in use",
        _STATUS * 2,
        says=("SPREAD, 1 × 2 CPUs", "has 2 CPUs free"),
    ),
    console(
        "a single table, whose group may have been requested a second ago",
        _STATUS,
    ),
    console(
        "a pasted table with a group that the whole cluster is too small for",
        _STATUS.replace("'CPU': 2.0} * 1", "'CPU': 2.0} * 3"),
        says=("need 6 CPUs together, and the cluster has 2 CPUs",),
    ),
    console(
        "the same while the CPUs are in use, and while a node starts",
        _STATUS.replace("0.0/2.0 CPU", "1.0/2.0 CPU")
        + _STATUS.replace("(no pending nodes)", "10.0.0.3: worker, starting"),
    ),
    console(
        "a console with one report of a merged group, and the output of `ray status` below it",
        f"{_NO_TYPE.format(5)}{waiting.STATUS.sample}\n".replace("/112.0 CPU", "/4.0 CPU"),
        says=("8 CPUs on one node",),
    ),
    console(
        "a bundle asks for a GPU on an address that no node has",
        f"{_OF_ADDRESS}{waiting.STATUS.sample}\n".replace("/1.0 GPU", "/8.0 GPU").replace(
            "{'GPU': 1.0, 'CPU': 1.0} * 8 (STRICT_PACK)",
            "{'node:10.0.0.9': 0.001, 'GPU': 1.0} * 1, {'GPU': 1.0} * 1 (PACK)",
        ),
        says=("no node can hold its bundle with 1 GPU and the node 10.0.0.9", "VLLM_HOST_IP"),
        severity="warning",
    ),
    console(
        "the same report, and no group is pending any more",
        f"{_OF_ADDRESS}{waiting.STATUS.sample}\n".replace("/1.0 GPU", "/8.0 GPU").replace(
            " {'GPU': 1.0, 'CPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups",
            " (no resource demands)",
        )
        + "trained 3\n",
    ),
    console(
        "a paste that ends in the wait for a group",
        _CUT_OFF.format("helpers.ready()"),
        severity="warning",
        says=("cut off how the wait failed",),
    ),
    console(
        "a paste that ends in a call of an actor's method of this name",
        _CUT_OFF.format("server.ready.remote()"),
        roots=("job-failed",),
    ),
    console(
        "no slice of TPUs is free",
        'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    main()\n'
        "RuntimeError: Failed to reserve TPU slice. Requested 1 slice(s) of topology '4x4' with accelerator type 'TPU-V6E'. Ensure that "
        "sufficient TPU resources are available in the cluster.\n",
        says=("slice of TPUs of shape 4x4", "ray list nodes --detail"),
    ),
    console(
        "the slice's group is not ready in time",
        'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    main()\n'
        "TimeoutError: TPU slice placement group was not ready within 100s. Ensure your cluster has sufficient TPU resources available.\n",
        says=("within 100 s",),
    ),
    console(
        "a program that quotes the refusal of a slice and continues",
        "RuntimeError: Failed to reserve TPU slice. Requested 1 slice(s) of topology '4x4'.\nusing CPUs instead\nloss 0.1\n",
    ),
)
