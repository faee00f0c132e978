"""Tasks or actors wait in `ray.get` for tasks of their own, which need what the waiting ones hold.

## What you see
Nothing moves: no error, no progress, CPUs idle; `GetTimeoutError` if the program has a deadline. In
raylet.out the last `[state-dump]` has `num_waiting_for_resource` above 0, `Granted leases by scheduling class`
(`Running tasks by scheduling class` up to Ray 2.40) counts tasks that `Resource usage` does not list.

## Why
A task that waits in `ray.get` gives back its CPUs, and nothing else: GPUs, memory and custom resources stay
with it. An actor gives back nothing at all. When everything of a resource is held by those who wait, the
children they wait for can never start.
(Measured with Ray 2.9.3, 2.40, 2.50 and 2.60: a raylet lists only running workers in `Resource usage`, and
counts blocked ones as granted.)

## Confirm
- `ray list tasks --detail --filter state!=FINISHED`: children are `PENDING_NODE_ASSIGNMENT`, and their
  `parent_task_id` is a task that is `RUNNING`.
- `ray stack` on the node: the parents stand in `get_objects (ray/_private/worker.py)`.
- `ray status`: nothing of that resource is left.
- The metrics port of a node: `ray_tasks{…State="RUNNING_IN_RAY_GET"}` counts, by function, who waits in `ray.get`.

## Fix
Let the parent return the children's references and have the caller `ray.get` them; or ask for the scarce
resource in the children alone; or start fewer parents than there is room for, so that children fit beside them.

## Not this when
Actors that wait for nobody hold everything (`cluster-starved`); no node could ever hold the child
(`infeasible-request`); some task still runs: then the queue is only long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION, TRACEBACK
from raydoctor.cluster import autoscaler, resources
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import tables as live
from raydoctor.cluster import waiting as now
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import calls, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as looked
from raydoctor.rules.shared.live import hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import Group

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/nested-tasks.html"


@rule(
    tier="root",
    severity="error",
    rank=75,
    looks_for=(
        waiting.STARVED, *waiting.CALLER_GONE, waiting.INTERRUPTED, TRACEBACK, RAY_EXCEPTION, autoscaler.CONFIG, autoscaler.ADDING,
    ),
)  # fmt: skip
def nested_get_deadlock(case: Case) -> Iterator[Finding]:
    """One finding per raylet whose resources are held by those who wait for its queue; live, per set of holders."""
    found = [one for one in starving.starved(case, now.picture(case)) if one.parents]
    yield from (_live_finding(case, one) for one in found)
    circles = [group for group in hangs.groups(case) if hangs.is_nested(group)] if not found else []
    yield from (_exact_finding(group) for group in circles)
    if not found and not circles:
        yield from _by_logs(case)


def _exact_finding(group: Group) -> Finding:
    """A circle of parents and children, seen by the objects that the parents wait for."""
    from raydoctor.waits.remedies import remedies

    labels = [h.work.label for h in (*group.cycle, group.cycle[0])]
    child = next(h for h in group.cycle if not h.work.runs)
    lasted = min(h.work.age for h in group.cycle)
    return hangs.finding(
        group,
        f"{' → '.join(labels)}: {child.work.name} {child.summary}, and those wait for it; nothing has moved for "
        f"{lasted:.0f} s{hangs.waiting(group)}",
        remedies(group),
    )


def _by_logs(case: Case) -> Iterator[Finding]:
    shown = waiting.gave_up(case) or waiting.abandoned(case) or waiting.queued_at_the_end(case)
    if not shown and case.roles & set(DRIVER):
        return
    workers = calls.busy(case)
    if calls.working(workers):
        return
    told: set[str] = set()
    for dump in case.of("raylet.dump", "debug.state"):
        held = _held_in_vain(dump, _asking(case, workers), _asked_for(case))
        if held and dump["node"] not in told and not _somebody_runs(dump):
            told.add(dump["node"])
            yield _finding(case, dump, held, workers)


@dataclass(frozen=True, slots=True)
class _Holders:
    """Who waits and holds something that is used up."""

    names: tuple[str, ...]
    """Functions, or classes of actors."""
    count: int
    actors: bool
    pids: tuple[int, ...]
    resource: str
    held: float
    total: float
    each: float


def _asking(case: Case, workers: list[calls.Worker]) -> list[calls.Worker]:
    """Workers that run something and have asked for others in vain: only these wait for tasks of their own.

    (A task that waits for an actor is blocked as well, and may well go on.)
    """
    gave_up = bool(waiting.gave_up(case))
    return [w for w in workers if w.running and w.leases and (w.waits or gave_up)]


def _asked_for(case: Case) -> set[str]:
    """The resources that queued requests ask for, where a raylet named them."""
    told = [e for e in case.of("request.starved") if not case.torn_down(e)]
    return {name for e in told for name in resources.amounts(e["needs"])}


def _held_in_vain(dump: Event, asking: list[calls.Worker], asked: set[str]) -> _Holders | None:
    """The resource of which the waiting ones hold at least half and nothing is left.

    If something else is used up too, the queue may wait for that instead; then the requests must say it.
    """
    if not calls.queued(dump):
        return None
    used_up = calls.exhausted(dump)
    found = [
        holders
        for name in sorted(used_up & asked if asked else used_up)
        for holders in (_tasks(dump, name, asking), _actors(dump, name, asking))
        if holders and holders.held * 2 >= holders.total
    ]
    if not asked and len(used_up) > 1:
        return None
    return max(found, key=lambda h: h.held / h.total, default=None)


def _tasks(dump: Event, resource: str, asking: list[calls.Worker]) -> _Holders | None:
    """Tasks that are blocked: they keep everything but CPUs."""
    functions = {w.name for w in asking if not w.actor}
    blocked = [b for b in calls.blocked_in(dump) if b.function in functions]
    found = [b for b in blocked if b.each.get(resource) and resource != "CPU"]
    total = calls.has(dump, resource)
    if not found or not total:
        return None
    names = tuple(b.function for b in found)
    return _Holders(
        names,
        sum(b.count for b in found),
        False,
        tuple(w.pid for w in asking if w.name in names),
        resource,
        sum(b.count * b.each[resource] for b in found),
        total,
        found[0].each[resource],
    )


def _actors(dump: Event, resource: str, asking: list[calls.Worker]) -> _Holders | None:
    """Actors that run a method: they keep everything."""
    pids = {w.pid for w in asking if w.actor}
    found = [
        h for h in waiting.holders_in(dump) if h.is_actor and h.pid in pids and h.held.get(resource)
    ]  # fmt: skip
    total = calls.has(dump, resource)
    if not found or not total:
        return None
    return _Holders(
        tuple(dict.fromkeys(h.name.removesuffix(".__init__") for h in found)),
        len(found),
        True,
        tuple(h.pid for h in found),
        resource,
        sum(h.held[resource] for h in found),
        total,
        found[0].held[resource],
    )


def _somebody_runs(dump: Event) -> bool:
    """Whether a task on that node was running: it may end, and make room."""
    return any(not h.is_actor for h in waiting.holders_in(dump))


def _finding(case: Case, dump: Event, held: _Holders, workers: list[calls.Worker]) -> Finding:
    queue = calls.queued(dump)
    kind = "actor" if held.actors else "task"
    who = f"{held.count} {evidence.join_names(held.names)} {kind}{'s' if held.count > 1 else ''}"
    hold = "hold" if held.count > 1 else "holds"
    told = [e for e in case.of("request.starved") if not case.torn_down(e)]
    asking = [w for w in workers if w.leases and w.pid in held.pids]
    return Finding(
        f"{who} {hold} {held.held:g} of {held.total:g} {held.resource} and wait{'' if held.count > 1 else 's'} for tasks of "
        f"their own that can never start: {evidence.many(queue, 'request')} queued, and nothing else runs",
        (
            Link(dump, f"the raylet's state: {evidence.many(queue, 'request')} queued, no {held.resource} left, {who} {_stands(held)}"),
            *(Link(w.event, f"{w.label} has asked for {evidence.many(w.leases, 'worker')} and got none") for w in asking[:2]),
            *(Link(e, "requests that would fit, and nobody to give way") for e in told[:1]),
        ),
        explains=(Entity("waiting", "cluster"), *_starved(told)),
        subjects=tuple(_subjects(held, asking)),
        count=queue,
        severity=waiting.severity(case),
        remedies=_remedies(held),
        covers=(*told, *case.of("request.claimed"), *waiting.abandoned(case)),
    )  # fmt: skip


def _live_finding(case: Case, one: starving.Starved) -> Finding:
    """Parents and children by name; what a raylet said of the same requests belongs to it."""
    held = _held_live(one)
    kind = "actor" if held.actors else "task"
    many = held.count > 1
    shares = resources.share(held.resource, held.held, held.total)
    needs = {resources.key(r.plain) for r in one.requests}
    told = [
        e
        for e in case.of("request.starved")
        if resources.key(resources.amounts(e["needs"])) in needs
    ]
    return Finding(
        f"{evidence.many(held.count, f'{evidence.join_names(held.names)} {kind}')} hold{'' if many else 's'} {shares} and "
        f"wait{'' if many else 's'} for tasks of their own that can never start: {one.wait}",
        (
            *(Link(h.event, f"{h.label} holds {resources.describe(live_rows.plain(h.held))} and {h.does}") for h in one.holders[:2] if h.waits),
            *(Link(e, f"by the metrics of its node, {e['count']} {e['name']} in ray.get or ray.wait") for e in _gets(case, one)[:1]),
            *(Link(e, f"{live_rows.name_of(e)} waits for {_awaited(e, one)}; its parent is {_parent(e, one)}") for e in one.children[:2]),
            *(Link(e, "requests that would fit, and nobody to give way") for e in told[:1]),
        ),
        explains=(
            Entity("waiting", "cluster"), *(Entity("starved", r.asked) for r in one.requests), *_starved(told),
            *(entity for r in one.requests for entity in r.entities),
            *(Entity("task", parent["task_id"]) for parent in one.parents),
        ),
        subjects=tuple(h.subject for h in one.holders[:10] if h.waits),
        count=len(one.waiters),
        severity="error",
        remedies=_remedies(held),
        covers=(*told, *case.of("request.claimed")),
    )  # fmt: skip


def _held_live(one: starving.Starved) -> _Holders:
    """Of what is short, the resource that those who wait hold most of."""
    found = [h for h in one.holders if h.waits]
    held = {n: [live_rows.plain(h.held).get(n, 0.0) for h in found] for n in one.short}
    name = max(held, key=lambda n: sum(held[n]) / one.total[n] if one.total.get(n) else 0.0)
    return _Holders(
        tuple(dict.fromkeys(h.name for h in found)),
        len(found),
        found[0].kind == "actor",
        tuple(h.pid for h in found if h.pid),
        name,
        sum(held[name]),
        one.total.get(name, 0.0),
        max(held[name]) or 1.0,
    )


def _gets(case: Case, one: starving.Starved) -> list[Event]:
    """What the metrics say of the parents."""
    names = {e[key] for e in one.parents for key in ("name", "func_or_class_name")}
    return [e for e in live.rows(case, "ray-get") if e["name"] in names]


def _awaited(child: Event, one: starving.Starved) -> str:
    return next((r.asked for r in one.requests if child in r.waiters), "room")


def _parent(child: Event, one: starving.Starved) -> str:
    parent = next(e for e in one.parents if e["task_id"] == child["parent_task_id"])
    return f"{parent['name'] or parent['func_or_class_name']} (pid {parent.pid}), which runs"


def _stands(held: _Holders) -> str:
    if held.actors:
        return "among the holders"
    return "granted but not running: blocked in ray.get or ray.wait"


def _starved(told: list[Event]) -> Iterator[Entity]:
    """What `cluster-starved` would claim of the same requests."""
    for event in told:
        yield Entity("starved", resources.describe(resources.amounts(event["needs"])))
        if event["lease"]:
            yield Entity("lease", event["lease"])
        if event["task"]:
            yield Entity("task", event["task"])
            if actor := ids.actor_of_task(event["task"]):
                yield Entity("actor", actor)


def _subjects(held: _Holders, asking: list[calls.Worker]) -> Iterator[Subject]:
    yield from (w.subject for w in asking[:10])
    if not asking:
        yield from (Subject("task", None, name) for name in held.names)


def _remedies(held: _Holders) -> tuple[Remedy, ...]:
    name = held.names[0]
    room = max(int(held.total / held.each) - 1, 0)
    without = (
        "@ray.remote(num_cpus=0)"
        if held.resource == "CPU"
        else paste.python(
            "@ray.remote            # without {resource}; only its children ask for it",
            resource=held.resource,
        )
    )
    return (
        Remedy(
            f"Let {name} not wait while it holds {held.resource}: hand the children's references on",
            (
                "return [child.remote(part) for part in parts]        # in the parent: references, not ray.get(...)",
                "ray.get(ray.get(parent.remote(case)))                # in the caller, which holds nothing",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Or ask for {held.resource} where it is used, not in {name}, which only coordinates",
            (without,),
            doc="https://docs.ray.io/en/latest/ray-core/scheduling/resources.html",
        ),
        _fewer(name, held, room),
    )


def _fewer(name: str, held: _Holders, room: int) -> Remedy:
    """Leave room for a child beside those that wait."""
    doc = "https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html"
    if not room:
        return Remedy(
            f"Or give the cluster more {held.resource} than all {name} together hold",
            ("ray start --address=HEAD:6379                        # a further node",),
            doc=doc,
        )
    if held.actors:
        return Remedy(
            f"Or start at most {room} {name}, so that children fit beside them",
            (
                paste.python(
                    "actors = [{actor:name}.remote() for _ in range({room})]", actor=name, room=room
                ),
            ),
            doc=doc,
        )
    return Remedy(
        f"Or run at most {room} {name} at once, so that children fit beside them",
        (
            "running, rest = [], list(cases)",
            paste.python(
                "while rest or running:                               # at most {room} at a time",
                room=room,
            ),
            paste.python(
                "    while rest and len(running) < {room}: running.append({function:name}.remote(rest.pop()))",
                room=room,
                function=name,
            ),
            "    done, running = ray.wait(running)",
        ),
        doc=doc,
    )


# ------------------------------------------------------------------ examples

_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"


def _dump(usage: str, granted: str, queue: int, left: int = 0) -> str:
    return (
        "NodeManager:\nNode ID: 90cdf1919ea1382722a16d332055177a9644608ea67e6e89e04ad81d\nInfeasible queue length: 0\n"
        f"Grant queue length: {queue}\nnum_waiting_for_resource: {queue}\ncluster_resource_scheduler state: \n"
        'Local id: 86 Local resources: {"total":{memory: [27060949000000], CPU: [40000], licence: [20000]}, "available": '
        f'{{memory: [27060949000000], CPU: [40000], licence: [{left}]}}, "labels":{{}}}} is_draining: 0\n'
        f"Resource usage {{\n{usage}}}\nBacklog Size per scheduling descriptor :{{workerId: num backlogs}}:\n\n"
        f"Granted leases by scheduling class:\n{granted}==================================================\n"
    )


def _granted(function: str, count: int) -> str:
    return (
        "    - {depth=1 function_descriptor={type=PythonFunctionDescriptor, module_name=__main__, class_name=, "
        f"function_name={function}, function_hash=0f04}} scheduling_strategy=default_scheduling_strategy {{\n}}\n"
        f" resource_set={{licence : 1, CPU : 1, }}label_selector={{}}}}fallback_strategy=[]: {count}/4\n"
    )


def _uses(function: str, pid: int) -> str:
    return f"    - (language=PYTHON actor_or_task{function} pid={pid} worker_id=f3e2): {{licence: 1, CPU: 1}}\n"


_W = "a" * 56


def _logs(leases: int, calling: int = 0) -> dict[str, str]:
    """Logs of a worker that runs plan and has asked for so many workers, or called so many actors."""
    return {
        "logs/gcs_server.out": "",
        "logs/raylet.out": "",
        f"logs/worker-{_W}-01000000-396.out": ":job_id:01000000\n:task_name:plan\n",
        f"logs/python-core-worker-{_W}_396.log": "[2026-11-21 10:55:24,438 I 396 418] core_worker.cc:591: Event stats:\n\n\n"
        + "".join(
            f"\t{what} - {count} total ({count} active), Execution time: mean = 0.00ms, total = 0.00ms, Queueing time: mean = 0\n"
            for what, count in (
                ("CoreWorkerService.grpc_server.PushTask", 1),
                ("CoreWorkerService.grpc_client.PushTask", calling),
                ("NodeManagerService.grpc_client.RequestWorkerLease", leases),
            )
        ),
    }


_TWO = sample.node({"CPU": 4, "licence": 2})
_PLANS = [sample.running(n, "plan", {"CPU": 1, "licence": 1}) for n in (1, 2)]
_PARTS = [
    sample.task(n + 2, "part", {"CPU": 1, "licence": 1}, parent_task_id=sample.task_id(n))
    for n in (1, 2)
]
_COORDINATOR = sample.actor(1, "Coordinator", {"CPU": 1})
_RUN = sample.call(1, "Coordinator.run", _COORDINATOR)


def _seen(free: resources.Needs) -> dict[str, str]:
    """Parents that were looked at, and how much of what their children need is free."""
    plans = [sample.running(n, "plan", {"licence": 1}, **looked.since(90)) for n in (1, 2)]
    child = {"CPU": 1} if free else {"licence": 1}
    parts = [sample.task(n + 2, "part", child, parent_task_id=sample.task_id(n)) for n in (1, 2)]
    usage = {
        "node_id": sample.NODE,
        "state": "ALIVE",
        "total": {"CPU": 4, "licence": 2},
        "available": free,
    }
    return sample.tables(
        nodes=[_TWO], tasks=[*plans, *parts], resources=[usage],
        samples=[row for plan in plans for row in looked.getting(plan, ("plan", "plan.py", 9))],
        clues=[looked.clues(plan, part) for plan, part in zip(plans, parts, strict=True)],
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "two tasks hold both licences and wait for children that need one each",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump("", _granted("plan", 2), 7),
            "driver.log": _ERROR,
        },
        roots=("nested-get-deadlock",),
        consequences=("get-timeout",),
        says=("2 plan tasks hold 2 of 2 licence", "7 requests", "at most 1 plan"),
    ),
    Example(
        "live: two tasks in ray.get hold both licences that their children wait for",
        sample.tables(
            nodes=[_TWO], tasks=[*_PLANS, *_PARTS], ray_get=[sample.in_ray_get("plan", 2)]
        ),
        roots=("nested-get-deadlock",),
        says=("2 plan tasks hold 2 of 2 licence", "2 part tasks", "at most 1 plan"),
    ),
    Example(
        "live: an actor's method waits for a task that needs the CPU which the actor keeps",
        sample.tables(
            nodes=[sample.node({"CPU": 1})],
            actors=[_COORDINATOR],
            ray_get=[sample.in_ray_get("Coordinator.run", 1)],
            tasks=[_RUN, sample.task(3, "part", {"CPU": 1}, parent_task_id=sample.task_id(1))],
        ),
        roots=("nested-get-deadlock",),
        says=("1 Coordinator actor holds 1 of 1 CPU", "1 part task", "num_cpus=0"),
    ),
    Example(
        "live: the same, by the objects that they wait for, before any metrics tell of it",
        _seen({}),
        roots=("nested-get-deadlock",),
        says=("plan (pid 801) → part", "Return the children's references"),
    ),
    Example(
        "live: they wait for children that need nothing of what they hold",
        _seen({"CPU": 3}),
    ),
    Example(
        "live: one parent has a child at work",
        sample.tables(
            nodes=[_TWO],
            ray_get=[sample.in_ray_get("plan", 2)],
            tasks=[
                *_PLANS,
                *_PARTS,
                sample.running(9, "fetch", {}, parent_task_id=sample.task_id(1)),
            ],
        ),
        roots=("cluster-starved",),
    ),
    Example(
        "live: parents that work and have handed in tasks for later",
        sample.tables(
            nodes=[_TWO], tasks=[*_PLANS, *_PARTS], ray_get=[sample.in_ray_get("plan", 1)]
        ),
    ),
    Example(
        "one of them still works: the queue may go on",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump(_uses("plan", 7), _granted("plan", 2), 7),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "tasks that wait, and room for their children: a worker is only being started",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump("", _granted("plan", 1), 3, left=10000),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "the tasks wait for an actor, and others wait for their licences",
        {
            **_logs(0, 1),
            "logs/debug_state.txt": _dump("", _granted("plan", 2), 7),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "nothing is queued: tasks that wait for something else",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump("", _granted("plan", 2), 0),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
)
