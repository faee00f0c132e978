"""`ray.cancel` reached a running task, and the task kept running.

## What you see
`ray.cancel(ref)` returns at once, as always; `ray.get(ref)` still waits, the worker still holds its CPU. In the
worker's core log: `Cancelling a running task`, and no end behind it.

## Why
Without `force=True` Ray raises `KeyboardInterrupt` in the worker's main thread. It is noticed only between
two steps of Python code: not in `time.sleep`, a lock, a socket, a subprocess or native code, until these return
(measured with Ray 2.60: none of them within six seconds); and `except BaseException:` or a bare `except:`
swallows it. Actor methods that are no coroutines are not interrupted at all.

## Confirm
- `ray list tasks --detail --filter state=RUNNING`: the task is still there.
- `py-spy dump --pid PID` on its node: where it stands.

## Fix
`ray.cancel(ref, force=True)` for a plain task: its worker is killed, whatever it does, and
a cancelled task is not tried again. In the task: catch `Exception`, not
`BaseException`; wait in small steps; ask `ray.get_runtime_context().is_canceled()` in loops (2.54 has it,
2.50 does not).

## Not this when
The task ended a little later: native calls end when they end. `TaskCancelledError` says that it worked.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.model import Entity, Event, Finding, Link, Remedy
from raydoctor.rule import Example, Signal, rule
from raydoctor.rules import _calls as calls
from raydoctor.rules import _evidence as evidence
from raydoctor.signals import RAY_EXCEPTION

_T = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"
_W = "a" * 56

CANCELLING = Signal(
    "task.cancel_running", "Cancelling a running task",
    r"^Cancelling a running task (?:with id: |task_id=|.*?task_id=)(?P<task>[0-9a-f]{48})", ("core-worker",),
    f"Cancelling a running task task_id={_T}",
)  # fmt: skip
"""The executor's record: `with id: <task>` in 2.9.3, `task_id=<task>` from 2.40 on."""

_DOC = "https://docs.ray.io/en/latest/ray-core/tasks.html#cancelling-tasks"
_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"


def _table(at: str, active: int) -> str:
    return (
        f"[2026-11-21 {at},438 I 401 418] core_worker.cc:591: Event stats:\n\n\nGlobal stats: 822 total (13 active)\n"
        f"\tCoreWorkerService.grpc_server.PushTask - 1 total ({active} active), Execution time: mean = 0.00ms, total = 0.00ms, "
        "Queueing time: mean = 0.00ms, max = -0.00ms, min = 9223372036854.78ms, total = 0.00ms\n"
    )


_CANCEL = f"[2026-11-21 10:43:02,073 I 401 421] core_worker.cc:4523: {CANCELLING.sample}\n"


def _files(core: str) -> dict[str, str]:
    return {
        "logs/gcs_server.out": "",
        "logs/raylet.out": "",
        "driver.log": "cancelled the search\n",
        f"logs/python-core-worker-{_W}_401.log": core,
        f"logs/worker-{_W}-01000000-401.out": ":job_id:01000000\n:task_name:poll\n",
    }


@rule(
    tier="cause",
    severity="error",
    rank=73,
    looks_for=(CANCELLING, RAY_EXCEPTION),
    examples=(
        Example(
            "a minute later the task is still there",
            _files(_table("10:42:54", 1) + _CANCEL + _table("10:43:54", 1)),
            roots=("cancel-ignored",),
            says=("poll (pid 401) was cancelled", "at least 52 s", "force=True"),
        ),
        Example(
            "the task ended, as it should",
            _files(_table("10:42:54", 1) + _CANCEL + _table("10:43:54", 0)),
        ),
        Example(
            "cancelled, and the log ends: nothing is known",
            _files(_table("10:42:54", 1) + _CANCEL),
        ),
    ),
)  # fmt: skip
def cancel_ignored(case: Case) -> Iterator[Finding]:
    """One finding for all tasks that went on after they had been cancelled."""
    workers = {w.id: w for w in calls.busy(case)}
    ignored: dict[str, tuple[Event, calls.Worker]] = {}
    for event in case.of("task.cancel_running"):
        worker = next((workers[e.value] for e in event.source.entities if e.value in workers), None)
        if worker and _still_there(event, worker):
            ignored.setdefault(event["task"], (event, worker))
    if ignored:
        yield _finding(case, list(ignored.values()))


_SOON = 5.0
"""Seconds within which a task that heeds a cancel has ended."""


def _still_there(cancel: Event, worker: calls.Worker) -> bool:
    """Whether the same call was being served before the cancel and long after it."""
    at = worker.event.at
    if at is None or cancel.at is None or not worker.serving:
        return False
    return at - worker.unmoved <= cancel.at <= at - _SOON


def _finding(case: Case, ignored: list[tuple[Event, calls.Worker]]) -> Finding:
    labels = evidence.join_names(w.label for _, w in ignored)
    lasted = min((w.event.at or 0.0) - (c.at or 0.0) for c, w in ignored)
    many = len(ignored) > 1
    links = []
    for cancel, worker in ignored[:3]:
        links.append(Link(cancel, f"ray.cancel reached {worker.label} while it ran"))
        links.append(Link(worker.event, f"{worker.label} still served that call later"))
    return Finding(
        f"{labels} {'were' if many else 'was'} cancelled while running and went on for at least {lasted:.0f} s: the "
        f"KeyboardInterrupt that ray.cancel raises was caught or never noticed",
        tuple(links),
        explains=(
            *(Entity("task", cancel["task"]) for cancel, _ in ignored),
            *((Entity("waiting", "cluster"),) if _all_cancelled(case, ignored) else ()),
        ),
        subjects=tuple(w.subject for _, w in ignored[:10]),
        count=len(ignored),
        severity="error" if case.of("driver.exception") else "warning",
        remedies=_remedies(ignored[0][1]),
        covers=tuple(cancel for cancel, _ in ignored),
    )  # fmt: skip


def _all_cancelled(case: Case, ignored: list[tuple[Event, calls.Worker]]) -> bool:
    """Whether nobody else was busy: then it is these that a driver waited for."""
    return {w.id for w in calls.busy(case)} <= {w.id for _, w in ignored}


def _remedies(worker: calls.Worker) -> tuple[Remedy, ...]:
    if worker.actor:
        return (
            Remedy(
                f"Make methods of {worker.name} that are cancelled coroutines, or end the actor",
                ("async def method(self): ...      # await is where a cancel takes effect", "ray.kill(actor)"),
                risk="disruptive",
                doc="https://docs.ray.io/en/latest/ray-core/actors.html#cancelling-actor-tasks",
            ),
        )  # fmt: skip
    return (
        Remedy(
            f"Cancel {worker.name} with force: its worker is killed, whatever it does",
            ("ray.cancel(ref, force=True)", f"kill -9 {worker.pid}      # on its node, if even that has no effect"),
            risk="disruptive",
            doc=_DOC,
        ),
        Remedy(
            f"Let {worker.name} notice it: catch less, wait in small steps",
            (
                "except Exception:                 # not BaseException, not a bare except",
                "for _ in range(600): time.sleep(1)   # instead of time.sleep(600); and a timeout for every socket and lock",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Or ask in {worker.name}'s own loop",
            ("if ray.get_runtime_context().is_canceled(): return",),
            since=_IS_CANCELED,
            doc=_DOC,
        ),
    )  # fmt: skip


_IS_CANCELED = (2, 54)
"""`runtime_context.py` of 2.50.0 lacks it, that of 2.54.0 has it."""
