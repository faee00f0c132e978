"""Tasks or actors wait in `ray.get` for child tasks that need the resources held by the waiting tasks or actors.

## What you see
The program makes no progress and reports no error, and the CPUs are idle. If `ray.get` has a timeout, it raises
`GetTimeoutError`. In `raylet.out` the last `[state-dump]` has `num_waiting_for_resource` above 0, and `Granted leases
by scheduling class` (`Running tasks by scheduling class` up to Ray 2.40) counts tasks that `Resource usage` does not
list.

## Why
A task that waits in `ray.get` releases its CPUs and nothing else: it keeps GPUs, memory and custom resources. An actor
releases nothing at all. If the waiting tasks hold all of a resource, their children can never start. (Measured with Ray
2.9.3, 2.40, 2.50 and 2.60: a raylet lists only running workers in `Resource usage`, and counts blocked ones as
granted.)

## Confirm
- `ray list tasks --detail --filter state!=FINISHED` shows children in state `PENDING_NODE_ASSIGNMENT` whose
  `parent_task_id` is a task in state `RUNNING`.
- In `ray stack` on the node, the call stacks of the parents end in `get_objects (ray/_private/worker.py)`.
- `ray status` shows that resource as fully used.
- On a node's metrics port, `ray_tasks{…State="RUNNING_IN_RAY_GET"}` counts the tasks in `ray.get`, by function.

## Fix
Let a parent task return the children's references and have the caller `ray.get` them. Or request the scarce resource
only in the children. Or start fewer parents, so that resources for children remain. An actor holds its resources until
it ends, whatever its methods return: create it without the scarce resource (`num_cpus=0`).

## Not this when
- actors that do not wait for other tasks hold everything (`cluster-starved`).
- no node could ever run the child (`infeasible-request`).
- some task is still running: the children then only wait in a long queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, rule
from raydoctor.case.signals import ACTOR_PLACED, DRIVER, GCS, RAY_EXCEPTION, TRACEBACK
from raydoctor.cluster import autoscaler, resources
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import tables as live
from raydoctor.cluster import waiting as now
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import calls, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples, hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import HungGroup

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/nested-tasks.html"


@rule(
    tier="root",
    severity="error",
    rank=75,
    explains=("actor", "lease", "starved", "task", "waiting"),
    looks_for=(
        waiting.STARVED, *waiting.CALLER_GONE, waiting.INTERRUPTED, TRACEBACK, RAY_EXCEPTION, autoscaler.CONFIG, autoscaler.ADDING,
    ),
)  # fmt: skip
def nested_get_deadlock(case: Case) -> Iterator[Finding]:
    """One finding per raylet whose queued requests need what their parents hold; live, per set of holders."""
    found = [one for one in starving.starved(case, now.picture(case)) if one.parents]
    yield from (_live_finding(case, one) for one in found)
    cycles = [group for group in hangs.groups(case) if hangs.is_nested(group)] if not found else []
    yield from (_exact_finding(group) for group in cycles)
    if not found and not cycles:
        yield from _by_logs(case)


def _exact_finding(group: HungGroup) -> Finding:
    """A cycle of parents and children, established from the objects that the parents wait for."""
    from raydoctor.waits.remedies import remedies

    labels = [h.work.label for h in (*group.cycle, group.cycle[0])]
    child = next(h for h in group.cycle if not h.work.runs)
    lasted = min(h.work.age for h in group.cycle)
    return hangs.finding(
        group,
        f"Deadlock of parent and child tasks, {' → '.join(labels)}: {child.work.called} {child.summary}, and its parents "
        f"wait for it, unchanged for {lasted:.0f} s{hangs.waiting(group)}",
        remedies(group),
    )


def _by_logs(case: Case) -> Iterator[Finding]:
    shown = waiting.gave_up(case) or waiting.abandoned(case) or waiting.queued_at_the_end(case)
    if not shown and case.roles & set(DRIVER):
        return
    workers = calls.busy(case)
    if calls.working(workers):
        return
    asking = None if _is_only_tasks(case, workers) else _asking(case, workers)
    dumps = case.of("raylet.dump", "debug.state")
    if asking is None and any(map(_task_runs, dumps)):
        return
    reported: set[str] = set()
    for dump in dumps:
        held = _blocking(dump, asking, _asked_for(case))
        if held and dump["node"] not in reported and not _task_runs(dump):
            reported.add(dump["node"])
            yield _finding(case, dump, held, workers)


@dataclass(frozen=True, slots=True)
class _Holders:
    """Tasks or actors that wait and hold a resource of which nothing is left."""

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
    """Workers that run a task and have requested workers without success: only these wait for child tasks.

    (A task that waits for an actor is blocked as well, but may still continue.)
    """
    gave_up = bool(waiting.gave_up(case))
    return [w for w in workers if w.running and w.leases and (w.waits or gave_up)]


def _is_only_tasks(case: Case, workers: list[calls.Worker]) -> bool:
    """Whether a blocked task can only wait for other tasks: the session had no actor.

    A run of less than a minute leaves no record of which workers asked for others.
    """
    return not workers and not case.ledger.actors and bool(case.roles.intersection(GCS))


def _asked_for(case: Case) -> set[str]:
    """The resources that queued requests ask for, where a raylet named them."""
    starved = [e for e in case.of("request.starved") if not case.torn_down(e)]
    return {name for e in starved for name in resources.amounts(e["needs"])}


def _blocking(dump: Event, asking: list[calls.Worker] | None, asked: set[str]) -> _Holders | None:
    """The resource of which nothing is left and the waiting tasks or actors hold at least half.

    `asking`: None if every blocked task waits for tasks.

    If another resource is used up as well, the queue may wait for that one: the requests must then name theirs.
    """
    if not calls.queued(dump):
        return None
    used_up = calls.exhausted(dump)
    found = [
        holders
        for name in sorted(used_up & asked if asked else used_up)
        for holders in (_tasks(dump, name, asking), _actors(dump, name, asking or []))
        if holders and holders.held * 2 >= holders.total
    ]
    if not asked and len(used_up) > 1:
        return None
    return max(found, key=lambda h: h.held / h.total, default=None)


def _tasks(dump: Event, resource: str, asking: list[calls.Worker] | None) -> _Holders | None:
    """Blocked tasks: they keep everything except CPUs."""
    functions = {w.name for w in asking or () if not w.actor}
    blocked = [b for b in calls.blocked_in(dump) if asking is None or b.function in functions]
    found = [b for b in blocked if b.each.get(resource) and resource != "CPU"]
    total = calls.has(dump, resource)
    if not found or not total:
        return None
    names = tuple(b.function for b in found)
    return _Holders(
        names,
        sum(b.count for b in found),
        False,
        tuple(w.pid for w in asking or () if w.name in names),
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


def _task_runs(dump: Event) -> bool:
    """Whether a task on that node was running: it may finish and release its resources."""
    return any(not h.is_actor for h in waiting.holders_in(dump))


def _finding(case: Case, dump: Event, held: _Holders, workers: list[calls.Worker]) -> Finding:
    queue = calls.queued(dump)
    kind = "actor" if held.actors else "task"
    holders = f"{held.count} {evidence.join_names(map(called, held.names))} {kind}{'s' if held.count > 1 else ''}"
    hold = "hold" if held.count > 1 else "holds"
    starved = [e for e in case.of("request.starved") if not case.torn_down(e)]
    asking = [w for w in workers if w.leases and w.pid in held.pids]
    return Finding(
        f"{holders} {hold} {resources.share(held.resource, held.held, held.total)} and wait{'' if held.count > 1 else 's'} for child "
        f"tasks that can never start: {evidence.many(queue, 'request')} queued, and no other task runs",
        (
            Link(dump, f"the raylet's state: {evidence.many(queue, 'request')} queued, no {held.resource} left, {holders} {_state(held)}"),
            *(Link(w.event, f"{w.label} has requested {evidence.many(w.leases, 'worker')} and got none") for w in asking[:2]),
            *(Link(e, f"these requests would fit on the node, but nothing releases {held.resource}") for e in starved[:1]),
        ),
        explains=(Entity("waiting", "cluster"), *_starved(starved)),
        subjects=tuple(_subjects(held, asking)),
        count=queue,
        severity=waiting.severity(case),
        remedies=_remedies(held),
        covers=(*starved, *case.of("request.claimed"), *waiting.abandoned(case)),
    )  # fmt: skip


def _live_finding(case: Case, one: starving.Starved) -> Finding:
    """Parents and children by name, with a raylet's reports of the same requests."""
    held = _held_live(one)
    kind = "actor" if held.actors else "task"
    many = held.count > 1
    shares = resources.share(held.resource, held.held, held.total)
    needs = {resources.key(r.plain) for r in one.requests}
    starved = [
        e
        for e in case.of("request.starved")
        if resources.key(resources.amounts(e["needs"])) in needs
    ]
    return Finding(
        f"{evidence.many(held.count, f'{evidence.join_names(map(called, held.names))} {kind}')} hold{'' if many else 's'} {shares} and "
        f"wait{'' if many else 's'} for child tasks that can never start: {one.wait}",
        (
            *(Link(h.event, f"{h.label} holds {resources.describe(live_rows.plain(h.held))} and {h.does}") for h in one.holders[:2] if h.waits),
            *(Link(e, f"the node's metrics: {e['count']} × {called(e['name'])} in ray.get or ray.wait") for e in _gets(case, one)[:1]),
            *(Link(e, f"{called(live_rows.name_of(e))} waits for {_awaited(e, one)}; its parent is {_parent(e, one)}") for e in one.children[:2]),
            *(Link(e, f"these requests would fit on the node, but nothing releases {held.resource}") for e in starved[:1]),
        ),
        explains=(
            Entity("waiting", "cluster"), *(Entity("starved", r.asked) for r in one.requests), *_starved(starved),
            *(entity for r in one.requests for entity in r.entities),
            *(Entity("task", parent["task_id"]) for parent in one.parents),
        ),
        subjects=tuple(h.subject for h in one.holders[:10] if h.waits),
        count=len(one.waiters),
        severity="error",
        remedies=_remedies(held, {live_rows.name_of(e) for e in one.children}),
        covers=(*starved, *case.of("request.claimed")),
    )  # fmt: skip


def _held_live(one: starving.Starved) -> _Holders:
    """Of the resources that are short, the one of which the waiting tasks or actors hold the largest share."""
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
    """The metrics' rows of the parents."""
    names = {e[key] for e in one.parents for key in ("name", "func_or_class_name")}
    return [e for e in live.rows(case, "ray-get") if e["name"] in names]


def _awaited(child: Event, one: starving.Starved) -> str:
    return next((r.asked for r in one.requests if child in r.waiters), "resources")


def _parent(child: Event, one: starving.Starved) -> str:
    parent = next(e for e in one.parents if e["task_id"] == child["parent_task_id"])
    return f"{called(parent['name'] or parent['func_or_class_name'])} (pid {parent.pid}), which is running"


def _state(held: _Holders) -> str:
    if held.actors:
        return "among the holders"
    return "granted but not running: blocked in ray.get or ray.wait"


def _starved(starved: list[Event]) -> Iterator[Entity]:
    """The entities that `cluster-starved` would explain for the same requests."""
    for event in starved:
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


def _remedies(held: _Holders, children: Collection[str] = ()) -> tuple[Remedy, ...]:
    """`children`: functions and classes of those that cannot start, where they are known."""
    name = held.names[0]
    room = max(int(held.total / held.each) - 1, 0)
    if held.actors:
        from raydoctor.waits.remedies import for_waiting_actors

        # Children that are actors of the same class are not started by the same program.
        fewer = (_fewer(name, held, room),) if room and name not in children else ()
        return (*for_waiting_actors(name, held.resource), *fewer)
    without = (
        "@ray.remote(num_cpus=0)"
        if held.resource == "CPU"
        else paste.python(
            "@ray.remote            # without {resource}: only its children request it",
            resource=held.resource,
        )
    )
    return (
        Remedy(
            f"Return the children's references from {called(name)}, so that it does not wait while it holds {held.resource}",
            (
                "return [child.remote(part) for part in parts]        # in the parent: references, not ray.get(...)",
                "ray.get(ray.get(parent.remote(case)))                # in the caller, which holds nothing",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Or request {held.resource} only in the children, not in {called(name)}, which only coordinates",
            (without,),
            doc="https://docs.ray.io/en/latest/ray-core/scheduling/resources.html",
        ),
        _fewer(name, held, room),
    )


def _fewer(name: str, held: _Holders, room: int) -> Remedy:
    """Leave resources for a child while its parents wait."""
    doc = "https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html"
    if not room:
        return Remedy(
            f"Or add nodes, so that the cluster has more {held.resource} than all {called(name)} {'actors' if held.actors else 'tasks'} hold together",
            ("ray start --address=HEAD:6379                        # another node",),
            doc=doc,
        )
    if held.actors:
        return Remedy(
            f"Or start at most {room} {name} actor{'' if room == 1 else 's'}, so that {held.resource} is left for children",
            (
                paste.python(
                    "actors = [{actor:name}.remote() for _ in range({room})]", actor=name, room=room
                ),
            ),
            doc=doc,
        )
    return Remedy(
        f"Or run at most {room} {called(name)} task{'' if room == 1 else 's'} at once, so that {held.resource} is left for children",
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


def _granted(count: int) -> str:
    return (
        "    - {depth=1 function_descriptor={type=PythonFunctionDescriptor, module_name=__main__, class_name=, "
        "function_name=plan, function_hash=0f04} scheduling_strategy=default_scheduling_strategy {\n}\n"
        f" resource_set={{licence : 1, CPU : 1, }}label_selector={{}}}}fallback_strategy=[]: {count}/4\n"
    )


def _uses(function: str, pid: int) -> str:
    return f"    - (language=PYTHON actor_or_task{function} pid={pid} worker_id=f3e2): {{licence: 1, CPU: 1}}\n"


_W = "a" * 56


def _logs(leases: int, calling: int = 0) -> dict[str, str]:
    """Logs of a worker that runs plan, with its numbers of worker requests and actor calls."""
    return {
        **QUIET_LOGS,
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
_CHILD = sample.actor(2, "Coordinator", {"CPU": 1}, state="PENDING_CREATION", pid=0)
_CREATION = sample.task(
    2, "Coordinator.__init__", {"CPU": 1}, type="ACTOR_CREATION_TASK", actor_id=_CHILD["actor_id"],
    task_id=f"{'f' * 16}{_CHILD['actor_id']}", parent_task_id=sample.task_id(1),
)  # fmt: skip


def _sampled(free: resources.Needs) -> dict[str, str]:
    """Sampled parents, and the resources that are free for their children."""
    plans = [sample.running(n, "plan", {"licence": 1}, **hang_examples.since(90)) for n in (1, 2)]
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
        samples=[row for plan in plans for row in hang_examples.getting(plan, ("plan", "plan.py", 9))],
        clues=[hang_examples.clues(plan, part) for plan, part in zip(plans, parts, strict=True)],
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "two tasks hold both licences and wait for children that need one each",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump("", _granted(2), 7),
            "driver.log": _ERROR,
        },
        consequences=("get-timeout",),
        says=("2 plan() tasks hold 2 of 2 licence", "7 requests", "at most 1 plan"),
    ),
    Example(
        "the same in a run of half a minute, which leaves no record of who asks for workers",
        {
            **QUIET_LOGS,
            "logs/debug_state.txt": _dump("", _granted(2), 7),
            "driver.log": _ERROR,
        },
        consequences=("get-timeout",),
        says=("2 plan() tasks hold 2 of 2 licence",),
    ),
    Example(
        "the same with an actor: the tasks may wait for its method, which still runs",
        {
            "logs/gcs_server.out": f"{ACTOR_PLACED[0].sample}\n",
            "logs/raylet.out": "",
            "logs/debug_state.txt": _dump("", _granted(2), 7),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "live: two tasks in ray.get hold both licences that their children need",
        sample.tables(
            nodes=[_TWO], tasks=[*_PLANS, *_PARTS], ray_get=[sample.in_ray_get("plan", 2)]
        ),
        says=("2 plan() tasks hold 2 of 2 licence", "2 part() tasks", "at most 1 plan"),
    ),
    Example(
        "live: an actor's method waits for a task that needs the actor's CPU",
        sample.tables(
            nodes=[sample.node({"CPU": 1})],
            actors=[_COORDINATOR],
            ray_get=[sample.in_ray_get("Coordinator.run", 1)],
            tasks=[_RUN, sample.task(3, "part", {"CPU": 1}, parent_task_id=sample.task_id(1))],
        ),
        says=("1 Coordinator actor holds 1 of 1 CPU", "1 part() task", "num_cpus=0"),
    ),
    Example(
        "live: actors that wait for an actor of their own class",
        sample.tables(
            nodes=[sample.node({"CPU": 1})],
            actors=[_COORDINATOR, _CHILD],
            ray_get=[sample.in_ray_get("Coordinator.run", 1)],
            tasks=[_RUN, _CREATION],
        ),
        says=("1 Coordinator actor waits for 1 CPU", "Coordinator.options(num_cpus=0).remote(...)"),
    ),
    Example(
        "live: the same, from the objects that they wait for, without metrics",
        _sampled({}),
        says=("plan() (pid 801) → part()", "return [child.remote(part) for part in parts]"),
    ),
    Example(
        "live: their children need none of the resources that they hold",
        _sampled({"CPU": 3}),
    ),
    Example(
        "live: one parent has a running child",
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
        "live: parents that still run and have submitted tasks for later",
        sample.tables(
            nodes=[_TWO], tasks=[*_PLANS, *_PARTS], ray_get=[sample.in_ray_get("plan", 1)]
        ),
    ),
    Example(
        "one parent still runs: the queue may move",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump(_uses("plan", 7), _granted(2), 7),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "tasks wait, and there is room for their children: a worker is starting",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump("", _granted(1), 3, left=10000),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "the tasks wait for an actor, and other tasks wait for their licences",
        {
            **_logs(0, 1),
            "logs/debug_state.txt": _dump("", _granted(2), 7),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
    Example(
        "nothing is queued: the tasks wait for something else",
        {
            **_logs(3),
            "logs/debug_state.txt": _dump("", _granted(2), 0),
            "driver.log": _ERROR,
        },
        roots=("get-timeout",),
    ),
)
