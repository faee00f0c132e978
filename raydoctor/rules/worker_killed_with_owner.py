"""Ray killed workers because the owner process of their tasks, or its node, had died.

## What you see
Several workers exit within milliseconds with `Worker exits with an exit code 1. The process receives a SIGTERM.` Just
before, `raylet.out` records `Killing leased worker because its owner died` (Ray 2.52 and later) or `The leased worker
… is killed because the owner process … died` (up to Ray 2.51).

## Why
The process that submits a task owns its result. When the owner process dies, the result cannot be used any more, so Ray
ends the workers that are still computing it. This is a consequence, never the root cause: find out why the owner died.

## Confirm
- `owner_worker_id` in that line is the owner: `grep OWNER_WORKER_ID gcs_server.out` shows how it ended.
- An owner id made of a JobID followed by 48 `f` belongs to a driver.

## Fix
Fix what ended the owner process. The killed workers need no fix. If many long tasks depend on one parent that may fail,
submit them from the driver, or store the parent's state outside the process and let Ray retry the parent.

## Not this when
- the driver had exited, normally or by Ctrl-C: the same lines are then part of its shutdown.
- `raylet.out` has no such line: the SIGTERM has another sender (`worker-terminated`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, console, rule
from raydoctor.case.signals import OWNER_GONE_KILLED, WORKER_DIED, WORKER_EXIT
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.exit_code import Left, left_by_itself, submitter


@rule(
    tier="cause",
    severity="error",
    rank=40,
    explains=("process", "worker"),
    caused_by=("node", "process", "raylet", "worker"),
    looks_for=(*OWNER_GONE_KILLED, WORKER_EXIT, WORKER_DIED),
    remedies=(
        Remedy(
            "Fix what ended the owner process: the killed workers need no fix",
            doc="https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html",
        ),
    ),
)
def worker_killed_with_owner(case: Case) -> Iterator[Finding]:
    """One finding per owner process that died."""
    groups: dict[str, list[tuple[Event, WorkerExit]]] = {}
    for event in case.of("worker.killed_with_owner"):
        exit_ = _killed(case, event)
        if exit_ is not None and not exit_.expected:
            groups.setdefault(_owner(event) or event["why"], []).append((event, exit_))
    if "raylet-out" not in case.roles:
        for exit_, left in _by_lease(case):
            groups.setdefault(submitter(exit_), []).append((left.event, exit_))
    for members in groups.values():
        yield _finding(case, members)


def _by_lease(case: Case) -> Iterator[tuple[WorkerExit, Left]]:
    """Without a raylet log: workers ended by SIGTERM whose lease names a submitter that had died."""
    for exit_ in case.exits:
        left = left_by_itself(case, exit_)
        if left and left.sigterm and case.exit_of(submitter(exit_)):
            yield exit_, left


def _killed(case: Case, event: Event) -> WorkerExit | None:
    return case.exit_of(event["worker"] or event["worker_a"] or event["worker_b"])


def _owner(event: Event) -> str:
    return event["owner"] or event["owner_b"]


def _finding(case: Case, members: list[tuple[Event, WorkerExit]]) -> Finding:
    kills, exits = [event for event, _ in members], [exit_ for _, exit_ in members]
    owner = _owner(kills[0]) or submitter(exits[0])
    end = case.exit_of(owner)
    one = evidence.deaths(exits) == 1
    cause = f"{'its' if one else 'their'} {_describe(owner, end, kills[0])} had died"
    count = evidence.many(evidence.deaths(exits), "worker")
    names = evidence.join_names(e.called for e in exits)
    links = [*(evidence.exit_links(end, most=1) if end else ())]
    by_raylet = kills[0].kind == "worker.killed_with_owner"
    ended = "the raylet kills" if by_raylet else "a SIGTERM ends"
    links.append(Link(kills[0], f"{ended} {count} because {cause}"))
    links += [
        link
        for exit_ in exits[:2]
        for link in evidence.exit_links(exit_, most=1)
        if link.event is not kills[0]
    ]
    return Finding(
        f"Ray killed {count}{f' ({names})' if names else ''} because {cause}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=_causes(case, owner, end, kills[0]),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity=evidence.severity(case, exits),
        covers=(*kills, *evidence.exit_events(exits)),
    )


def _describe(owner: str, end: WorkerExit | None, kill: Event) -> str:
    """`owner, train (pid 379),`, `owner, the driver of job 1,`, or by its id."""
    if end:
        return f"owner, {end.noun},"
    if job := ids.job_of_driver(owner):
        return f"owner, the driver of job {ids.job_number(job)},"
    where = "owner's node" if "node" in kill["why"] else "owner"
    return f"{where}, {evidence.short(owner)}," if owner else where


def _causes(case: Case, owner: str, end: WorkerExit | None, kill: Event) -> tuple[Entity, ...]:
    """The owner's end as every entity that another finding may explain."""
    found: list[Entity] = [*end.entities] if end else []
    if owner:
        found += [Entity("worker", owner), Entity("node", owner), Entity("raylet", owner)]
    if job := ids.job_of_driver(owner):
        found.append(Entity("job", job))
    if "node" in kill["why"]:
        # Since 2.52 the line names the owner, but not always its node.
        dead = [
            kill["owner_node_id"],
            *(e["node"] or e["node_a"] or e["node_b"] for e in case.of("node.dead")),
        ]
        found += [Entity("node", node) for node in dead if node]
    return tuple(dict.fromkeys(found))


# ------------------------------------------------------------------ examples


_CHILD, _OWNER = "de4d6a45368856f8b08554fa0b5ca28a1bf294635478dabe7adc34bc", "a" * 56
_N = "ecca5ac7b92d39f4e0a6fa453af9890247f59bc691d3a9c4111d7a59"


def _exit(worker: str, at: str, detail: str) -> str:
    return (
        f"[2026-11-21 07:45:{at} W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = {worker}, "
        f"node id = {_N}, address = 127.0.0.1, exit_type = SYSTEM_ERROR, exit_detail = {detail}\n"
    )


_TERM = (
    "Worker exits unexpectedly. Worker exits with an exit code 1. The process receives a SIGTERM."
)
_GONE = "Worker unexpectedly exits with a connection error code 2. End of file."
_NEW = f"Killing leased worker because its owner died. worker_id={_CHILD} owner_worker_id={_OWNER}"
_OLD = f"The leased worker {_CHILD} is killed because the owner process {_OWNER} died."


def _died(worker: str, submitter_: str, detail: str) -> str:
    return (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
        f"check the logs for the dead worker. Lease ID: 00000000{submitter_} Worker ID: {worker} Node ID: {_N} Worker IP address: "
        f"127.0.0.1 Worker port: 1 Worker PID: {int(worker[0], 16)} Worker exit type: SYSTEM_ERROR Worker exit detail: {detail}\n"
    )


def _raylet(text: str) -> str:
    return f"[2026-11-21 07:45:28,798 I 284 284] (raylet) node_manager.cc:1050: {text}\n"


EXAMPLES: tuple[Example, ...] = (
    Example(
        "the parent task's worker vanished and its child is killed",
        {
            "logs/gcs_server.out": _exit(_OWNER, "28,796", _GONE) + _exit(_CHILD, "28,811", _TERM),
            "logs/raylet.out": _raylet(_NEW),
        },
        roots=("worker-vanished",),
        consequences=("worker-killed-with-owner",),
        says=("Ray killed 1 worker", "its owner"),
    ),
    Example(
        "Ray up to 2.51 names the worker and its owner in one sentence",
        {
            "logs/gcs_server.out": _exit(_OWNER, "28,796", _GONE) + _exit(_CHILD, "28,811", _TERM),
            "logs/raylet.out": _raylet(_OLD),
        },
        roots=("worker-vanished",),
        consequences=("worker-killed-with-owner",),
    ),
    console(
        "only the driver's output is available: the lease names the owner",
        _died(_OWNER, "b" * 56, _GONE) + _died(_CHILD, _OWNER, _TERM),
        roots=("worker-vanished",),
        consequences=("worker-killed-with-owner",),
    ),
    Example(
        "a driver that exits normally ends its running tasks: shutdown, not a failure",
        {
            "logs/gcs_server.out": "[2026-11-21 07:45:28,790 I 13 13] (gcs_server) gcs_job_manager.cc:156: Marking job as finished. "
            "job_id=01000000\n" + _exit(_CHILD, "28,811", _TERM),
            "logs/raylet.out": _raylet(_NEW.replace(_OWNER, f"01000000{'f' * 48}")),
        },
    ),
)
