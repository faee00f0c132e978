"""An actor was restarted again and again, and died for the same reason each time.

## What you see
- The actor answers for a moment after every restart.
- Calls with `max_task_retries=-1` do not return while restarts are left. Ray 2.50 and later print `Task … failed.
  There are infinite retries remaining …`.
- `ActorDiedError … because its worker process has died` after the last restart.

## Why
With `max_restarts` Ray starts a new process, and with `max_task_retries` it sends the same call again. If the call itself, its input, or
the memory it needs kills the process, every restart fails the same way. Restarts help against external failures. Here they
repeat the failure and hide it.

## Confirm
- `gcs_server.out` has `Actor is failed on worker … need_reschedule = 1, … remaining_restarts = <n>` once per death, and
  `<n>` counts down (`-1`: infinite).
- `ray list actors --detail` of a live cluster shows `num_restarts`.
- The report lists the cause of the individual deaths as the root, if the logs record it.

## Fix
Fix the cause of the deaths. Until then, let the call that kills the actor fail instead of being repeated: `max_task_retries=0`. A limit
on `max_restarts` also ends the loop, but leaves the actor dead.

## Not this when
- each restart had a different reason, such as nodes that joined and left (`node-died`).
- `__init__` raised an exception: Ray does not restart such an actor (`actor-init-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import ActorInfo, WorkerExit
from raydoctor.case.rule import Example, console, rule
from raydoctor.case.signals import (
    ACTOR_FAILED,
    RAY_EXCEPTION,
    TASK_ATTEMPT_FAILED,
    WORKER_DIED,
    WORKER_EXIT,
)
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared.actor_deaths import CALL_RETRIED

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html"
_ENOUGH = 3
"""Restarts from which on the rule reports a loop."""
_METHOD_RETRIES = (2, 10)
"""`max_task_retries` of a single method: 2.10 has it, 2.9.3 does not (`ray/actor.py`)."""
_BEYOND_HEALING = 10
"""Restarts from which on the loop is an error, even if no call has failed for good yet."""

_HOW = {
    "SYSTEM_ERROR": "died {}",
    "NODE_OUT_OF_MEMORY": "was killed {} by Ray's memory monitor",
}


class _Loop(NamedTuple):
    """An actor and its deaths with the same exit type."""

    actor: ActorInfo
    how: str
    """Exit type of the deaths."""
    failures: tuple[Event, ...]
    exits: tuple[WorkerExit, ...]

    @property
    def restarts(self) -> int:
        return sum(e.count for e in self.failures if e["remaining"] != "0")

    @property
    def used_up(self) -> bool:
        return self.failures[-1]["remaining"] == "0"

    @property
    def is_endless(self) -> bool:
        """Whether `max_restarts` is infinite."""
        return self.failures[-1]["remaining"] == "-1"


@rule(
    tier="cause",
    severity="error",
    rank=46,
    explains=("actor",),
    caused_by=("node", "process", "worker"),
    looks_for=(
        ACTOR_FAILED,
        WORKER_EXIT,
        WORKER_DIED,
        TASK_ATTEMPT_FAILED,
        RAY_EXCEPTION,
        CALL_RETRIED,
    ),
)
def actor_restart_loop(case: Case) -> Iterator[Finding]:
    """One finding per class and exit type."""
    groups: dict[tuple[str, str], list[_Loop]] = {}
    for loop in _loops(case):
        groups.setdefault((loop.actor.class_name or loop.actor.id, loop.how), []).append(loop)
    for loops in groups.values():
        yield _finding(case, loops)
    if not case.of("actor.failed"):
        yield from _from_driver_output(case)


def _loops(case: Case) -> Iterator[_Loop]:
    for actor in case.ledger.actors.values():
        by_how: dict[str, list[tuple[Event, WorkerExit]]] = {}
        for event in actor.failures:
            exit_ = case.exit_of(event["worker"])
            if exit_ and not exit_.expected and not case.torn_down(event):
                by_how.setdefault(exit_.exit_type, []).append((event, exit_))
        for how, deaths in by_how.items():
            loop = _Loop(actor, how, tuple(e for e, _ in deaths), tuple(x for _, x in deaths))
            if loop.restarts >= _ENOUGH:
                yield loop


def _finding(case: Case, loops: list[_Loop]) -> Finding:
    failures = sorted((e for loop in loops for e in loop.failures), key=lambda e: e.at or 0.0)
    exits = [x for loop in loops for x in loop.exits]
    restarts = sum(loop.restarts for loop in loops)
    retried = _retries(case, loops)
    links = [
        Link(failures[0], f"first death, {_restarts_left(failures[0])}"),
        Link(failures[-1], f"death no. {len(failures)}, {_restarts_left(failures[-1])}"),
    ]
    seen = [
        e for loop in loops for e in case.about(Entity("actor", loop.actor.id), "driver.exception")
    ]
    links += [Link(e, f"the driver got {e['type']}") for e in seen[:1]]
    return Finding(
        _headline(loops, failures, restarts, _method(case, loops)),
        tuple(links),
        explains=tuple(Entity("actor", loop.actor.id) for loop in loops),
        caused_by=(
            *evidence.exit_entities(exits),
            *sorted({Entity("node", x.node) for x in exits if x.node}),
        ),
        subjects=tuple(
            Subject("actor", loop.actor.id, loop.actor.class_name or None) for loop in loops[:10]
        ),
        count=restarts,
        severity=_severity(case, loops, restarts),
        remedies=_remedies(loops[0], _method(case, loops)),
        covers=(*failures, *seen, *retried),
    )


def _headline(loops: list[_Loop], failures: list[Event], restarts: int, method: str) -> str:
    first = loops[0]
    name, actor = first.actor.class_name, evidence.short(first.actor.id)
    subject = f"Actor {name} ({actor})" if name else f"Actor {actor}"
    how = _HOW.get(first.how, f"ended {{}} ({first.how})")
    if len(loops) > 1:
        subject = f"{len(loops)} {name or 'unnamed'} actors"
        how = how.replace("was killed", "were killed")
    deaths = sum(e.count for e in failures)
    times = [e.at for e in failures if e.at is not None]
    within = f" in {times[-1] - times[0]:.0f} s" if times else ""
    doing = f" while it ran {called(method)}" if method else ""
    left = f"{restarts} restarts, none left" if first.used_up else _restarts_left(failures[-1])
    return f"{subject} {how.format(f'{deaths} times')}{within}{doing} ({left})"


def _restarts_left(event: Event) -> str:
    left = event["remaining"]
    return (
        "max_restarts is infinite"
        if left == "-1"
        else f"{evidence.many(int(left or 0), 'restart')} left"
    )


def _severity(case: Case, loops: list[_Loop], restarts: int) -> Severity:
    """Lower if no call failed for good and the restarts are limited: the last one may have solved the problem."""
    ids_ = {loop.actor.id for loop in loops}
    failed = any(ids.actor_of_task(task) in ids_ for task in case.ledger.tasks) or any(
        case.about(Entity("actor", actor), "driver.exception") for actor in ids_
    )
    final = any(loop.used_up or loop.is_endless for loop in loops)
    lost = failed or final or restarts >= _BEYOND_HEALING
    return "error" if lost else "warning"


def _method(case: Case, loops: list[_Loop]) -> str:
    """The method that ran at every death, if it was always the same: from its final failure or its retries."""
    ids_ = {loop.actor.id for loop in loops}
    final = {e["name"] for task, e in case.ledger.tasks.items() if ids.actor_of_task(task) in ids_}
    names = final or {e["name"] for e in _retries(case, loops)}
    return names.pop() if len(names) == 1 else ""


def _retries(case: Case, loops: list[_Loop]) -> list[Event]:
    classes = {loop.actor.class_name for loop in loops}
    return [e for e in case.of(CALL_RETRIED.kind) if e["name"].partition(".")[0] in classes]


def _from_driver_output(case: Case) -> Iterator[Finding]:
    """Without the GCS log: a class whose calls Ray retried several times, and whose actor then died."""
    for exit_ in case.exits:
        name = exit_.names[-1] if exit_.names else ""
        retried = [e for e in case.of(CALL_RETRIED.kind) if e["name"].partition(".")[0] == name]
        seen = any(e.kind == "driver.exception" for e in exit_.events)
        if not seen or not name or evidence.total(retried) < _ENOUGH:
            continue
        calls = evidence.join_names(called(e["name"]) for e in retried)
        yield Finding(
            f"Ray retried calls to {calls} {evidence.total(retried)} times because {exit_.label} was unavailable each time, until the actor died",
            (
                Link(retried[0], "Ray retries a call because its actor is unavailable"),
                *evidence.exit_links(exit_, most=1),
            ),
            explains=(Entity("actor", exit_.actor),),
            caused_by=exit_.entities,
            subjects=(evidence.exit_subject(exit_),),
            count=evidence.total(retried),
            covers=tuple(retried),
        )


def _remedies(loop: _Loop, method: str) -> tuple[Remedy, ...]:
    cls = loop.actor.class_name or "Actor"
    call = method or f"{cls}.method"
    return (
        Remedy(
            f"Let {call} fail instead of repeating the call that kills {cls}",
            (
                paste.python(
                    "handle.{method:name}.options(max_task_retries=0).remote(ARGUMENTS)",
                    method=call.rpartition(".")[2],
                ),
            ),
            doc=_DOC,
            since=_METHOD_RETRIES,
        ),
        Remedy(
            f"Or disable retries of the methods of {cls}, so that a call that kills the process fails",
            (
                paste.python(
                    "{actor:name}.options(max_task_retries=0).remote(ARGUMENTS)", actor=cls
                ),
            ),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_A = "1bb566f50af83ac72fee4d9301000000"
_N = "5f355fe80508307900f17cdf422e9e886772dcecbfbf74c669018777"


def _worker(number: int) -> str:
    return f"{number:x}" * 56


def _death(
    number: int,
    left: int,
    detail: str = "Worker unexpectedly exits with a connection error code 2.",
) -> str:
    stamp, worker = f"[2026-11-21 07:41:3{number},000 W 13 13] (gcs_server)", _worker(number)
    return (
        f"{stamp} gcs_worker_manager.cc:70: Reporting worker exit, worker id = {worker}, node id = {_N}, address = 10.0.0.2, "
        f"exit_type = SYSTEM_ERROR, exit_detail = {detail} End of file. Some common causes include: (1) the process was killed "
        "by the OOM killer due to high memory usage\n"
        f"{stamp} gcs_actor_manager.cc:1515: Actor is failed on worker {worker} at node {_N}, need_reschedule = 1, death context "
        f"type = ActorDiedErrorContext, remaining_restarts = {left}, num_restarts = {number} job_id=01000000 actor_id={_A}\n"
    )


_DRIVER_DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Simulator\n"
    f"\tactor_id: {_A}\n\tpid: 481\n\tip: 10.0.0.2\nThe actor is dead because its worker process has died. Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "three restarts, four sudden deaths, and no restart is left",
        {
            "logs/gcs_server.out": "".join(_death(n, 3 - n) for n in range(4)),
            "logs/raylet.out": "",
            "driver.log": "(raylet) "
            + CALL_RETRIED.sample.replace("Trainer.step", "Simulator.run")
            + "\n"
            + _DRIVER_DIED,
        },
        roots=("worker-vanished",),
        consequences=("actor-restart-loop",),
        says=(
            "Actor Simulator (1bb566f5)",
            "died 4 times in 3 s",
            "3 restarts, none left",
            "Simulator.run",
        ),
    ),
    Example(
        "infinite restarts that continue after ten deaths",
        {
            "logs/gcs_server.out": "".join(
                _death(n % 10, -1).replace(_worker(n % 10), _worker(n)[:56]) for n in range(10)
            ),
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("actor-restart-loop",),
        says=("10 times", "max_restarts is infinite"),
    ),
    console(
        "only the driver's output is available",
        "(raylet) "
        + CALL_RETRIED.sample.replace("Trainer.step", "Simulator.run")
        + " [repeated 4x across cluster]\n"
        + _DRIVER_DIED,
        roots=("worker-vanished",),
        consequences=("actor-restart-loop",),
    ),
    Example(
        "one restart, as max_restarts intends",
        {
            "logs/gcs_server.out": _death(1, 3),
            "logs/raylet.out": "",
            "driver.log": "the old actor was restarted 5 times: remaining_restarts = 0\n",
        },
        roots=("worker-vanished",),
    ),
)
