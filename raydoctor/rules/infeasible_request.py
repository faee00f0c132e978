"""A task or actor waits forever because it requests resources that no node has.

## What you see
Nothing fails: the task stays in state `PENDING_NODE_ASSIGNMENT`. `raylet.out` contains `… cannot be scheduled right
now. It requires {…} for placement, however the cluster currently cannot provide the requested resources`. The driver
prints `(autoscaler …) Error: No available node types can fulfill resource request {…}`.

## Why
Ray never fails a request for being too large, because a node that fits may still join. Ray compares resource names and
amounts. The usual causes:
- a misspelt custom resource;
- a GPU that `CUDA_VISIBLE_DEVICES` hides;
- `num_cpus` larger than any single node has;
- a resource whose only node has died;
- a `label_selector` that no node satisfies;
- a node affinity (`soft=False`) to a node that has left: then the call fails with `ActorUnschedulableError` or
  `TaskUnschedulableError`.

## Confirm
- In `ray status`, `Total Usage` lists what the cluster has, `Pending Demands` (older Ray: `Demands`) what is requested.
- `ray list nodes --detail` shows what each node has. A request must fit on one node.
- `ray list tasks --detail --filter state=PENDING_NODE_ASSIGNMENT` shows the `required_resources` and `label_selector`
  of each waiting task.

## Fix
Request less, correct the name, or start a node that has the resource. With `RAY_enable_infeasible_task_early_exit=true`
and `RAY_enable_autoscaler_v2=1` (Ray 2.44 and later) such requests fail after about 30 s instead of waiting forever.

## Not this when
- the request fits on a node that is only busy (`cluster-starved`).
- a placement group waits (`placement-group-pending`).
- a node that fits joined later: an autoscaling cluster prints the same messages while it scales up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, NODE_DEAD, NODE_REGISTERED, RAY_EXCEPTION, TASK_FAILED
from raydoctor.cluster import autoscaler, resources
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import waiting as now
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import data, jobs, serve, waiting
from raydoctor.rules.shared.live import examples as sample

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/resources.html"
_LABELS = "https://docs.ray.io/en/latest/ray-core/scheduling/labels.html"
_LESS = "request no more than a node has"
UNSCHEDULABLE = Signal(
    "request.unschedulable", " is not schedulable: ",
    r"^ray\.exceptions\.(?:RayTaskError\()?(?P<type>Actor|Task)UnschedulableError\)?: The (?:actor|task) is not schedulable: "
    r"The node specified via NodeAffinitySchedulingStrategy doesn't exist any more or is infeasible", DRIVER,
    "ray.exceptions.ActorUnschedulableError: The actor is not schedulable: The node specified via NodeAffinitySchedulingStrategy doesn't "
    "exist any more or is infeasible, and soft=False was specified.", symptom=True,
)  # fmt: skip
"""`exceptions.py`, 2.9 to 2.60: Ray fails a call only if it is bound to a node."""
_SURE = 0.9
"""Share of a node's memory that it will also have after a restart: Ray measures what is free when it starts."""
_APART = 20.0
"""Seconds between two reports that prove a lasting request; the autoscaler repeats it every 30 s."""


@rule(
    tier="root",
    severity="error",
    rank=74,
    explains=("actor", "lease", "request", "task", "waiting"),
    caused_by=("autoscaler", "node", "node-types"),
    daemons_record=True,
    looks_for=(
        waiting.INFEASIBLE, *waiting.NO_NODE_TYPE, waiting.STATUS, waiting.GROUP_PENDING, waiting.RESUBMITTED, waiting.RESIZED, *waiting.DRIVER_END, *NODE_REGISTERED, *NODE_DEAD,
        TASK_FAILED, RAY_EXCEPTION, UNSCHEDULABLE, serve.PENDING, autoscaler.CONFIG, autoscaler.ADDING, data.NOT_ENOUGH,
    ),
)  # fmt: skip
def infeasible_request(case: Case) -> Iterator[Finding]:
    """One finding per request (its resources) that was never met, and one for calls that Ray refused to place."""
    if refused := [e for e in case.of(UNSCHEDULABLE.kind) if not case.torn_down(e)]:
        yield _refused(case, refused)
    seen = now.picture(case)
    waiting_now = {resources.key(r.needs) for r in seen.requests} if seen else set()
    for request in _requests(case, seen):
        if request.live and seen:
            yield _finding(case, request, [node.total for node in seen.nodes], seen)
        if resources.key(request.needs) in waiting_now:
            continue  # the live tables are newer than the logs
        nodes = waiting.totals(case, request.shown[0].at)
        fits = any(resources.fits(total, request.needs) for total in nodes)
        if not fits and _lasts(case, request):
            yield _finding(case, request, nodes, over=now.tasks_known(case))
        elif not fits and waiting.is_last_word(case, request.shown):
            yield replace(_finding(case, request, nodes), severity="warning")


def _refused(case: Case, events: list[Event]) -> Finding:
    """Calls that are bound to a node that cannot take them."""
    first = events[0]
    what = "An actor" if first["type"] == "Actor" else "A task"
    return Finding(
        f"{what} could not be placed: the node that it is bound to has left the cluster or lacks its resources",
        (Link(first, "Ray refused to place it, as soft=False forbids another node"),),
        explains=(Entity("request", f"refused {first['type']}"),),
        caused_by=tuple(Entity("node", e["node"]) for e in case.of("node.dead") if e["node"]),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Let Ray use another node if that node is gone, or bind the call to a node that is alive",
                (
                    "NodeAffinitySchedulingStrategy(node_id=NODE_ID, soft=True)",
                    "ray list nodes --filter state=ALIVE   # the id of a node changes when it restarts",
                ),
                doc=_DOC,
            ),
        ),
        covers=(
            *events,
            *(e for e in case.of("driver.exception") if "UnschedulableError" in e["type"]),
        ),
    )


@dataclass(slots=True)
class _Request:
    """One shape of resources, and the reports that no node can meet it."""

    needs: resources.Needs
    raylets: list[Event] = field(default_factory=list)
    autoscaler: list[Event] = field(default_factory=list)
    live: now.Request | None = None
    """The tasks and actors that wait for it in a live collection."""

    @property
    def shown(self) -> list[Event]:
        return self.raylets or waiting.one_role(self.autoscaler)


def _requests(case: Case, seen: now.Picture | None) -> list[_Request]:
    found: dict[frozenset[tuple[str, float]], _Request] = {}
    for event in case.of("request.infeasible"):
        if waiting.OLD_STARVED.find in event.message:
            continue  # the amount exists, and is in use
        if not case.torn_down(event):
            needs = resources.amounts(event["needs"])
            found.setdefault(resources.key(needs), _Request(needs)).raylets.append(event)
    groups = waiting.group_bundles(case)
    for event in case.of("request.no_node_type"):
        if event["combined"] or event["gang"]:
            continue
        for needs in resources.python_amounts(event["asked"]):
            if resources.key(needs) in found or resources.key(needs) not in groups:
                found.setdefault(resources.key(needs), _Request(needs)).autoscaler.append(event)
    for needs, event in waiting.demands_beyond(case):
        found.setdefault(resources.key(needs), _Request(needs)).autoscaler.append(event)
    by_labels = []
    for request in _unmet(case, seen) if seen else ():
        if request.selectors:
            by_labels.append(_Request(request.needs, live=request))
        else:
            found.setdefault(resources.key(request.needs), _Request(request.needs)).live = request
    return [*found.values(), *by_labels]


def _unmet(case: Case, seen: now.Picture) -> Iterator[now.Request]:
    """Requests that no node of a live cluster can ever meet, when no fitting node is being started.

    An actor's row does not record since when it waits, so its age is unknown. Ray itself checks requests
    for a placement group's resources at submission.
    """
    for request in seen.requests:
        age = now.AGE if request.age is None else request.age
        fits = any(
            live_rows.fits(n.total, request.needs) and now.bears(n, request.selectors)
            for n in seen.nodes
        )
        late = age >= now.AGE and seen.newest >= now.AGE
        if not fits and late and not request.group and not now.expected(case, request.needs, age):
            yield request


# ---------------------------------------------------------------- whether it lasted


def _lasts(case: Case, request: _Request) -> bool:
    """Whether the request was never met, as far as the capture shows."""
    shown = request.shown
    joined = waiting.joined_after(case, shown[0].at)
    if joined:
        return any(
            _is_after(e, joined[-1])
            for e in (*request.raylets, *waiting.one_role(request.autoscaler))
        )
    if request.raylets and "gcs-out" in case.roles:
        return True
    return (
        _repeated(case, request)
        or bool(waiting.gave_up(case))
        or waiting.is_beyond(case, request.needs)
    )


def _is_after(event: Event, joined: Event) -> bool:
    """A report well after the last node joined: the autoscaler may be one round late."""
    return event.at is not None and joined.at is not None and event.at > joined.at + _APART


def _repeated(case: Case, request: _Request) -> bool:
    for reports in (request.raylets, waiting.one_role(request.autoscaler)):
        times = [e.at for e in reports if e.at is not None]
        if len(times) > 1 and max(times) - min(times) >= _APART:
            return True
        if not times and evidence.total(reports) > 1:
            resized = waiting.one_role(case.of("autoscaler.resized"))
            return not any(e.line > reports[-1].line for e in resized)
    return False


# ---------------------------------------------------------------- findings


def _finding(
    case: Case,
    request: _Request,
    nodes: list[resources.Needs],
    seen: now.Picture | None = None,
    *,
    over: bool = False,
) -> Finding:
    """`seen`: the live cluster in which it waits; `over`: nothing waits for this request any more."""
    requester, cancelled = _requester(case, request)
    short = resources.short_of(nodes, request.needs) if nodes else []
    by_autoscaler = waiting.one_role(request.autoscaler)
    reports = [*request.raylets[:1], *by_autoscaler[:1]]
    now_waiting = request.live.waiters if request.live else ()
    count = request.live.number if request.live else max(len(request.raylets), 1)
    severity = "error" if request.live else waiting.severity(case, over=over)
    operator = "" if request.live or requester != _of_operator(case, request) else requester
    each = (count > 1 and request.live is not None) or operator
    needs = "each needs" if each else "it needs"
    fate = "were never scheduled" if operator else "was never scheduled"
    if severity == "error" and not (over or cancelled):
        is_refused = case.of("autoscaler.launch_failed", "autoscaler.attempt_failed")
        fate = "cannot start yet" if is_refused else "can never start"
    lack = _lack(request, nodes, short)
    is_replica = bool(_replicas_of(request.live) if request.live else _deployment(case, request))
    return Finding(
        f"{requester} {fate}: {needs} {_what(request)}, but {lack}",
        (
            *(Link(e, f"Ray must run {called(e['function'])} again") for e in waiting.retries(case, request.needs)[:1]),
            *(Link(e, _shows(e, request.needs)) for e in reports),
            *(Link(e, "the autoscaler reports the same again") for e in by_autoscaler[-1:] if len(by_autoscaler) > 1),
            *(Link(e, f"{called(live_rows.name_of(e))} waits for {_what(request)}{_since(request)}") for e in now_waiting[:1]),
            *(Link(e, _cancelled(e)) for e in cancelled[:1]),
        ),
        explains=(*_entities(request), Entity("waiting", "cluster")),
        caused_by=(*_lost_nodes(case, request, seen.lost if seen else ()), *_not_provided(case, request)),
        subjects=_subjects([*now_waiting, *cancelled]),
        count=count,
        severity=severity,
        remedies=_remedies(request, nodes, short, seen, _waiter(case, request, cancelled, is_replica=is_replica)),
        covers=(*request.raylets, *request.autoscaler, *cancelled),
    )  # fmt: skip


def _cancelled(event: Event) -> str:
    """What ended the wait, for a task or the creation of an actor."""
    if not event["class_name"]:
        return f"task {called(event['name'])} was cancelled while it waited for resources"
    actor = event["name"].removesuffix(".__init__")
    return f"the creation of actor {actor} was cancelled while it waited for resources"


def _since(request: _Request) -> str:
    age = request.live.age if request.live else None
    return "" if age is None else f", for {age:.0f} s so far"


def _subjects(rows: list[Event]) -> tuple[Subject, ...]:
    """Tasks and actors that wait (rows of a live collection), or were cancelled while they waited."""
    known = [e for e in rows if e["actor_id"] or e["task_id"] or e["task"]]
    return tuple(
        Subject(
            "actor" if e["actor_id"] or e["class_name"] else "task",
            e["actor_id"] or e["task_id"] or ids.actor_of_task(e["task"]) or e["task"],
            live_rows.name_of(e) if e["task_id"] or e["actor_id"] else e["name"],
        )
        for e in known[:10]
    )


def _shows(event: Event, needs: resources.Needs) -> str:
    reporter = "the raylet" if event.kind == "request.infeasible" else "the autoscaler"
    unit = " (its log counts in ten-thousandths)" if resources.is_fixed(event["needs"]) else ""
    return f"{reporter} finds no node for {resources.describe(needs)}{unit}"


def _entities(request: _Request) -> Iterator[Entity]:
    yield Entity("request", resources.describe(request.needs))
    for event in request.raylets:
        for kind in ("lease", "task"):
            if event[kind]:
                yield Entity(kind, event[kind])
    if request.live:
        yield from request.live.entities


def _requester(case: Case, request: _Request) -> tuple[str, list[Event]]:
    """The actor or task that made the request: its submitter names it when the wait is cancelled."""
    wanted = resources.key(request.needs)
    if request.live:
        return _replicas_of(request.live) or request.live.who, []
    if deployment := _deployment(case, request):
        return f"A replica of {deployment}", []
    cancelled = [
        e
        for e in case.of("task.failed")
        if "SchedulingCancelled" in e["status"] and _asked(e.message) == wanted
    ]
    names = _names(case, request, cancelled)
    if names == _SUPERVISOR and not cancelled:
        return f"The entrypoint of job {jobs.unstarted(case)[0].id!r}", []
    if names:
        kind = "Actor" if cancelled[0]["class_name"] else "Task"
        return f"{kind} {evidence.join_names(map(called, sorted(names)))}", cancelled
    caller = _of_operator(case, request)
    if not caller and (again := waiting.retries(case, request.needs)):
        caller = f"Task {evidence.join_names(called(e['function']) for e in again)}"
    if caller:
        return caller, []
    kinds = {_kind(event) for event in request.raylets}
    return (kinds.pop() if len(kinds) == 1 else "A task or actor"), cancelled


def _replicas_of(live: now.Request) -> str:
    """`2 replicas of Generator`, if all waiters are replicas of one Serve deployment."""
    names = {live_rows.named(e) for e in live.waiters}
    deployment = serve.deployment_of(names.pop()) if len(names) == 1 else ""
    if not deployment:
        return ""
    return f"{evidence.many(live.number, 'replica')} of {deployment}"


def _deployment(case: Case, request: _Request) -> str:
    """The Serve deployment whose replicas wait for these very resources, if it is the only one."""
    wanted = resources.key(request.needs)
    names = {
        e["deployment"]
        for e in serve.controllers(case, "serve.replica_pending")
        if e["step"] != "initialize" and resources.key(serve.amounts(e["required"])) == wanted
    }
    return names.pop() if len(names) == 1 else ""


def _operators(case: Case, request: _Request) -> list[Event]:
    """What Ray Data reports about the operator that waits, if this is the only request and the only such operator."""
    if request.live or any(_kind(e) == "An actor" for e in request.raylets):
        return []
    asked = [e["needs"] for e in case.of("request.infeasible") if not case.torn_down(e)]
    shapes = {resources.key(resources.amounts(needs)) for needs in asked}
    reports = list(data.records(case, data.NOT_ENOUGH.kind))
    is_only = shapes <= {resources.key(request.needs)}
    return reports if is_only and len({e["operator"] for e in reports}) == 1 else []


def _of_operator(case: Case, request: _Request) -> str:
    """`The MapBatches(f) tasks of Ray Data`; empty if no such operator waits."""
    reports = _operators(case, request)
    if not reports:
        return ""
    kind = "actors" if reports[0]["operator"].startswith("ActorPool") else "tasks"
    return f"The {data.operator(reports[0]['operator'])} {kind} of Ray Data"


def _kind(report: Event) -> str:
    """The id identifies an actor by its creation task (up to 2.49), a task by the driver that submitted it (2.50+)."""
    if report["task"]:
        return "An actor" if report["task"].startswith("f" * 16) else "A task"
    submitter = ids.submitter_of_lease(report["lease"])
    return "A task" if ids.job_of_driver(submitter) else "A task or actor"


_ASKED = pattern(r"Resources: \{(?P<needs>[^{}]*)\}")


def _asked(message: str) -> frozenset[tuple[str, float]]:
    found = _ASKED.search(message)
    return resources.key(resources.amounts_of_spec(found["needs"] if found else ""))


def _lack(request: _Request, nodes: list[resources.Needs], short: list[str]) -> str:
    needs = request.needs
    if request.live and request.live.selectors and any(live_rows.fits(t, needs) for t in nodes):
        return (
            "no node that has it carries these labels" if needs else "no node carries these labels"
        )
    if not nodes:
        return "no node of the cluster has these resources"
    if not short:
        return f"none of {evidence.many(len(nodes), 'node')} has all of it"
    missing = [n for n in short if not any(t.get(n) for t in nodes)]
    largest = resources.describe({n: v for n, v in _largest(nodes, needs).items() if n in needs})
    if own := [
        n.removeprefix(resources.NODES_OWN) for n in missing if n.startswith(resources.NODES_OWN)
    ]:
        return f"no node has the address {' or '.join(own)}"
    if missing:
        has = f" (the largest has {largest})" if set(short) != set(missing) and largest else ""
        return f"no node has any {' or '.join(missing)}{has}"
    return f"the largest node has {largest}"


def _what(request: _Request) -> str:
    """`1 GPU on a node with zone=a or zone=b`."""
    asked = resources.describe(request.needs)
    if request.live is None or not request.live.selectors:
        return asked
    labels = " or ".join(
        " and ".join(f"{name}={value}" for name, value in selector.items())
        for selector in request.live.selectors
    )
    return f"{f'{asked} on ' if request.needs else ''}a node with {labels}"


def _largest(nodes: list[resources.Needs], needs: resources.Needs) -> resources.Needs:
    """The node that comes closest."""
    best = max(
        nodes,
        key=lambda t: (
            sum(t.get(n, 0) >= v for n, v in needs.items()),
            t.get("GPU", 0),
            t.get("CPU", 0),
        ),
    )
    return resources.visible(best)


def _not_provided(case: Case, request: _Request) -> tuple[Entity, ...]:
    """Why an autoscaler starts no node for it: no node type fits, or the provider refuses one that does."""
    launches = autoscaler.launches(case, request.needs)
    if request.autoscaler:
        return (Entity("node-types", resources.describe(request.needs)), *launches)
    return launches


def _lost_nodes(
    case: Case, request: _Request, lost: Sequence[now.ClusterNode]
) -> tuple[Entity, ...]:
    """Nodes that died before: a cause if they had the resources, or if a retry proves that the request was met once."""
    if request.live:
        fitting = [n for n in lost if live_rows.fits(n.total, request.needs)]
        return tuple(Entity("node", n.id) for n in fitting if now.bears(n, request.live.selectors))
    first = request.shown[0].at
    if first is None:
        return ()
    met = bool(waiting.retries(case, request.needs))
    return tuple(
        dict.fromkeys(
            Entity("node", node)
            for node, at in waiting.deaths(case)
            if at <= first and (met or waiting.had(case, node, request.needs))
        )
    )


# ---------------------------------------------------------------- remedies


def _remedies(
    request: _Request,
    nodes: list[resources.Needs],
    short: list[str],
    seen: now.Picture | None,
    waiter: _Waiter,
) -> tuple[Remedy, ...]:
    needs = request.needs
    if seen and request.live and request.live.selectors and not short:
        return _label_remedies(request.live, seen)
    spelling = [*waiting.addresses(needs), *_spelling(short or list(needs), nodes, needs)]
    # Without a node to compare with, the request itself is all that is known.
    less = [_less(waiter, _given(needs, nodes), "Or " if spelling else "")] if nodes else []
    # The supervisor of a submitted job: that program does not start Ray.
    own = {n: needs[n] for n in short} if len(nodes) == 1 and waiter.names != _SUPERVISOR else None
    return (
        *spelling,
        *less,
        waiting.add(
            f"{'Or give' if less or spelling else 'Give'} the cluster a node that has the resources",
            needs,
            own,
        ),
        Remedy(
            "Make requests that fit on no node fail after about 30 s instead of waiting forever",
            (
                "export RAY_enable_infeasible_task_early_exit=true RAY_enable_autoscaler_v2=1   # on every node, before ray start, or before your program if it starts Ray. The second variable selects autoscaler v2, which this needs",
            ),
            risk="disruptive",
            since=(2, 44),
        ),
    )


_SUPERVISOR = {"JobSupervisor"}


class _Waiter(NamedTuple):
    """What waits for the resources."""

    names: set[str]
    is_replica: bool
    kind: str
    """`An actor`, `A task`, or both, where it has no name."""
    submission: str = ""
    """The job that waits, if it is the supervisor of a submitted one."""
    operator: str = ""
    """The operator of Ray Data whose tasks wait."""


def _names(case: Case, request: _Request, cancelled: list[Event]) -> set[str]:
    """The functions and classes that wait, or were cancelled while they waited."""
    if request.live:
        return set(filter(None, map(live_rows.named, request.live.waiters)))
    names = {e["class_name"].rpartition(".")[2] or e["function"] for e in cancelled}
    unnamed_actor = {*map(_kind, request.raylets)} == {"An actor"}
    # An actor without a name waits while the only submitted job waits for its supervisor.
    is_supervisor = not names and unnamed_actor and len(jobs.submissions(case)) == 1
    return _SUPERVISOR if is_supervisor and jobs.unstarted(case) else names


def _waiter(case: Case, request: _Request, cancelled: list[Event], *, is_replica: bool) -> _Waiter:
    names = _names(case, request, cancelled)
    kinds = {_kind(event) for event in request.raylets}
    job = jobs.unstarted(case)[0].id if names == _SUPERVISOR and jobs.unstarted(case) else ""
    reports = [] if names or is_replica else _operators(case, request)
    operator = data.operator(reports[0]["operator"]) if reports else ""
    kind = kinds.pop() if len(kinds) == 1 else "A task or actor"
    return _Waiter(names, is_replica, kind, job, operator)


def _less(waiter: _Waiter, given: resources.Needs, before: str) -> Remedy:
    """The request, limited to what a node has, in the words of what made it.

    A resource that no node has is left out, which may place the work on any node.
    """
    absent = sorted(n for n in given if not given[n] and n not in resources.OPTIONS)
    title = f"leave out {evidence.join_names(absent)}, if any node will do" if absent else _LESS
    title = before + title if before else title[0].upper() + title[1:]
    if waiter.is_replica:
        return serve.request(title, given)
    if waiter.names == _SUPERVISOR:
        return jobs.entrypoint(given, waiter.submission)
    if waiter.operator:
        return waiting.request(title, given, waiter.operator)
    of = f"the {waiter.kind.partition(' ')[2]} that waits"
    return waiting.request(title, given, evidence.join_names(sorted(waiter.names)) or of)


def _label_remedies(request: now.Request, seen: now.Picture) -> tuple[Remedy, ...]:
    """A node with the resources lacks the label, or the label is misspelt."""
    exact = {n: v for n, v in request.selectors[0].items() if not v.startswith(("!", "in("))}
    labels = ",".join(f"{name}={value}" for name, value in exact.items())
    others = {
        name: node.labels[name]
        for node in seen.nodes
        for name in request.selectors[0]
        if name in node.labels
    }
    existing = [
        paste.python("@ray.remote(label_selector={{{name}: {value}}})", name=name, value=value)
        for name, value in others.items()
    ]
    return (
        Remedy(
            "Select a label that a node has"
            if others
            else "Compare the requested labels with the labels of the nodes",
            (*existing, "ray list nodes --detail   # labels"),
            doc=_LABELS,
        ),
        Remedy(
            "Or start a node with these labels",
            (
                paste.shell(
                    "ray start --address=HEAD:6379 --labels={labels}", labels=labels or "NAME=VALUE"
                ),
            ),
            risk="disruptive",
            doc=_LABELS,
        ),
    )


def _spelling(
    missing: list[str], nodes: list[resources.Needs], needs: resources.Needs
) -> Iterator[Remedy]:
    from difflib import get_close_matches  # takes 2 ms, and resources are seldom misspelt

    known = {name for total in nodes for name in resources.visible(total)}
    for name in missing:
        for like in get_close_matches(name, known - {name}, n=1, cutoff=0.75):
            yield Remedy(
                f"Check whether {name} is a misspelling of {like}, which a node has",
                (
                    paste.python(
                        "resources={{{like}: {amount:g}}}            # not {name}",
                        like=like,
                        amount=needs[name],
                        name=name,
                    ),
                ),
            )


def _given(needs: resources.Needs, nodes: list[resources.Needs]) -> resources.Needs:
    """What the closest node could give."""
    best = _largest(nodes, needs) if nodes else {}
    limits = {**best, "memory": best.get("memory", 0.0) * _SURE}
    return {n: min(v, limits.get(n, 0.0)) if nodes else v for n, v in needs.items()}


# ------------------------------------------------------------------ examples


_N = "233399e68a6ec96cfd874e4b728f4405d4991263918f070383188198"
_N2 = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
_NODE = "node_id={} node_name=10.0.0.2 node_address=10.0.0.2"
_TIMEOUT = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"


def _gcs(second: int, text: str) -> str:
    return f"[2026-11-21 07:42:{second:02d},040 I 13 25] (gcs_server) gcs_node_manager.cc:111: {text}\n"


def _raylet(second: int, text: str) -> str:
    return f"[2026-11-21 07:42:{second:02d},044 W 287 287] (raylet) main.cc:985: {text}\n"


def _autoscaler(plus: int, asked: str) -> str:
    return (
        f"(autoscaler +{plus}s) Error: No available node types can fulfill resource request {asked}. Add suitable node types to "
        "this cluster to resolve this issue.\n"
    )


_REGISTERED = _gcs(1, f"Registering new node. {_NODE.format(_N)}")
_GPU = _raylet(46, waiting.INFEASIBLE.sample)
_BYE = (
    f"[2026-11-21 07:43:31,603 I 287 287] (raylet) node_manager.cc:1484: Disconnecting driver, graceful=true, disconnect_type=3 worker_id=01000000{'f' * 48} job_id=01000000\n"
    f"[2026-11-21 07:43:31,604 I 287 287] (raylet) node_manager.cc:1652: Driver (pid=12) is disconnected. worker_id=01000000{'f' * 48} job_id=01000000\n"
)
_OLD = _raylet(46, waiting.INFEASIBLE.sample).replace("{CPU: 1, GPU: 1}", "{CPU: 10000, acelerator: 10000}").replace(
    f"lease with ID {'0000000001000000' + 'f' * 48}", "actor or task with ID ffffffffffffffffc49f0dc5b78fa1b30dbe726e01000000"
)  # fmt: skip


def _state(more: str) -> str:
    return (
        f"NodeManager:\nNode ID: {_N}\nInfeasible queue length: 1\nLocal id: 53 Local resources: {{}} Cluster resources: "
        f'node id: 53{{"total":{{CPU: 20000, {more}memory: 270616658000000, node:10.0.0.2: 10000}}}}, "available": {{}}}}\n'
    )


_NODE_ROW = sample.node({"CPU": 2, "memory": 23562608384.0})
_NEEDS = {"CPU": 1, "GPU": 1}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a GPU in a cluster without GPUs",
        {
            "logs/raylet.out": _GPU,
            "logs/gcs_server.out": _REGISTERED,
            "logs/debug_state.txt": _state(""),
            "driver.log": _TIMEOUT,
        },
        consequences=("get-timeout",),
        says=("1 GPU and 1 CPU", "no node has any GPU", "on another machine with 1 GPU"),
    ),
    Example(
        "a misspelt custom resource, in the ten-thousandths that Ray 2.9 prints",
        {
            "logs/raylet.out": _OLD,
            "logs/gcs_server.out": _REGISTERED,
            "logs/debug_state.txt": _state("accelerator: 10000, "),
        },
        says=("1 acelerator", 'resources={"accelerator": 1}'),
    ),
    Example(
        "the only node with a GPU has died",
        {
            "a/logs/raylet.out": _GPU,
            "a/logs/gcs_server.out": _REGISTERED
            + _gcs(2, f"Registering new node. {_NODE.format(_N2)}")
            + _gcs(40, f"Node is dead because the health check failed. node_id={_N2}"),
            "a/logs/debug_state.txt": _state(""),
            "b/logs/debug_state.txt": _state("GPU: 10000, ").replace(_N, _N2),
        },
        roots=("node-died",),
        consequences=("infeasible-request",),
    ),
    console(
        "only the driver's output is in the capture",
        _autoscaler(12, "{'CPU': 1.0, 'GPU': 1.0}")
        + _autoscaler(47, "{'CPU': 1.0, 'GPU': 1.0}")
        + _TIMEOUT,
        consequences=("get-timeout",),
        says=("1 GPU and 1 CPU",),
    ),
    Example(
        "a program tries to get a GPU and continues without one",
        {
            "logs/raylet.out": _GPU + _BYE,
            "logs/gcs_server.out": _REGISTERED,
            "driver.log": "no GPU: using the CPU\n",
        },
        says=("was never scheduled: it needs",),
        severity="warning",
    ),
    console(
        "autoscaler v2 prints requests with counts",
        (
            _autoscaler(12, "{'GPU': 4.0}*2")
            .replace("Error: ", "")
            .replace("request {", "requests {")
        )
        * 2,
        says=("4 GPUs",),
    ),
    Example(
        "live: the only node with a GPU has died",
        {
            "logs/gcs_server.out": _REGISTERED
            + _gcs(2, f"Registering new node. {_NODE.format(_N2)}")
            + _gcs(40, f"Node is dead because the health check failed. node_id={_N2}"),
            "logs/raylet.out": "",
            **sample.tables(
                nodes=[_NODE_ROW, sample.node(_NEEDS, _N2, state="DEAD")],
                tasks=[sample.task(1, "train", _NEEDS)],
            ),
        },
        roots=("node-died",),
        consequences=("infeasible-request",),
    ),
    Example(
        "live: tasks request a GPU, before any log reports it",
        sample.tables(
            nodes=[_NODE_ROW],
            tasks=[sample.task(1, "train", _NEEDS), sample.task(2, "train", _NEEDS)],
        ),
        says=(
            "2 train() tasks can never start: each needs 1 GPU and 1 CPU",
            "no node has any GPU",
            "on another machine with 1 GPU",
        ),
    ),
    Example(
        "live, and the raylet reported it before: one incident",
        {
            "logs/raylet.out": _GPU,
            "logs/gcs_server.out": _REGISTERED,
            **sample.tables(nodes=[_NODE_ROW], tasks=[sample.task(1, "train", _NEEDS)]),
        },
        says=("1 train() task can never start: it needs 1 GPU",),
    ),
    Example(
        "live: an actor requests a label that no node carries",
        sample.tables(
            nodes=[_NODE_ROW],
            tasks=[
                sample.task(
                    1,
                    "Trainer.__init__",
                    {"CPU": 1},
                    type="ACTOR_CREATION_TASK",
                    label_selector={"ray.io/accelerator-type": "A100"},
                )
            ],
        ),
        says=(
            "1 Trainer actor can never start: it needs 1 CPU on a node with ray.io/accelerator-type=A100, but no node that has it",
            "--labels",
        ),
    ),
    Example(
        "live: there are no task events, only an actor's row",
        sample.tables(
            nodes=[_NODE_ROW],
            tasks=[],
            actors=[sample.actor(1, "Trainer", {"GPU": 2}, state="PENDING_CREATION", pid=0)],
        ),
        says=("1 Trainer actor can never start: it needs 2 GPUs",),
    ),
    Example(
        "live: tasks were not collected, and the raylets' demands name the request",
        sample.tables(
            nodes=[_NODE_ROW], demands=[{"kind": "task-or-actor", "shape": {"GPU": 2}, "count": 5}]
        ),
        says=("5 requests can never start: each needs 2 GPUs",),
    ),
    Example(
        "live: only some tasks were collected, and the raylets' demands name the rest",
        {
            **sample.tables(
                nodes=[_NODE_ROW],
                tasks=[sample.running(1, "train", {"CPU": 2})],
                demands=[
                    {"kind": "task-or-actor", "shape": {"CPU": 2}, "count": 9000},
                    {"kind": "task-or-actor", "shape": {"GPU": 2}, "count": 1},
                ],
            ),
            "live/live-tasks.json": sample.table(
                "tasks", [sample.task(1, "train", {"CPU": 2})]
            ).replace('"total": 1', '"total": 9001'),
        },
        says=("1 request can never start: it needs 2 GPUs",),
    ),
    Example(
        "live: the driver that made the request has given up and exited",
        {
            "logs/raylet.out": _GPU,
            "logs/gcs_server.out": _REGISTERED,
            "logs/debug_state.txt": _state(""),
            "driver.log": _TIMEOUT,
            **sample.tables(nodes=[_NODE_ROW], tasks=[]),
        },
        consequences=("get-timeout",),
        says=("was never scheduled: it needs", "no node has any GPU"),
    ),
    Example(
        "live: a node fits by resources and labels, and the request is only new",
        sample.tables(
            nodes=[sample.node({"CPU": 2, "GPU": 1}, labels={"zone": "c"})],
            tasks=[sample.task(1, "train", _NEEDS, label_selector={"zone": "!in(a,b)"})],
        ),
    ),
    Example(
        "live: an autoscaler starts a node that fits",
        {
            "logs/gcs_server.out": _REGISTERED.replace("07:42", "13:48"),
            "logs/monitor.log": "2026-11-21 13:48:56,805\tINFO autoscaler.py:408 -- :event_summary:Adding 1 node(s) of type gpu.\n",
            "logs/raylet.out": _GPU.replace("07:42", "13:48"),
            **sample.tables(nodes=[_NODE_ROW], tasks=[sample.task(1, "train", _NEEDS)]),
        },
    ),
    Example(
        "a node that fits joins later",
        {
            "logs/raylet.out": _GPU,
            "logs/gcs_server.out": _REGISTERED
            + _gcs(59, f"Registering new node. {_NODE.format(_N2)}"),
            "driver.log": _autoscaler(12, "{'CPU': 1.0, 'GPU': 1.0}") + "trained 3\n",
        },
    ),
    console(
        "a task prints the same message",
        f"(check pid=12) {waiting.INFEASIBLE.sample}\n" * 2,
        logs=QUIET_LOGS,
    ),
    console(
        "one report, and the output of `ray status` below it",
        _autoscaler(32, "{'CPU': 1.0, 'GPU': 2.0}") + f"{waiting.STATUS.sample}\n",
        says=("2 GPUs and 1 CPU", "the largest node has 1 GPU and 112 CPUs"),
    ),
    console(
        "a console ends with one report",
        "loading\n" + _autoscaler(32, "{'CPU': 1.0, 'GPU': 2.0}"),
        says=("2 GPUs and 1 CPU",),
        severity="warning",
    ),
    console(
        "a console goes on after one report, and a node is starting",
        _autoscaler(32, "{'CPU': 1.0, 'GPU': 2.0}")
        + f"{waiting.STATUS.sample}\n".replace("(no pending nodes)", "gpu, 1 launching")
        + "trained 3\n",
    ),
    console(
        "`ray status` lists what is asked for",
        _autoscaler(32, "{'CPU': 1.0, 'GPU': 1.0}") + f"{waiting.STATUS.sample}\ntrained 3\n",
    ),
    console(
        "vLLM asks for a GPU on its own address, which is not the address of a node",
        _autoscaler(32, "{'node:10.0.0.9': 0.001, 'GPU': 1.0}"),
        says=("1 GPU and the node 10.0.0.9", "VLLM_HOST_IP"),
        severity="warning",
    ),
    console(
        "the same, and `ray status` below it still lists the request",
        _autoscaler(32, "{'node:10.0.0.9': 0.001, 'GPU': 1.0}")
        + f"{waiting.STATUS.sample}\n".replace(
            "{'GPU': 1.0, 'CPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups",
            "{'node:10.0.0.9': 0.001, 'GPU': 1.0}: 1+ pending tasks/actors",
        ),
        says=("1 GPU and the node 10.0.0.9, but no node has the address 10.0.0.9",),
        severity="warning",
    ),
    console(
        "a removed node's own resource",
        _autoscaler(32, "{'node:10.0.0.9': 0.01}"),
    ),
    console(
        "a driver of Ray 1.8 logs what the raylet pushes, with one pair of brackets for each resource",
        "2026-11-21 07:42:46,044\tWARNING worker.py:1228 -- The actor or task with ID 38b7b52b8a7371117241b1a3f60f62e6f940fd5479d1b53b "
        "cannot be scheduled right now. It requires {GPU: 2.000000}, {CPU: 1.000000} for placement, however the cluster currently "
        "cannot provide the requested resources.\n",
        says=("2 GPUs and 1 CPU",),
        severity="warning",
    ),
    console(
        "an actor is bound to a node that has left",
        'Traceback (most recent call last):\n  File "/app/a.py", line 9, in <module>\n    ray.get(a.f.remote())\n'
        f"{UNSCHEDULABLE.sample}\n",
        says=("An actor could not be placed", "has left the cluster", "soft=True"),
    ),
    console(
        "a program quotes the refusal and uses another node",
        "(pick pid=12) retry: The actor is not schedulable: The node specified via NodeAffinitySchedulingStrategy doesn't "
        "exist any more\nsee also ray.exceptions.ActorUnschedulableError: The actor is not schedulable: in the manual\n",
    ),
)
