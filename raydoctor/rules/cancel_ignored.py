"""`ray.cancel` reached a running task, and the task kept running.

## What you see
`ray.cancel(ref)` returns immediately, as always. `ray.get(ref)` still waits, and the worker still holds its CPU. The
worker's `python-core-worker-*.log` contains `Cancelling a running task` or `Cancel an actor task`, and no later line
records that the task ended.

## Why
Without `force=True` Ray raises `KeyboardInterrupt` in the worker's main thread. Python raises it only between two
bytecode instructions, so a call that blocks (`time.sleep`, a lock, a socket, a subprocess, native code) must return
first (measured with Ray 2.60: none was interrupted within six seconds). `except BaseException:` or a bare `except:`
swallows it. Ray cancels a coroutine of an async actor at its next `await`, and does not interrupt other actor methods.

## Confirm
- `ray list tasks --detail --filter state=RUNNING` still lists the task.
- `py-spy dump --pid PID` on its node shows its call stack.

## Fix
- Run `raydoctor cancel TASK_ID`. It interrupts the task, even in a sleep or while it waits for a lock, then ends its
  worker if necessary, and prevents a retry.
- For a task, `ray.cancel(ref, force=True)` kills the worker immediately. For an actor method it raises `ValueError`.
- If a coroutine blocks or swallows `CancelledError`, or the method runs in a threaded actor, only killing the actor
  stops it: `raydoctor cancel TASK_ID --kill-actor`. The actor's state is then lost.
- In the task: catch `Exception`, not `BaseException`; wait in small steps; check
  `ray.get_runtime_context().is_canceled()` in loops (Ray 2.54 and later, not in async actors).

## Not this when
- the task ended a little later: a cancel takes effect when a native call returns.
- `ray.get` raises `TaskCancelledError`: the cancel worked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, rule
from raydoctor.case.signals import RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import calls

_T = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"
_M = "80e22aed7718a1257d9363d83b7976ea253c4c2601000000"

CANCELLING = Signal(
    "task.cancel_running", "Cancelling a running task",
    r"^Cancelling a running task (?:with id: |task_id=|.*?task_id=)(?P<task>[0-9a-f]{48})", ("core-worker",),
    f"Cancelling a running task task_id={_T}",
)  # fmt: skip
"""The executor's record: `with id: <task>` in 2.9.3, `task_id=<task>` from 2.40 on."""
CANCELLING_METHOD = Signal(
    "task.cancel_running", "Cancel an actor task",
    r"^Cancel an actor task (?:task_id=)?(?P<task>[0-9a-f]{48})", ("core-worker",),
    f"Cancel an actor task task_id={_M} actor_id={_M[16:]}",
)  # fmt: skip
"""For an actor's method: `<task> for an actor <actor>` in 2.9.3, `task_id=<task> actor_id=<actor>` in 2.60."""

_DOC = "https://docs.ray.io/en/latest/ray-core/tasks.html#cancelling-tasks"


@rule(
    tier="cause",
    severity="error",
    rank=73,
    explains=("task", "waiting"),
    looks_for=(CANCELLING, CANCELLING_METHOD, RAY_EXCEPTION),
)  # fmt: skip
def cancel_ignored(case: Case) -> Iterator[Finding]:
    """One finding for all tasks that kept running after a cancel."""
    workers = {w.id: w for w in calls.busy(case)}
    ignored: dict[str, tuple[Event, calls.Worker]] = {}
    for event in case.of("task.cancel_running"):
        worker = next((workers[e.value] for e in event.source.entities if e.value in workers), None)
        if worker and _kept_running(event, worker):
            ignored.setdefault(event["task"], (event, worker))
    if ignored:
        yield _finding(case, list(ignored.values()))


_SOON = 5.0
"""Seconds within which a task ends if the cancel takes effect."""


def _kept_running(cancel: Event, worker: calls.Worker) -> bool:
    """Whether the worker served the same call before the cancel and long after it."""
    at = worker.event.at
    if at is None or cancel.at is None or not worker.serving:
        return False
    return at - worker.unmoved <= cancel.at <= at - _SOON


def _finding(case: Case, ignored: list[tuple[Event, calls.Worker]]) -> Finding:
    labels = evidence.join_names(w.label for _, w in ignored)
    lasted = min((w.event.at or 0.0) - (c.at or 0.0) for c, w in ignored)
    links = []
    for cancel, worker in ignored[:3]:
        links.append(Link(cancel, f"ray.cancel reached {worker.label} while it ran"))
        links.append(Link(worker.event, f"{worker.label} was still running the same call"))
    return Finding(
        f"ray.cancel did not stop {labels}, still running at least {math.floor(lasted)} s later: {_reason(ignored)}",
        tuple(links),
        explains=(
            *(Entity("task", cancel["task"]) for cancel, _ in ignored),
            *((Entity("waiting", "cluster"),) if _all_cancelled(case, ignored) else ()),
        ),
        subjects=tuple(w.subject for _, w in ignored[:10]),
        count=len(ignored),
        severity="error" if case.of("driver.exception") else "warning",
        remedies=_remedies([(cancel["task"], worker) for cancel, worker in ignored]),
        covers=tuple(cancel for cancel, _ in ignored),
    )  # fmt: skip


def _reason(ignored: list[tuple[Event, calls.Worker]]) -> str:
    if all(worker.actor for _, worker in ignored):
        return "ray.cancel ends only coroutines among the methods of an actor, and only at an await"
    return "the code caught the KeyboardInterrupt, or a blocking call delayed it"


def _all_cancelled(case: Case, ignored: list[tuple[Event, calls.Worker]]) -> bool:
    """Whether no other worker was busy: then a driver waited for these tasks."""
    return {w.id for w in calls.busy(case)} <= {w.id for _, w in ignored}


def _remedies(ignored: list[tuple[str, calls.Worker]]) -> tuple[Remedy, ...]:
    methods = [(task, worker) for task, worker in ignored if worker.actor]
    plain = [(task, worker) for task, worker in ignored if not worker.actor]
    return (*(_for_tasks(plain) if plain else ()), *(_for_methods(methods) if methods else ()))


_SHOWN = 3


def _names(ignored: list[tuple[str, calls.Worker]]) -> str:
    return evidence.join_names(dict.fromkeys(worker.called for _, worker in ignored))


def _for_methods(ignored: list[tuple[str, calls.Worker]]) -> tuple[Remedy, ...]:
    lines = [
        paste.shell(
            "raydoctor cancel {task} --kill-actor      # ends {name} and loses its state"
            if worker.is_async
            else "raydoctor cancel {task}      # {name} keeps its state, with several threads add --kill-actor",
            task=task,
            name=worker.name,
        )
        for task, worker in ignored[:_SHOWN]
    ]
    return (
        Remedy(
            f"End the running calls to {_names(ignored)}, and the actor itself only if nothing else ends them",
            (*lines, "ray.kill(actor)      # from your code: always loses its state"),
            risk="disruptive",
        ),
        Remedy(
            f"Write methods of {_names(ignored)} that you cancel as coroutines",
            ("async def method(self): ...      # a cancel takes effect at an await",),
            doc="https://docs.ray.io/en/latest/ray-core/actors.html#cancelling-actor-tasks",
        ),
    )  # fmt: skip


def _for_tasks(ignored: list[tuple[str, calls.Worker]]) -> tuple[Remedy, ...]:
    names = _names(ignored)
    return (
        Remedy(
            f"Interrupt {names}, and if that fails, kill the worker. Ray does not retry a cancelled task",
            (
                *(
                    paste.shell("raydoctor cancel {task}      # {name}", task=task, name=worker.name)
                    for task, worker in ignored[:_SHOWN]
                ),
                "ray.cancel(ref, force=True)      # from your code: kills the worker of the task immediately",
            ),
            risk="disruptive",
            doc=_DOC,
        ),
        Remedy(
            f"Let {names} react to the interrupt: do not catch BaseException, and wait in short steps",
            (
                "except Exception:                 # not BaseException, not a bare except",
                "for _ in range(600): time.sleep(1)   # instead of time.sleep(600); also set a timeout for sockets and locks",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Or check for cancellation in the loops of {names}",
            ("if ray.get_runtime_context().is_canceled(): return",),
            since=_IS_CANCELED,
            doc=_DOC,
        ),
    )  # fmt: skip


_IS_CANCELED = (2, 54)
"""`runtime_context.py` of 2.54.0 has it, that of 2.53.0 does not."""


# ------------------------------------------------------------------ examples

_W = "a" * 56


def _table(at: str, active: int) -> str:
    return (
        f"[2026-11-21 {at},438 I 401 418] core_worker.cc:591: Event stats:\n\n\nGlobal stats: 822 total (13 active)\n"
        f"\tCoreWorkerService.grpc_server.PushTask - 1 total ({active} active), Execution time: mean = 0.00ms, total = 0.00ms, "
        "Queueing time: mean = 0.00ms, max = -0.00ms, min = 9223372036854.78ms, total = 0.00ms\n"
    )


_CANCEL_METHOD = f"[2026-11-21 10:43:02,073 I 401 421] core_worker.cc:4488: Cancel an actor task task_id={_M} actor_id={_M[16:]}\n"
_COROUTINES = "[2026-11-21 10:42:40,100 I 401 401] core_worker.cc:3310: Setting actor as asyncio with max_concurrency=1000\n"
_CREATED = (
    f"[2026-11-21 10:42:40,101 I 401 401] task_receiver.cc:150: Actor creation task finished, task_id: {_T}, "
    f"actor_id: {_M[16:]}, actor_repr_name: \n"
)
_CANCEL = f"[2026-11-21 10:43:02,073 I 401 421] core_worker.cc:4523: {CANCELLING.sample}\n"


def _files(core: str) -> dict[str, str]:
    return {
        **QUIET_LOGS,
        "driver.log": "cancelled the search\n",
        f"logs/python-core-worker-{_W}_401.log": core,
        f"logs/worker-{_W}-01000000-401.out": ":job_id:01000000\n:task_name:poll\n",
    }


EXAMPLES: tuple[Example, ...] = (
    Example(
        "the task is still running a minute later",
        _files(_table("10:42:54", 1) + _CANCEL + _table("10:43:54", 1)),
        says=(
            "did not stop poll() (pid 401)",
            "at least 52 s",
            "force=True",
            f"raydoctor cancel {_T}",
        ),
        severity="warning",
    ),
    Example(
        "a coroutine keeps running, and only the end of its actor ends it",
        _files(
            _COROUTINES + _CREATED + _table("10:42:54", 1) + _CANCEL_METHOD + _table("10:43:54", 1)
        ),
        says=("ray.kill(actor)", f"raydoctor cancel {_M} --kill-actor"),
        severity="warning",
    ),
    Example(
        "a method of a plain actor: an interrupt ends it, and the actor keeps its state",
        _files(_CREATED + _table("10:42:54", 1) + _CANCEL_METHOD + _table("10:43:54", 1)),
        says=("ends only coroutines", f"raydoctor cancel {_M}      # poll keeps its state"),
        severity="warning",
    ),
    Example(
        "the cancel ended the task",
        _files(_table("10:42:54", 1) + _CANCEL + _table("10:43:54", 0)),
    ),
    Example(
        "the log ends after the cancel: inconclusive",
        _files(_table("10:42:54", 1) + _CANCEL),
    ),
)
