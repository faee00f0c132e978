"""Requests wait forever although the cluster is large enough: actors, or tasks that wait for other tasks, hold the resources.

## What you see
The program makes no progress, or `ray.get` raises `GetTimeoutError`. `raylet.out` contains once: `… cannot be scheduled
right now. You can ignore this message if this Ray cluster is expected to auto-scale … Otherwise, this is likely due to
all cluster resources being claimed by actors`. Up to Ray 2.50 the driver prints the autoscaler's warning, which Ray
2.60 no longer does (versions between were not measured).

## Why
An actor holds the resources that it requested as long as it is alive, busy or not. (An actor that requests no resources
needs one free CPU to be placed, but does not keep it.) If actors hold all of a resource, tasks wait until an actor
ends. A task that waits in `ray.get` for a child releases its CPUs, but not its GPUs, memory or custom resources.

If busy actors hold the resources, raydoctor reports the wait only after a minute, as a warning.

## Confirm
- `ray status` shows that everything is used, and lists `Pending Demands` (older Ray: `Demands`).
- `ray list actors --filter state=ALIVE --detail` shows which actors are alive, including those of other jobs.
- `Resource usage {` in `debug_state.txt`, and in `raylet.out` right after the message, lists which workers hold
  resources, and how much.
- On a live cluster, `ray list tasks --detail --filter state=PENDING_NODE_ASSIGNMENT` shows which tasks wait, and for
  which resources.

## Fix
Start fewer actors, make them smaller (`num_cpus=0.5`, or `num_cpus=0` for actors that only coordinate), end them when
their work is done, or add nodes. Leave resources free for the tasks that actors wait for.

## Not this when
- no node could ever hold the request (`infeasible-request`).
- other tasks are still running, and free their resources when they end: a queue is not a failure.
- a placement group waits (`placement-group-pending`).
- the tasks or actors that hold the resources wait for these very tasks (`nested-get-deadlock`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, console, rule
from raydoctor.case.signals import ACTOR_PLACED, DRIVER, RAY_EXCEPTION
from raydoctor.cluster import autoscaler, resources
from raydoctor.cluster import groups as live_groups
from raydoctor.cluster import holders as holding
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import waiting as now
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import serve, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.setup import worker_start

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/resources.html"
_NESTED = "https://docs.ray.io/en/latest/ray-core/patterns/nested-tasks.html"


@rule(
    tier="root",
    severity="error",
    rank=76,
    explains=("actor", "lease", "starved", "task", "waiting"),
    caused_by=("autoscaler", "start-crashed"),
    looks_for=(
        waiting.STARVED, waiting.OLD_STARVED, waiting.CLAIMED, *waiting.CALLER_GONE, waiting.GC_SENT, *waiting.DRIVER_END, RAY_EXCEPTION,
        *ACTOR_PLACED, autoscaler.CONFIG, autoscaler.ADDING, serve.PENDING,
    ),
)  # fmt: skip
def cluster_starved(case: Case) -> Iterator[Finding]:
    """One finding per shape of resources that was never granted; on a live cluster, per set of holders."""
    seen = now.picture(case)
    reports = [e for e in case.of("request.starved") if not case.torn_down(e)]
    by_needs = evidence.grouped(reports, lambda e: resources.key(resources.amounts(e["needs"])))
    for one in starving.starved(case, seen):
        shapes = {resources.key(needs) for r in one.requests for needs in (r.needs, r.plain)}
        logged = [e for shape in sorted(shapes, key=sorted) for e in by_needs.pop(shape, [])]
        if not one.parents and (not one.at_work or one.age >= now.QUEUE):
            yield _live_finding(case, seen, one, logged)
    for logged in by_needs.values():
        over = now.tasks_known(case)
        needs = resources.amounts(logged[0]["needs"])
        if lasting := _lasting(case, logged, live=over):
            yield _finding(case, needs, logged, lasting, over=over)
        elif not over and case.roles.isdisjoint(DRIVER) and (until := _until_the_end(case)):
            # The requests may have been granted in the last seconds: without its output it is unknown.
            yield replace(_finding(case, needs, logged, until, over=False), severity="info")
    gave_up = waiting.gave_up(case)
    if not reports:
        yield from [*_from_autoscaler(case, gave_up)] or _from_old_console(case)


def _lasting(case: Case, logged: list[Event], *, live: bool) -> list[Event]:
    """Records that prove that the requests waited to the end: Ray logs a short wait in the same words.

    A raylet may name a task's request when its driver ends (2.9.3 to 2.60, not always), and tries to free
    memory as long as it is starved. A driver's timeout belongs to this wait only if the wait went on. On a
    live cluster the raylet's last dump is older than the cluster's own reply, and is not used.
    """
    proofs = [*waiting.abandoned(case), *([] if live else waiting.queued_at_the_end(case))]
    gave_up = waiting.gave_up(case)
    if proofs or not gave_up:
        return proofs
    if any(e["actors"] != "0" for e in logged):
        return gave_up
    return _until_the_end(case)


def _until_the_end(case: Case) -> list[Event]:
    ends = [job.ended for job in case.ledger.jobs.values() if job.ended is not None]
    return waiting.starved_until(case, max(ends, default=None))


def _from_old_console(case: Case) -> Iterator[Finding]:
    """What a driver of Ray up to 1.8 shows of a raylet's warning, if its console ends with it."""
    events = case.of(waiting.OLD_STARVED.kind)
    for logged in evidence.grouped(events, lambda e: e["needs"]).values():
        if waiting.is_last_word(case, logged):
            needs = resources.amounts(logged[0]["needs"].replace("}, {", ", "))
            yield replace(_finding(case, needs, logged, [], over=False), severity="warning")


def _from_autoscaler(case: Case, gave_up: list[Event]) -> Iterator[Finding]:
    """Without a raylet's log: the autoscaler's warning and a driver's timeout, as queues of actors are common.

    A console that ends with the warning may show a wait that is still going on.
    """
    if "raylet-out" in case.roles:
        return
    by_shape = evidence.grouped(waiting.one_role(case.of("request.claimed")), lambda e: e["asked"])
    for shape, logged in by_shape.items():
        needs = resources.python_amounts(shape)[0]
        if gave_up:
            yield _finding(case, needs, logged, gave_up, over=False)
        elif waiting.is_last_word(case, logged):
            yield replace(_finding(case, needs, logged, [], over=False), severity="warning")


def _finding(
    case: Case, needs: resources.Needs, logged: list[Event], lasting: list[Event], *, over: bool
) -> Finding:
    holders, dump = waiting.holders(case)
    holders = [h for h in holders if any(h.held.get(n) for n in needs)]
    total = _total(case, needs, logged[0].at)
    asked = resources.describe(needs)
    # Ray reports tasks whose workers die while they start in the same words, although resources are free.
    dead = [] if holders else worker_start.starts(case, "dead")
    if holders:
        held = f", because {_held(holders, needs, total)}"
    elif dead:
        held = ": workers died while they started"
    else:
        held = f": {_claimed(case, logged[0].at)}"
    each = " each" if _waiters(logged) > 1 else ""
    claimed = case.of("request.claimed")
    return Finding(
        f"{_waiting(logged)} for {asked}{each}{held}",
        (
            Link(logged[0], f"a request for {asked} waits, and no node has that much free"),
            *(Link(waiting.at_holder(dump, holders[0]), f"the raylet lists the holders: {waiting.held_by(holders)}") for _ in holders[:1] if dump),
            *(Link(e, _lasted(e)) for e in lasting[:1] if e is not dump and e.kind != "driver.exception"),
        ),
        explains=(Entity("starved", asked), Entity("waiting", "cluster"), *_ids(logged)),
        caused_by=(*autoscaler.launches(case, needs), *(Entity("start-crashed", one.node) for one in dead)),
        subjects=tuple(Subject("actor" if h.is_actor else "task", None, h.name, h.pid) for h in holders[:10]),
        count=max(_waiters(logged), 1),
        severity=waiting.severity(case, over=over),
        remedies=() if dead else _remedies(holders, _logged_demand(case, holders, needs, logged)),
        covers=(*logged, *claimed, *waiting.abandoned(case)),
    )  # fmt: skip


def _live_finding(
    case: Case, seen: now.Picture | None, one: starving.Starved, logged: list[Event]
) -> Finding:
    """Of replicas of Ray Serve, only the controller's log shows that they have waited for long."""
    is_certain = one.age >= now.AGE or bool(logged or case.of(serve.PENDING.kind))
    return Finding(
        f"{one.wait}, because {one.hold}",
        (
            *(Link(h.event, f"{h.label} holds {resources.describe(live_rows.plain(h.held))} and {h.does}") for h in holding.each_once(one.holders)[:2]),
            *(Link(r.waiters[0], f"{live_rows.name_of(r.waiters[0])} {_has_waited(r)} for {r.asked}{_one_of(r)}") for r in one.requests[:2]),
            *(Link(e, "the raylet reports the same: no node has that much free") for e in logged[:1]),
        ),
        explains=(
            *(Entity("starved", r.asked) for r in one.requests), Entity("waiting", "cluster"),
            *(entity for r in one.requests for entity in r.entities), *_ids(logged),
        ),
        caused_by=autoscaler.launches(case, *(r.needs for r in one.requests)),
        subjects=tuple(h.subject for h in holding.each_once(one.holders)[:10]),
        count=len(one.waiters),
        severity="error" if is_certain and not one.at_work else "warning",
        remedies=(*_into_group(one), *live_groups.remove(one.holders), *_remedies(_as_dumped(one), _live_demand(seen, one))),
        covers=(*logged, *case.of("request.claimed")),
    )  # fmt: skip


def _has_waited(request: now.Request) -> str:
    return "waits" if request.age is None else f"has waited {request.age:.0f} s"


def _one_of(request: now.Request) -> str:
    return f" (1 of {len(request.waiters)} such requests)" if len(request.waiters) > 1 else ""


def _as_dumped(one: starving.Starved) -> list[waiting.DumpedHolder]:
    """The holders as a raylet's dump would list them."""
    return [
        waiting.DumpedHolder(
            f"{h.name}.__init__" if h.kind == "actor" else h.name,
            h.pid or 0,
            live_rows.plain(h.held),
        )
        for h in one.holders
        if h.kind != "placement group"
    ]


def _live_demand(seen: now.Picture | None, one: starving.Starved) -> _Demand:
    first = one.requests[0]
    waiters = [e for r in one.requests for e in r.waiters]
    actors = Counter(live_rows.named(e) for e in waiters if live_rows.is_actor(e))
    nodes = [one.total] if first.group or not seen else [node.total for node in seen.nodes]
    most = {n: max(r.plain.get(n, 0.0) for r in one.requests) for n in one.short}
    return _Demand(most, sum(actors.values()) < len(waiters), actors, nodes)


def _logged_demand(
    case: Case,
    holders: list[waiting.DumpedHolder],
    needs: resources.Needs,
    logged: list[Event],
) -> _Demand:
    """The raylets' counts do not name the actors that wait: they may be of any class."""
    nodes = waiting.totals(case, logged[0].at)
    held = {n: sum(h.held.get(n, 0.0) for h in holders) for n in needs}
    total = _total(case, needs, logged[0].at)
    short = {n: v for n, v in needs.items() if total[n] - held[n] < v} or needs
    number = max((int(e["actors"] or 0) for e in logged), default=0)
    tasks = not number or any(e["tasks"] not in ("", "0") for e in logged)
    return _Demand(short, tasks, {"": number} if number else {}, nodes)


def _waiting(logged: list[Event]) -> str:
    """`2 tasks wait`, by the raylets' counts."""
    tasks = max((int(e["tasks"] or 0) for e in logged), default=0)
    actors = max((int(e["actors"] or 0) for e in logged), default=0)
    counted = [evidence.many(n, noun) for n, noun in ((tasks, "task"), (actors, "actor")) if n]
    if not counted:
        return "Tasks or actors wait"
    return f"{' and '.join(counted)} {'waits' if tasks + actors == 1 else 'wait'}"


def _waiters(logged: list[Event]) -> int:
    return max((int(e["tasks"] or 0) + int(e["actors"] or 0) for e in logged), default=0)


def _claimed(case: Case, at: float | None) -> str:
    """Without a dump of the holders: the actors that were alive then, from the GCS log."""
    names, placed = waiting.alive_actors(case, at)
    if not placed:
        return "all of it is in use"
    known = evidence.join_names(names)
    alive = f"{evidence.many(len(placed), 'actor')} {'was' if len(placed) == 1 else 'were'} alive"
    return f"all of it is in use: {alive}{f' ({known})' if known else ''}"


def _held(
    holders: list[waiting.DumpedHolder], needs: resources.Needs, total: resources.Needs
) -> str:
    held = {name: sum(h.held.get(name, 0.0) for h in holders) for name in needs}
    parts = [
        resources.share(name, part, total[name])
        if total.get(name)
        else resources.describe({name: part})
        for name, part in held.items()
        if part
    ]
    return (
        f"{waiting.held_by(holders)} hold{'s' if len(holders) == 1 else ''} {' and '.join(parts)}"
    )


def _total(case: Case, needs: resources.Needs, at: float | None) -> resources.Needs:
    """The amounts of the whole cluster."""
    nodes = waiting.totals(case, at)
    return {name: sum(t.get(name, 0.0) for t in nodes) for name in needs}


def _lasted(event: Event) -> str:
    return {
        "raylet.gc_sent": "the raylet tried to free resources until the end",
        "driver.interrupted": "the driver was interrupted while it waited",
        "request.caller_gone": "the request still waited when its driver ended",
        "debug.state": "the request still waited in the raylet's last dump",
    }.get(event.kind, "the request still waited")


def _ids(logged: list[Event]) -> Iterator[Entity]:
    for event in logged:
        if event["lease"]:
            yield Entity("lease", event["lease"])
        if event["task"]:
            yield Entity("task", event["task"])
            if actor := ids.actor_of_task(event["task"]):
                yield Entity("actor", actor)


# ---------------------------------------------------------------- remedies


class _Demand(NamedTuple):
    """What waits for the holders' resources, and what the cluster has of them."""

    needs: resources.Needs
    """Of one request, for the resources that are short."""
    tasks: bool
    """Whether tasks wait: each needs its share only for a while."""
    actors: Mapping[str, int]
    """Actors that wait, by class: each keeps its share."""
    nodes: Sequence[resources.Needs]

    def total(self, name: str) -> float:
        """What all nodes have."""
        return sum(node.get(name, 0.0) for node in self.nodes)

    def room(self, name: str, taken: float) -> float:
        """What is left for a class of actors beside this much, if one task must run as well."""
        return self.total(name) - taken - (self.needs[name] if self.tasks else 0.0)


def _into_group(one: starving.Starved) -> Iterator[Remedy]:
    if one.outsiders:
        parent = one.outsiders[0]["name"].rpartition(".")[0] or one.outsiders[0]["name"]
        child = (
            one.requests[0].waiters[0]["func_or_class_name"] or one.requests[0].waiters[0]["name"]
        )
        yield Remedy(
            "Let child tasks run in the placement group of their parent: by default they run outside of it",
            (
                paste.python(
                    "{parent:name}.options(scheduling_strategy=PlacementGroupSchedulingStrategy(pg, placement_group_capture_child_tasks=True))",
                    parent=parent,
                ),
                paste.python(
                    "{child:name}.options(scheduling_strategy=PlacementGroupSchedulingStrategy(ray.util.get_current_placement_group()))   # or only the child",
                    child=child,
                ),
            ),
            doc="https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html",
        )


def _remedies(holders: list[waiting.DumpedHolder], demand: _Demand) -> tuple[Remedy, ...]:
    actors = [h for h in holders if h.is_actor]
    return (
        *(_fewer(actors, demand) if actors else ()),
        *((_NESTED_GET,) if not actors and (holders or set(demand.needs) != {"CPU"}) else ()),
        Remedy(
            "List all actors that hold resources, including those of other jobs, and end those that are no longer needed",
            waiting.END_ACTORS,
            risk="destructive",
        ),
        _add(demand),
    )


def _fewer(actors: list[waiting.DumpedHolder], demand: _Demand) -> Iterator[Remedy]:
    """How many actors of the largest class leave room for what waits, or how much each may hold."""
    name = actors[0].name.removesuffix(".__init__")
    same = [a for a in actors if a.name == actors[0].name]
    wanted = len(same) + demand.actors.get(name, 0)
    for resource, amount in demand.needs.items():
        each = same[0].held.get(resource, 0.0)
        if not each or not demand.total(resource):
            continue
        taken = sum(a.held.get(resource, 0.0) for a in actors) - each * len(same)
        taken += amount * sum(n for other, n in demand.actors.items() if other != name)
        room = demand.room(resource, taken)
        most = min(int(room / each + 1e-9), _slots(demand, resource, each))
        if 0 < most < wanted:
            deployment = serve.deployment_of(name)
            if deployment:
                yield serve.fewer_replicas(deployment, most, wanted)
            else:
                yield waiting.fewer_actors(name, most, wanted)
        less = _rounded(room / wanted, resource)
        if 0 < less < each and len(demand.nodes) == 1:
            title = f"{'Or let' if 0 < most < wanted else 'Let'} each {name} hold at most {resources.describe({resource: less})}"
            if deployment := serve.deployment_of(name):
                yield serve.request(
                    title.replace(name, f"replica of {deployment}"), {resource: less}
                )
            else:
                yield waiting.request(title, {resource: less}, f"class {name}")


def _slots(demand: _Demand, resource: str, each: float) -> int:
    """How many requests of this size the nodes hold, beside one waiting task."""
    slots = sum(int(node.get(resource, 0.0) / each + 1e-9) for node in demand.nodes)
    beside = math.ceil(demand.needs[resource] / each) if demand.tasks else 0
    return slots - beside if len(demand.nodes) > 1 else slots


def _rounded(amount: float, resource: str) -> float:
    """Rounded down to what Ray accepts: hundredths below 1, whole numbers above it, MiB of memory."""
    unit = 2.0**20 if resource == "memory" else 0.01 if amount < 1 else 1.0
    return round(math.floor(amount / unit + 1e-9) * unit, 2)


_NESTED_GET = Remedy(
    "Do not let tasks wait for child tasks that need the same resource (nested ray.get)",
    (
        "# return the ObjectRef of the child and let the caller ray.get it, or",
        "# request the GPU (memory, custom resource) only for the child, not for the task that waits for it",
    ),
    doc=_NESTED,
)


def _add(demand: _Demand) -> Remedy:
    """What one task and all actors that wait need in addition."""
    more = {
        name: amount * (sum(demand.actors.values()) + demand.tasks)
        for name, amount in demand.needs.items()
    }
    local = {name: demand.total(name) + amount for name, amount in more.items()}
    return waiting.add(f"Or add {resources.describe(more)} to the cluster", more, local)


# ------------------------------------------------------------------ examples


_TIMEOUT = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_REPORT = (
    f"[2026-11-21 07:47:10,028 W 285 285] (raylet) node_manager.cc:914: {waiting.STARVED.sample}\n"
)
_STATE = (
    "NodeManager:\nInfeasible queue length: 0\nGrant queue length: 2\nnum_waiting_for_resource: 1\nResource usage {\n"
    "    - (language=PYTHON actor_or_taskSimulator.__init__ pid=396 worker_id=f3e2): {CPU: 1}\n"
    "    - (language=PYTHON actor_or_taskSimulator.__init__ pid=397 worker_id=2264): {CPU: 1}\n}\n"
)
_PLACED = "".join(
    f"[2026-11-21 07:46:{second},040 I 13 25] (gcs_server) gcs_actor_manager.cc:11: "
    f"{ACTOR_PLACED[0].sample.replace('331fd576', f'331fd5{second}').replace('cd09fc46', f'cd09fc{second}')}\n"
    for second in ("53", "54")
)
_GONE = f"[2026-11-21 07:47:38,954 I 285 285] (raylet) node_manager.cc:1915: {waiting.CALLER_GONE[0].sample}\n"
_OLD_STATE = (
    "NodeManager:\nInfeasible queue length: 0\nDispatch queue length: 2\nnum_waiting_for_resource: 1\nResource usage {\n"
    "    - (language=PYTHON actor_or_task=outer pid=245): {GPU: 10000}\n    - (language=PYTHON actor_or_task=outer pid=246): "
    "{GPU: 10000}\n}\n"
)
_TWO = sample.node({"CPU": 2})
_SIM, _SIM2 = sample.actor(1, "Simulator", {"CPU": 1}), sample.actor(2, "Simulator", {"CPU": 1})
_GROUP = "a" * 36
_IN_GROUP = sample.actor(
    9, "Search", {f"CPU_group_{_GROUP}": 1, f"CPU_group_0_{_GROUP}": 1}, placement_group_id=_GROUP
)
_WAIT = [sample.task(1, "train", {"CPU": 1}), sample.task(2, "train", {"CPU": 1})]
_OLD_REPORT = _REPORT.replace("{CPU: 1}", "{GPU: 10000}").replace("CPU: 20000", "GPU: 20000")

_DEAD = (
    "(raylet) [2026-11-21 07:43:08,467 E 183 183] (raylet) worker_pool.cc:554: Some workers of the worker process(577) have not "
    "registered within the timeout. The process is dead, probably it crashed during start.\n"
)

_GC = (
    f"[2026-11-21 07:47:20,028 I 285 285] (raylet) node_manager.cc:2974: {waiting.GC_SENT.sample}\n"
)
_ENDED = "".join(
    f"[2026-11-21 {at} I 13 25] (gcs_server) gcs_job_manager.cc:1: {text}\n"
    for at, text in (
        ("07:46:50,000", "Registering job. job_id=01000000 driver_pid=7"),
        ("07:47:25,000", "Marking job as finished. job_id=01000000"),
    )
)
_LICENSE = waiting.CLAIMED.sample.replace("1.0}", "0.1, 'license': 1.0}")

EXAMPLES: tuple[Example, ...] = (
    Example(
        "two actors hold both CPUs",
        {
            "logs/raylet.out": _REPORT,
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": _STATE,
            "driver.log": _TIMEOUT,
        },
        consequences=("get-timeout",),
        says=("2 tasks wait for 1 CPU", "2 Simulator actors hold 2 of 2 CPUs", "range(1)"),
    ),
    Example(
        "tasks that wait themselves hold the GPUs, and the driver waits without a timeout",
        {
            "logs/raylet.out": _OLD_REPORT,
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": _OLD_STATE,
        },
        says=("1 GPU", "2 outer() tasks hold 2 of 2 GPUs", "nested"),
    ),
    Example(
        "no dump of that time, and the request still waited when its driver ended",
        {
            "logs/raylet.out": _REPORT + _GONE,
            "logs/gcs_server.out": _PLACED,
            "driver.log": _TIMEOUT,
        },
        consequences=("get-timeout",),
        says=("all of it is in use", "2 actors were alive"),
    ),
    Example(
        "the raylet tried to free resources until the driver ended, whose output is not in the capture",
        {
            "logs/raylet.out": _REPORT + _GC,
            "logs/gcs_server.out": _ENDED,
            "logs/debug_state.txt": _STATE.replace(
                "num_waiting_for_resource: 1", "num_waiting_for_resource: 0"
            ),
        },
        says=("2 tasks wait for 1 CPU",),
        severity="info",
    ),
    Example(
        "the raylet had stopped trying long before the driver ended",
        {
            "logs/raylet.out": _REPORT + _GC,
            "logs/gcs_server.out": _ENDED.replace("07:47:25", "07:49:25"),
            "logs/debug_state.txt": _STATE.replace(
                "num_waiting_for_resource: 1", "num_waiting_for_resource: 0"
            ),
        },
    ),
    console(
        "only the driver's output is available (Ray up to 2.50)",
        f"(autoscaler +19s) {waiting.CLAIMED.sample}\n" * 2 + _TIMEOUT,
        roots=("cluster-starved",),
        consequences=("get-timeout",),
    ),
    Example(
        "live: idle actors hold the CPUs that two tasks wait for, before any log reports it",
        sample.tables(nodes=[_TWO], tasks=_WAIT, actors=[_SIM, _SIM2]),
        says=(
            "2 train() tasks wait for 1 CPU",
            "2 Simulator actors hold 2 of 2 CPUs and run nothing",
            "range(1)",
        ),
    ),
    Example(
        "live: idle actors hold the CPUs of a replica, of which Ray does not record since when it waits",
        sample.tables(
            nodes=[_TWO],
            tasks=[],
            actors=[
                _SIM,
                _SIM2,
                sample.actor(
                    5, "ServeReplica:app:Model", {"CPU": 1}, state="PENDING_CREATION", pid=0
                ),
            ],
        ),
        severity="warning",
        says=("2 Simulator actors hold 2 of 2 CPUs and run nothing",),
    ),
    Example(
        "live and in the raylet's log: one incident",
        {
            "logs/raylet.out": _REPORT,
            "logs/gcs_server.out": "",
            **sample.tables(nodes=[_TWO], tasks=_WAIT, actors=[_SIM, _SIM2]),
        },
        roots=("cluster-starved",),
    ),
    Example(
        "live: an unused placement group holds the GPU",
        sample.tables(
            nodes=[sample.node({"CPU": 2, "GPU": 1})],
            tasks=[sample.task(1, "train", {"GPU": 1})],
            placement_groups=[
                {
                    "placement_group_id": "a" * 36,
                    "name": "old",
                    "state": "CREATED",
                    "bundles": [{"node_id": sample.NODE, "unit_resources": {"GPU": 1}}],
                }
            ],
        ),
        says=("placement group 'old' holds 1 of 1 GPU", "remove_placement_group"),
    ),
    Example(
        "live: a placement group whose actors are starting holds the GPU",
        sample.tables(
            nodes=[sample.node({"CPU": 2, "GPU": 1})],
            tasks=[sample.task(1, "train", {"GPU": 1})],
            actors=[
                sample.actor(
                    1,
                    "Rank",
                    {f"GPU_group_{'a' * 36}": 1},
                    state="PENDING_CREATION",
                    placement_group_id="a" * 36,
                )
            ],
            placement_groups=[
                {
                    "placement_group_id": "a" * 36,
                    "name": "ranks",
                    "state": "CREATED",
                    "bundles": [{"node_id": sample.NODE, "unit_resources": {"GPU": 1}}],
                }
            ],
        ),
    ),
    Example(
        "live: an actor in a placement group waits for child tasks that run outside of it",
        sample.tables(
            nodes=[sample.node({"CPU": 2})],
            tasks=[
                sample.call(9, "Search.run", _IN_GROUP),
                sample.task(1, "train", {"CPU": 1}, parent_task_id=sample.task_id(9)),
                sample.task(2, "train", {"CPU": 1}, parent_task_id=sample.task_id(9)),
            ],
            actors=[_IN_GROUP],
            placement_groups=[
                {
                    "placement_group_id": _GROUP,
                    "name": "search",
                    "state": "CREATED",
                    "bundles": [{"node_id": sample.NODE, "unit_resources": {"CPU": 1}}] * 2,
                }
            ],
            ray_get=[sample.in_ray_get("Search.run", 1)],
        ),
        says=(
            "Search.run(), which runs in it, waits for them",
            "placement_group_capture_child_tasks=True",
        ),
    ),
    Example(
        "live: the actors are busy, and the tasks have waited for less than a minute",
        sample.tables(
            nodes=[_TWO],
            tasks=[
                *_WAIT,
                sample.call(7, "Simulator.step", _SIM),
                sample.call(8, "Simulator.step", _SIM2),
            ],
            actors=[_SIM, _SIM2],
        ),
    ),
    Example(
        "live: after a minute busy actors of another job are a warning",
        sample.tables(
            nodes=[_TWO],
            actors=[sample.actor(1, "Simulator", {"CPU": 2}, job_id="02000000")],
            tasks=[
                sample.task(
                    1,
                    "train",
                    {"CPU": 1},
                    events=[
                        {
                            "state": "PENDING_NODE_ASSIGNMENT",
                            "created_ms": int(sample.AT - 90) * 1000,
                        }
                    ],
                ),
                sample.call(7, "Simulator.step", _SIM),
            ],
        ),
        says=(
            "1 train() task waits for 1 CPU",
            "1 Simulator actor of job 2 holds 2 of 2 CPUs and is busy",
        ),
        severity="warning",
    ),
    Example(
        "live: running tasks hold the rest, which is a queue",
        sample.tables(
            nodes=[_TWO], tasks=[*_WAIT, sample.running(7, "train", {"CPU": 1})], actors=[_SIM]
        ),
    ),
    Example(
        "live: only calls of actors are queued",
        sample.tables(
            nodes=[_TWO],
            actors=[_SIM, _SIM2],
            tasks=[
                sample.call(7, "Simulator.step", _SIM),
                sample.call(8, "Simulator.step", _SIM, state="PENDING_NODE_ASSIGNMENT"),
            ],
        ),
    ),
    Example(
        "the actors ended and the tasks ran",
        {
            "logs/raylet.out": _REPORT,
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": "NodeManager:\nGrant queue length: 0\nnum_waiting_for_resource: 0\n",
            "driver.log": f"(autoscaler +27s) {waiting.CLAIMED.sample}\nevaluated [2, 2]\n",
        },
    ),
    console(
        "a license is short, and the console does not show which tasks hold it",
        f"(autoscaler +26s) {_LICENSE}\n{_TIMEOUT}",
        roots=("cluster-starved",),
        consequences=("get-timeout",),
        says=("1 license", "nested ray.get"),
    ),
    console(
        "workers die while they start, and the autoscaler guesses that actors hold the CPUs",
        f"{_DEAD * 2}(autoscaler +26s) {waiting.CLAIMED.sample}\n",
        roots=("worker-start-crashed",),
        consequences=("cluster-starved",),
        severity="warning",
    ),
    console(
        "a console ends with the autoscaler's warning",
        f"collecting\n(scheduler +2m13s) {waiting.CLAIMED.sample}\n",
        says=("1 CPU", "all of it is in use"),
        severity="warning",
    ),
    console(
        "a console goes on after the autoscaler's warning",
        f"(scheduler +2m13s) {waiting.CLAIMED.sample}\nstep 2\n",
    ),
    console(
        "the warning of Ray 1.1 at the end of a driver's console",
        f"2026-11-21 07:36:12,228\tWARNING worker.py:1093 -- {waiting.OLD_STARVED.sample}\n",
        says=("7 tasks wait for 1 CPU each",),
        severity="warning",
    ),
    console(
        "the same warning, and the tasks that then ran",
        f"2026-11-21 07:36:12,228\tWARNING worker.py:1093 -- {waiting.OLD_STARVED.sample}\n(train pid=7) epoch 1\n(train pid=7) epoch 2\nsaved the model\n",
    ),
)
