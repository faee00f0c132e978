"""Ray killed workers because the owner of their tasks, or its node, had gone.

## What you see
Several workers end within milliseconds with `Worker exits with an exit code 1. The process receives a
SIGTERM.`; in `raylet.out` just before `Killing leased worker because its owner died` (2.52+) or `The leased worker … is
killed because the owner process … died` (up to 2.51).

## Why
The process that submitted a task owns its result. When that process dies nobody can want the result any
more, so Ray ends the workers that were still computing it. A cascade, never the cause: the question is why
the owner died.

## Confirm
- `owner_worker_id` in that line is the owner: `grep <that id> gcs_server.out` tells how it ended.
- An owner id that starts with a JobID and ends in `f`s is a driver.

## Fix
Fix the owner's end; these workers need nothing. Where many long tasks hang on one fragile parent, submit them
from the driver, or let the parent keep its state outside and be retried.

## Not this when
The driver itself had ended, normally or by Ctrl-C: then the same lines are tear-down. Without such a line in `raylet.out`
a SIGTERM came from elsewhere (`worker-terminated`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import OWNER_GONE_KILLED, WORKER_DIED, WORKER_EXIT
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.exit_code import Left, left_by_itself, submitter


@rule(
    tier="cause",
    severity="error",
    rank=40,
    looks_for=(*OWNER_GONE_KILLED, WORKER_EXIT, WORKER_DIED),
    remedies=(
        Remedy(
            "Fix the owner's end; the killed workers need nothing",
            doc="https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html",
        ),
    ),
)
def worker_killed_with_owner(case: Case) -> Iterator[Finding]:
    """One finding per owner that went."""
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
    """Without a raylet's log: ended by SIGTERM, and the lease names a submitter that had ended."""
    for exit_ in case.exits:
        left = left_by_itself(case, exit_)
        if left and left.sigterm and case.exit_of(submitter(exit_)):
            yield exit_, left


def _killed(case: Case, event: Event) -> WorkerExit | None:
    return case.exit_of(event["worker"] or event["worker_a"] or event["worker_b"])


def _owner(event: Event) -> str:
    return event["owner"] or event["owner_b"]


def _finding(case: Case, members: list[tuple[Event, WorkerExit]]) -> Finding:
    told, exits = [event for event, _ in members], [exit_ for _, exit_ in members]
    owner = _owner(told[0]) or submitter(exits[0])
    end = case.exit_of(owner)
    its = "its" if evidence.deaths(exits) == 1 else "their"
    name = f"{its} owner {end.label}" if end else f"{its} {_describe(owner, told[0])}"
    count = evidence.many(evidence.deaths(exits), "worker")
    names = evidence.join_names(e.names[-1] if e.names else "" for e in exits)
    who = f"{count} ({names})" if names else count
    links = [*(evidence.exit_links(end, most=1) if end else ())]
    says = "the raylet kills" if told[0].kind == "worker.killed_with_owner" else "a SIGTERM ends"
    links.append(Link(told[0], f"{says} {count}, because {name} had ended"))
    links += [
        link
        for exit_ in exits[:2]
        for link in evidence.exit_links(exit_, most=1)
        if link.event is not told[0]
    ]
    verb = "was" if evidence.deaths(exits) == 1 else "were"
    return Finding(
        f"{who} {verb} killed by Ray because {name} had ended",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=_causes(case, owner, end, told[0]),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity=evidence.severity(case, exits),
        covers=(*told, *evidence.exit_events(exits)),
    )


def _describe(owner: str, told: Event) -> str:
    if job := ids.job_of_driver(owner):
        return f"owner, the driver of job {job},"
    where = "owner's node" if "node" in told["why"] else "owner"
    return f"{where} {evidence.short(owner)}" if owner else where


def _causes(case: Case, owner: str, end: WorkerExit | None, told: Event) -> tuple[Entity, ...]:
    """The owner's end under every name it may be explained by."""
    found: list[Entity] = [*end.entities] if end else []
    if owner:
        found += [Entity("worker", owner), Entity("node", owner), Entity("raylet", owner)]
    if job := ids.job_of_driver(owner):
        found.append(Entity("job", job))
    if "node" in told["why"]:
        # Since 2.52 the line names the owner, but not always its node.
        dead = [
            told["owner_node_id"],
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
        "the parent task's worker vanished, its child is killed",
        {
            "logs/gcs_server.out": _exit(_OWNER, "28,796", _GONE) + _exit(_CHILD, "28,811", _TERM),
            "logs/raylet.out": _raylet(_NEW),
        },
        roots=("worker-vanished",),
        consequences=("worker-killed-with-owner",),
        says=("1 worker", "its owner"),
    ),
    Example(
        "Ray up to 2.51 names both in the sentence",
        {
            "logs/gcs_server.out": _exit(_OWNER, "28,796", _GONE) + _exit(_CHILD, "28,811", _TERM),
            "logs/raylet.out": _raylet(_OLD),
        },
        roots=("worker-vanished",),
        consequences=("worker-killed-with-owner",),
    ),
    Example(
        "only the driver's output is left: the lease names the owner",
        {"driver.log": _died(_OWNER, "b" * 56, _GONE) + _died(_CHILD, _OWNER, _TERM)},
        roots=("worker-vanished",),
        consequences=("worker-killed-with-owner",),
    ),
    Example(
        "a driver's normal end kills what still ran for it: tear-down",
        {
            "logs/gcs_server.out": "[2026-11-21 07:45:28,790 I 13 13] (gcs_server) gcs_job_manager.cc:156: Marking job as finished. "
            "job_id=01000000\n" + _exit(_CHILD, "28,811", _TERM),
            "logs/raylet.out": _raylet(_NEW.replace(_OWNER, f"01000000{'f' * 48}")),
        },
    ),
)
