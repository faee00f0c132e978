"""A task or actor asks for resources that no node has, so it waits for ever.

## What you see
Nothing but waiting: the task stays `PENDING_NODE_ASSIGNMENT`. In raylet.out: `… cannot be scheduled right now.
It requires {…} for placement, however the cluster currently cannot provide the requested resources`. In the
driver: `(autoscaler …) Error: No available node types can fulfill resource request {…}`.

## Why
Ray never fails a request for being too large: a node that fits might still join. It compares names and
amounts: a misspelt custom resource, a GPU that `CUDA_VISIBLE_DEVICES` hides, `num_cpus` larger than any one
node, or the node that had it being gone all look like this.

## Confirm
- `ray status`: `Total Usage` is what there is, `Pending Demands` what is asked for.
- `ray list nodes --detail`: what each single node has; a request must fit on one of them.
- `ray list tasks --detail --filter state=PENDING_NODE_ASSIGNMENT`: `required_resources`.

## Fix
Ask for less, correct the name, or start a node that has it. `RAY_enable_infeasible_task_early_exit=true` (Ray
2.44 and later) makes such tasks fail instead of waiting.

## Not this when
It would fit on a node that is merely busy (`cluster-starved`); a placement group waits
(`placement-group-pending`); a fitting node joined later: an autoscaling cluster says the same words on
its way up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches

from raydoctor import ids
from raydoctor._pattern import pattern
from raydoctor.case import Case
from raydoctor.model import Entity, Event, Finding, Link, Remedy, Subject
from raydoctor.rule import Example, rule
from raydoctor.rules import _evidence as evidence
from raydoctor.rules import _resources as resources
from raydoctor.rules import _waiting as waiting
from raydoctor.signals import (
    NODE_DEAD,
    NODE_REGISTERED,
    RAY_EXCEPTION,
    TASK_FAILED,
)

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/resources.html"
_APART = 20.0
"""Seconds between two reports that make one request last; the autoscaler repeats it every 30 s."""

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


@rule(
    tier="root",
    severity="error",
    rank=74,
    looks_for=(
        waiting.INFEASIBLE, *waiting.NO_NODE_TYPE, waiting.GROUP_PENDING, waiting.RESUBMITTED, waiting.RESIZED, *waiting.DRIVER_END, *NODE_REGISTERED, *NODE_DEAD,
        TASK_FAILED, RAY_EXCEPTION,
    ),
    examples=(
        Example(
            "a GPU in a cluster without GPUs",
            {"logs/raylet.out": _GPU, "logs/gcs_server.out": _REGISTERED, "logs/debug_state.txt": _state(""), "driver.log": _TIMEOUT},
            roots=("infeasible-request",),
            consequences=("get-timeout",),
            says=("1 GPU and 1 CPU", "no node has any GPU", "2 CPU", "--num-gpus"),
        ),
        Example(
            "a misspelt custom resource; Ray 2.9 writes ten-thousandths",
            {
                "logs/raylet.out": _OLD, "logs/gcs_server.out": _REGISTERED,
                "logs/debug_state.txt": _state("accelerator: 10000, "),
            },
            roots=("infeasible-request",),
            says=("1 acelerator", 'resources={"accelerator": 1}'),
        ),
        Example(
            "the only node with a GPU has died",
            {
                "a/logs/raylet.out": _GPU,
                "a/logs/gcs_server.out": _REGISTERED + _gcs(2, f"Registering new node. {_NODE.format(_N2)}")
                + _gcs(40, f"Node is dead because the health check failed. node_id={_N2}"),
                "a/logs/debug_state.txt": _state(""),
                "b/logs/debug_state.txt": _state("GPU: 10000, ").replace(_N, _N2),
            },
            roots=("node-died",),
            consequences=("infeasible-request",),
        ),
        Example(
            "only the driver's output is left",
            {"driver.log": _autoscaler(12, "{'CPU': 1.0, 'GPU': 1.0}") + _autoscaler(47, "{'CPU': 1.0, 'GPU': 1.0}") + _TIMEOUT},
            roots=("infeasible-request",),
            consequences=("get-timeout",),
            says=("1 GPU and 1 CPU",),
        ),
        Example(
            "a program that tries for a GPU and goes on without one",
            {"logs/raylet.out": _GPU + _BYE, "logs/gcs_server.out": _REGISTERED, "driver.log": "no GPU: using the CPU\n"},
            roots=("infeasible-request",),
            says=("it was never scheduled",),
        ),
        Example(
            "autoscaler v2 lists requests with counts",
            {"driver.log": (_autoscaler(12, "{'GPU': 4.0}*2").replace("Error: ", "").replace("request {", "requests {")) * 2},
            roots=("infeasible-request",),
            says=("4 GPU",),
        ),
        Example(
            "a node that fits joins later",
            {
                "logs/raylet.out": _GPU,
                "logs/gcs_server.out": _REGISTERED + _gcs(59, f"Registering new node. {_NODE.format(_N2)}"),
                "driver.log": _autoscaler(12, "{'CPU': 1.0, 'GPU': 1.0}") + "trained 3\n",
            },
        ),
        Example(
            "a task that prints the words",
            {"logs/raylet.out": "", "logs/gcs_server.out": "", "driver.log": f"(check pid=12) {waiting.INFEASIBLE.sample}\n" * 2},
        ),
    ),
)  # fmt: skip
def infeasible_request(case: Case) -> Iterator[Finding]:
    """One finding per request (its resources) that was never met."""
    for request in _requests(case):
        nodes = waiting.totals(case, request.shown[0].at)
        fits = any(resources.fits(total, request.needs) for total in nodes)
        if not fits and _lasts(case, request):
            yield _finding(case, request, nodes)


@dataclass(slots=True)
class _Request:
    """One shape of resources, and who reported that it cannot be met."""

    needs: resources.Needs
    raylets: list[Event] = field(default_factory=list)
    autoscaler: list[Event] = field(default_factory=list)

    @property
    def shown(self) -> list[Event]:
        return self.raylets or waiting.one_role(self.autoscaler)


def _requests(case: Case) -> list[_Request]:
    found: dict[frozenset[tuple[str, float]], _Request] = {}
    for event in case.of("request.infeasible"):
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
    return list(found.values())


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
    return _repeated(case, request) or bool(waiting.gave_up(case))


def _is_after(event: Event, joined: Event) -> bool:
    """A report well after the last node joined: the autoscaler may be a round behind."""
    return event.at is not None and joined.at is not None and event.at > joined.at + _APART


def _repeated(case: Case, request: _Request) -> bool:
    for told in (request.raylets, waiting.one_role(request.autoscaler)):
        times = [e.at for e in told if e.at is not None]
        if len(times) > 1 and max(times) - min(times) >= _APART:
            return True
        if not times and evidence.total(told) > 1:
            resized = waiting.one_role(case.of("autoscaler.resized"))
            return not any(e.line > told[-1].line for e in resized)
    return False


# ---------------------------------------------------------------- findings


def _finding(case: Case, request: _Request, nodes: list[resources.Needs]) -> Finding:
    who, cancelled = _who(case, request)
    short = resources.short_of(nodes, request.needs) if nodes else []
    telling = waiting.one_role(request.autoscaler)
    told = [*request.raylets[:1], *telling[:1]]
    count = max(len(request.raylets), 1)
    severity = waiting.severity(case)
    fate = "it waits for ever" if severity == "error" else "it was never scheduled"
    return Finding(
        f"{who} asks for {resources.describe(request.needs)}, and {_lack(request.needs, nodes, short)}: {fate}",
        (
            *(Link(e, f"{e['function']} ran before, and is to be run again") for e in waiting.retries(case, request.needs)[:1]),
            *(Link(e, _shows(e, request.needs)) for e in told),
            *(Link(e, "still asked for later") for e in telling[-1:] if len(telling) > 1),
            *(Link(e, f"never created: {e['name']} was cancelled while it waited") for e in cancelled[:1]),
        ),
        explains=(*_entities(request), Entity("waiting", "cluster")),
        caused_by=(*_lost_nodes(case, request), *_not_provided(request)),
        subjects=_subjects(cancelled),
        count=count,
        severity=severity,
        remedies=_remedies(request.needs, nodes, short),
        covers=(*request.raylets, *request.autoscaler, *cancelled),
    )  # fmt: skip


def _subjects(cancelled: list[Event]) -> tuple[Subject, ...]:
    return tuple(
        Subject(
            "actor" if e["class_name"] else "task",
            ids.actor_of_task(e["task"]) or e["task"],
            e["name"],
        )
        for e in cancelled[:10]
    )


def _shows(event: Event, needs: resources.Needs) -> str:
    who = "the raylet" if event.kind == "request.infeasible" else "the autoscaler"
    return f"{who} finds no node for {resources.describe(needs)}"


def _entities(request: _Request) -> Iterator[Entity]:
    yield Entity("request", resources.describe(request.needs))
    for event in request.raylets:
        for kind in ("lease", "task"):
            if event[kind]:
                yield Entity(kind, event[kind])


def _who(case: Case, request: _Request) -> tuple[str, list[Event]]:
    """The actor (or task) that asked: its submitter names it when the wait is cancelled."""
    wanted = resources.key(request.needs)
    cancelled = [
        e
        for e in case.of("task.failed")
        if "SchedulingCancelled" in e["status"] and _asked(e.message) == wanted
    ]
    names = dict.fromkeys(e["class_name"].rpartition(".")[2] or e["function"] for e in cancelled)
    if names:
        kind = "Actor" if cancelled[0]["class_name"] else "Task"
        return f"{kind} {evidence.join_names(names)}", cancelled
    if again := waiting.retries(case, request.needs):
        return f"Task {evidence.join_names(e['function'] for e in again)}", []
    kinds = {_kind(event) for event in request.raylets}
    return (kinds.pop() if len(kinds) == 1 else "A task or actor"), cancelled


def _kind(report: Event) -> str:
    """An id tells actors by their creation task (up to 2.49), tasks by a driver that submits (2.50+)."""
    if report["task"]:
        return "An actor" if report["task"].startswith("f" * 16) else "A task"
    submitter = ids.submitter_of_lease(report["lease"])
    return "A task" if ids.job_of_driver(submitter) else "A task or actor"


_ASKED = pattern(r"Resources: \{(?P<needs>[^}]*)\}")


def _asked(message: str) -> frozenset[tuple[str, float]]:
    found = _ASKED.search(message)
    return resources.key(resources.amounts_of_spec(found["needs"] if found else ""))


def _lack(needs: resources.Needs, nodes: list[resources.Needs], short: list[str]) -> str:
    if not nodes:
        return "no node of the cluster has that"
    if not short:
        return f"no single one of {evidence.many(len(nodes), 'node')} has all of it"
    missing = [n for n in short if not any(t.get(n) for t in nodes)]
    largest = resources.describe(_largest(nodes, needs))
    if missing:
        return f"no node has any {' or '.join(missing)} (the largest has {largest})"
    return f"the largest node has {largest}"


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


def _not_provided(request: _Request) -> tuple[Entity, ...]:
    """Why an autoscaler starts no node for it: no type fits, or (where one does) the provider refuses."""
    if request.autoscaler:
        return (Entity("node-types", resources.describe(request.needs)),)
    return (Entity("autoscaler", "launch"),)


def _lost_nodes(case: Case, request: _Request) -> tuple[Entity, ...]:
    """Nodes that died before: a cause if such a request had been met (its retry shows it) or they had what it asks."""
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
    needs: resources.Needs, nodes: list[resources.Needs], short: list[str]
) -> tuple[Remedy, ...]:
    missing = short or list(needs)
    return (
        *_spelling(missing, nodes, needs),
        Remedy(
            "Ask for what a node has",
            (_option(needs, nodes),),
            doc=_DOC,
        ),
        Remedy("Or add a node that has it", tuple(_starts(missing, needs)), doc=_DOC),
        Remedy(
            "Let such requests fail instead of waiting",
            ("RAY_enable_infeasible_task_early_exit=true ray start --head …",),
            since=(2, 44),
        ),
    )


def _spelling(
    missing: list[str], nodes: list[resources.Needs], needs: resources.Needs
) -> Iterator[Remedy]:
    known = {name for total in nodes for name in resources.visible(total)}
    for name in missing:
        for like in get_close_matches(name, known - {name}, n=1, cutoff=0.75):
            yield Remedy(
                f"Is {name} a slip for {like}, which a node does have?",
                (f'resources={{"{like}": {needs[name]:g}}}            # not "{name}"',),
            )


def _option(needs: resources.Needs, nodes: list[resources.Needs]) -> str:
    """The decorator with what the closest node could give."""
    best = _largest(nodes, needs) if nodes else {}
    given = {n: min(v, best.get(n, 0.0)) if nodes else v for n, v in needs.items()}
    parts = [f"num_cpus={given['CPU']:g}"] if "CPU" in given else []
    parts += [f"num_gpus={given['GPU']:g}"] if "GPU" in given else []
    parts += [f"memory={given['memory']:.0f}"] if "memory" in given else []
    custom = {n: v for n, v in given.items() if n not in ("CPU", "GPU", "memory") and v}
    if custom:
        parts.append("resources={" + ", ".join(f'"{n}": {v:g}' for n, v in custom.items()) + "}")
    return f"@ray.remote({', '.join(parts)})"


def _starts(missing: list[str], needs: resources.Needs) -> Iterator[str]:
    for name in missing:
        amount = f"{needs[name]:g}"
        if name == "GPU":
            yield f"ray start --address=<head>:6379 --num-gpus={amount}   # nvidia-smi and CUDA_VISIBLE_DEVICES there show them?"
        elif name == "CPU":
            yield f"ray start --address=<head>:6379 --num-cpus={amount}"
        elif name == "memory":
            yield f"ray start --address=<head>:6379 --memory={needs[name]:.0f}"
        else:
            yield f"ray start --address=<head>:6379 --resources='{{\"{name}\": {amount}}}'"
