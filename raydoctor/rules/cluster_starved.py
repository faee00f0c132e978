"""Requests that would fit wait for ever, because actors (or tasks that wait themselves) hold everything.

## What you see
Nothing but waiting, or `GetTimeoutError`. In raylet.out, once: `… cannot be scheduled right now. You can
ignore this message if this Ray cluster is expected to auto-scale … Otherwise, this is likely due to all
cluster resources being claimed by actors`. Drivers see a warning of the autoscaler up to Ray 2.50, and
nothing in 2.60.

## Why
An actor holds the resources it asked for as long as it lives, working or not. (One that asks for nothing
needs a CPU to be placed and holds none.) When actors hold all there is, tasks wait until one of them ends. A task that waits in `ray.get` for a child gives back its CPUs, but not its GPUs, memory or
custom resources.

## Confirm
- `ray status`: everything used, and `Pending Demands`.
- `ray list actors --filter state=ALIVE --detail`: who lives, and since when; actors of another job count.
- `Resource usage {` in debug_state.txt, and in raylet.out right after the message: who holds how much.
- On a live cluster: `ray list tasks --detail --filter state=PENDING_NODE_ASSIGNMENT` (who waits, for what).

## Fix
Fewer actors, smaller ones (`num_cpus=0.5`; `num_cpus=0` for those that only coordinate), or end them when
they are done; or more nodes. Keep something free for the tasks that actors wait for.

## Not this when
No node could ever hold it (`infeasible-request`); the tasks ahead in the queue are still working: a queue
is no failure; a placement group waits (`placement-group-pending`); those who hold it wait for these very
tasks (`nested-get-deadlock`). Actors that work are reported after a minute only, as a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import ACTOR_PLACED, RAY_EXCEPTION
from raydoctor.cluster import autoscaler, resources
from raydoctor.cluster import groups as live_groups
from raydoctor.cluster import holders as holding
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import starved as starving
from raydoctor.cluster import waiting as now
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import waiting
from raydoctor.rules.shared.live import examples as sample

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/resources.html"
_NESTED = "https://docs.ray.io/en/latest/ray-core/patterns/nested-tasks.html"


@rule(
    tier="root",
    severity="error",
    rank=76,
    looks_for=(
        waiting.STARVED, waiting.CLAIMED, *waiting.CALLER_GONE, waiting.GC_SENT, *waiting.DRIVER_END, RAY_EXCEPTION,
        *ACTOR_PLACED, autoscaler.CONFIG, autoscaler.ADDING,
    ),
)  # fmt: skip
def cluster_starved(case: Case) -> Iterator[Finding]:
    """One finding per shape of resources that waited in vain; live, per set of holders."""
    seen = now.picture(case)
    reports = [e for e in case.of("request.starved") if not case.torn_down(e)]
    by_needs: dict[frozenset[tuple[str, float]], list[Event]] = {}
    for event in reports:
        by_needs.setdefault(resources.key(resources.amounts(event["needs"])), []).append(event)
    for one in starving.starved(case, seen):
        shapes = {resources.key(needs) for r in one.requests for needs in (r.needs, r.plain)}
        told = [e for shape in sorted(shapes, key=sorted) for e in by_needs.pop(shape, [])]
        if not one.parents and (not one.at_work or one.age >= now.QUEUE):
            yield _live_finding(case, one, told)
    for told in by_needs.values():
        if lasting := _lasting(case, told, live=now.tasks_known(case)):
            over = now.tasks_known(case)
            yield _finding(case, resources.amounts(told[0]["needs"]), told, lasting, over=over)
    gave_up = waiting.gave_up(case)
    if not reports and gave_up:
        yield from _told_by_autoscaler(case, gave_up)


def _lasting(case: Case, told: list[Event], *, live: bool) -> list[Event]:
    """What shows that they waited to the end; Ray says the same of a wait that passes.

    A raylet may name a task's request when its driver ends (2.9.3 to 2.60, not always), and tries to free
    something as long as it is starved. A driver that gave up did so for this wait only if that went on. Where
    the cluster itself was asked, a raylet's last dump is older than its answer.
    """
    proofs = [*waiting.abandoned(case), *([] if live else waiting.queued_at_the_end(case))]
    gave_up = waiting.gave_up(case)
    if proofs or not gave_up:
        return proofs
    if any(e["actors"] != "0" for e in told):
        return gave_up
    ends = [job.ended for job in case.ledger.jobs.values() if job.ended is not None]
    return waiting.starved_until(case, max(ends, default=None))


def _told_by_autoscaler(case: Case, gave_up: list[Event]) -> Iterator[Finding]:
    """Without a raylet's word: the autoscaler's, and a driver that gave up. Queues of actors are common."""
    if "raylet-out" in case.roles:
        return
    by_shape: dict[str, list[Event]] = {}
    for event in waiting.one_role(case.of("request.claimed")):
        by_shape.setdefault(event["asked"], []).append(event)
    for shape, told in by_shape.items():
        yield _finding(case, resources.python_amounts(shape)[0], told, gave_up, over=False)


def _finding(
    case: Case, needs: resources.Needs, told: list[Event], lasting: list[Event], *, over: bool
) -> Finding:
    holders, dump = waiting.holders(case)
    holders = [h for h in holders if any(h.held.get(n) for n in needs)]
    total = _total(case, needs, told[0].at)
    asked = resources.describe(needs)
    held = _held(holders, needs, total) if holders else _claimed(case, told[0].at)
    claimed = case.of("request.claimed")
    return Finding(
        f"{_who(told)} for {asked}, which would fit, but {held}",
        (
            Link(told[0], f"{asked} is asked for, and nobody has it free"),
            *(Link(dump, f"held by {waiting.held_by(holders)}") for _ in holders[:1] if dump),
            *(Link(e, _lasted(e)) for e in lasting[:1] if e is not dump and e.kind != "driver.exception"),
        ),
        explains=(Entity("starved", asked), Entity("waiting", "cluster"), *_ids(told)),
        caused_by=(Entity("autoscaler", "launch"),),
        subjects=tuple(Subject("actor" if h.is_actor else "task", None, h.name, h.pid) for h in holders[:10]),
        count=max(_waiters(told), 1),
        severity=waiting.severity(case, over=over),
        remedies=_remedies(holders, needs, total),
        covers=(*told, *claimed, *waiting.abandoned(case)),
    )  # fmt: skip


def _live_finding(case: Case, one: starving.Starved, told: list[Event]) -> Finding:
    return Finding(
        f"{one.wait}, which would fit, but {one.hold}",
        (
            *(Link(h.event, f"{h.label} holds {resources.describe(live_rows.plain(h.held))} and {h.does}") for h in holding.each_once(one.holders)[:2]),
            *(Link(r.waiters[0], f"{live_rows.name_of(r.waiters[0])} has waited {r.age or 0.0:.0f} s for {r.asked}") for r in one.requests[:2]),
            *(Link(e, "the raylet says so, too: nobody has it free") for e in told[:1]),
        ),
        explains=(
            *(Entity("starved", r.asked) for r in one.requests), Entity("waiting", "cluster"),
            *(entity for r in one.requests for entity in r.entities), *_ids(told),
        ),
        caused_by=(Entity("autoscaler", "launch"),),
        subjects=tuple(h.subject for h in holding.each_once(one.holders)[:10]),
        count=len(one.waiters),
        severity="warning" if one.at_work else "error",
        remedies=(*live_groups.remove(one.holders), *_remedies(_as_dumped(one), one.needs, one.total)),
        covers=(*told, *case.of("request.claimed")),
    )  # fmt: skip


def _as_dumped(one: starving.Starved) -> list[waiting.Holder]:
    """The holders as a raylet's dump would list them."""
    return [
        waiting.Holder(
            f"{h.name}.__init__" if h.kind == "actor" else h.name,
            h.pid or 0,
            live_rows.plain(h.held),
        )
        for h in one.holders
        if h.kind != "placement group"
    ]


def _who(told: list[Event]) -> str:
    """`2 tasks wait`: as the raylets counted."""
    tasks = max((int(e["tasks"] or 0) for e in told), default=0)
    actors = max((int(e["actors"] or 0) for e in told), default=0)
    counted = [evidence.many(n, noun) for n, noun in ((tasks, "task"), (actors, "actor")) if n]
    if not counted:
        return "Tasks or actors wait"
    return f"{' and '.join(counted)} {'waits' if tasks + actors == 1 else 'wait'}"


def _waiters(told: list[Event]) -> int:
    return max((int(e["tasks"] or 0) + int(e["actors"] or 0) for e in told), default=0)


def _claimed(case: Case, at: float | None) -> str:
    """Without a dump of who holds what: the actors that lived then, by the GCS's log."""
    names, placed = waiting.alive_actors(case, at)
    if not placed:
        return "all of it is claimed"
    known = evidence.join_names(names)
    alive = f"{evidence.many(len(placed), 'actor')} {'was' if len(placed) == 1 else 'were'} alive"
    return f"all of it is claimed: {alive}{f' ({known})' if known else ''}"


def _held(holders: list[waiting.Holder], needs: resources.Needs, total: resources.Needs) -> str:
    parts = []
    for name in needs:
        held = sum(h.held.get(name, 0.0) for h in holders)
        if held:
            of = f" of {total[name]:g}" if total.get(name) else ""
            parts.append(f"{held:g}{of} {name}")
    return (
        f"{waiting.held_by(holders)} hold{'s' if len(holders) == 1 else ''} {' and '.join(parts)}"
    )


def _total(case: Case, needs: resources.Needs, at: float | None) -> resources.Needs:
    """What the whole cluster has of it."""
    nodes = waiting.totals(case, at)
    return {name: sum(t.get(name, 0.0) for t in nodes) for name in needs}


def _lasted(event: Event) -> str:
    return {
        "raylet.gc_sent": "until the end the raylet tried to free something",
        "driver.interrupted": "the driver was interrupted while it waited",
        "request.caller_gone": "it still waited when its driver ended",
        "debug.state": "it still waited in the raylet's last state",
    }.get(event.kind, "it still waited")


def _ids(told: list[Event]) -> Iterator[Entity]:
    for event in told:
        if event["lease"]:
            yield Entity("lease", event["lease"])
        if event["task"]:
            yield Entity("task", event["task"])
            if actor := ids.actor_of_task(event["task"]):
                yield Entity("actor", actor)


# ---------------------------------------------------------------- remedies


def _remedies(
    holders: list[waiting.Holder], needs: resources.Needs, total: resources.Needs
) -> tuple[Remedy, ...]:
    actors = [h for h in holders if h.is_actor]
    return (
        *(_fewer(actors, needs, total) if actors else ()),
        *((_NESTED_GET,) if holders and not actors else ()),
        Remedy(
            "See who lives and holds resources, also of other jobs, and end who is done",
            (
                "ray list actors --filter state=ALIVE --detail",
                "ray.kill(handle)                 # in the program, before the tasks that need the room",
            ),
            risk="destructive",
        ),
        Remedy("Or add what is short", tuple(_add(needs, total)), risk="disruptive", doc=_DOC),
    )


def _fewer(
    actors: list[waiting.Holder], needs: resources.Needs, total: resources.Needs
) -> Iterator[Remedy]:
    """How many of these actors leave room for one such request."""
    name = actors[0].name.removesuffix(".__init__")
    same = [a for a in actors if a.name == actors[0].name]
    for resource, amount in needs.items():
        each = same[0].held.get(resource, 0.0)
        if not each or not total.get(resource):
            continue
        others = sum(a.held.get(resource, 0.0) for a in actors) - each * len(same)
        room = max(int((total[resource] - others - amount) / each), 0)
        option = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(resource)
        at_most = f"Start at most {room} of {len(same)} {name} actors, or let" if room else "Let"
        yield Remedy(
            f"{at_most} each{'' if room else f' {name}'} hold less than {each:g} {resource}",
            (
                *(
                    (
                        paste.python(
                            "actors = [{actor:name}.remote() for _ in range({room})]",
                            actor=name,
                            room=room,
                        ),
                    )
                    if room
                    else ()
                ),
                paste.python(
                    "@ray.remote({option:name}={less:g})"
                    if option
                    else "@ray.remote(resources={{{resource}: {less:g}}})",
                    option=option or "",
                    resource=resource,
                    less=each / 2,
                ),
                *(("@ray.remote(num_cpus=0)          # for actors that only coordinate or wait",) if option == "num_cpus" else ()),
            ),
            doc=_DOC,
        )  # fmt: skip


_NESTED_GET = Remedy(
    "Do not let tasks wait for children that need the same resource (nested ray.get)",
    (
        "# return the child's ObjectRef and let the caller ray.get it, or",
        "# ask for the GPU (memory, custom resource) in the child alone, not in the task that waits for it",
    ),
    doc=_NESTED,
)


def _add(needs: resources.Needs, total: resources.Needs) -> Iterator[str]:
    for name, amount in needs.items():
        if name == "CPU":
            yield paste.python(
                "ray.init(num_cpus={more:g})                 # on one machine; or start another node",
                more=total.get(name, 0.0) + amount,
            )
        elif name == "GPU":
            yield paste.shell("ray start --address=HEAD:6379 --num-gpus={amount:g}", amount=amount)
    yield "ray start --address=HEAD:6379       # on a further machine"


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
_WAIT = [sample.task(1, "train", {"CPU": 1}), sample.task(2, "train", {"CPU": 1})]
_OLD_REPORT = _REPORT.replace("{CPU: 1}", "{GPU: 10000}").replace("CPU: 20000", "GPU: 20000")

EXAMPLES: tuple[Example, ...] = (
    Example(
        "two actors hold both CPUs",
        {
            "logs/raylet.out": _REPORT,
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": _STATE,
            "driver.log": _TIMEOUT,
        },
        roots=("cluster-starved",),
        consequences=("get-timeout",),
        says=("2 tasks wait for 1 CPU", "2 Simulator actors hold 2 of 2 CPU", "range(1)"),
    ),
    Example(
        "tasks hold the GPUs and wait themselves; a hang without a deadline",
        {
            "logs/raylet.out": _OLD_REPORT,
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": _OLD_STATE,
        },
        roots=("cluster-starved",),
        says=("1 GPU", "2 outer tasks hold 2 of 2 GPU", "nested"),
    ),
    Example(
        "the last dump is of a time after it all; the request still waited when its driver ended",
        {
            "logs/raylet.out": _REPORT + _GONE,
            "logs/gcs_server.out": _PLACED,
            "driver.log": _TIMEOUT,
        },
        roots=("cluster-starved",),
        consequences=("get-timeout",),
        says=("all of it is claimed", "2 actors were alive"),
    ),
    Example(
        "only the driver's output is left (Ray up to 2.50)",
        {"driver.log": f"(autoscaler +19s) {waiting.CLAIMED.sample}\n" * 2 + _TIMEOUT},
        roots=("cluster-starved",),
        consequences=("get-timeout",),
    ),
    Example(
        "live: an actor that runs nothing holds what two tasks wait for, before any log says so",
        sample.tables(nodes=[_TWO], tasks=_WAIT, actors=[_SIM, _SIM2]),
        roots=("cluster-starved",),
        says=(
            "2 train tasks wait for 1 CPU",
            "2 Simulator actors hold 2 of 2 CPU, and run nothing",
            "range(1)",
        ),
    ),
    Example(
        "live, and the raylet said so before: one incident",
        {
            "logs/raylet.out": _REPORT,
            "logs/gcs_server.out": "",
            **sample.tables(nodes=[_TWO], tasks=_WAIT, actors=[_SIM, _SIM2]),
        },
        roots=("cluster-starved",),
    ),
    Example(
        "live: a placement group that nobody uses keeps the GPU",
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
        roots=("cluster-starved",),
        says=("1 old placement group holds 1 of 1 GPU", "remove_placement_group"),
    ),
    Example(
        "live: a placement group whose actors are being started keeps the GPU",
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
        "live: the actors work; the tasks may be meant for later",
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
        "live: after a minute it is worth a warning, whose actors they are too",
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
        roots=("cluster-starved",),
        says=(
            "1 train task waits for 1 CPU",
            "1 Simulator actor of job 2 holds 2 of 2 CPU, and is at work",
        ),
    ),
    Example(
        "live: tasks that work hold the rest: a queue",
        sample.tables(
            nodes=[_TWO], tasks=[*_WAIT, sample.running(7, "train", {"CPU": 1})], actors=[_SIM]
        ),
    ),
    Example(
        "live: actors with calls queued, and nobody else waits",
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
)
